"""Read a YAML file with the line of every setting, and refuse what YAML would silently accept."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from router_service.apis.conversation import Json
from router_service.core.errors import ConfigError, ConfigProblem

MAX_NODES = 100_000
"""Largest number of values in a file. Aliases may repeat values exponentially; the settings of
1,000 deployments have about 10,000 values."""

_QUOTED = re.compile(r"(alias|anchor|tag|handle) ['\"].*", re.DOTALL)
"""Quote from the file in an error message of PyYAML. It is removed, because it may be an API key
that starts with `!` or `*`."""

_MERGE = "tag:yaml.org,2002:merge"


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """The content of a YAML file."""

    source: str
    """The file's path, for messages."""
    tree: Mapping[str, Json]
    lines: Mapping[str, int]
    """The line of each setting, from 1, by its dotted path."""
    repeated: tuple[ConfigProblem, ...] = ()
    """A problem for each name that a mapping has twice. YAML parsers keep the last one silently."""

    def error(self, problems: Iterable[ConfigProblem]) -> ConfigError:
        """Return the error with these problems, sorted by their lines."""
        located = [replace(p, line=p.line or line_of(p.where, self.lines)) for p in problems]
        located.sort(key=lambda problem: problem.line or 0)
        return ConfigError(self.source, problems=located)


class _Loader(yaml.SafeLoader):
    """YAML's safe loader, but an error about an unusable value has a line number."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Json:
        """Return a node's value; raise ConstructorError."""
        try:
            return super().construct_object(node, deep=deep)
        except (ValueError, AttributeError, KeyError, TypeError) as exc:
            problem = "the value does not fit its type, such as the date 2001-99-99; quote it"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from exc


def line_of(where: str, lines: Mapping[str, int]) -> int | None:
    """Return the line of a setting, or of the innermost mapping that should have it."""
    while where and where not in lines:
        where = where.rpartition(".")[0]
    return lines.get(where)


def read_file(path: Path) -> ConfigFile:
    """Return the content of a YAML file, which must be a mapping; raise ConfigError."""
    source = str(path)

    def error(problem: str, line: int | None = None) -> ConfigError:
        return ConfigError(source, problems=[ConfigProblem("", problem, line)])

    lines: dict[str, int] = {}
    repeated: list[ConfigProblem] = []
    try:
        loader = _Loader(path.read_bytes())
        try:
            root = loader.get_single_node()
            tree = None if root is None else _construct(loader, root, lines, repeated)
        finally:
            loader.dispose()
    except OSError as exc:
        raise error(f"cannot be read: {exc.strerror}; check the path") from exc
    except yaml.MarkedYAMLError as exc:
        problem = _QUOTED.sub(r"\1; quote a text that starts with *, & or !", exc.problem or "")
        line = exc.problem_mark.line + 1 if exc.problem_mark else None
        raise error(f"is not valid YAML: {problem}", line) from exc
    except yaml.YAMLError as exc:
        raise error("is not valid YAML; save it as UTF-8 text") from exc
    except RecursionError as exc:
        raise error("is nested too deeply; flatten it") from exc
    except (ValueError, OverflowError) as exc:  # PyYAML's scanner raises these too
        problem = "is not valid YAML: the number in an escape or a version is too large; correct it"
        raise error(problem) from exc
    if not isinstance(tree, dict):
        raise error("must be a mapping of sections; add a model_list")
    count, waiting = 0, [tree]
    while waiting and count <= MAX_NODES:  # the limit ends the loop if a tree contains itself
        value = waiting.pop()
        inner = list(value.values()) if isinstance(value, dict) else value
        if isinstance(inner, list):
            count += len(inner)
            waiting.extend(inner)
    if count > MAX_NODES:
        raise error(
            f"has more than {MAX_NODES:,} values, counting each use of an alias (*name); use fewer "
            "aliases"
        )
    return ConfigFile(source, tree, lines, tuple(repeated))


def _construct(
    loader: _Loader, root: yaml.Node, lines: dict[str, int], repeated: list[ConfigProblem]
) -> Json:
    """Return the value of a node; note the lines of all settings, and repeated names.

    What an alias repeats is noted only once, because aliases may repeat exponentially or for ever.
    """
    waiting: list[tuple[str, yaml.Node]] = [("", root)]
    seen: set[int] = set()
    while waiting:
        path, node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        prefix = f"{path}." if path else ""
        if isinstance(node, yaml.SequenceNode):
            inner = [(str(index), item) for index, item in enumerate(node.value)]
            for name, item in inner:
                lines[prefix + name] = item.start_mark.line + 1
        elif isinstance(node, yaml.MappingNode):
            inner, own = [], set()
            for key, value in node.value:
                if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
                    continue
                where, line = prefix + key.value, key.start_mark.line + 1
                if key.value in own:
                    problem = f"is set twice, first in line {lines[where]}; merge the two"
                    repeated.append(ConfigProblem(where, problem, line))
                own.add(key.value)
                lines.setdefault(where, line)
                inner.append((key.value, value))
        else:
            continue
        waiting += [(prefix + name, item) for name, item in inner]
    return loader.construct_document(root)
