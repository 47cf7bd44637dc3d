"""An installation without extras: what works, and what asks for one of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HIDE = (
    "import sys; "
    "sys.modules |= dict.fromkeys(['redis', 'psycopg', 'botocore', 'google.auth', "
    "'azure.identity', 'opentelemetry.sdk', "
    "'opentelemetry.exporter']); "
)
"""Python that makes every import of the extras' packages fail, as if they were not installed."""
MODEL = "model_list: [{model_name: m, litellm_params: {model: openai/gpt-5-mini, api_key: k}}]"
SETTINGS = {
    "redis": ("server.redis_url", "server: {redis_url: 'redis://127.0.0.1:1', port: 0}"),
    "postgres": (
        "database.url",
        "database: {url: 'postgresql://u:p@127.0.0.1:1/n'}\nserver: {port: 0}",
    ),
    "aws": (
        "model_list.0.litellm_params.model",
        "model_list: [{model_name: m, litellm_params: {model: bedrock/amazon.nova-pro-v1:0}}]",
    ),
    "google": (
        "model_list.0.litellm_params.model",
        (
            "model_list: [{model_name: m, litellm_params: "
            "{model: vertex_ai/gemini-2.5-pro, vertex_project: p}}]"
        ),
    ),
    "azure": (
        "model_list.0.litellm_params.model",
        (
            "model_list: [{model_name: m, litellm_params: {model: azure/m, tenant_id: t, "
            "client_id: c, client_secret: s, api_base: 'https://a.openai.azure.com'}}]"
        ),
    ),
    "otlp": (
        "tracing.otlp_endpoint",
        "tracing: {otlp_endpoint: 'http://127.0.0.1:1'}\nserver: {port: 0}",
    ),
}
"""For each extra, a setting that needs it, and a configuration with this setting."""


def run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the package without the extras' packages."""
    code = f"{HIDE}from {module} import main; sys.exit(main({list(arguments)}))"
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "extra"),
    [(("check",), extra) for extra in SETTINGS]
    # The clouds' extras are missed when the file is read, as in `check`.
    + [(("serve", "--config"), extra) for extra in ("redis", "postgres", "aws", "otlp")],
    ids=str,
)
def test_setting_whose_extra_is_missing_names_the_extra(
    tmp_path: Path, command: tuple[str, ...], extra: str
) -> None:
    """Both `check` and the start of a gateway fail with one line that says what to install."""
    path = tmp_path / "gateway.yaml"
    setting, text = SETTINGS[extra]
    path.write_text(text if text.startswith("model_list") else f"{MODEL}\n{text}")
    done = run("router_service.cli", *command, str(path))
    assert done.returncode == 1
    (line,) = [line for line in (done.stdout + done.stderr).splitlines() if setting in line]
    assert line.endswith(
        f"{setting}: needs packages that are not installed; "
        f"run pip install 'switchcraft-router[{extra}]'"
    )
    assert "Traceback" not in done.stderr


def test_gateway_serves_without_the_extras() -> None:
    """A gateway without these settings answers although the extras' packages are missing."""
    code = """
import httpx
from router_service.artifact import SHIPPED
from router_service.serving.app import create_app
from router_service.router import Router
from router_service.sandbox.provider import run_in_thread
from router_service.settings import Settings
from tests.serving import served

router = Router.load(SHIPPED)
body = {"model": router.arms[0], "messages": [{"role": "user", "content": "hi"}]}
with run_in_thread() as sandbox:
    with served(create_app(Settings.sandbox(sandbox, router.arms), router)) as url:
        print(httpx.post(f"{url}/v1/chat/completions", json=body, timeout=300).status_code)
"""
    done = subprocess.run(
        [sys.executable, "-c", HIDE + code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "200\n", done.stderr
