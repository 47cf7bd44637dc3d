"""The OpenAPI description: tags, headers, and the bodies of requests and of errors."""

from __future__ import annotations

from pydantic import BaseModel

from router_service.apis.api import Api
from router_service.apis.openapi import STRING, Document, ErrorBody, RequestSchema
from router_service.policies.registry import POLICIES

DESCRIPTION = (
    "Send your key as `authorization: Bearer KEY`; `api-key` and `x-api-key` work too. A gateway "
    "without keys accepts only requests from its own machine. Fields that are not listed here are "
    "forwarded unchanged."
)

ANSWERS, STORED, DECISIONS = "Answers", "Stored responses", "Decisions"
ACCOUNTS, OPERATIONS = "Keys and teams", "Operations"

TAGS: list[Document] = [
    {"name": ANSWERS, "description": "Requests that a model answers."},
    {"name": STORED, "description": "Responses that a provider has stored for your key."},
    {"name": DECISIONS, "description": "Models, policies, decisions, and feedback on answers."},
    {
        "name": ACCOUNTS,
        "description": "Keys and teams of the database, with their limits and budgets. These "
        "endpoints need an admin key.",
    },
    {
        "name": OPERATIONS,
        "description": "Health needs no key. Metrics need the metrics key or the admin key, and "
        "administration needs the admin key.",
    },
]


def errors(model: type[BaseModel]) -> dict[int | str, Document]:
    """Return the responses with errors, whose body a model describes."""
    return {
        "4XX": {"model": model, "description": "The request cannot be answered as it is"},
        "5XX": {"model": model, "description": "The gateway or every suitable upstream failed"},
    }


ERRORS = errors(ErrorBody)

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
    "x-switchcraft-budget-left-usd": "What is left of the budget of the key or its team, before"
    " this request; of the tighter one.",
    "x-switchcraft-budget-policy": "Cheaper policy that applied because the budget would otherwise"
    " not last.",
    "x-switchcraft-expected-accuracy": "Measured accuracy of that policy, from 0 to 1.",
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


def routed_request(api: Api) -> Document:
    """Return the description of a request in an API; unlisted fields are forwarded."""
    return json_request(api.request_schema(), is_routed=True)


def counted_request(api: Api) -> Document:
    """Return the description of a request whose tokens are counted."""
    return json_request(api.request_schema(is_counted=True))


def feedback_request(max_calls: int) -> Document:
    """Return the schema of feedback: a decision id, and either `correct` or `expected`."""
    call: Document = {
        "type": "object",
        "required": ["name", "arguments"],
        "properties": {"name": STRING, "arguments": {"type": "object"}},
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
    example = {"decision_id": "dec_0123456789abcdef01234567", "correct": True}
    return json_request(RequestSchema(schema, example))


def model_request() -> Document:
    """Return the schema of a request from which the gateway reads only the model."""
    named = "Name of a configured model; these requests are not routed."
    properties: Document = {"model": {"type": "string", "minLength": 1, "description": named}}
    schema = {"type": "object", "required": ["model"], "properties": properties}
    return json_request(RequestSchema(schema))


def json_request(request: RequestSchema, *, is_routed: bool = False) -> Document:
    """Return the part of an operation that describes its JSON body, and the headers of routing."""
    content: Document = {"schema": request.schema}
    if request.example:
        content["example"] = request.example
    document: Document = {
        "requestBody": {"required": True, "content": {"application/json": content}}
    }
    if is_routed:
        document["parameters"] = [
            {"name": name, "in": "header", "required": False, **header}
            for name, header in _REQUEST_HEADERS.items()
        ]
    return document
