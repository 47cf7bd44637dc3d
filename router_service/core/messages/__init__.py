"""Requests of OpenAI's APIs as frozen values.

Only what a routing decision needs is read. The gateway forwards the request itself unchanged. A
part that cannot be read, such as a turn that is not an object or a tool without a name, is listed
in `Conversation.unread` and is not an error, because judging it is the upstream's task.
"""

from router_service.core.messages.reading import (
    MAX_SCHEMA_DEPTH,
    Json,
    as_list,
    as_text,
    decode_object,
    parse_chat_request,
    parse_conversation,
    parse_schema,
    read_model,
    read_stream,
    unwrap_tool,
)
from router_service.core.messages.references import (
    CONTINUATION_FIELDS,
    find_references,
    may_contain_references,
)
from router_service.core.messages.responses import parse_responses_request, to_chat_messages
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
    "CONTINUATION_FIELDS",
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
    "as_list",
    "as_text",
    "decode_object",
    "find_references",
    "may_contain_references",
    "parse_chat_request",
    "parse_conversation",
    "parse_responses_request",
    "parse_schema",
    "read_model",
    "read_stream",
    "to_chat_messages",
    "unwrap_tool",
]
