"""Defaults of parameters, in the forms in which people write them."""

from __future__ import annotations

from typing import Any

import pytest

from router_service.checker.defaults import documented_defaults
from router_service.checker.parameter_schema import Schema


@pytest.mark.parametrize(
    ("schema", "default"),
    [
        ({"type": "integer", "default": 0, "description": "Default is 5"}, 0),
        ({"type": "integer", "description": "Page. Default is `0`"}, 0),
        ({"type": "integer", "description": "Page number (default: 10)."}, 10),
        ({"type": "number", "description": "Gravity, defaults to -9.81."}, -9.81),
        ({"type": "boolean", "description": "Full name. Default is false."}, False),
        ({"type": "boolean", "description": "Default value is True"}, True),
        ({"type": "string", "description": "The unit of measure (defaults to 'units')"}, "units"),
        ({"type": "string", "description": "Currency, default USD."}, "USD"),
        ({"type": "string", "description": 'Default to "New York"'}, "New York"),
        ({"type": "array", "description": "Default is [1, 2]"}, [1, 2]),
        ({"type": "object", "description": "Options. Default is {}"}, {}),
        ({"type": "integer", "description": "Limit; default none"}, None),
    ],
)
def test_default_is_parsed_as_the_schema_type(schema: dict[str, Any], default: object) -> None:
    """The `default` keyword wins over the description; the value has the schema's type."""
    values = documented_defaults(Schema(schema))
    assert default in values
    assert type(values[values.index(default)]) is type(default)
