"""Ports that are invalid or taken stop the start, and the error says where they were set."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from router_service.cli import main
from router_service.core.errors import ConfigError
from router_service.serving.server import open_listeners
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


def test_taken_port_names_the_option_the_variable_or_the_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names where the port was set, and says what to do."""
    file = tmp_path / "gateway.yaml"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = listener.getsockname()[1]
        file.write_text(
            "model_list: [{model_name: m, litellm_params: {model: m, api_base: 'http://h'}}]\n"
            f"server:\n  port: {taken}\n"
        )
        problem = f"cannot listen on 127.0.0.1:{taken}: Address already in use; stop the program"
        by_line, by_option = read_settings(file), read_settings(port=taken)
        monkeypatch.setenv("SWITCHCRAFT_PORT", str(taken))
        for settings, where in (
            (by_line, f"{file}:3: server.port"),
            (by_option, "the command line: --port"),
            (read_settings(), "the environment: SWITCHCRAFT_PORT"),
        ):
            with (
                pytest.raises(ConfigError) as caught,
                open_listeners(settings, settings.server.host),
            ):
                pass
            assert str(caught.value).startswith(f"{where}: {problem}")
