"""Whom a labelling run asks: endpoints with their limits, and arms at list prices, in one file."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

import orjson
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from router_service.core.addresses import check_http_address
from router_service.core.cost import Price
from router_service.core.errors import ConfigError
from switchcraft_training.config import find_config
from switchcraft_training.records import Json

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Name = Annotated[str, Field(min_length=1)]

BYTES_PER_INPUT_TOKEN: Final = 2
"""For the reserve: English and JSON have about 4 bytes a token, and few texts fewer than 2."""

_KEY_HEADERS: Final = frozenset({"authorization", "api-key", "x-api-key"})
_OURS: Final = frozenset({"model", "messages", "tools", "stream", "n"})
"""What the run itself puts into a request, and what would change the shape of its answer."""


class _Frozen(BaseModel):
    # Inputs stay out of error messages: somebody may have written a key where none belongs.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class Endpoint(_Frozen):
    """An OpenAI-compatible address, and how much may be asked of it."""

    base_url: str
    api_key_env: Name | None = None
    """The environment variable that holds the key; None: the endpoint asks for none."""
    max_concurrency: Count = 8
    """Requests in flight at a time, and so at most what a kill of the process can lose."""
    requests_per_minute: Annotated[float, Field(gt=0)] | None = None
    """Requests are sent no closer together than this allows, retries among them."""
    timeout_s: Seconds = 300.0
    """For one request, from its sending to the last byte of its answer."""
    connect_timeout_s: Seconds = 10.0
    max_retries: Annotated[int, Field(ge=0)] = 5
    """After the first try, of what may pass: 408, 409, 429, 5xx, lost connections."""
    total_timeout_s: Seconds = 900.0
    """No further try begins later than this after the first one, waits included."""
    extra_headers: Mapping[str, str] = Field(default_factory=dict)

    @field_validator("base_url")
    @classmethod
    def _is_address(cls, url: str) -> str:
        parts = urlsplit(check_http_address(url))
        if parts.username or parts.password:
            raise ValueError("holds credentials; name the key's variable in api_key_env")
        return url

    @field_validator("extra_headers")
    @classmethod
    def _hold_no_key(cls, headers: Mapping[str, str]) -> Mapping[str, str]:
        for name in headers:
            if name.lower() in _KEY_HEADERS:
                raise ValueError(f"{name} holds a key; name its variable in api_key_env instead")
        return headers

    def key(self, environ: Mapping[str, str]) -> str:
        """Return the key; raises ConfigError that names the variable that holds none."""
        if self.api_key_env is None:
            return "not-needed"
        if not environ.get(self.api_key_env):
            raise ConfigError(self.base_url, "", f"set the variable {self.api_key_env} to its key")
        return environ[self.api_key_env]


class Arm(_Frozen):
    """A model at an endpoint, or a model with parameters such as `reasoning_effort`."""

    arm: Name
    endpoint: Name
    model: Name
    price: Price
    """List price; cached input is reckoned at the price of other input."""
    extra_body: Mapping[str, Json] = Field(default_factory=dict)
    reserve_output_tokens: Count = 4096
    """What an answer may take, for the spending cap, where `extra_body` sets no limit."""

    @field_validator("price")
    @classmethod
    def _is_of_tokens(cls, price: Price) -> Price:
        if price.counts_seconds:
            raise ValueError("an hour cannot be reserved or capped here: name prices of tokens")
        return price

    @field_validator("extra_body")
    @classmethod
    def _leaves_ours(cls, body: Mapping[str, Json]) -> Mapping[str, Json]:
        if taken := sorted(_OURS & body.keys()):
            raise ValueError(f"{', '.join(taken)} cannot be set here: the run sets it")
        return body

    def body(self, request: Mapping[str, Json]) -> dict[str, Json]:
        """Return a query as this arm gets it; the API takes no empty list of tools."""
        sent = {name: value for name, value in request.items() if name != "tools" or value}
        return {**sent, "model": self.model, **self.extra_body}

    def reserve_usd(self, body: Mapping[str, Json]) -> float:
        """Return what a request may cost: at most, unless its answer is longer than reserved."""
        limit = body.get("max_completion_tokens") or body.get("max_tokens")
        output_tokens = limit if isinstance(limit, int) else self.reserve_output_tokens
        input_tokens = len(orjson.dumps(body)) / BYTES_PER_INPUT_TOKEN
        return self.price.cost_usd(input_tokens, output_tokens, seconds=0)


class Pool(_Frozen):
    """The file: endpoints by name, and the arms to ask."""

    endpoints: Mapping[str, Endpoint]
    pool: tuple[Arm, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _fits_together(self) -> Pool:
        names = [arm.arm for arm in self.pool]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two arms are called {twice[0]!r}")
        for arm in self.pool:
            if arm.endpoint not in self.endpoints:
                raise ValueError(f"the arm {arm.arm!r} is at {arm.endpoint!r}, no endpoint here")
        return self

    def arms_at(self, endpoint: str) -> tuple[Arm, ...]:
        """Return the arms of an endpoint, in the file's order."""
        return tuple(arm for arm in self.pool if arm.endpoint == endpoint)

    def identity(self) -> str:
        """Return the SHA-256 of what answers and their costs depend on: not of paces and limits."""
        asked = [
            (arm.arm, self.endpoints[arm.endpoint].base_url, arm.model, arm.extra_body)
            for arm in self.pool
        ]
        prices = [arm.price.model_dump(exclude_none=True) for arm in self.pool]
        return sha256(orjson.dumps([asked, prices], option=orjson.OPT_SORT_KEYS)).hexdigest()


def load_pool(path: Path) -> Pool:
    """Read a pool's file, or the one of that name that the package ships.

    Raises ConfigError that names the file, where in it, and what is wrong.
    """
    try:
        return Pool.model_validate(yaml.safe_load(find_config(path).read_text()))
    except OSError as exc:
        raise ConfigError(str(path), "", f"cannot be read: {exc.strerror}") from exc
    except (yaml.YAMLError, UnicodeDecodeError) as exc:
        raise ConfigError(str(path), "", f"is not YAML: {exc}") from exc
    except ValidationError as exc:
        first = exc.errors()[0]
        raise ConfigError(str(path), ".".join(map(str, first["loc"])), first["msg"]) from exc
