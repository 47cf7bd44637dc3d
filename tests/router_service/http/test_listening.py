"""What the gateway logs when it starts: its address, and settings without effect; its errors."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from router_service.core.errors import ConfigError
from router_service.serving.serve import unsupported_table
from router_service.serving.server import log_address, open_listeners
from router_service.settings import ServerSettings, Settings, read_settings

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


@pytest.mark.parametrize(
    ("host", "problem"),
    [
        ("192.0.2.1", "cannot listen on 192.0.2.1:0: Cannot assign requested address; "),
        ("nowhere.invalid", "cannot find the host 'nowhere.invalid': "),
    ],
)
def test_host_of_another_machine_is_an_error(host: str, problem: str) -> None:
    """An address that this machine does not have is refused with the setting's name."""
    with pytest.raises(ConfigError) as caught, open_listeners(read_settings(host=host, port=0)):
        pass
    assert str(caught.value).startswith(f"the command line: --host: {problem}")
    assert str(caught.value).endswith("use an address of this machine, such as 127.0.0.1")


@pytest.mark.parametrize(
    ("host", "address", "note"),
    [
        ("127.0.0.1", "http://127.0.0.1:{}", ""),
        ("localhost", "http://localhost:{}", ""),
        ("0.0.0.0", "http://127.0.0.1:{}", ", on every address of this machine"),
    ],
)
def test_logged_address_can_be_opened(
    host: str, address: str, note: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The line has the real port and a host that a browser on this machine can open."""
    server = ServerSettings(host=host, port=0)
    with open_listeners(Settings(server=server)) as listeners:
        with caplog.at_level(logging.INFO, "switchcraft.server"):
            log_address(server, listeners)
        url = address.format(listeners[0].getsockname()[1])
    (record,) = caplog.records
    assert record.getMessage() == f"serving at {url}/v1{note}; web page at {url}/ui"


def test_settings_of_litellm_are_one_table(tmp_path: Path) -> None:
    """A setting that several deployments have is one row, with the line of each."""
    file = tmp_path / "gateway.yaml"
    file.write_text(
        "model_list:\n"
        "  - {model_name: a, litellm_params: {model: m, api_base: 'http://h', rpm: 1}}\n"
        "  - {model_name: b, litellm_params: {model: m, api_base: 'http://h', rpm: 1}}\n"
        "litellm_settings:\n  ssl_verify: true\n"
    )
    assert unsupported_table(read_settings(file)) == [
        {
            "setting": "litellm_settings.ssl_verify",
            "lines": "5",
            "effect here": "it has no effect; certificates are always verified",
        },
        {
            "setting": "model_list[].litellm_params.rpm",
            "lines": "2, 3",
            "effect here": (
                "it is the deployment's share of the requests and is not enforced as a limit"
            ),
        },
    ]
