"""What the gateway logs when it starts: its address, and settings without effect; its errors."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from router_service.core.errors import ConfigError
from router_service.serving.server import open_listeners
from router_service.settings import read_settings

FREE = "stop the program that uses the port, or choose another port; 0 takes any free port"


@pytest.fixture
def taken() -> Iterator[int]:
    """Yield a port that a program listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_taken_port_names_the_option_the_variable_or_the_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    """The error names where the port was set, and says what to do."""
    file = tmp_path / "gateway.yaml"
    file.write_text(
        "model_list: [{model_name: m, litellm_params: {model: m, api_base: 'http://h'}}]\n"
        f"server:\n  port: {taken}\n"
    )
    problem = f"cannot listen on 127.0.0.1:{taken}: Address already in use; {FREE}"
    by_line, by_option = read_settings(file), read_settings(port=taken)
    monkeypatch.setenv("SWITCHCRAFT_PORT", str(taken))
    by_variable = read_settings()
    for settings, where in (
        (by_line, f"{file}:3: server.port"),
        (by_option, "the command line: --port"),
        (by_variable, "the environment: SWITCHCRAFT_PORT"),
    ):
        with pytest.raises(ConfigError) as caught, open_listeners(settings):
            pass
        assert str(caught.value) == f"{where}: {problem}"
