"""The repository's documents, their code blocks, and the marks that say how a block is checked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]

SHELL = frozenset({"sh", "shell", "bash"})

_FENCE = re.compile(
    r"^(?P<indent> *)(?P<fence>```+|~~~+)(?P<info>[^\n]*)\n(?P<text>.*?)^(?P=indent)(?P=fence) *$",
    re.MULTILINE | re.DOTALL,
)
_COMMENT = re.compile(r"<!--\s*(.*?)\s*-->", re.DOTALL)
_MARK = re.compile(r"(not run|not checked|run by|file|output|configuration)(?:: *(.+))?", re.DOTALL)
_PAGE_MARK = re.compile(r"blocks are (not run|run by): *(.+)", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A code block with the mark before it."""

    page: Path
    line: int
    language: str
    text: str
    mark: str = ""
    """`not run`, `not checked`, `run by`, `file`, `output`, `configuration`, or empty."""
    argument: str = ""
    """What the mark says after its colon: a reason, the path of a test, or a file's name."""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def is_shell(self) -> bool:
        """Whether the block has command lines."""
        return self.language in SHELL

    @property
    def is_at_commit(self) -> bool:
        """Whether the block says that it belongs to an earlier version."""
        return self.text.startswith("# at commit ")

    @property
    def file_name(self) -> str:
        """Return the name of the file whose content the block shows, or an empty text.

        The mark `file` names it, or a comment in the block's first line.
        """
        if self.mark == "file":
            return self.argument
        named = re.match(r"# ([\w-]+\.(?:ya?ml|toml))\b", self.text)
        return named[1] if named else ""


@dataclass(frozen=True)
class Document:
    """A Markdown file of the repository."""

    path: Path

    def __str__(self) -> str:
        return str(self.path.relative_to(ROOT))

    @cached_property
    def text(self) -> str:
        """Return the file's text."""
        return self.path.read_text()

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """Return the code blocks in their order."""
        return tuple(self._blocks())

    @cached_property
    def prose(self) -> str:
        """Return the text without code blocks and comments."""
        return _COMMENT.sub("", _FENCE.sub("", self.text))

    @property
    def inline_code(self) -> list[str]:
        """Return the code spans of the prose, each on one line."""
        return [" ".join(span.split()) for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", self.prose)]

    def _blocks(self) -> Iterator[Block]:
        page_mark, page_argument = "", ""
        for comment in _COMMENT.findall(self.text):
            if found := _PAGE_MARK.fullmatch(comment):
                page_mark, page_argument = found[1], " ".join(found[2].split())
        for found in _FENCE.finditer(self.text):
            mark, argument = "", ""
            before = self.text[: found.start()].rstrip()
            if before.endswith("-->"):
                comment = _COMMENT.findall(before)[-1]
                if given := _MARK.fullmatch(comment):
                    mark, argument = given[1], " ".join((given[2] or "").split())
            language = found["info"].split(" ")[0].strip()
            if not mark and language in SHELL | {"python"}:
                mark, argument = page_mark, page_argument
            indent = found["indent"]
            text = re.sub(rf"^{indent}", "", found["text"], flags=re.MULTILINE)
            line = self.text.count("\n", 0, found.start()) + 1
            yield Block(self.path, line, language, text, mark, argument)


def documents() -> list[Document]:
    """Return all Markdown files of the repository that people read, except those of tests."""
    folders = ("*", "docs/**/*", "deploy/**/*", "benchmarks/*", "examples/**/*", "training/**/*")
    return [Document(path) for folder in folders for path in sorted(ROOT.glob(f"{folder}.md"))]
