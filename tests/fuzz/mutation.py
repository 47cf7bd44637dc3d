"""Mutations that keep an input's format: of lines, and of trees of JSON values."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tests.attacks import INTEGERS, VALUES
from tests.fuzz.target import Mutate

_LINES = re.compile(rb"[^\r\n]*(?:\r\n|\r|\n|$)")
_ENDS = (b"\r\n", b"\n", b"\r", b"")
_NUMBERS = ("1", "7", "8", "99999", *(str(integer) for integer in INTEGERS))

FIELDS: Sequence[bytes] = tuple(
    b"model messages input tools functions function custom name description parameters "
    b"input_schema role user system developer assistant tool content text type tool_calls "
    b"function_call arguments id call_id tool_use_id tool_call_id output tool_use "
    b"tool_result thinking redacted_thinking signature data encrypted_content reasoning "
    b"summary image image_url source url base64 media_type document title file file_data "
    b"input_text input_image output_text refusal function_call_output custom_tool_call "
    b"namespace tool_search_call tool_search_output additional_tools execution client "
    b"allowed_tools mode auto required none any tool_choice stop stop_sequences max_tokens "
    b"stream metadata clear_at next_user_message tool_addition tool_removal tool_reference "
    b"tool_definition search_result citations defer_loading input_examples allowed_callers "
    b"format grammar json_schema schema strict output_config effort choices delta message "
    b"index finish_reason usage response message_start message_delta message_stop "
    b"content_block_start content_block_delta content_block_stop content_block text_delta "
    b"input_json_delta partial_json thinking_delta signature_delta response.created "
    b"response.completed response.output_item.added response.output_item.done "
    b"response.output_text.delta response.function_call_arguments.delta output_index "
    b"content_index item status error prompt_tokens completion_tokens input_tokens "
    b"output_tokens stop_reason reasoning_content reasoning_details messageStart "
    b"contentBlockStart contentBlockDelta contentBlockStop messageStop contentBlockIndex "
    b"start toolUse toolUseId reasoningContent reasoningText redactedContent "
    b"citationsContent stopReason inputTokens outputTokens throttlingException "
    b"additionalModelResponseFields stop_sequence object total_tokens failed "
    b"sequence_number response.incomplete chat.completion.chunk prompt_tokens_details "
    b"cached_tokens input_tokens_details output_tokens_details reasoning_tokens x_groq "
    b"cache_read_input_tokens cache_creation_input_tokens prompt_cache_hit_tokens".split()
)
"""Words of requests and answers in all APIs."""


def of_lines(tokens: Sequence[bytes]) -> Mutate:
    """Return a mutation that moves, repeats, drops, and rewrites lines and words of a format."""

    def mutate(data: bytes, rng: random.Random) -> bytes:
        lines = [line for line in _LINES.findall(data) if line] or [b""]
        for _ in range(rng.choice((1, 1, 2, 4))):
            place = rng.randrange(len(lines))
            rng.choice(_LINE_CHANGES)(lines, place, tokens, rng)
            lines = lines or [b""]
        return b"".join(lines)

    return mutate


LineChange = Callable[[list[bytes], int, Sequence[bytes], random.Random], None]


def _repeat_line(lines: list[bytes], at: int, _: Sequence[bytes], rng: random.Random) -> None:
    lines[at:at] = [lines[at]] * rng.choice((1, 1, 2, 8))


def _drop_line(lines: list[bytes], at: int, _: Sequence[bytes], _rng: random.Random) -> None:
    del lines[at]


def _move_line(lines: list[bytes], at: int, _: Sequence[bytes], rng: random.Random) -> None:
    lines.insert(rng.randrange(len(lines)), lines.pop(at))


def _end_line(lines: list[bytes], at: int, _: Sequence[bytes], rng: random.Random) -> None:
    lines[at] = lines[at].rstrip(b"\r\n") + rng.choice(_ENDS)


def _add_line(lines: list[bytes], at: int, tokens: Sequence[bytes], rng: random.Random) -> None:
    lines.insert(at, rng.choice(tokens).rstrip(b"\r\n") + rng.choice((b"\r\n", b"\n")))


def _insert_word(lines: list[bytes], at: int, tokens: Sequence[bytes], rng: random.Random) -> None:
    place = rng.randrange(len(lines[at]) + 1)
    lines[at] = lines[at][:place] + rng.choice(tokens) + lines[at][place:]


def _change_number(lines: list[bytes], at: int, _: Sequence[bytes], rng: random.Random) -> None:
    number = rng.choice(_NUMBERS).encode()
    lines[at] = re.sub(rb"\d+", number, lines[at], count=1)


_LINE_CHANGES: Sequence[LineChange] = (
    _repeat_line,
    _drop_line,
    _move_line,
    _end_line,
    _add_line,
    _insert_word,
    _change_number,
)


def change_json(data: bytes, rng: random.Random) -> bytes:
    """Change a JSON text, which stays valid; leave other texts unchanged."""
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError):
        return data
    changed = _mutate_tree(tree, [word.decode() for word in FIELDS], rng)
    is_compact, is_ascii = rng.random() < 0.5, rng.random() < 0.5
    text = json.dumps(
        changed,
        ensure_ascii=is_ascii,
        separators=(",", ":") if is_compact else None,
    )
    return text.encode("utf-8", "replace")


Place = tuple[Any, Any]
"""A container, and the key or index of one of its values."""


def _mutate_tree(tree: Any, words: Sequence[str], rng: random.Random) -> Any:  # noqa: ANN401
    root = [tree]
    for _ in range(rng.choice((1, 1, 2, 4))):
        places = list(_places(root))
        container, key = rng.choice(places)
        source, source_key = rng.choice(places)
        other = _copied(source[source_key], [_MAX_NODES])
        change = rng.randrange(6)
        if change == 0:
            container[key] = other
        elif change == 1:
            container[key] = _new_value(words, rng)
        elif change == 2:
            container[key] = rng.choice(
                ([container[key]], {rng.choice(words): container[key]}, [container[key]] * 3)
            )
        elif change == 3 and container is not root:
            del container[key]
        elif change == 4 and isinstance(container, dict):
            container[rng.choice(words)] = container.pop(key)
        elif isinstance(container, dict):
            container[rng.choice(words)] = other
        else:
            container.insert(key, other)
            del root[1:]
        root = [_copied(root[0], [_MAX_NODES])]
    return root[0]


_MAX_NODES = 2000


_MAX_LEVELS = 300
"""More than orjson writes, and fewer than Python's limit on recursion."""


def _copied(value: Any, left: list[int], levels: int = _MAX_LEVELS) -> Any:  # noqa: ANN401
    """Return a copy with at most this many nodes and levels."""
    left[0] -= 1
    if left[0] < 0 or levels == 0:
        return None
    if isinstance(value, dict):
        return {name: _copied(inner, left, levels - 1) for name, inner in value.items()}
    if isinstance(value, list):
        return [_copied(inner, left, levels - 1) for inner in value]
    return value


def _places(value: Any) -> Iterator[Place]:  # noqa: ANN401
    members = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in members:
        yield value, key
        if isinstance(inner, (dict, list)):
            yield from _places(inner)


def _nested(levels: int) -> Any:  # noqa: ANN401
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


def _new_value(words: Sequence[str], rng: random.Random) -> Any:  # noqa: ANN401
    return rng.choice(
        (
            *VALUES,
            False,
            int(rng.choice(_NUMBERS)),
            rng.choice(_NUMBERS),
            rng.choice(words),
            rng.choice(words) * rng.choice((2, 50)),
            "\u0000\u2028\U0001f600",
            "\ud83d",
            math.nan,
            math.inf,
            10 ** rng.choice((19, 25, 400)),
            _nested(rng.choice((70, 260))),
        )
    )
