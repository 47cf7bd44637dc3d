"""Whatever a client or an upstream sends and however it leaves, the gateway serves everybody."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hostile.attacks import ATTACKS, FEW_DESCRIPTORS
from tests.hostile.target import Target, running_target

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def narrow_target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """Yield a gateway process with at most 256 descriptors."""
    with running_target(tmp_path_factory.mktemp("narrow"), descriptor_limit=256) as running:
        yield running


@pytest.mark.parametrize("name", ATTACKS)
def test_attack_harms_nobody_else(target: Target, name: str) -> None:
    """A client or an upstream that misbehaves in one way harms no other request."""
    target.withstand(ATTACKS[name])


@pytest.mark.parametrize("name", FEW_DESCRIPTORS)
def test_more_connections_than_descriptors_lock_nobody_out(
    narrow_target: Target, name: str
) -> None:
    """More connections than descriptors do not keep other clients out."""
    narrow_target.withstand(FEW_DESCRIPTORS[name])
