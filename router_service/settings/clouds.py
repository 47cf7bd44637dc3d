"""Read the entries of `model_list` for Amazon Bedrock, Google Vertex AI and Azure with Entra ID."""

from __future__ import annotations

import configparser
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import SecretStr

from router_service.apis.api import UpstreamApi
from router_service.apis.chat.api import CHAT
from router_service.apis.conversation import Json
from router_service.apis.converse.api import CONVERSE
from router_service.apis.messages.api import MESSAGES
from router_service.core.errors import missing_extra
from router_service.settings.litellm import Params
from router_service.settings.platforms import (
    AZURE_HOSTS,
    ENTRA_SCOPE,
    Bedrock,
    Entra,
    Platform,
    Vertex,
)

DEFAULT_REGION = "us-west-2"
"""LiteLLM's region of Bedrock if nothing else says one."""

_REGION = re.compile(r"[a-z]{2}(-[a-z]+)+-\d")
_AWS_HOSTS = (".amazonaws.com", ".amazonaws.com.cn", ".api.aws")
_GOOGLE_HOSTS = (".googleapis.com",)
_OTHER_PUBLISHERS = ("mistral-", "codestral-", "ministral-", "jamba-")
"""Beginnings of models at Vertex AI that it serves in formats of their own."""

_OIDC = ("oidc/file/", "oidc/env/", "oidc/env_path/")


class EntryError(Exception):
    """A mistake in an entry's `litellm_params`, which `deployments` reports with its place."""

    def __init__(self, field: str, problem: str) -> None:
        """Name the field, such as `.model`."""
        super().__init__(problem)
        self.field = field


@dataclass(frozen=True, slots=True)
class PlatformEntry:
    """What an entry says about a deployment at a platform."""

    platform: Platform
    base_url: str
    upstream_model: str
    apis: tuple[UpstreamApi, ...]
    api_key: SecretStr | None = None
    base_model: str | None = None


def require_extra(package: str, extra: str) -> None:
    """Raise EntryError unless a package is installed."""
    try:
        is_installed = find_spec(package) is not None
    except ModuleNotFoundError:  # its parent is missing
        is_installed = False
    if not is_installed:
        raise EntryError(".model", missing_extra(extra))


def read_bedrock(
    name: str, params: Params, environ: Mapping[str, str], base_model: str | None
) -> PlatformEntry:
    """Read an entry for Bedrock; `name` follows `bedrock/`. Raises EntryError."""
    require_extra("botocore", "aws")
    route, region, model = _split_bedrock(name)
    if params.model_id is not None:
        base_model, model = base_model or f"bedrock/{model}", params.model_id
    arn = model.split(":") if model.startswith("arn:") else []
    if "/" in model and not arn:
        known = f"the route {model.partition('/')[0]!r} of Bedrock is not supported"
        raise EntryError(
            ".model", f"{known}; write bedrock/MODEL, bedrock/converse/MODEL or an ARN"
        )
    # Only a model's id says whose it is; an application's inference profile does not.
    is_claude = any("anthropic." in each for each in (model, base_model or ""))
    if route == "invoke" and not (is_claude or arn):
        text = "only Anthropic's models are asked with InvokeModel; write bedrock/converse/ instead"
        raise EntryError(".model", text)
    speaks_messages = route == "invoke" or (is_claude and route != "converse")
    profile = params.aws_profile_name or environ.get("AWS_PROFILE_NAME")
    region = (
        params.aws_region_name
        or region
        or (arn[3] if len(arn) > 3 else "")
        or _first(environ, "AWS_REGION_NAME", "AWS_REGION", "AWS_DEFAULT_REGION")
        or _region_of_profile(profile, environ)
        or DEFAULT_REGION
    )
    suffix = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    endpoint = (
        params.aws_bedrock_runtime_endpoint
        or params.api_base
        or _first(environ, "AWS_BEDROCK_RUNTIME_ENDPOINT", "AWS_ENDPOINT_URL_BEDROCK_RUNTIME")
        or f"https://bedrock-runtime.{region}.{suffix}"
    ).rstrip("/")
    api_key = params.api_key or None
    signs = params.aws_access_key_id or params.aws_profile_name or params.aws_role_name
    if api_key is None and not signs and _is_at(endpoint, _AWS_HOSTS):
        api_key = _secret(environ, "AWS_BEARER_TOKEN_BEDROCK")
    return PlatformEntry(
        Bedrock(region, has_key=True)
        if api_key is not None
        else _signer(region, profile, params, environ),
        endpoint,
        model,
        (MESSAGES,) if speaks_messages else (CONVERSE,),
        api_key,
        base_model,
    )


