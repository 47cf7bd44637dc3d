"""Third-party images are pinned by digest, and a script updates the digests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from deploy.pin_images import FILES, OURS, ROOT, images, pinned

OLD, NEW = ("sha256:" + digit * 64 for digit in "ab")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_image_is_pinned(path: Path) -> None:
    """Each reference has a tag for readers and a digest, which decides."""
    for image in images(path.read_text()):
        assert re.fullmatch(r"sha256:[0-9a-f]{64}", image.digest), image.tag
        assert re.fullmatch(r"[a-z/]+:[\w.-]*\d[\w.-]*", image.tag), image.tag


def test_no_image_is_overlooked() -> None:
    """Every line that names an image is checked, in every file that may have one."""
    named = [line for path in FILES for line in path.read_text().splitlines() if "image: " in line]
    ours = [line for line in named if any(image in line for image in OURS)]
    found = [image for path in FILES for image in images(path.read_text())]
    assert len(found) == len(named) - len(ours) + 1  # and the Dockerfile's
    bases = re.findall(r"^FROM (\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert set(bases) <= {"${PYTHON_IMAGE}", "build", "runtime"}
    others = ROOT.joinpath("deploy").rglob("*.y*ml")
    assert {path for path in others if "image: " in path.read_text()} <= set(FILES)


def test_digests_are_updated() -> None:
    """A digest is added or replaced after its tag, and nothing else changes."""
    text = (
        f"image: a/b:1\n  - image: a/b:1.5@{OLD} # why\nARG X_IMAGE=c:1-slim@{OLD}\n"
        "image: switchcraft:local\n"
    )
    assert pinned(text, lambda _: NEW) == (
        f"image: a/b:1@{NEW}\n  - image: a/b:1.5@{NEW} # why\nARG X_IMAGE=c:1-slim@{NEW}\n"
        "image: switchcraft:local\n"
    )
