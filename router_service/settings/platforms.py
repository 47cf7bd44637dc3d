"""Platforms that authenticate with credentials which expire: how an operator configures them.

How requests to them are addressed, signed and answered is in `upstream/platforms/`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from pydantic import SecretStr

ENTRA_SCOPE = "https://cognitiveservices.azure.com/.default"
"""What a token of Entra ID is for: Azure OpenAI."""

AZURE_HOSTS = (".openai.azure.com", ".cognitiveservices.azure.com", ".services.ai.azure.com")
"""Ends of the names of Azure's hosts."""


@dataclass(frozen=True, slots=True)
class Bedrock:
    """Amazon Bedrock in one region, and whose credentials sign the requests.

    Without any credentials here, AWS's usual chain is searched: environment, profile, container,
    instance.
    """

    region: str
    has_key: bool = False
    """Whether the deployment has a Bedrock API key, so that nothing is signed."""
    access_key_id: str | None = None
    secret_access_key: SecretStr | None = None
    session_token: SecretStr | None = None
    profile: str | None = None
    """A profile of AWS's configuration files."""
    role: str | None = None
    """A role to assume with the credentials above, or with the web identity."""
    session_name: str = "switchcraft"
    external_id: str | None = None
    web_identity_token: SecretStr | None = None
    """A token, the path of its file, or LiteLLM's `oidc/file/PATH` or `oidc/env/NAME`."""
    sts_endpoint: str | None = None


@dataclass(frozen=True, slots=True)
class Vertex:
    """Google Vertex AI, and whose access tokens requests have."""

    credentials: SecretStr | None = None
    """The JSON of credentials, or the path of its file; None for Application Default
    Credentials."""


@dataclass(frozen=True, slots=True)
class Entra:
    """Azure with access tokens of Entra ID.

    Without a client, azure-identity's `DefaultAzureCredential` finds the identity.
    """

    tenant_id: str | None = None
    client_id: str | None = None
    client_secret: SecretStr | None = None
    scope: str = ENTRA_SCOPE
    authority: str | None = None
    """Address of the authority, for clouds other than Azure's public one."""


Platform = Bedrock | Vertex | Entra


def account_text(platform: Platform) -> str:
    """Return a text that differs between two accounts; it contains secrets."""
    values = [type(platform).__name__]
    for each in fields(platform):
        value = getattr(platform, each.name)
        values.append(value.get_secret_value() if isinstance(value, SecretStr) else str(value))
    return "\0".join(values)


def secret_texts(platform: Platform) -> tuple[str, ...]:
    """Return the configured secrets."""
    values = (getattr(platform, each.name) for each in fields(platform))
    return tuple(value.get_secret_value() for value in values if isinstance(value, SecretStr))
