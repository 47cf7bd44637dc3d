"""The OpenAPI description: tags, headers, and the fields of relayed requests that are read."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

from router_service.policies.registry import POLICIES

Document = dict[str, Any]
"""A part of an OpenAPI document."""

DESCRIPTION = (
    "Send your key as `authorization: Bearer KEY`; `api-key` and `x-api-key` work too. A gateway "
    "without keys accepts only requests from its own machine. Fields that are not listed here are "
    "forwarded unchanged."
)

ANSWERS, STORED, DECISIONS, OPERATIONS = "Answers", "Stored responses", "Decisions", "Operations"

TAGS: list[Document] = [
    {"name": ANSWERS, "description": "Requests that a model answers."},
    {"name": STORED, "description": "Responses that a provider has stored for your key."},
    {"name": DECISIONS, "description": "Models, policies, decisions, and feedback on answers."},
    {
        "name": OPERATIONS,
        "description": "Health needs no key. Metrics need the metrics key or the admin key, and "
        "administration needs the admin key.",
    },
]


class Fault(BaseModel):
    """Details of an error; `message` has the remedy."""

    message: str
    type: str
    param: str | None
    code: str | int | None


class ErrorBody(BaseModel):
    """An error in OpenAI's format."""

    error: Fault


ERRORS: dict[int | str, Document] = {
    "4XX": {"model": ErrorBody, "description": "The request cannot be answered as it is"},
    "5XX": {"model": ErrorBody, "description": "The gateway or every suitable upstream failed"},
}


class MessagesFault(BaseModel):
    """Details of an error in Anthropic's format."""

    type: str
    message: str


class MessagesErrorBody(BaseModel):
    """An error in Anthropic's format."""

    type: Literal["error"]
    error: MessagesFault
    request_id: str


MESSAGES_ERRORS: dict[int | str, Document] = {
    code: {**error, "model": MessagesErrorBody} for code, error in ERRORS.items()
}

ANSWER: dict[int | str, Document] = {
    200: {
        "description": "The upstream's answer, unchanged",
        "content": {
            "application/json": {"schema": {"type": "object"}},
            "text/event-stream": {"schema": {"type": "string"}},
        },
    }
}

_RESPONSE_HEADERS = {
    "x-switchcraft-model": "Model that answered.",
    "x-switchcraft-decision-id": "Id of the decision; get its record from `/v1/decisions/{id}`.",
    "x-switchcraft-policy": "Policy that was applied: its rule, after the name or goal that it was "
    "asked for by, as in `economy (drift=0.1)`.",
    "x-switchcraft-reason": "Why this model answered, in one word.",
    "x-switchcraft-why": "Why this model's answer was chosen, in one sentence.",
    "x-switchcraft-familiarity": "Routed requests only: how much the request resembles the training"
    " data, from 0 to 1.",
    "x-switchcraft-attempts": "Number of deployments that were tried.",
    "x-switchcraft-cost-usd": "Cost of the request, if it is known before the body is sent.",
    "x-switchcraft-candidates": "Verified answers only: number of models that were asked.",
    "x-switchcraft-p-correct": "Verified answers only: estimated probability of being correct.",
    "x-switchcraft-ungrounded": "Arguments of risky tools in the answer whose values nobody said,"
    " and no other model confirmed.",
    "x-switchcraft-unverified": "Why the answer was not verified, if its policy verifies answers.",
}

ROUTED: dict[int | str, Document] = {
    200: {
        **ANSWER[200],
        "description": "The model's answer, in the format of the API",
        "headers": {
            name: {"description": text, "schema": {"type": "string"}}
            for name, text in _RESPONSE_HEADERS.items()
        },
    }
}

_RULES = ", ".join(f"`{policy.example}`" for policy in POLICIES.values())

