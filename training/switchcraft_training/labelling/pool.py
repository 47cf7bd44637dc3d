"""The pool file of a labelling run: endpoints with their limits, and arms with their prices."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

import orjson
import yaml
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from router_service.apis.conversation import Json
from router_service.core.addresses import check_http_address
from router_service.core.errors import ConfigError
from router_service.policies.costs import Price
from switchcraft_training.config import find_config, raising_config_error

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Name = Annotated[str, Field(min_length=1)]

BYTES_PER_INPUT_TOKEN: Final = 2
"""Assumption for the reserved cost. It is cautious: English and JSON have about 4 bytes per token,
and few texts have less than 2."""

_KEY_HEADERS: Final = frozenset({"authorization", "api-key", "x-api-key"})
_RESERVED_FIELDS: Final = frozenset({"model", "messages", "tools", "stream", "n"})
"""Fields that the run sets itself, or that would change the format of the answer."""


class _PoolModel(BaseModel):
    # Error messages do not show inputs, because a user may have put a key in the wrong place.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class Endpoint(_PoolModel):
    """An OpenAI-compatible endpoint and its limits."""

    base_url: str
    api_key_env: Name | None = None
    """The environment variable with the API key; None if the endpoint needs no key."""
    max_concurrency: Count = 8
    """Limit of concurrent requests, and so of the answers lost if the process is killed."""
    requests_per_minute: Annotated[float, Field(gt=0)] | None = None
    """Rate limit. Requests, including retries, are spaced evenly."""
    timeout_s: Seconds = 300.0
    """Time limit for one request, until the last byte of its answer."""
    connect_timeout_s: Seconds = 10.0
    max_retries: Annotated[int, Field(ge=0)] = 5
    """Retries after temporary failures: 408, 409, 429, 5xx and lost connections."""
    total_timeout_s: Seconds = 900.0
    """Time after the beginning of the first try, including waits, after which no retry begins."""
    extra_headers: Mapping[str, str] = Field(default_factory=dict)

    @field_validator("base_url")
    @classmethod
    def _check_address(cls, url: str) -> str:
        parts = urlsplit(check_http_address(url))
        if parts.username or parts.password:
            problem = "put the key in an environment variable and its name in api_key_env"
            raise ValueError(f"contains credentials; {problem}")
        return url

    @field_validator("extra_headers")
    @classmethod
    def _refuse_key_headers(cls, headers: Mapping[str, str]) -> Mapping[str, str]:
        for name in headers:
            if name.lower() in _KEY_HEADERS:
                problem = "put the key in an environment variable and its name in api_key_env"
                raise ValueError(f"{name} contains a key; {problem}")
        return headers

    def key(self, environ: Mapping[str, str]) -> str:
        """Return the API key; raises ConfigError if its environment variable is not set."""
        if self.api_key_env is None:
            return "not-needed"
        if not environ.get(self.api_key_env):
            problem = f"set the environment variable {self.api_key_env} to the API key"
            raise ConfigError(self.base_url, "", problem)
        return environ[self.api_key_env]


class Arm(_PoolModel):
    """A model at an endpoint, or a model with parameters such as `reasoning_effort`."""

    arm: Name
    endpoint: Name
    model: Name
    price: Price
    """List price; cached input tokens cost as much as other input tokens."""
    extra_body: Mapping[str, Json] = Field(default_factory=dict)
    reserve_output_tokens: Count = 4096
    """Output tokens whose cost is reserved for a request if `extra_body` does not limit them."""

    @field_validator("price")
    @classmethod
    def _check_price(cls, price: Price) -> Price:
        if price.has_hourly_price:
            raise ValueError("a price by the hour cannot be capped; give prices per token")
        return price

    @field_validator("extra_body")
    @classmethod
    def _refuse_reserved_fields(cls, body: Mapping[str, Json]) -> Mapping[str, Json]:
        if taken := sorted(_RESERVED_FIELDS & body.keys()):
            fields = ", ".join(taken)
            raise ValueError(f"{fields} cannot be set here, because the run sets it; remove it")
        return body

    def body(self, request: Mapping[str, Json]) -> dict[str, Json]:
        """Return the request body for this arm.

        An empty list of tools is left out, because the API rejects it.
        """
        sent = {name: value for name, value in request.items() if name != "tools" or value}
        return {**sent, "model": self.model, **self.extra_body}

    def reserve_usd(self, body: Mapping[str, Json]) -> float:
        """Return the cost to reserve for a request: its cost with the longest possible answer."""
        limit = body.get("max_completion_tokens") or body.get("max_tokens")
        output_tokens = limit if isinstance(limit, int) else self.reserve_output_tokens
        input_tokens = len(orjson.dumps(body)) / BYTES_PER_INPUT_TOKEN
        return self.price.cost_usd(input_tokens, output_tokens, seconds=0)


class Pool(_PoolModel):
    """The pool file: endpoints by name, and the arms to ask."""

    endpoints: Mapping[str, Endpoint]
    pool: tuple[Arm, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _check_arms(self) -> Pool:
        names = [arm.arm for arm in self.pool]
        if duplicates := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two arms are called {duplicates[0]!r}; rename one of them")
        for arm in self.pool:
            if arm.endpoint not in self.endpoints:
                problem = f"the arm {arm.arm!r} names the unknown endpoint {arm.endpoint!r}"
                raise ValueError(f"{problem}; add it to `endpoints`")
        return self

    def identity(self) -> str:
        """Return the SHA-256 of the settings that affect answers or costs, so not of limits."""
        requests = [
            (arm.arm, self.endpoints[arm.endpoint].base_url, arm.model, arm.extra_body)
            for arm in self.pool
        ]
        prices = [arm.price.model_dump(exclude_none=True) for arm in self.pool]
        return sha256(orjson.dumps([requests, prices], option=orjson.OPT_SORT_KEYS)).hexdigest()


def load_pool(path: Path) -> Pool:
    """Return the pool in a file, or a shipped pool by its name.

    Raises ConfigError, which names the file, the place in it, and the problem.
    """
    with raising_config_error(path):
        return Pool.model_validate(yaml.safe_load(find_config(path).read_text()))
