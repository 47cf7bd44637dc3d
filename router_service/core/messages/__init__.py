"""OpenAI request JSON -> frozen values that the router reads.

Only what a routing decision needs is read; the request itself is forwarded as it came. What
cannot be read (a turn that is no object, a tool without a name) is noted in
`Conversation.unread` rather than refused: judging the rest of a request is the upstream's task.
"""

from router_service.core.messages.body import Json, decode_object, read_model, read_stream
from router_service.core.messages.chat import parse_chat_request, parse_conversation
from router_service.core.messages.responses import messages_of, parse_responses_request
from router_service.core.messages.schemas import MAX_SCHEMA_DEPTH, parse_schema
from router_service.core.messages.values import (
    ChatRequest,
    Conversation,
    Parameter,
    Reference,
    Role,
    Schema,
    ToolCall,
    ToolSpec,
    Turn,
)

__all__ = [
    "MAX_SCHEMA_DEPTH",
    "ChatRequest",
    "Conversation",
    "Json",
    "Parameter",
    "Reference",
    "Role",
    "Schema",
    "ToolCall",
    "ToolSpec",
    "Turn",
    "decode_object",
    "messages_of",
    "parse_chat_request",
    "parse_conversation",
    "parse_responses_request",
    "parse_schema",
    "read_model",
    "read_stream",
]
