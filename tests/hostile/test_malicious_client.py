"""Whatever a client sends, and however it leaves, the gateway goes on serving everybody."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hostile.client import BEHAVIOURS, FEW_DESCRIPTORS, ClientBehaviour
from tests.hostile.target import Target, running_target


@pytest.fixture(scope="module")
def narrow_target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """Yield a gateway's process that may have 256 descriptors."""
    with running_target(tmp_path_factory.mktemp("narrow"), descriptor_limit=256) as running:
        yield running


@pytest.mark.parametrize("behaviour", BEHAVIOURS, ids=lambda behaviour: behaviour.name)
def test_malicious_client(target: Target, behaviour: ClientBehaviour) -> None:
    """A client that is bad in one way harms only itself."""
    target.withstand(behaviour.act)


@pytest.mark.parametrize("behaviour", FEW_DESCRIPTORS, ids=lambda behaviour: behaviour.name)
def test_few_descriptors(narrow_target: Target, behaviour: ClientBehaviour) -> None:
    """More connections than there are descriptors keep no other client out."""
    narrow_target.withstand(behaviour.act)
