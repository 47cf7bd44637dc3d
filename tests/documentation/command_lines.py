"""Check command lines without running them: programs, commands, options, targets and paths."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import yaml
from cyclopts import App, CycloptsError

from router_service.cli.commands import app as switchcraft
from switchcraft_training.cli import app as training
from tests.documentation.documents import ROOT

EXTERNAL = frozenset(
    """
    accelerate alias apt-get awk brew cat cd claude codex cp echo exit export git goose grep head
    helm journalctl jq kill kustomize ls mkdir mutmut mv npm npx node opencode openssl
    pg_dump pg_restore printf psql ray rm sed set sleep sort source sqlite3 systemctl tail tee test
    trap true uniq unset uv uvx wait wc xargs
    """.split()
)
"""Programs that are not ours, whose arguments are not checked."""

PREFIXES = frozenset("exec nice sudo time env nohup timeout do then else if while until !".split())
"""Words in front of a command: keywords of the shell, and programs that run another program."""

OWN_FOLDERS = (
    "benchmarks/", "deploy/", "docs/", "examples/", "requirements/", "router_service/", "tests/",
    "training/", "./benchmarks/", "./deploy/", "./examples/",
)  # fmt: skip

_WORD = (
    r"""(?:'[^']*'|"(?:\\.|[^"\\])*"|\$\((?:'[^']*'|"[^"]*"|[^()'"])*\)|\\.|[^\s|&;<>()'"\\])+"""
)
_TOKEN = re.compile(
    rf"(?P<space>[ \t]+|\\\n)|(?P<comment>\#[^\n]*)|(?P<redirect>\d*(?:<<<|>>|<|>)&?)"
    rf"|(?P<end>&&|\|\||[|&;\n()])|(?P<word>{_WORD})"
)
_SUBSTITUTION = re.compile(r"""\$\(((?:'[^']*'|"[^"]*"|[^()'"])*)\)""")
_HERE_DOCUMENT = re.compile(r"<<-?'?(\w+)'?(.*?)\n.*?^\1$", re.DOTALL | re.MULTILINE)
_FUNCTION = re.compile(r"^(\w+)\(\) *\{ *(.*); *\}$", re.MULTILINE)
_ASSIGNMENT = re.compile(r"\w+=")
_PLACEHOLDER = re.compile(r"\.\.\.|…|[A-Z][A-Z_]*(/\S*)?|<.*>")


@dataclass
class Shell:
    """The functions and aliases that earlier blocks of a page have defined."""

    functions: dict[str, str] = field(default_factory=dict)

    def problems(self, script: str) -> Iterator[str]:
        """Yield what is wrong with the commands of a script."""
        script = _HERE_DOCUMENT.sub(r"\2", script)
        for name, body in _FUNCTION.findall(script):
            self.functions[name] = body  # which is checked with the arguments of each call
        script = _FUNCTION.sub("", script)
        for name, body in re.findall(r"^alias (\w+)='([^']*)'", script, re.MULTILINE):
            self.functions[name] = f'{body} "$@"'
        for command in _commands(script):
            yield from self.problems_of(command)

    def problems_of(self, words: Sequence[str]) -> Iterator[str]:
        """Yield what is wrong with one command, given as words with their quotes."""
        for word in words:
            for inner in _SUBSTITUTION.findall(word):
                yield from self.problems(inner)
        words = [*words]
        while words and (words[0] in PREFIXES or _ASSIGNMENT.match(words[0])):
            prefix = words.pop(0)
            while prefix in PREFIXES and words and re.match(r"-|\d+[smh]?$", words[0]):
                words.pop(0)
        if not words or words[0] in {"{", "}", "done", "fi", "for"}:
            return
        name = words[0]
        if name in self.functions:
            body = self.functions[name].replace('"$@"', " ".join(words[1:]))
            if not re.match(rf"{name}\b", body):
                yield from Shell({k: v for k, v in self.functions.items() if k != name}).problems(
                    body
                )
            return
        yield from problems_of_command([_unquoted(word) for word in words])


