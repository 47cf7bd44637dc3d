"""How easy the code is to read and to change, in numbers.

    python benchmarks/structure.py            # the tables in ARCHITECTURE.md
    python benchmarks/structure.py --list     # with every finding, to work through

- Sizes, helpers that are referenced once, class names that are defined twice, and riddles, which
  are phrases that a reader has to solve.
- Files that import each other in a circle. Imports in functions count, and so do those that only
  type checkers read.
- Files that name an API, a policy or Redis in their code. Docstrings and comments do not count.
- The path of a routed chat request: our own functions and files that run for it, on every thread of
  a gateway that `switchcraft serve` has started. Its upstream is a sandbox in another process.

Nothing here depends on the folders of the packages.
"""

from __future__ import annotations

import argparse
import ast
import os
import pkgutil
import re
import signal
import statistics
import sys
import tempfile
import threading
import time
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import httpx
import yaml

from benchmarks.load.processes import START_TIMEOUT_S, Program, free_port, running

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "router_service": ROOT / "router_service",
    "training": ROOT / "training" / "switchcraft_training",
}
TREES = {**PACKAGES, "benchmarks": ROOT / "benchmarks", "tests": ROOT / "tests"}
"""Folders whose lines are counted."""
NAMED = {
    "an API": (
        "router_service/apis",
        re.compile(r"^router_service\.apis\.(chat|responses|messages)\b"),
    ),
    "a policy": ("router_service/policies", re.compile(r"^(Threshold|Drift|Utility|Verified)$")),
    "Redis": ("router_service/store", re.compile(r"redis", re.IGNORECASE)),
}
"""What a change should find in few files outside of its folder: the folder, and the names in the
code that say it."""
COMMAND = "router_service.cli:main"
"""The command `switchcraft`, as pyproject.toml names it."""
MODELS = {"one arm is chosen": "switchcraft:fast", "its answer is verified": "switchcraft"}
"""Models of the traced requests."""
READY = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"

# Phrases that a reader has to solve before the sentence makes sense. `[a-z] alone` is "only".
RIDDLES = re.compile(
    r"\b(is|are) none\b|\bof whom\b|\bwhom\b|\bwhat (came|comes|becomes|became|goes|went) of\b"
    r"|\bgoes on\b|\bgo on\b|\bwho is\b|\bwhose own\b|\bknown by\b|[a-z] alone\b(?! (with|in))"
    r"|\bwhoever\b|\bwherever it\b|\bwhere (it|one|that|there|this|nothing|nobody|none|they) "
    r"|\bsays? of\b|\bsaid of\b|\bis told\b|\bare told\b|\btold (of|apart)\b|\bspeaks? against\b"
    r"|\bno ground\b|\blet go of\b|\btakes? note of\b|\bheld (against|by whom)\b|\bcome(s)? of\b"
    r"|^\W*(What|Who|Whether|That) [a-z]+ (is|was|are|has|may|it|they|have|were|do|does)\b"
    r"|\bof its own\b|\bof which\b|\bby itself alone\b|\bas it (was|came|is) (said|asked)\b"
    r"|\bnobody\b|\bwho (asks|asked|holds|has|may|knows)\b",
    re.IGNORECASE,
)