def _split_bedrock(name: str) -> tuple[str, str, str]:
    """Return the route and the region that LiteLLM's names may begin with, and the model."""
    route = region = ""
    while not name.startswith("arn:"):
        first, slash, rest = name.partition("/")
        if slash and first in {"invoke", "converse"}:
            route = first
        elif slash and first == "anthropic" and rest.startswith("arn:"):
            route = route or "invoke"
        elif slash and _REGION.fullmatch(first):
            region = first
        else:
            break
        name = rest
    return route, region, name


def _signer(
    region: str,
    profile: str | None,
    params: Params,
    environ: Mapping[str, str],
) -> Bedrock:
    """Return whose credentials sign, like LiteLLM: those of the entry before the environment's."""
    key_id, secret = params.aws_access_key_id, params.aws_secret_access_key
    token = params.aws_session_token
    if (key_id is None) != (secret is None):
        missing = "aws_access_key_id" if key_id is None else "aws_secret_access_key"
        raise EntryError(f".{missing}", "is missing; a key has both an id and a secret")
    if key_id is None and profile is None and environ.get("AWS_SECRET_ACCESS_KEY"):
        key_id = environ.get("AWS_ACCESS_KEY_ID")
        secret = _secret(environ, "AWS_SECRET_ACCESS_KEY")
        token = _secret(environ, "AWS_SESSION_TOKEN")
    identity = params.aws_web_identity_token or _secret(environ, "AWS_WEB_IDENTITY_TOKEN")
    role = params.aws_role_name or environ.get("AWS_ROLE_NAME")
    if identity is not None:
        text = identity.get_secret_value()
        if text.startswith("oidc/") and not text.startswith(_OIDC):
            choices = "a token, the path of a file, oidc/file/PATH or oidc/env/NAME"
            raise EntryError(".aws_web_identity_token", f"is not supported; write {choices}")
        if role is None:
            raise EntryError(".aws_role_name", "is missing; a web identity token is for a role")
    sts = params.aws_sts_endpoint or environ.get("AWS_STS_ENDPOINT")
    return Bedrock(
        region,
        access_key_id=key_id,
        secret_access_key=secret,
        session_token=token,
        profile=profile,
        role=role,
        session_name=params.aws_session_name or environ.get("AWS_SESSION_NAME") or "switchcraft",
        external_id=params.aws_external_id or environ.get("AWS_EXTERNAL_ID"),
        web_identity_token=identity,
        sts_endpoint=sts,
    )


def _region_of_profile(profile: str | None, environ: Mapping[str, str]) -> str:
    """Return the region in AWS's configuration file, or an empty string."""
    name = profile or environ.get("AWS_PROFILE") or "default"
    path = Path(environ.get("AWS_CONFIG_FILE") or "~/.aws/config")
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read(path.expanduser(), encoding="utf-8")
        section = name if name == "default" else f"profile {name}"
        return parser.get(section, "region", fallback="")
    except (OSError, RuntimeError, UnicodeDecodeError, configparser.Error):
        return ""  # botocore reports what is wrong with the file, if it is needed


def read_vertex(name: str, params: Params, environ: Mapping[str, str]) -> PlatformEntry:
    """Read an entry for Vertex AI; `name` follows `vertex_ai/`. Raises EntryError."""
    require_extra("google.auth", "google")
    require_extra("requests", "google")
    given = params.vertex_credentials or _secret(
        environ, "VERTEXAI_CREDENTIALS", "GOOGLE_APPLICATION_CREDENTIALS"
    )
    info = {} if given is None else _google_info(given.get_secret_value())
    project = (
        params.vertex_project
        or _first(environ, "VERTEXAI_PROJECT", "VERTEX_PROJECT")
        or str(info.get("project_id") or info.get("quota_project_id") or "")
        or _first(environ, "GOOGLE_CLOUD_PROJECT")
    )
    if not re.fullmatch(r"[a-z0-9.:-]+", project):
        text = "is missing; set it, or the environment variable VERTEXAI_PROJECT"
        raise EntryError(".vertex_project", text if not project else "is not the id of a project")
    publisher, slash, short = name.rpartition("/")
    is_claude = short.startswith("claude-") and publisher in {"", "anthropic"}
    if not slash and name.startswith(_OTHER_PUBLISHERS):
        text = f"{name!r} has a format of its own at Vertex AI, which is not supported"
        raise EntryError(".model", f"{text}; use Gemini, Claude, or a model like meta/NAME-maas")
    location = (
        params.vertex_location
        or _first(environ, "VERTEXAI_LOCATION", "VERTEX_LOCATION")
        or _default_location(short)
    )
    host = f"https://{_vertex_host(location)}"
    stated = params.api_base or _first(environ, "VERTEXAI_API_BASE", "VERTEX_API_BASE")
    address = (stated or host).rstrip("/").removesuffix("/v1")
    if params.api_base and not (_is_at(address, _GOOGLE_HOSTS) or params.vertex_credentials):
        text = "is not an address of Google's; set vertex_credentials, because those of the machine"
        raise EntryError(".api_base", f"{text} are not sent to other addresses")
    return PlatformEntry(
        Vertex(given),
        f"{address}/v1/projects/{project}/locations/{location}",
        short if is_claude else name if slash else f"google/{name}",
        (MESSAGES,) if is_claude else (CHAT,),
    )


