"""JSON schemas of the requests that the vendors' SDKs declare, without any further field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jsonschema_rs
from anthropic.types import message_create_params
from openai.types.chat import completion_create_params
from openai.types.responses import response_create_params
from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

from tests import apis
from tests.apis import APIS, Api

_PARAMS: Mapping[Api, Any] = {
    apis.CHAT: completion_create_params.CompletionCreateParams,
    apis.RESPONSES: response_create_params.ResponseCreateParams,
    apis.MESSAGES: message_create_params.MessageCreateParams,
}


class _Closed(GenerateJsonSchema):
    """Schemas whose objects have no further fields, without Python's files."""

    def typed_dict_schema(self, schema: core_schema.TypedDictSchema) -> dict[str, Any]:
        closed = super().typed_dict_schema(schema)
        is_open = (schema.get("config") or {}).get("extra_fields_behavior") == "allow"
        return closed if is_open else {**closed, "additionalProperties": False}

    def handle_invalid_for_json_schema(  # pyrefly: ignore[bad-override]
        self, schema: core_schema.CoreSchema, error_info: str
    ) -> dict[str, Any]:
        del schema, error_info
        return {"not": {}}


def _validator(dialect: Api) -> jsonschema_rs.Validator:
    schema = TypeAdapter(_PARAMS[dialect]).json_schema(schema_generator=_Closed)
    return jsonschema_rs.validator_for(schema)


VALIDATORS = {dialect: _validator(dialect) for dialect in APIS}