def _commands(script: str) -> Iterator[list[str]]:
    """Yield the words of each simple command; comments and redirections are left out."""
    words: list[str] = []
    skips_word = False
    place = 0
    while place < len(script):
        token = _TOKEN.match(script, place)
        if token is None:
            raise ValueError(f"cannot read {script[place : place + 40]!r}")
        place = token.end()
        if token["end"]:
            yield words
            words = []
        elif token["redirect"]:
            skips_word = True
        elif token["word"]:
            if not skips_word:
                words.append(token["word"])
            skips_word = False
    yield words


def _unquoted(word: str) -> str:
    try:
        return "".join(shlex.split(_SUBSTITUTION.sub("SUBSTITUTED", word)))
    except ValueError:
        return word


def problems_of_command(words: Sequence[str]) -> Iterator[str]:
    """Yield what is wrong with one command of a program."""
    program = re.sub(r"^(\S*/)?(\.venv/|switchcraft/)bin/", "", words[0])
    arguments = [*words[1:]]
    if program in {"sh", "bash"} and arguments and arguments[0] == "-n":
        arguments.pop(0)
    if "--" in arguments and program in EXTERNAL:
        yield from problems_of_command(arguments[arguments.index("--") + 1 :])
        arguments = arguments[: arguments.index("--")]
    if program in EXTERNAL and "-m" in arguments:
        yield from _python(arguments[arguments.index("-m") :])
        return
    for argument in (program, *arguments):
        path = argument.partition("=")[2] if argument.startswith("-") else argument
        if path.startswith(OWN_FOLDERS) and not (ROOT / path.partition("::")[0]).exists():
            yield f"{path} does not exist"
        if path.startswith("configs/") and not (_CONFIGS / path).exists():
            yield f"{path} is not a shipped configuration"
    if program.startswith(OWN_FOLDERS):
        yield from _script(program, arguments)
    elif program in _CHECKS:
        yield from _CHECKS[program](arguments)
    elif program not in EXTERNAL:
        yield (
            f"the program {program!r} is unknown; correct its name, or add it to EXTERNAL in "
            "tests/documentation/command_lines.py"
        )


_CONFIGS = ROOT / "training" / "switchcraft_training"


def _cyclopts(app: App) -> Callable[[Sequence[str]], Iterator[str]]:
    def problems(arguments: Sequence[str]) -> Iterator[str]:
        try:
            # A number cannot be read from the placeholder of a number.
            app.parse_args(["1" if word == "N" else word for word in arguments])
        except CycloptsError as exc:
            yield f"{app.name[0]} {shlex.join(arguments)}: {exc}"

    return problems


def _make(arguments: Sequence[str]) -> Iterator[str]:
    text = (ROOT / "Makefile").read_text()
    targets = {
        name
        for names in re.findall(r"^([\w$().-][^:=\n]*):(?!=)", text, re.MULTILINE)
        for name in names.split()
    }
    for argument in arguments:
        name, is_variable, _ = argument.partition("=")
        if is_variable:
            if not re.search(rf"\$\({name}\)|^{name} *\??=", text, re.MULTILINE):
                yield f"the Makefile has no variable {name}"
        elif not argument.startswith("-") and argument not in targets:
            yield f"the Makefile has no target {argument!r}"


