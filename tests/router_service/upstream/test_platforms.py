"""Gateways in front of Amazon Bedrock, Google Vertex AI and Azure with Entra ID.

The servers check signatures, assertions and bodies with the vendors' own libraries.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from router_service.apis.parts import Text, ToolUse
from router_service.serving.app import create_app
from router_service.settings import read_settings
from router_service.upstream.platforms.registry import client_of
from tests.clouds import azure, google
from tests.clouds.aws import (
    KEY,
    REGION,
    Aws,
    AwsError,
    event_message,
)
from tests.clouds.azure import Azure, served_over_tls
from tests.clouds.google import Google, service_account
from tests.fakes import FakeRouter
from tests.serving import WAIT_S, served, wait_for

CALL = ToolUse("toolu_01", "get_weather", '{"city": "Vienna"}')
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Return the weather.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
ASK: list[Any] = [{"role": "user", "content": "What is the weather in Vienna?"}]
PRICED = "{input_cost_per_token: 1e-6, output_cost_per_token: 5e-6}"


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Hide this machine's own credentials from the vendors' libraries, and forget accounts."""
    client_of.cache_clear()
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "aws-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "aws-credentials"))
    yield
    client_of.cache_clear()


@contextmanager
def gateway(path: Path, text: str, environ: Mapping[str, str]) -> Iterator[str]:
    """Serve a gateway that a file configures; yield its address."""
    path.write_text(f"{text}\nrouter: {{unknown_prices: allow}}\n")
    settings = read_settings(path, environ=environ)
    assert settings.unsupported == ()
    with served(create_app(settings, FakeRouter())) as url:
        yield url


@pytest.fixture
def aws() -> Aws:
    """Return AWS."""
    return Aws()


def bedrock_file(*params: str, model: str = "us.anthropic.claude-sonnet-4-5-20250929-v1:0") -> str:
    """Return a file with one model at Bedrock."""
    lines = "\n".join(f"      {line}" for line in params)
    return f"""
model_list:
  - model_name: m
    litellm_params:
      model: bedrock/{model}
      aws_region_name: {REGION}
{lines}
    model_info: {PRICED}
"""


SIGNED = (f"aws_access_key_id: {KEY[0]}", f"aws_secret_access_key: {KEY[1]}")


def asked(url: str, model: str = "m", **fields: object) -> httpx.Response:
    """Ask by Chat Completions."""
    body = {"model": model, "messages": ASK, **fields}
    return httpx.post(f"{url}/v1/chat/completions", json=body)


def test_bedrock_as_litellms_documentation_configures_it(tmp_path: Path, aws: Aws) -> None:
    """The file of LiteLLM's page about Bedrock works as it is printed there.

    Chat Completions, Responses and Messages reach Claude, whole and as streams, with tools and with
    the usage of the cache.
    """
    text = """
model_list:
  - model_name: bedrock-claude-haiku
    litellm_params:
      model: bedrock/us.anthropic.claude-3-haiku-20240307-v1:0
      aws_access_key_id: os.environ/AWS_ACCESS_KEY_ID
      aws_secret_access_key: os.environ/AWS_SECRET_ACCESS_KEY
      aws_region_name: os.environ/AWS_REGION_NAME
"""
    aws.parts = (Text("Let me look."), CALL)
    with served(aws) as endpoint:
        environ = {
            "AWS_ACCESS_KEY_ID": KEY[0],
            "AWS_SECRET_ACCESS_KEY": KEY[1],
            "AWS_REGION_NAME": REGION,
            "AWS_BEDROCK_RUNTIME_ENDPOINT": endpoint,
        }
        with gateway(tmp_path / "config.yaml", text, environ) as url:
            client: Any = openai.OpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0)
            whole = client.chat.completions.create(
                model="bedrock-claude-haiku", messages=ASK, tools=[TOOL]
            )
            claude = anthropic.Anthropic(base_url=url, api_key="-", max_retries=0)
            native = claude.beta.messages.create(
                model="bedrock-claude-haiku",
                max_tokens=100,
                messages=ASK,
                betas=["context-1m-2025-08-07", "claude-code-20250219"],
            )
            with claude.messages.stream(
                model="bedrock-claude-haiku", max_tokens=100, messages=ASK
            ) as events:
                streamed = events.get_final_message()
    message = whole.choices[0].message
    assert message.content == "Let me look."
    assert message.tool_calls
    assert message.tool_calls[0].function.arguments == '{"city":"Vienna"}'
    assert whole.usage
    assert whole.usage.prompt_tokens_details
    assert whole.usage.prompt_tokens_details.cached_tokens == 100
    assert native.content[1].type == streamed.content[1].type == "tool_use"
    assert native.usage.cache_read_input_tokens == 100
    operations = [each.operation for each in aws.asked]
    assert operations == ["invoke", "invoke", "invoke-with-response-stream"]
    assert {each.model for each in aws.asked} == {"us.anthropic.claude-3-haiku-20240307-v1:0"}
    assert aws.asked[1].body["anthropic_beta"] == ["context-1m-2025-08-07"]
    assert "anthropic-beta" not in aws.asked[1].headers
    assert aws.refused == []


