"""Pin third-party images by digest, or check that their tags still name those digests.

`python deploy/pin_images.py --check` exits with status 1 if a tag names another digest;
`python deploy/pin_images.py` writes the new digests. Both need access to the registries, and
`docker buildx` or `crane`.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILES = (
    ROOT / "Dockerfile",
    ROOT / "docker-compose.yml",
    *sorted((ROOT / "deploy" / "compose").rglob("*.yaml")),
    *sorted((ROOT / "deploy" / "kubernetes").rglob("*.yaml")),
)
OURS = ("switchcraft:local", "switchcraft:gpu")
"""The images that this repository builds; deployments replace them by a name and a digest."""

_REFERENCE = re.compile(r"(?:^ARG \w+_IMAGE=|^\s*(?:- )?image: *)([^\s#]+)", re.MULTILINE)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")

Resolve = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Image:
    """A reference to an image: its tag, and the digest it is pinned to, or an empty string."""

    tag: str
    digest: str


def images(text: str) -> Iterator[Image]:
    """Yield the third-party images of a file."""
    for reference in _REFERENCE.findall(text):
        tag, _, digest = reference.partition("@")
        if tag not in OURS:
            yield Image(tag, digest)


def pinned(text: str, resolve: Resolve) -> str:
    """Return a file's text with the current digest of each tag."""
    for image in images(text):
        old = f"{image.tag}@{image.digest}" if image.digest else image.tag
        text = re.sub(rf"{re.escape(old)}(?![\w@.-])", f"{image.tag}@{resolve(image.tag)}", text)
    return text


def resolve_at_registry(tag: str) -> str:
    """Return the digest of a tag's platform index from its registry.

    Raise RuntimeError if the registry cannot be queried.
    """
    if shutil.which("docker"):
        command = [
            "docker",
            "buildx",
            "imagetools",
            "inspect",
            tag,
            "--format",
            "{{json .Manifest}}",
        ]
    elif shutil.which("crane"):
        command = ["crane", "digest", tag]
    else:
        raise RuntimeError("install docker with buildx, or crane")
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    found = done.stdout.strip()
    if done.returncode == 0 and command[0] == "docker":
        found = json.loads(found)["digest"]
    if done.returncode != 0 or not _DIGEST.fullmatch(found):
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or found}")
    return found


def main() -> int:
    """Pin or check the images; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 on a difference"
    )
    is_check = parser.parse_args().check
    differing = []
    for path in FILES:
        text = path.read_text()
        try:
            new = pinned(text, resolve_at_registry)
        except RuntimeError as exc:
            sys.stderr.write(f"{path.relative_to(ROOT)}: {exc}\n")
            return 2
        if new != text:
            differing.append(path)
            sys.stdout.write(f"{path.relative_to(ROOT)}: a tag names another image\n")
            if not is_check:
                path.write_text(new)
    return 1 if differing and is_check else 0


if __name__ == "__main__":
    sys.exit(main())
