"""What the gateway does at its start if the database cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import SecretStr

from router_service.core.errors import ConfigError
from router_service.serving.serve import prepare_database
from router_service.settings import DatabaseSettings, KeySettings, Settings, read_settings

AWAY = "postgresql://u:s3cret%2F@127.0.0.1:1/n"
KEYS = KeySettings(api={"client": SecretStr("swc-client-91f3c5d7a2")})
NO_KEYS = KeySettings()
METRICS_ONLY = KeySettings(metrics=SecretStr("swc-metrics-91f3c5d7a2"))


def settings(url: str | None, *, keys: KeySettings = NO_KEYS, is_default: bool = False) -> Settings:
    """Return settings with a database."""
    database = DatabaseSettings(url=None if url is None else SecretStr(url))
    return Settings(keys=keys, database=database, has_default_database=is_default)


@pytest.mark.parametrize("keys", [NO_KEYS, METRICS_ONLY])
def test_unusable_database_stops_a_gateway_without_keys(keys: KeySettings) -> None:
    """One error says where the database is, what is wrong and what to do, without the password."""
    with pytest.raises(ConfigError) as caught:
        prepare_database(settings(AWAY, keys=keys))
    text = str(caught.value)
    assert "database.url: cannot open the database postgresql://127.0.0.1:1/n: " in text
    assert "refused" in text
    assert "repair the database, correct its address, or set keys.api or keys.admin" in text
    assert "s3cret" not in text
    assert "\n" not in text


def test_default_file_that_is_damaged_stops_a_gateway_without_keys(tmp_path: Path) -> None:
    """It held keys, so the gateway neither replaces it nor serves everyone."""
    path = tmp_path / "a.db"
    path.write_bytes(b"damaged " * 1000)
    url = f"sqlite:///{path}"
    with pytest.raises(ConfigError, match="restore a backup, or move the file away"):
        prepare_database(settings(url, is_default=True))
    assert prepare_database(settings(url, is_default=True, keys=KEYS))
    assert path.read_bytes() == b"damaged " * 1000


def test_address_of_the_environment_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An invalid address in SWITCHCRAFT_DATABASE_URL is an error that does not quote it."""
    monkeypatch.setenv("SWITCHCRAFT_DATABASE_URL", "postgresql://u:1/s3cret@h/n")
    with pytest.raises(ConfigError) as caught:
        read_settings()
    assert "SWITCHCRAFT_DATABASE_URL" in str(caught.value)
    assert "percent-encode" in str(caught.value)
    assert "s3cret" not in str(caught.value)
    monkeypatch.setenv("SWITCHCRAFT_DATABASE_URL", AWAY)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    read = read_settings()
    assert not read.has_default_database
    assert "s3cret" not in repr(read)
    monkeypatch.delenv("SWITCHCRAFT_DATABASE_URL")
    assert read_settings().has_default_database
