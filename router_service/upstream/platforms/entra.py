"""Azure with access tokens of Entra ID, from azure-identity."""

from __future__ import annotations

from typing import Any

from router_service.settings import Deployment
from router_service.settings.platforms import Entra, secret_texts
from router_service.upstream.connection import HttpRequest
from router_service.upstream.platforms.credentials import (
    Credentials,
    CredentialSource,
    secrets_of_environment,
)
from router_service.upstream.platforms.platform import PlatformClient

REMEDY = (
    "Check tenant_id, client_id and client_secret, or what DefaultAzureCredential finds on this"
    " machine, and that it has the role Cognitive Services OpenAI User"
)

SECRET_VARIABLES = ("AZURE_CLIENT_SECRET", "AZURE_PASSWORD", "AZURE_FEDERATED_TOKEN_FILE")
"""Secrets that azure-identity reads from the environment, and from the file that it names."""


class EntraClient(PlatformClient):
    """Requests to Azure with the tokens of one identity."""

    title = "Entra ID"

    def __init__(self, platform: Entra) -> None:
        self._platform = platform
        self._credential: Any = None
        self.credentials: CredentialSource[str] = CredentialSource(
            self.title, self._fetch, REMEDY, secrets=secret_texts(platform)
        )

    def prepare(self, deployment: Deployment, request: HttpRequest) -> None:
        """Add the token; the address and the body stay as they are."""
        found = self.credentials.current()
        token = "" if found is None else found.value
        authorization = (b"authorization", b"Bearer " + token.encode())
        request.headers.append(authorization)

    def _fetch(self) -> Credentials[str]:
        self.credentials.note_secrets(*secrets_of_environment(*SECRET_VARIABLES))
        if self._credential is None:
            self._credential = _credential(self._platform)
        token = self._credential.get_token(self._platform.scope)
        return Credentials(token.token, (token.token,), float(token.expires_on))


def _credential(platform: Entra) -> Any:  # noqa: ANN401 - azure-identity has no common base class
    from azure.identity import (  # noqa: PLC0415 - an extra
        ClientSecretCredential,
        DefaultAzureCredential,
    )

    options: dict[str, Any] = {}
    if platform.authority is not None:
        # Only Microsoft's public authorities can vouch for themselves.
        options = {"authority": platform.authority, "disable_instance_discovery": True}
    if platform.tenant_id and platform.client_id and platform.client_secret:
        secret = platform.client_secret.get_secret_value()
        return ClientSecretCredential(platform.tenant_id, platform.client_id, secret, **options)
    return DefaultAzureCredential(**options)