def _python(arguments: Sequence[str]) -> Iterator[str]:
    match arguments:
        case ["-m", "pip", *rest]:
            yield from _pip(rest)
        case ["-m", "pytest", *rest]:
            yield from _pytest(rest)
        case ["-m", "router_service.cli" | "router_service", *rest]:
            yield from _cyclopts(switchcraft)(rest)
        case ["-m", "switchcraft_training.cli", *rest]:
            yield from _cyclopts(training)(rest)
        case ["-m", module, *rest]:
            path = module.replace(".", "/")
            found = [ROOT / f"{path}.py", ROOT / path / "__main__.py"]
            if module.partition(".")[0] not in {"router_service", "tests", "benchmarks", "deploy"}:
                return
            if not any(each.exists() for each in found):
                yield f"the module {module} does not exist"
            else:
                yield from _script(str(next(p for p in found if p.exists())), rest)
        case [script, *rest] if script.endswith(".py"):
            if script.startswith(OWN_FOLDERS):
                yield from _script(script, rest)


def _script(script: str, options: Sequence[str]) -> Iterator[str]:
    """Yield the options that a script of the repository does not have."""
    path = ROOT / script
    if not path.is_file():
        return
    text = path.read_text()
    for other in re.findall(r"\bbenchmarks/\w+\.py\b", text) if path.suffix == ".sh" else ():
        text += (ROOT / other).read_text()
    for option in options:
        name = option.partition("=")[0]
        if name.startswith("--") and name != "--help" and f'"{name}"' not in text:
            yield f"{script} has no option {name}"


def _pip(arguments: Sequence[str]) -> Iterator[str]:
    known = _PROJECT["optional-dependencies"]
    for argument in arguments:
        extras = re.match(r"(?:switchcraft-router|\.)\[([^\]]*)\]", argument)
        missing = set(re.split(r", *", extras[1])) - known.keys() if extras else set()
        if missing - {"..."}:
            yield f"the package has no extra {', '.join(sorted(missing))}"


_PROJECT: Mapping[str, Mapping[str, object]] = tomllib.loads((ROOT / "pyproject.toml").read_text())[
    "project"
]


def _pytest(arguments: Sequence[str]) -> Iterator[str]:
    for argument in arguments:
        if argument.startswith("tests") and not (ROOT / argument.partition("::")[0]).exists():
            yield f"{argument} does not exist"


def _docker(arguments: Sequence[str]) -> Iterator[str]:
    if arguments[:1] == ["build"]:
        stages = re.findall(r"^FROM .* AS (\w+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
        for name, value in pairwise(arguments):
            if name == "--target" and value not in stages:
                yield f"the Dockerfile has no stage {value!r}"
    if arguments[:1] != ["compose"]:
        return
    files = [v for n, v in pairwise(arguments) if n in {"-f", "--file"}]
    profiles: set[str] = set()
    for file in files or ["docker-compose.yml"]:
        if not (ROOT / file).is_file():
            yield f"{file} does not exist"
            continue
        for service in yaml.safe_load((ROOT / file).read_text())["services"].values():
            profiles |= set((service or {}).get("profiles", ()))
    for name, value in pairwise(arguments):
        if name == "--profile" and value not in profiles:
            yield f"docker-compose.yml has no profile {value!r}"


def _kubectl(arguments: Sequence[str]) -> Iterator[str]:
    for name, value in pairwise(arguments):
        is_folder = (ROOT / value / "kustomization.yaml").is_file()
        if name in {"-k", "--kustomize"} and not (is_folder or _PLACEHOLDER.fullmatch(value)):
            yield f"{value} has no kustomization.yaml"


def _nothing(_: Sequence[str]) -> Iterator[str]:
    yield from ()


def _shell(arguments: Sequence[str]) -> Iterator[str]:
    if arguments and arguments[0].startswith(OWN_FOLDERS):
        yield from _script(arguments[0], arguments[1:])


_CHECKS: Mapping[str, Callable[[Sequence[str]], Iterator[str]]] = {
    "switchcraft": _cyclopts(switchcraft),
    "switchcraft-train": _cyclopts(training),
    "make": _make,
    "python": _python,
    "python3": _python,
    "pip": _pip,
    "pytest": _pytest,
    "docker": _docker,
    "kubectl": _kubectl,
    "curl": _nothing,
    "sh": _shell,
    "bash": _shell,
}