@pytest.mark.parametrize("is_web", [False, True])
def test_assumed_roles_are_renewed(tmp_path: Path, aws: Aws, is_web: bool) -> None:
    """A role's credentials come from STS, and new ones when they have expired."""
    aws.lifetime_s = 16  # on a busy machine, the fetch itself takes seconds
    token = tmp_path / "token"
    token.write_text("a-web-identity-token\n")
    with served(aws) as endpoint:
        identity = (f"aws_web_identity_token: oidc/file/{token}",) if is_web else SIGNED
        text = bedrock_file(
            *identity,
            "aws_role_name: arn:aws:iam::123456789012:role/gateway",
            "aws_session_name: my-session",
            f"aws_sts_endpoint: {endpoint}",
            f"aws_bedrock_runtime_endpoint: {endpoint}",
        )
        with gateway(tmp_path / "config.yaml", text, {}) as url:
            assert asked(url).status_code == 200

            def is_renewed() -> bool:
                assert asked(url).status_code == 200
                return len({each.key_id for each in aws.asked}) > 1

            wait_for(is_renewed, "another key signs")
    assert aws.refused == []
    call = aws.sts_calls[0]
    assert call["RoleArn"] == "arn:aws:iam::123456789012:role/gateway"
    assert call["RoleSessionName"] == "my-session"
    assert call["Action"] == ("AssumeRoleWithWebIdentity" if is_web else "AssumeRole")


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (AwsError(429, "ThrottlingException", "Too many tokens"), 429, "Too many tokens"),
        (AwsError(400, "ServiceQuotaExceededException", "quota"), 429, "quota"),
        (AwsError(424, "ModelErrorException", "the model failed"), 500, "the model failed"),
        (AwsError(403, "AccessDeniedException", "no access"), 401, "own credentials"),
    ],
)
def test_bedrocks_errors_keep_their_meaning(
    tmp_path: Path, aws: Aws, error: AwsError, status: int, text: str
) -> None:
    """Statuses that have another meaning at AWS are corrected, and messages are kept."""
    aws.failures = [error]
    with served(aws) as endpoint:
        config = bedrock_file(*SIGNED, f"aws_bedrock_runtime_endpoint: {endpoint}")
        config += "router_settings: {num_retries: 0}\n"
        with gateway(tmp_path / "config.yaml", config, {}) as url:
            response = asked(url)
    assert response.status_code == status
    assert text in response.json()["error"]["message"]


def inner(data: str) -> bytes:
    """Return the payload of a chunk of InvokeModel."""
    return json.dumps({"bytes": base64.b64encode(data.encode()).decode()}).encode()


def unreadable(event_type: str) -> dict[str, bytes]:
    """Return messages of an event stream that cannot be read."""
    event = {":message-type": "event", ":event-type": event_type}
    exception = {
        ":message-type": "exception",
        ":exception-type": "throttlingException",
    }
    return {
        **{f"payload {payload!r}": event_message(event, payload) for payload in (b"[]", b"\xff{")},
        **{f"inner {data}": event_message(event, inner(data)) for data in ("5", '{"type":["a"]}')},
        "no head": event_message({}, b"{}"),
        "exception without a type": event_message({":message-type": "exception"}, b"{}"),
        "exception": event_message(exception, b'{"message":{"a":1}}'),
        "lengths that contradict each other": b"\0\0\0\x10\xff\xff\xff\xff" + bytes(8),
    }


@pytest.mark.parametrize(
    ("model", "event_type"),
    [
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", "chunk"),
        ("us.amazon.nova-pro-v1:0", "contentBlockDelta"),
    ],
)
def test_unreadable_message_is_a_failure_of_the_upstream(
    tmp_path: Path, aws: Aws, model: str, event_type: str
) -> None:
    """Before the output, another attempt answers; after it, the stream ends with an error event."""
    bad, place, is_read = b"", 1, threading.Event()

    def spoil(messages: list[bytes]) -> Iterator[bytes]:
        nonlocal bad
        once, bad = bad, b""
        yield from messages[:place]
        if once:
            assert place == 1 or is_read.wait(WAIT_S)
            yield once
        yield from messages[place:]

    aws.events = spoil
    body = {"model": "m", "messages": ASK, "stream": True}
    with served(aws) as endpoint:
        text = bedrock_file(*SIGNED, f"aws_bedrock_runtime_endpoint: {endpoint}", model=model)
        settings = "router_settings: {num_retries: 1, allowed_fails: 100000}\n"
        settings += "upstreams: {retries: {budget_floor_per_s: 1000, backoff_s: 0.001}}"
        with gateway(tmp_path / "config.yaml", f"{text}\n{settings}", {}) as url:
            for name, message in unreadable(event_type).items():
                bad, place = message, 1
                response = asked(url, stream=True)
                assert (response.status_code, "error" in response.text) == (200, False), (
                    name,
                    response.text,
                )
                assert "[DONE]" in response.text, name
                bad, place = message, 4
                is_read.clear()
                received = b""
                with httpx.stream("POST", f"{url}/v1/chat/completions", json=body) as answer:
                    for part in answer.iter_raw():
                        received += part
                        is_read.set()
                assert b'"error"' in received, (name, received)
                assert b"[DONE]" not in received, name


