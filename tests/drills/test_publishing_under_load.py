"""Under load, published artifacts are swapped and damaged ones refused without losing requests."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from router_service.core.releases import Release
from router_service.store.pointers import POINTER_FILE, Pointer
from switchcraft_training.cli import main
from switchcraft_training.publishing.releases import make_release, put_stable
from tests.drills.processes import GatewayProcess, Load, gateway, write_config
from tests.publishing import flip
from tests.serving import Sandbox

pytestmark = pytest.mark.slow

REFUSED = 'switchcraft_reloads_total{kind="artifact",outcome="refused"}'
TAKEN = 'switchcraft_reloads_total{kind="artifact",outcome="taken"}'


def publish(artifact: Path, place: object, *options: object) -> None:
    """Publish an artifact with the command, as an operator does."""
    assert main(["publish", str(artifact), "--to", str(place), *map(str, options)]) == 0


def move(place: Path, release: Release) -> None:
    """Move only the pointer, as on a volume where the release's files arrive later."""
    Pointer(place).move(lambda published: put_stable(published, release))


def cut(path: Path) -> None:
    """Truncate a file to its first half."""
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data[: len(data) // 2])


DAMAGES: tuple[tuple[Callable[[Path], None], str], ...] = (
    (flip, "model.int8.onnx"),
    (cut, "model.int8.onnx"),
    (Path.unlink, "tokenizer.json"),
    (flip, "manifest.json"),
)


def test_damaged_publication_is_refused_and_the_old_artifact_serves(
    tmp_path: Path, upstream: Sandbox, artifacts: dict[str, Path]
) -> None:
    """A flipped, truncated, missing or invalid file is refused with metric and reason.

    The old artifact keeps serving, and the next intact publication is loaded.
    """
    place = tmp_path / "published"
    publish(artifacts["one"], place)
    router = {"publication": str(place)}
    config = write_config(tmp_path / "config.yaml", upstream.base_url, router=router)
    with gateway(config, tmp_path) as served, Load((served.url,)) as load:
        for taken, (damage, file) in enumerate(DAMAGES, start=1):
            release = make_release(artifacts["two"], place)
            damage(release.directory(place) / file)
            _is_refused(served, partial(move, place, release))
            publish(artifacts["one"], place)
            served.wait_for_metric(TAKEN, taken)
            shutil.rmtree(release.directory(place))
        text = (place / POINTER_FILE).read_bytes()
        _is_refused(served, partial(write_pointer, place, text[: len(text) // 2]))
        write_pointer(place, text)
        publish(artifacts["two"], place)
        served.wait_for_artifact("two")
    load.check(upstream.stats()["completed"])


def write_pointer(place: Path, text: bytes) -> None:
    """Replace the pointer by these bytes."""
    partial = place / "partial"
    partial.write_bytes(text)
    partial.replace(place / POINTER_FILE)


def _is_refused(served: GatewayProcess, publish_it: Callable[[], None]) -> None:
    before = served.metric(REFUSED)
    publish_it()
    served.wait_for_metric(REFUSED, before + 1)
    assert served.artifact() == "one"
    refusal = served.status()["last_refusal"]
    assert isinstance(refusal, dict)
    assert refusal["kind"] == "artifact"
