"""Entries for Amazon Bedrock, Google Vertex AI and Azure with Entra ID, as LiteLLM writes them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import SecretStr

from router_service.core.errors import ConfigError
from router_service.settings import Deployment, Settings, read_settings
from router_service.settings.platforms import Bedrock, Entra, Vertex

SONNET = "anthropic.claude-sonnet-4-5-20250929-v1:0"
ARN = "arn:aws:bedrock:eu-west-1:123456789012:application-inference-profile/abc123"


def read(
    tmp_path: Path,
    environ: Mapping[str, str] | None = None,
    /,
    **params: Any,  # noqa: ANN401 - any setting
) -> Settings:
    """Return the settings of a file with one entry; `litellm` is the section for all entries."""
    path = tmp_path / "config.yaml"
    settings = params.pop("litellm", {})
    entry = {"model_name": "m", "litellm_params": params}
    path.write_text(yaml.safe_dump({"model_list": [entry], "litellm_settings": settings}))
    missing = {"AWS_CONFIG_FILE": str(tmp_path / "missing")}
    return read_settings(path, environ={**missing, **(environ or {})})


def only(settings: Settings) -> Deployment:
    """Return the only deployment."""
    ((deployment,),) = [model.deployments for model in settings.models]
    assert settings.unsupported == ()
    return deployment


@pytest.mark.parametrize(
    ("model", "upstream_model", "region", "api"),
    [
        (f"bedrock/{SONNET}", SONNET, "us-west-2", "messages"),
        (f"bedrock/invoke/{SONNET}", SONNET, "us-west-2", "messages"),
        (f"bedrock/converse/{SONNET}", SONNET, "us-west-2", "converse"),
        (f"bedrock/eu-central-1/{SONNET}", SONNET, "eu-central-1", "messages"),
        ("bedrock/amazon.nova-pro-v1:0", "amazon.nova-pro-v1:0", "us-west-2", "converse"),
        (f"bedrock/{ARN}", ARN, "eu-west-1", "converse"),
        (f"bedrock/anthropic/{ARN}", ARN, "eu-west-1", "messages"),
    ],
)
def test_names_of_bedrocks_models(
    tmp_path: Path, model: str, upstream_model: str, region: str, api: str
) -> None:
    """A name has the route, the region and the model; Anthropic's models are invoked."""
    found = only(read(tmp_path, model=model))
    assert found.upstream_model == upstream_model
    assert found.base_url == f"https://bedrock-runtime.{region}.amazonaws.com"
    assert found.platform == Bedrock(region)
    assert [each.name for each in found.apis] == [api]
    assert found.provider == "bedrock"


def test_region_is_that_of_the_entry_the_environment_or_the_profile(tmp_path: Path) -> None:
    """The entry comes first, then LiteLLM's variable, AWS's variables and the profile."""
    config = tmp_path / "aws"
    config.write_text("[default]\nregion = eu-north-1\n[profile work]\nregion = eu-south-1\n")
    environ = {"AWS_CONFIG_FILE": str(config)}
    model = f"bedrock/{SONNET}"

    def region(environ: Mapping[str, str], **params: str) -> str:
        platform = only(read(tmp_path, environ, model=model, **params)).platform
        assert isinstance(platform, Bedrock)
        return platform.region

    assert region(environ) == "eu-north-1"
    assert region(environ, aws_profile_name="work") == "eu-south-1"
    environ |= {"AWS_DEFAULT_REGION": "us-east-2"}
    assert region(environ) == "us-east-2"
    environ |= {"AWS_REGION_NAME": "us-east-1", "AWS_REGION": "us-west-1"}
    assert region(environ) == "us-east-1"
    assert region(environ, aws_region_name="ap-south-1") == "ap-south-1"


def test_credentials_of_the_entry_come_before_the_environments(tmp_path: Path) -> None:
    """A profile or a key of the entry is not mixed with a key of the environment."""
    environ = {
        "AWS_ACCESS_KEY_ID": "AKIAENVIRONMENT",
        "AWS_SECRET_ACCESS_KEY": "secret-of-the-environment",
        "AWS_SESSION_TOKEN": "token-of-the-environment",
        "AWS_BEARER_TOKEN_BEDROCK": "bearer-of-the-environment",
    }
    model = f"bedrock/{SONNET}"
    found = only(read(tmp_path, environ, model=model))
    assert found.api_key == SecretStr("bearer-of-the-environment")
    assert found.platform == Bedrock("us-west-2", has_key=True)
    found = only(read(tmp_path, environ, model=model, aws_profile_name="work"))
    assert found.platform == Bedrock("us-west-2", profile="work")
    own = {"aws_access_key_id": "AKIAOWN", "aws_secret_access_key": "own-secret"}
    found = only(read(tmp_path, environ, model=model, **own))
    assert found.platform == Bedrock(
        "us-west-2", access_key_id="AKIAOWN", secret_access_key=SecretStr("own-secret")
    )
    assert found.api_key is None
    # A bearer token of the environment is only sent to AWS.
    found = only(read(tmp_path, environ, model=model, api_base="https://example.com"))
    assert found.api_key is None
    assert isinstance(found.platform, Bedrock)
    assert found.platform.access_key_id == "AKIAENVIRONMENT"


