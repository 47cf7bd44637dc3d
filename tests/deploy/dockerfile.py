"""Reader of Dockerfiles, stage by stage, so that tests can run the steps without an engine."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

_FLAG = re.compile(r"--\w+=\S+\s+")


@dataclass
class Stage:
    """One stage: its instructions with their arguments, without flags."""

    name: str
    base: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def all(self, instruction: str) -> list[str]:
        """Return the arguments of all instructions of a kind."""
        return [argument for name, argument in self.steps if name == instruction]

    def only(self, instruction: str) -> str:
        """Return the argument of the only instruction of a kind."""
        (argument,) = self.all(instruction)
        return argument

    def variables(self) -> dict[str, str]:
        """Return the variables that its ENV instructions set."""
        pairs = (pair for line in self.all("ENV") for pair in shlex.split(line))
        return dict(pair.split("=", 1) for pair in pairs)


def stages(path: Path) -> dict[str, Stage]:
    """Return a file's stages by name."""
    text = re.sub(r"\\\n\s*", " ", re.sub(r"^#.*\n", "", path.read_text(), flags=re.MULTILINE))
    found: dict[str, Stage] = {}
    for line in filter(None, text.splitlines()):
        instruction, _, argument = line.partition(" ")
        if instruction == "FROM":
            base, _, name = argument.partition(" AS ")
            current = found[name] = Stage(name, base)
        elif found:
            current.steps.append((instruction, _FLAG.sub("", argument).strip()))
    return found
