"""Hooks of MkDocs: the repository's other documents are pages of the site, and their links work.

On GitHub, a page of `docs/` links to `../benchmarks/RESULTS.md`, and README to `docs/faq.md`. The
site has the pages of `PAGES` beside those of `docs/`. Links between them are rewritten. A link to a
file that is no page, such as a source file, leads to the repository if `repo_url` is set in
mkdocs.yml; otherwise only its text remains.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]

PAGES: Mapping[str, str] = {
    "ARCHITECTURE.md": "project/architecture.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "README.md": "index.md",
    "SECURITY.md": "security.md",
    "benchmarks/DETAILS.md": "results-details.md",
    "benchmarks/RESULTS.md": "results.md",
    "deploy/RUNBOOK.md": "runbook.md",
    "training/EXPERIMENTS.md": "experiments.md",
    "training/switchcraft_training/checking/README.md": "reference/checker.md",
}
"""Address in the site of each document outside of `docs/`; README's is that of the home page."""

_PLACES = {page: source for source, page in PAGES.items() if source != "README.md"}
_LINK = re.compile(r"(?P<start>\[(?P<text>[^\]]*)\]\()(?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")
_CODE_BLOCK = re.compile(r"^( *)(```+|~~~+).*?^\1\2 *$", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the documents outside of `docs/`, and the images that they show."""
    for page, source in _PLACES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    for image in sorted((ROOT / "benchmarks" / "plots").glob("*.svg")):
        name = f"images/{image.name}"
        files.append(File.generated(config, name, abs_src_path=str(image)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite the links of a page to those that work in the site."""
    place = page.file.src_uri
    folder = posixpath.dirname(_PLACES.get(place, f"docs/{place}"))

    def rewritten(link: re.Match[str]) -> str:
        target, anchor = link["target"], link["anchor"] or ""
        if ":" in target:
            return link[0]
        path = posixpath.normpath(posixpath.join(folder, target))
        inside = PAGES.get(path, path.removeprefix("docs/"))
        if path.startswith("benchmarks/plots/"):
            inside = f"images/{posixpath.basename(path)}"
        if files.get_file_from_path(inside) is not None:
            relative = posixpath.relpath(inside, posixpath.dirname(place) or ".")
            return f"{link['start']}{relative}{anchor})"
        if not (ROOT / path).exists():
            return link[0]  # which the strict build reports
        if config.repo_url:
            kind = "tree" if (ROOT / path).is_dir() else "blob"
            return f"{link['start']}{config.repo_url.rstrip('/')}/{kind}/main/{path}{anchor})"
        return link["text"]

    parts: list[str] = []
    end = 0
    for code in _CODE_BLOCK.finditer(markdown):
        parts += [_LINK.sub(rewritten, markdown[end : code.start()]), code[0]]
        end = code.end()
    return "".join((*parts, _LINK.sub(rewritten, markdown[end:])))