_REQUEST_HEADERS: dict[str, Document] = {
    "x-switchcraft-policy": {
        "description": f"Policy for this request: a name (`economy`), a rule ({_RULES}) or a goal "
        "(`accuracy=best`, `usd_per_1k=0.5`).",
        "schema": {"type": "string"},
    },
    "x-switchcraft-verified-goals": {
        "description": "Whether a goal may choose verified answers.",
        "schema": {"enum": ["true", "false"]},
    },
    "x-switchcraft-max-candidates": {
        "description": "Verified answers: how many models may be asked in all.",
        "schema": {"type": "string"},
    },
    "x-switchcraft-max-cost-usd": {
        "description": "Verified answers: how much the request may cost in all.",
        "schema": {"type": "string"},
    },
    "x-switchcraft-max-added-latency-s": {
        "description": "Verified answers: seconds to wait for further candidates after the first.",
        "schema": {"type": "string"},
    },
    "x-switchcraft-session-id": {
        "description": "Name of the conversation that the request belongs to.",
        "schema": {"type": "string"},
    },
    "x-request-timeout": {
        "description": "Seconds that the request may take in total.",
        "schema": {"type": "number", "exclusiveMinimum": 0, "maximum": 24 * 3600},
    },
}

COUNT: dict[int | str, Document] = {
    200: {
        "description": "The number of tokens",
        "content": {
            "application/json": {
                "schema": {"type": "object", "properties": {"input_tokens": {"type": "integer"}}}
            }
        },
    }
}