@pytest.mark.parametrize(
    ("model", "location", "host", "upstream_model", "api"),
    [
        ("gemini-2.5-pro", None, "us-central1-aiplatform", "google/gemini-2.5-pro", "chat"),
        ("gemini-2.5-pro", "global", "aiplatform", "google/gemini-2.5-pro", "chat"),
        ("gemini-2.5-pro", "eu", "aiplatform.eu.rep", "google/gemini-2.5-pro", "chat"),
        ("claude-opus-4-5@20251101", None, "us-east5-aiplatform", None, "messages"),
        ("meta/llama-4-maverick-17b-128e-instruct-maas", "us-east5", "us-east5-aiplatform",
         "meta/llama-4-maverick-17b-128e-instruct-maas", "chat"),
    ],
)  # fmt: skip
def test_names_of_vertex_ais_models(
    tmp_path: Path,
    model: str,
    location: str | None,
    host: str,
    upstream_model: str | None,
    api: str,
) -> None:
    """Claude speaks Messages, and all others Chat Completions with the publisher's name."""
    params = {} if location is None else {"vertex_location": location}
    found = only(read(tmp_path, model=f"vertex_ai/{model}", vertex_project="my-project", **params))
    assert found.upstream_model == (upstream_model or model)
    place = found.base_url.rpartition("/")[2]
    assert found.base_url == (
        f"https://{host}.googleapis.com/v1/projects/my-project/locations/{place}"
    )
    assert [each.name for each in found.apis] == [api]
    assert found.platform == Vertex()


def test_azure_with_entra_id(tmp_path: Path) -> None:
    """A client, a token or the machine's identity authenticate; a key comes first."""
    entry = {"model": "azure/gpt", "api_base": "https://a.openai.azure.com"}
    client = {"tenant_id": "t", "client_id": "c", "client_secret": "s"}
    found = only(read(tmp_path, **entry, **client))
    assert found.platform == Entra("t", "c", SecretStr("s"))
    assert (found.api_key, found.base_url) == (None, "https://a.openai.azure.com/openai/v1")
    found = only(read(tmp_path, **entry, **client, api_key="key"))
    assert (found.platform, found.key_header) == (None, "api-key")
    found = only(read(tmp_path, **entry, azure_ad_token="eyJ-token"))
    assert (found.platform, found.key_header) == (None, "authorization")
    assert found.api_key == SecretStr("eyJ-token")
    refresh = {"enable_azure_ad_token_refresh": True}
    found = only(read(tmp_path, **entry, litellm=refresh))
    assert found.platform == Entra()
    assert only(read(tmp_path, **entry)).platform is None


def test_environments_client_is_only_for_azures_addresses(tmp_path: Path) -> None:
    """A client of the environment sends no token to another address, unless the file says so."""
    environ = {"AZURE_TENANT_ID": "t", "AZURE_CLIENT_ID": "c", "AZURE_CLIENT_SECRET": "s"}
    of_environment = Entra("t", "c", SecretStr("s"))
    own, other = "https://a.openai.azure.com", "https://example.com"
    for base, platform in ((own, of_environment), (other, None)):
        assert only(read(tmp_path, environ, model="azure/m", api_base=base)).platform == platform
    refresh = {"enable_azure_ad_token_refresh": True}
    found = only(read(tmp_path, environ, model="azure/m", api_base=other, litellm=refresh))
    assert found.platform == of_environment
    found = only(read(tmp_path, environ | {"AZURE_API_BASE": own}, model="azure/m"))
    assert found.platform == of_environment


@pytest.mark.parametrize(
    ("params", "problem"),
    [
        (
            {"model": f"bedrock/{SONNET}", "aws_access_key_id": "AKIA"},
            "aws_secret_access_key: is missing",
        ),
        (
            {"model": f"bedrock/{SONNET}", "aws_web_identity_token": "t"},
            "aws_role_name: is missing",
        ),
        ({"model": "vertex_ai/gemini-2.5-pro"}, "vertex_project: is missing"),
        (
            {"model": "vertex_ai/gemini-2.5-pro", "vertex_project": "p", "api_base": "http://h"},
            "api_base: is not an address of Google's",
        ),
    ],
)
def test_mistakes_are_named(tmp_path: Path, params: dict[str, str], problem: str) -> None:
    """A mistake in an entry names the setting, and what to write."""
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, **params)
    assert problem in str(caught.value)
