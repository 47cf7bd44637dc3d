"""`os.environ/NAME`, LiteLLM's way to name an environment variable in place of a value."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from router_service.core.errors import ConfigError
from router_service.core.messages import Json

REFERENCE = "os.environ/"


@dataclass(frozen=True, slots=True)
class References:
    """Replaces references by the variables' values; errors name `source` and where in it."""

    source: str
    environ: Mapping[str, str]

    def resolved(self, value: Json, where: str) -> Json:
        """Return a value with all references in it replaced; raises ConfigError at an unset one."""
        if isinstance(value, Mapping):
            return {name: self.resolved(inner, f"{where}.{name}") for name, inner in value.items()}
        if isinstance(value, list):
            return [self.resolved(inner, f"{where}.{i}") for i, inner in enumerate(value)]
        if isinstance(value, str) and value.startswith(REFERENCE):
            return self._variable(value.removeprefix(REFERENCE), where)
        return value

    def used(self, values: Json, names: Collection[str], where: str) -> Json:
        """Return a section in which the values of these names are resolved.

        Only what is used: a variable that LiteLLM alone reads may be unset.
        """
        if not isinstance(values, Mapping):
            return values
        return {
            name: self.resolved(value, f"{where}.{name}") if name in names else value
            for name, value in values.items()
        }

    def _variable(self, name: str, where: str) -> str:
        if not self.environ.get(name):
            problem = f"the environment variable {name} is not set; set it, or write the value here"
            raise ConfigError(self.source, where, problem)
        return self.environ[name]