_STRING: Document = {"type": "string"}
_MODEL: Document = {
    "type": "string",
    "minLength": 1,
    "description": "`switchcraft` lets the router choose. `switchcraft:economy` also names a "
    "policy. The name of a configured model skips the router.",
}
_STREAM = "Whether the answer arrives as server-sent events."
_TOOLS = "Tools that the model may call. Only requests with tools are routed."
_TEXT_PART: Document = {
    "type": "object",
    "required": ["type"],
    "properties": {"type": _STRING, "text": _STRING},
}
_MESSAGE: Document = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {
        "role": {"enum": "system developer user assistant tool function".split()},
        "content": {
            "anyOf": [_STRING, {"type": "array", "items": _TEXT_PART}, {"type": "null"}],
        },
        "tool_calls": {"type": "array", "items": {"type": "object"}},
        "tool_call_id": _STRING,
    },
}
_TOOL: Document = {
    "type": "object",
    "required": ["type", "function"],
    "properties": {
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "required": ["name"],
            "properties": {
                "name": {"type": "string", "minLength": 1, "maxLength": 64},
                "description": {
                    "type": "string",
                    "description": "What the tool does; the router reads it too.",
                },
                "parameters": {
                    "type": "object",
                    "description": "JSON Schema of the arguments.",
                },
            },
        },
    },
}
_EXAMPLE_TURN: Document = {"role": "user", "content": "Will it rain in Lisbon tomorrow?"}
_EXAMPLE_TOOL: Document = {
    "type": "function",
    "function": {
        "name": "get_forecast",
        "description": "Weather forecast for a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}


def chat_request() -> Document:
    """Return the schema of a Chat Completions request; unlisted fields are forwarded."""
    schema = {
        "type": "object",
        "required": ["model", "messages"],
        "properties": {
            "model": _MODEL,
            "messages": {
                "type": "array",
                "minItems": 1,
                "items": _MESSAGE,
                "description": "The conversation so far, the oldest turn first.",
            },
            "tools": {"type": "array", "items": _TOOL, "description": _TOOLS},
            "stream": {"type": ["boolean", "null"], "description": _STREAM},
        },
    }
    example = {"model": "switchcraft", "messages": [_EXAMPLE_TURN], "tools": [_EXAMPLE_TOOL]}
    return json_request(schema, example, is_routed=True)


def responses_request() -> Document:
    """Return the schema of a Responses request; unlisted fields are forwarded."""
    item: Document = {"type": "object", "properties": {"type": _STRING, "role": _STRING}}
    schema = {
        "type": "object",
        "required": ["model", "input"],
        "properties": {
            "model": _MODEL,
            "input": {"anyOf": [_STRING, {"type": "array", "minItems": 1, "items": item}]},
            "instructions": {"type": ["string", "null"]},
            "tools": {
                "type": "array",
                "items": {"type": "object", "required": ["type"]},
                "description": _TOOLS,
            },
            "previous_response_id": {
                "type": ["string", "null"],
                "description": "A stored response to continue; its provider answers.",
            },
            "stream": {"type": ["boolean", "null"], "description": _STREAM},
        },
    }
    tool = {"type": "function", **_EXAMPLE_TOOL["function"]}
    example = {"model": "switchcraft", "input": _EXAMPLE_TURN["content"], "tools": [tool]}
    return json_request(schema, example, is_routed=True)


def messages_request(*, is_counted: bool = False) -> Document:
    """Return the schema of a request of Anthropic's Messages API.

    A request whose tokens are counted (`is_counted`) needs no `max_tokens`, and has no stream.
    """
    blocks = {"type": "array", "items": {"type": "object", "required": ["type"]}}
    message: Document = {
        "type": "object",
        "required": ["role", "content"],
        "properties": {
            "role": {"enum": ["user", "assistant"]},
            "content": {"anyOf": [_STRING, blocks]},
        },
    }
    tools: Document = {"type": ["array", "null"], "items": {"type": "object"}}
    schema = {
        "type": "object",
        "required": ["model", "messages", *([] if is_counted else ["max_tokens"])],
        "properties": {
            "model": _MODEL,
            "max_tokens": {"type": "integer", "minimum": 0},
            "messages": {"type": "array", "minItems": 1, "items": message},
            "system": {"anyOf": [_STRING, blocks]},
            "tools": {**tools, "description": _TOOLS},
            **({} if is_counted else {"stream": {"type": "boolean", "description": _STREAM}}),
        },
    }
    function: Document = {**_EXAMPLE_TOOL["function"]}
    tool = {"input_schema": function.pop("parameters"), **function}
    example = {"model": "switchcraft", "messages": [_EXAMPLE_TURN], "tools": [tool]}
    if is_counted:
        return json_request(schema)
    return json_request(schema, {"max_tokens": 1024, **example}, is_routed=True)


def feedback_request(max_calls: int) -> Document:
    """Return the schema of feedback: a decision id, and either `correct` or `expected`."""
    call: Document = {
        "type": "object",
        "required": ["name", "arguments"],
        "properties": {"name": _STRING, "arguments": {"type": "object"}},
        "additionalProperties": False,
    }
    properties: Document = {
        "decision_id": {
            "type": "string",
            "minLength": 1,
            "maxLength": 100,
            "description": "Value of the answer's header `x-switchcraft-decision-id`.",
        },
        "correct": {"type": "boolean", "description": "Whether the answer was correct."},
        "expected": {
            "type": "array",
            "items": call,
            "maxItems": max_calls,
            "description": "The calls that would have been correct; send it instead of `correct`.",
        },
    }
    schema = {
        "type": "object",
        "required": ["decision_id"],
        "properties": properties,
        "additionalProperties": False,
        "oneOf": [{"required": ["correct"]}, {"required": ["expected"]}],
    }
    return json_request(schema, {"decision_id": "dec_0123456789abcdef01234567", "correct": True})


def model_request() -> Document:
    """Return the schema of a request from which the gateway reads only the model."""
    named = "Name of a configured model; these requests are not routed."
    properties: Document = {"model": {"type": "string", "minLength": 1, "description": named}}
    return json_request({"type": "object", "required": ["model"], "properties": properties})


def json_request(
    schema: Document, example: Document | None = None, *, is_routed: bool = False
) -> Document:
    """Return the part of an operation that describes its JSON body, and the headers of routing."""
    content: Document = {"schema": schema, **({"example": example} if example else {})}
    document: Document = {
        "requestBody": {"required": True, "content": {"application/json": content}}
    }
    if is_routed:
        document["parameters"] = [
            {"name": name, "in": "header", "required": False, **header}
            for name, header in _REQUEST_HEADERS.items()
        ]
    return document
