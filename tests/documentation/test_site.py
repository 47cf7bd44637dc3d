"""The documentation builds without warnings, and what it names, links to and generates exists."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from router_service.settings.values import Settings
from router_service.telemetry.metrics import Metrics
from tests.documentation.documents import ROOT, Document, documents
from tests.documentation.reference import pages

DOCUMENTS = documents()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run `make docs`; return the folder of the site."""
    folder = tmp_path_factory.mktemp("site")
    # The environment is installed; other commands of the tests use it at the same time.
    done = subprocess.run(
        ["make", "--old-file", ".venv/.dev", "docs", f"SITE={folder}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_documentation_builds(site: Path) -> None:
    """`make docs` succeeds: every link, anchor, included file and API reference resolves."""
    assert "make docs" in (ROOT / "CONTRIBUTING.md").read_text()
    for page in ("configuration", "results", "project/contributing"):
        assert (site / page / "index.html").is_file()


def anchors(document: Document) -> Iterator[str]:
    """Yield the anchors that GitHub gives to a document's headings."""
    counts: dict[str, int] = {}
    for heading in re.findall(r"^#+ +(.*?) *$", document.prose, re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        counts[slug] = counts.get(slug, 0) + 1
        yield slug if counts[slug] == 1 else f"{slug}-{counts[slug] - 1}"
    yield from re.findall(r'<a id="([^"]+)">', document.text)


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_links_work_on_github(document: Document) -> None:
    """Relative links lead to files of the repository, and their anchors to headings."""
    by_path = {each.path: each for each in DOCUMENTS}
    broken = []
    for target, anchor in re.findall(r"\]\(([^)\s#]*)(#[^)\s]*)?\)", document.prose):
        if ":" in target:
            continue
        path = (document.path.parent / target).resolve() if target else document.path
        is_known = not anchor or path not in by_path or anchor[1:] in anchors(by_path[path])
        if not (path.exists() and is_known):
            broken.append(target + anchor)
    assert not broken


SECTIONS = frozenset(
    "router server upstreams keys database usage budgets decision_log tracing logging".split()
)


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_settings_exist(document: Document) -> None:
    """Settings of our sections that the text names, such as `router.chat_model`, exist."""
    if document.path.name in {"CHANGELOG.md", "ARCHITECTURE.md"}:
        return  # which name earlier settings, and attributes of classes
    unknown = []
    for span in document.inline_code:
        section, _, rest = span.partition(".")
        if section in SECTIONS and re.fullmatch(r"[a-z_]+(\.[a-z_]+)*", rest):
            value: object = Settings.model_fields[section].annotation
            for name in rest.split("."):
                fields = getattr(value, "model_fields", None)
                if fields is None:  # a mapping, whose names are free
                    break
                if name not in fields:
                    unknown.append(span)
                    break
                value = fields[name].annotation
    assert not unknown


HEADERS = re.compile(r"x-switchcraft-[a-z-]*[a-z]")


def test_headers_exist() -> None:
    """The gateway's code has the headers that the documents name."""
    source = {
        header
        for path in (ROOT / "router_service").rglob("*.py")
        for header in HEADERS.findall(path.read_text())
    }
    for document in DOCUMENTS:
        named = {name for span in document.inline_code for name in HEADERS.findall(span)}
        assert not {name for name in named if not any(name in each for each in source)}, document
    page = (ROOT / "docs" / "api.md").read_text()
    described = HEADERS.findall((ROOT / "router_service" / "http" / "schemas.py").read_text())
    assert not {header for header in described if header not in page}, "missing in docs/api.md"


def test_metrics_exist() -> None:
    """The gateway has the series that the documents name; `*` stands for any end of a name."""
    names = [series.name for series in Metrics.series().values()]
    suffixes = ("", "_bucket", "_sum", "_count")
    known = {f"{name}{suffix}" for name in names for suffix in suffixes}
    for document in DOCUMENTS:
        if document.path.name == "CHANGELOG.md":
            continue  # which names earlier series
        for span in document.inline_code:
            for name, wildcard in re.findall(r"^(switchcraft_[a-z_]+)(\*?)", span):
                is_known = (
                    any(each.startswith(name) for each in known) if wildcard else name in known
                )
                assert is_known or name == "switchcraft_training", f"{document}: {span}"


def test_architecture_names_files_that_exist() -> None:
    """Every file that ARCHITECTURE.md names exists; names are relative to their package."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    roots = (ROOT, ROOT / "router_service", ROOT / "training" / "switchcraft_training")
    named = set(re.findall(r"(?<![\w./])[\w.]+(?:/[\w.]+)+/?|\b\w+\.py\b", text))
    named = {name for name in named if name.endswith((".py", ".md", "/"))}
    assert len(named) > 20
    missing = [name for name in named if not any((root / name).exists() for root in roots)]
    assert not missing


@pytest.mark.parametrize("name", pages())
def test_page_is_up_to_date(name: str) -> None:
    """The file is the one that `python -m tests.documentation.reference` writes."""
    assert (ROOT / "docs" / name).read_text() == pages()[name]
