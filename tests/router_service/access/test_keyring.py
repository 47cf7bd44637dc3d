"""Keys are found by their hashes, with what they permit."""

from __future__ import annotations

import pytest
from pydantic import SecretStr

from router_service.access.key import Key, Permission
from router_service.access.keyring import KeyRing
from router_service.core.keys import hashed, new_key
from router_service.settings import ADMIN, METRICS, KeySettings

KEY = "sk-switchcraft-Xv3kQ9pLw2ZrT7bNc5Hy"
CLIENT = frozenset({Permission.CALL})


def test_a_key_is_found_by_its_hash() -> None:
    """A key in plain text and one given as a hash are found, and parts of them are not."""
    names = {"a": new_key(), "plain": KEY, "z": new_key()}
    ring = KeyRing((secret, Key(name, CLIENT)) for name, secret in names.items())
    assert ring.find(KEY.encode(), Permission.CALL) == Key("plain", CLIENT)
    only_hash = KeyRing([(hashed(KEY), Key("h", CLIENT))])
    assert only_hash.find(KEY.encode(), Permission.CALL) == Key("h", CLIENT)
    for wrong in (b"", KEY[:-1].encode(), KEY.encode() + b"x", hashed(KEY).encode(), b"\xff"):
        assert ring.find(wrong, Permission.CALL) is None
    assert KeyRing([]).find(KEY.encode(), Permission.CALL) is None


def test_keys_of_a_configuration_have_their_permissions() -> None:
    """Client keys may call, the metrics key may scrape, and the admin key may do everything."""
    secrets = {name: new_key() for name in ("team", METRICS, ADMIN)}
    settings = KeySettings(
        api={"team": SecretStr(hashed(secrets["team"]))},
        metrics=SecretStr(secrets[METRICS]),
        admin=SecretStr(secrets[ADMIN]),
    )
    ring = KeyRing.from_settings(settings)
    found = {
        (name, permission)
        for name, secret in secrets.items()
        for permission in Permission
        if ring.find(secret.encode(), permission) is not None
    }
    assert found == {
        ("team", Permission.CALL),
        (METRICS, Permission.METRICS),
        *((ADMIN, permission) for permission in Permission),
    }
    admin = ring.find(secrets[ADMIN].encode(), Permission.CALL)
    assert admin is not None
    assert (admin.name, admin.is_admin) == (ADMIN, True)


@pytest.mark.parametrize("permission", Permission)
def test_a_client_key_that_equals_the_admin_key_is_the_admin_key(permission: Permission) -> None:
    """The admin key precedes a client key with the same secret."""
    ring = KeyRing.from_settings(KeySettings(api={"a": SecretStr(KEY)}, admin=SecretStr(KEY)))
    found = ring.find(KEY.encode(), permission)
    assert found is not None
    assert found.name == ADMIN
