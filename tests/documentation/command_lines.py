"""Check command lines without running them: our programs, their options, targets and paths."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence

from cyclopts import App, CycloptsError

from router_service.cli.commands import app as switchcraft
from switchcraft_training.cli import app as training
from tests.documentation.documents import ROOT

OWN_FOLDERS = (
    "benchmarks/", "deploy/", "docs/", "examples/", "requirements/", "router_service/", "tests/",
    "training/", "./benchmarks/", "./deploy/", "./examples/",
)  # fmt: skip
OWN_MODULES = ("router_service", "tests", "benchmarks", "deploy")

_CONFIGS = ROOT / "training" / "switchcraft_training"
_WORD = r"""[ \t]+(?:'[^']*'|"[^"]*"|[^\s;&|()#<>'"]+)"""
_COMMAND = re.compile(
    r"(?:^|[;&|(]|\bdo\b|\bthen\b)[ \t]*(?:\w+=\S*[ \t]+)*(?:[^\s()]*/)?"
    rf"(switchcraft|switchcraft-train|make|python3?)((?:{_WORD})*)",
    re.MULTILINE,
)


def problems(script: str) -> Iterator[str]:
    """Yield what is wrong with the commands of a script that run our programs."""
    script = re.sub(r"\\\n", " ", re.sub(r"^\s*#.*$", "", script, flags=re.MULTILINE))
    for program, words in _COMMAND.findall(script):
        # What the shell writes in place of a substitution or a placeholder is any word.
        text = re.sub(r"\$\w+|\$\{\w+\}", "SUBSTITUTED", words)
        yield from _CHECKS[program](shlex.split(text))
    for path in re.findall(r"(?<![\w/.])(?:\./)?[\w.-]+/[\w./-]+", script):
        if path.startswith(OWN_FOLDERS) and not (ROOT / path).exists():
            yield f"{path} does not exist"
        if path.startswith("configs/") and not (_CONFIGS / path).exists():
            yield f"{path} is not a shipped configuration"


def _cyclopts(app: App) -> Callable[[Sequence[str]], Iterator[str]]:
    def check(arguments: Sequence[str]) -> Iterator[str]:
        try:
            # A number cannot be read from the placeholder of a number.
            app.parse_args(["1" if word == "N" else word for word in arguments])
        except CycloptsError as exc:
            yield f"{app.name[0]} {shlex.join(arguments)}: {exc}"

    return check


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
    """Yield modules that do not exist, and options that a script of the repository lacks."""
    match arguments:
        case ["-m", module, *options] if module.partition(".")[0] in OWN_MODULES:
            path = module.replace(".", "/")
            found = [
                each for each in (f"{path}.py", f"{path}/__main__.py") if (ROOT / each).exists()
            ]
            if not found:
                yield f"the module {module} does not exist"
                return
            script = found[0]
        case [script, *options] if script.startswith(OWN_FOLDERS) and (ROOT / script).is_file():
            pass
        case _:
            return
    text = (ROOT / script).read_text()
    for option in options:
        name = option.partition("=")[0]
        is_known = name == "--help" or f'"{name}"' in text or "app(" in text
        if name.startswith("--") and not is_known:
            yield f"{script} has no option {name}"


_CHECKS: Mapping[str, Callable[[Sequence[str]], Iterator[str]]] = {
    "switchcraft": _cyclopts(switchcraft),
    "switchcraft-train": _cyclopts(training),
    "make": _make,
    "python": _python,
    "python3": _python,
}