def _default_location(model: str) -> str:
    """Return where a model is served if the entry names no location."""
    if model.startswith("claude-"):
        return "us-east5"
    return "us-central1" if model.startswith(("gemini-1", "gemini-2")) else "global"


def _vertex_host(location: str) -> str:
    if location == "global":
        return "aiplatform.googleapis.com"
    if "-" not in location:  # a multi-region: us, eu
        return f"aiplatform.{location}.rep.googleapis.com"
    return f"{location}-aiplatform.googleapis.com"


def _google_info(given: str) -> Mapping[str, Json]:
    """Return the decoded credentials."""
    try:
        if not given.lstrip().startswith("{"):
            given = Path(given).read_text(encoding="utf-8")
        info: Json = json.loads(given)
    except OSError as exc:
        text = f"the file of credentials cannot be read: {exc.strerror}"
        raise EntryError(".vertex_credentials", text) from exc
    except ValueError:
        info = None
    if not isinstance(info, dict):
        raise EntryError(".vertex_credentials", "must be JSON, or the path of a file with JSON")
    return info


def read_entra(
    params: Params, environ: Mapping[str, str], base_url: str, *, refreshes: bool
) -> tuple[Entra | None, SecretStr | None]:
    """Return the identity whose tokens a deployment of Azure without a key gets, or its token.

    Both are None if the entry says nothing about Entra ID. What only the environment says is used
    for Azure's own addresses, or if `refreshes` (`enable_azure_ad_token_refresh`) is set.
    """
    trusts_environment = refreshes or _is_at(base_url, AZURE_HOSTS)
    variables = environ if trusts_environment or params.tenant_id or params.client_id else {}
    scope = params.azure_scope or environ.get("AZURE_SCOPE") or ENTRA_SCOPE
    authority = environ.get("AZURE_AUTHORITY_HOST")
    tenant_id = params.tenant_id or variables.get("AZURE_TENANT_ID")
    client_id = params.client_id or variables.get("AZURE_CLIENT_ID")
    secret = params.client_secret or _secret(variables, "AZURE_CLIENT_SECRET")
    if tenant_id and client_id and secret:
        require_extra("azure.identity", "azure")
        return Entra(tenant_id, client_id, secret, scope, authority), None
    if params.azure_ad_token is not None:
        if params.azure_ad_token.get_secret_value().startswith("oidc/"):
            raise EntryError(".azure_ad_token", "must be a token; oidc/ is not supported")
        return None, params.azure_ad_token
    if params.tenant_id or params.client_secret:
        given = {"tenant_id": tenant_id, "client_id": client_id, "client_secret": secret}
        missing = next(name for name, value in given.items() if not value)
        text = "is missing; Entra ID needs tenant_id, client_id and client_secret"
        raise EntryError(f".{missing}", text)
    if refreshes:
        require_extra("azure.identity", "azure")
        return Entra(scope=scope, authority=authority), None
    return None, _secret(variables, "AZURE_AD_TOKEN")


def _first(environ: Mapping[str, str], *names: str) -> str:
    return next(filter(None, map(environ.get, names)), "")


def _secret(environ: Mapping[str, str], *names: str) -> SecretStr | None:
    found = _first(environ, *names)
    return SecretStr(found) if found else None


def _is_at(address: str, hosts: tuple[str, ...]) -> bool:
    """Return whether an address is one of a provider's own."""
    parts = urlsplit(address)
    return parts.scheme == "https" and f".{(parts.hostname or '').lower()}".endswith(hosts)