_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """A parsed source file of the package, or of the folder, at `root`."""

    root: Path
    path: Path
    text: str
    tree: ast.Module

    @property
    def place(self) -> str:
        """Path relative to the repository."""
        return self.path.relative_to(ROOT).as_posix()

    @property
    def name(self) -> str:
        """The name by which other files import it."""
        parts = self.path.relative_to(self.root.parent).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def code_names(self) -> Iterator[str]:
        """Yield the names and texts of the code, without docstrings."""
        prose = {id(node.value) for node in ast.walk(self.tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(self.tree):
            for field, value in ast.iter_fields(node):
                if isinstance(value, str) and id(node) not in prose and field != "type_comment":
                    yield value

    def functions(self) -> Iterator[_Function]:
        """Yield every function and method, nested ones included."""
        for node in ast.walk(self.tree):
            if isinstance(node, _Function):
                yield node

    def prose(self) -> Iterator[tuple[int, str]]:
        """Yield the line and text of every docstring, attribute docstring and comment block."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                value = node.value.value
                if isinstance(value, str):
                    yield node.lineno, value
        block: list[str] = []
        first = last = 0
        with self.path.open("rb") as file:
            for token in tokenize.tokenize(file.readline):
                if token.type != tokenize.COMMENT or token.string.startswith("# type:"):
                    continue
                if block and token.start[0] != last + 1:
                    yield first, " ".join(block)
                    block = []
                first, last = (token.start[0] if not block else first), token.start[0]
                block.append(token.string.lstrip("# "))
        if block:
            yield first, " ".join(block)


def load(folder: Path) -> list[Module]:
    """Parse every Python file below a folder."""
    modules = []
    for path in sorted(folder.rglob("*.py")):
        text = path.read_text()
        modules.append(Module(folder, path, text, ast.parse(text)))
    return modules


def single_use_helpers(modules: Sequence[Module]) -> list[str]:
    """Return private functions whose name is referenced exactly once in the package."""
    references: Counter[str] = Counter()
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Name):
                references[node.id] += 1
            elif isinstance(node, ast.Attribute):
                references[node.attr] += 1
    return [
        f"{module.place}:{function.lineno} {function.name}"
        for module in modules
        for function in module.functions()
        if function.name.startswith("_")
        and not function.name.startswith("__")
        and references[function.name] == 1
    ]


def duplicate_classes(modules: Sequence[Module]) -> dict[str, list[str]]:
    """Return public class names that a package defines more than once, with their places."""
    places: dict[str, list[str]] = defaultdict(list)
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(f"{module.place}:{node.lineno}")
    return {name: found for name, found in sorted(places.items()) if len(found) > 1}


def riddles(modules: Sequence[Module]) -> tuple[list[str], int]:
    """Return the docstrings and comments that match `RIDDLES`, and how many there are in all."""
    found, total = [], 0
    for module in modules:
        for line, text in module.prose():
            total += 1
            match = RIDDLES.search(text)
            if match:
                sentence = " ".join(text.split())
                found.append(f"{module.place}:{line} [{match.group().strip()}] {sentence[:110]}")
    return found, total


def lengths(modules: Sequence[Module]) -> tuple[float, int, int]:
    """Return the median, the 90th percentile and the maximum of function lengths, in lines."""
    sizes = sorted(
        (function.end_lineno or function.lineno) - function.lineno + 1
        for module in modules
        for function in module.functions()
    )
    return statistics.median(sizes), sizes[int(0.9 * len(sizes))], sizes[-1]


def circles(modules: Sequence[Module]) -> list[list[Module]]:
    """Return the groups of files of which each imports every other one, directly or not."""
    files = {module.name: module for module in modules}
    imported = {name: set(_imports(module, files)) for name, module in files.items()}
    reached = {name: _reachable(name, imported) for name in files}
    groups = {
        frozenset(other for other in names if name in reached[other])
        for name, names in reached.items()
        if name in names
    }
    return [[files[name] for name in names] for names in sorted(map(sorted, groups))]


def _imports(module: Module, files: Mapping[str, Module]) -> Iterator[str]:
    """Yield the names of the files that a file imports anywhere."""
    package = module.name if module.path.stem == "__init__" else module.name.rpartition(".")[0]
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level]
            start = ".".join(filter(None, (*(above if node.level else ()), node.module)))
            # `from package import name` imports a module of the package, or what the package has.
            names = [
                inner if inner in files else start
                for inner in (f"{start}.{alias.name}" for alias in node.names)
            ]
        else:
            continue
        yield from (name for name in names if name in files and name != module.name)


def _reachable(start: str, imported: Mapping[str, set[str]]) -> set[str]:
    """Return the files that a file imports, directly or not."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        new = imported[waiting.pop()] - found
        found |= new
        waiting += new
    return found


def files_naming(pattern: re.Pattern[str], modules: Sequence[Module]) -> list[Module]:
    """Return the files whose code has a name or a text that matches."""
    return [module for module in modules if any(map(pattern.search, module.code_names()))]


@dataclass(frozen=True)
class RequestPath:
    """What ran for a request: calls of our functions, and the deepest stack of them."""

    calls: Mapping[tuple[str, str], int]
    """Number of calls by file and qualified name."""
    depth: int

    def __str__(self) -> str:
        """Return the figures."""
        files = {path for path, _ in self.calls}
        return (
            f"{sum(self.calls.values())} calls, {len(self.calls)} functions in {len(files)} files,"
            f" {self.depth} frames deep"
        )

    def functions(self) -> list[str]:
        """Return each function's file and name, with its number of calls."""
        return sorted(
            f"{Path(path).relative_to(ROOT)} {name} x{count}"
            for (path, name), count in self.calls.items()
        )


class Tracer:
    """Profile function (`sys.setprofile`) that counts calls of the service's functions."""

    def __init__(self) -> None:
        self._package = str(PACKAGES["router_service"])
        self._is_counting = False

    def begin(self) -> None:
        """Count from now on."""
        self._calls: Counter[tuple[str, str]] = Counter()
        self._deepest = 0
        self._is_counting = True

    def end(self) -> RequestPath:
        """Stop counting; return what has been counted."""
        self._is_counting = False
        return RequestPath(dict(self._calls), self._deepest)

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Count a call, except of comprehensions and lambdas: they are read with what is around."""
        code = frame.f_code
        is_ours = code.co_filename.startswith(self._package)
        if not self._is_counting or event != "call" or not is_ours or code.co_name.startswith("<"):
            return
        self._calls[code.co_filename, code.co_qualname] += 1
        depth = 0
        above: FrameType | None = frame
        # What is above the event loop has started the gateway, and does not handle the request.
        while above is not None and not above.f_code.co_filename.endswith("asyncio/runners.py"):
            depth += above.f_code.co_filename.startswith(self._package)
            above = above.f_back
        self._deepest = max(self._deepest, depth)


def request_paths() -> dict[str, RequestPath]:
    """Return the paths of routed chat requests for `MODELS`, traced in a gateway."""
    tracer, sandbox_port, port = Tracer(), free_port(), free_port()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = (sys.executable, "-m", COMMAND.partition(":")[0], "sandbox", "--port")
        sandbox = Program((*command, str(sandbox_port)), sandbox_port, folder / "sandbox.log", {})
        config = _write_config(folder, f"http://127.0.0.1:{sandbox_port}/v1")
        with running(sandbox, READY), ThreadPoolExecutor(1) as pool:
            traced = pool.submit(_trace_requests, port, tracer)
            traced.add_done_callback(lambda _: os.kill(os.getpid(), signal.SIGTERM))
            threading.setprofile(tracer)  # for threads that start later
            sys.setprofile(tracer)
            try:
                serve = pkgutil.resolve_name(COMMAND)
                serve(["serve", "--config", str(config), "--port", str(port)])
            finally:
                sys.setprofile(None)
                threading.setprofile(None)
            return traced.result()


def _trace_requests(port: int, tracer: Tracer) -> dict[str, RequestPath]:
    """Send the requests to a gateway that is starting, and return their paths.

    Another request comes before each of them, because the first one loads lazily. The traced one
    has another text, so that the model runs and no cache answers.
    """
    paths: dict[str, RequestPath] = {}
    deadline_s = time.monotonic() + START_TIMEOUT_S
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        while not _is_ready(client) and time.monotonic() < deadline_s:
            time.sleep(0.1)
        for title, model in MODELS.items():
            client.post("/v1/chat/completions", json=_body(model, f"Rome, {title}"))
            time.sleep(1)  # what the first request left to do in the background is done
            tracer.begin()
            answer = client.post("/v1/chat/completions", json=_body(model, f"Oslo, {title}"))
            time.sleep(0.1)  # as above, but shorter than the pause between synchronizations
            paths[title] = tracer.end()
            answer.raise_for_status()
    return paths


def _write_config(folder: Path, upstream: str) -> Path:
    """Write a configuration with a model for each arm of the shipped artifact."""
    from router_service import Router  # noqa: PLC0415 - the other figures do not need the service

    models = [
        {
            "model_name": arm,
            "litellm_params": {"model": f"openai/{arm}", "api_base": upstream, "api_key": "none"},
            "model_info": {"base_model": ids[0]},
        }
        for arm, ids in Router.load().artifact.manifest.stands_for.items()
    ]
    path = folder / "gateway.yaml"
    database = {"url": f"sqlite:///{folder / 'switchcraft.db'}"}
    path.write_text(yaml.safe_dump({"model_list": models, "database": database}))
    return path


def _is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/readyz").is_success
    except httpx.TransportError:
        return False


def _body(model: str, city: str) -> dict[str, object]:
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
    tool = {"name": "get_weather", "description": "Current weather.", "parameters": parameters}
    return {
        "model": model,
        "messages": [{"role": "user", "content": f"What is the weather in {city}?"}],
        "tools": [{"type": "function", "function": tool}],
    }


def main() -> None:
    """Print the figures, and with `--list` every finding below them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="print every finding")
    parser.add_argument("--under", default="", help="list findings below this path only")
    parser.add_argument("--no-path", action="store_true", help="skip tracing a request")
    arguments = parser.parse_args()
    listed: list[str] = []
    both: list[Module] = []
    for name, folder in PACKAGES.items():
        modules = load(folder)
        both += modules
        functions = sum(1 for module in modules for _ in module.functions())
        helpers, twice = single_use_helpers(modules), duplicate_classes(modules)
        unclear, prose = riddles(modules)
        median, p90, longest = lengths(modules)
        print(f"{name}: {len(modules)} files, {_lines(modules) / len(modules):.0f} lines a file")
        print(f"  private helpers referenced once: {len(helpers) / functions:.1%} of {functions}")
        print(f"  docstrings and comments with a riddle: {len(unclear) / prose:.1%} of {prose}")
        print(f"  function lines: median {median:.0f}, p90 {p90}, longest {longest}")
        print(f"  public class names defined more than once: {len(twice)}")
        listed += [f"helper  {place}" for place in helpers]
        listed += [f"class   {cls}: {', '.join(places)}" for cls, places in twice.items()]
        listed += [f"riddle  {place}" for place in unclear]
    lines = ", ".join(f"{name} {_lines(load(folder)):,}" for name, folder in TREES.items())
    print(f"Python lines: {lines}")
    groups = circles(both)
    print(
        f"files that import each other in a circle: {sum(map(len, groups))}, groups {len(groups)}"
    )
    listed += [f"circle  {', '.join(module.place for module in group)}" for group in groups]
    for what, (home, pattern) in NAMED.items():
        outside = [module for module in both if not module.place.startswith(f"{home}/")]
        knowing = files_naming(pattern, outside)
        print(f"files outside of {home} that name {what}: {len(knowing)}")
        listed += [f"names   {what}: {module.place}" for module in knowing]
    if not arguments.no_path:
        for title, path in request_paths().items():
            print(f"a routed chat request, {title}: {path}")
            listed += [f"path    {title}: {function}" for function in path.functions()]
    if arguments.list:
        print("\n".join(line for line in listed if arguments.under in line))


def _lines(modules: Sequence[Module]) -> int:
    return sum(module.text.count("\n") for module in modules)


if __name__ == "__main__":
    main()