def test_gemini_and_claude_at_vertex_ai(tmp_path: Path) -> None:
    """Both get the token that a service account's assertion is worth, in the API of each."""
    vertex = Google()
    vertex.parts = (Text("Let me look."), CALL)
    with served(vertex) as endpoint:
        key = tmp_path / "key.json"
        key.write_text(service_account(f"{endpoint}/token"))
        text = f"""
model_list:
  - model_name: gemini
    litellm_params:
      model: vertex_ai/gemini-2.5-pro
      vertex_project: {google.PROJECT}
      vertex_location: global
      vertex_credentials: {key}
  - model_name: claude
    litellm_params:
      model: vertex_ai/claude-sonnet-4-5@20250929
      vertex_location: us-east5
      vertex_credentials: {key}
"""
        environ = {"VERTEXAI_API_BASE": endpoint}
        with gateway(tmp_path / "config.yaml", text, environ) as url:
            client: Any = openai.OpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0)
            for model in ("gemini", "claude"):
                whole = client.chat.completions.create(model=model, messages=ASK, tools=[TOOL])
                assert whole.choices[0].message.tool_calls
                assert whole.usage
                assert whole.usage.prompt_tokens_details
                assert whole.usage.prompt_tokens_details.cached_tokens == 100
                stream = client.chat.completions.create(
                    model=model, messages=ASK, tools=[TOOL], stream=True
                )
                pieces = [chunk.choices[0].delta for chunk in stream if chunk.choices]
                assert "".join(piece.content or "" for piece in pieces) == "Let me look."
            claude = anthropic.Anthropic(base_url=url, api_key="-", max_retries=0)
            counted = claude.messages.count_tokens(model="claude", messages=ASK)
            refused = httpx.post(f"{url}/v1/embeddings", json={"model": "gemini", "input": "a"})
    assert counted.input_tokens == 42
    assert len(vertex.tokens) == 1
    paths = [path.removeprefix(f"/v1/projects/{google.PROJECT}/") for path, _, _ in vertex.asked]
    chat = "locations/global/endpoints/openapi/chat/completions"
    model = "locations/us-east5/publishers/anthropic/models/claude-sonnet-4-5@20250929"
    counter = "locations/us-east5/publishers/anthropic/models/count-tokens:rawPredict"
    assert paths == [chat, chat, f"{model}:rawPredict", f"{model}:streamRawPredict", counter]
    assert vertex.asked[0][1]["model"] == "google/gemini-2.5-pro"
    assert "does not have the endpoint /embeddings" in refused.json()["error"]["message"]


def test_azure_with_a_client_of_entra_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LiteLLM's file for tenant_id, client_id and client_secret works as it is printed.

    azure-identity gets the token over TLS. Streams and other endpoints have it too.
    """
    entra = Azure()
    with served(entra) as base, served_over_tls(entra, tmp_path) as (authority, trusted):
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(trusted))
        text = """
model_list:
  - model_name: gpt-3.5-turbo
    litellm_params:
      model: azure/chatgpt-v-2
      api_base: os.environ/BASE
      api_version: "2023-05-15"
      tenant_id: os.environ/AZURE_TENANT_ID
      client_id: os.environ/AZURE_CLIENT_ID
      client_secret: os.environ/AZURE_CLIENT_SECRET
"""
        environ = {
            "BASE": f"{base}/",
            "AZURE_TENANT_ID": azure.TENANT,
            "AZURE_CLIENT_ID": azure.CLIENT,
            "AZURE_CLIENT_SECRET": azure.SECRET,
            "AZURE_AUTHORITY_HOST": f"https://{authority}",
        }
        with gateway(tmp_path / "config.yaml", text, environ) as url:
            whole = asked(url, "gpt-3.5-turbo")
            stream = asked(url, "gpt-3.5-turbo", stream=True)
        wrong = {**environ, "AZURE_CLIENT_SECRET": "wrong-client-secret"}
        with gateway(tmp_path / "config.yaml", text, wrong) as url:
            failed = asked(url, "gpt-3.5-turbo")
    assert whole.json()["choices"][0]["message"]["content"] == "Hello from Azure"
    assert "[DONE]" in stream.text
    assert len(entra.tokens) == 1
    assert {path for path, _, _ in entra.asked} == {
        "/openai/deployments/chatgpt-v-2/chat/completions?api-version=2023-05-15"
    }
    assert failed.status_code == 502
    assert "no credentials for Entra ID" in failed.json()["error"]["message"]
