"""The pointer: what is written is read, and what is no pointer is refused with the reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from router_service.core.errors import PublicationError
from router_service.core.releases import MAX_POINTER_BYTES, Canary, Publication, Release

RELEASE = Release(name="r", path="r-1", manifest_sha256="ab" * 32, created="2026-01-01T00:00:00Z")
PUBLICATION = Publication(serial=2, stable=RELEASE, canary=Canary(release=RELEASE))


def test_round_trip() -> None:
    """A publication comes back from its JSON as it was."""
    assert Publication.parse(PUBLICATION.to_json(), "here") == PUBLICATION
    assert PUBLICATION.releases == (RELEASE, RELEASE)


def test_a_newer_publishers_fields_are_passed_over() -> None:
    """Publisher and gateway may be of two versions: a field that is unknown is no error."""
    tree = json.loads(PUBLICATION.to_json())
    tree["added_later"] = tree["stable"]["added_later"] = 1
    assert Publication.parse(json.dumps(tree).encode(), "here") == PUBLICATION


@pytest.mark.parametrize(
    "change",
    [
        {"schema_version": 2},
        {"serial": 0},
        {"serial": 10**400},
        {"shadow": RELEASE.model_dump() | {"path": "a\0b"}},
        {"shadow": RELEASE.model_dump() | {"path": "a" * 5000}},
        {"shadow": RELEASE.model_dump() | {"created": "a" * 5000}},
        {"stable": None},
        {"canary": {"release": None}},
        {"canary": {"release": RELEASE.model_dump(), "share": 1.5}},
        {"canary": {"release": RELEASE.model_dump(), "max_cost_ratio": float("inf")}},
        {"shadow": RELEASE.model_dump() | {"manifest_sha256": "short"}},
    ],
)
def test_what_cannot_be_meant_is_refused(change: dict[str, object]) -> None:
    """The error names the place and the field."""
    tree = json.loads(PUBLICATION.to_json()) | change
    with pytest.raises(PublicationError, match=rf"here: is no publication: {next(iter(change))}"):
        Publication.parse(json.dumps(tree).encode(), "here")


def test_a_long_pointer_is_not_read() -> None:
    """What is longer than any pointer is refused before it is parsed."""
    for text in (b" " * MAX_POINTER_BYTES + PUBLICATION.to_json(), b"[" * 10_000_000):
        with pytest.raises(PublicationError, match="has more than 65536 bytes"):
            Publication.parse(text, "here")


@pytest.mark.parametrize("text", [b"", b"{", b"\xff\xfe", b"[]", b"null", b"{}", b"[" * 60_000])
def test_garbage_is_refused(text: bytes) -> None:
    """Half a file, another encoding, another kind of value: an error, not a crash."""
    with pytest.raises(PublicationError, match="is no publication"):
        Publication.parse(text, "here")


def test_a_release_is_a_folder_beside_the_pointer_or_absolute() -> None:
    """A path leads to a sibling of the pointer or to an absolute place, never out of the folder."""
    beside = Path("/publications")
    assert RELEASE.directory(beside) == beside / "r-1"
    elsewhere = RELEASE.model_copy(update={"path": "/volume/r-1"})
    assert elsewhere.directory(None) == elsewhere.directory(beside) == Path("/volume/r-1")
    for path in ("..", ".", "../r-1", "a/b"):
        with pytest.raises(PublicationError, match="neither absolute"):
            RELEASE.model_copy(update={"path": path}).directory(beside)
    with pytest.raises(PublicationError, match="neither absolute"):
        RELEASE.directory(None)


def test_publishing_again_is_another_release() -> None:
    """The same artifact under another time has another key, and the same label."""
    again = RELEASE.model_copy(update={"created": "2026-01-02T00:00:00Z"})
    assert again.label == RELEASE.label
    assert again.key != RELEASE.key
