"""Invalid ports and addresses stop the start, in the file, the environment and options."""

from __future__ import annotations

import pytest

from router_service.cli import main
from router_service.core.errors import ConfigError
from router_service.settings import read_settings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SWITCHCRAFT_PORT", "99999"),
        ("SWITCHCRAFT_PORT", "tcp://10.0.0.1:80"), ("SWITCHCRAFT_REDIS_URL", "redis://h:99999"),
        ("HTTPS_PROXY", "http://proxy:99999"), ("ALL_PROXY", "ftp://p"),
    ],
)  # fmt: skip
def test_invalid_ports_in_the_environment_are_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    """The error names the variable."""
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=f"the environment: {name}: "):
        read_settings()


@pytest.mark.parametrize("port", ["99999", "-1", "+80", "8_0", "x", "\uff18\uff10"])
@pytest.mark.parametrize("command", ["serve", "sandbox"])
def test_invalid_port_option_is_a_usage_error(
    capsys: pytest.CaptureFixture[str], command: str, port: str
) -> None:
    """The command ends before anything listens."""
    with pytest.raises(SystemExit) as ended:
        main([command, f"--port={port}"])
    assert ended.value.code == 2
    assert (
        "switchcraft: Invalid value for --port: the port must be a whole number"
        in capsys.readouterr().err
    )
