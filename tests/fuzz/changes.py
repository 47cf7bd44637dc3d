"""The inputs in the repository, and changes of them that keep the format of lines or of JSON.

Each file of `corpus` has one JSON object per line. Bytes are written as the characters U+0000 to
U+00FF, so that most inputs are readable. `found` names the defect that an input showed.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.attacks import INTEGERS, VALUES

FOLDER = Path(__file__).parent / "corpus"


def read_inputs(name: str) -> list[bytes]:
    """Return a target's inputs."""
    lines = (FOLDER / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["input"].encode("latin-1") for line in lines]


_LINES = re.compile(rb"[^\r\n]*(?:\r\n|\r|\n|$)")
_NUMBERS = ("1", "7", "8", "99999", *(str(integer) for integer in INTEGERS))
_WORDS = sorted(
    {
        *("none", "failed", "error", "stream", "sequence_number", "cached_tokens", "stop_sequence"),
        *("input_text", "grammar", "citations", "x_groq", "response.incomplete", "content_index"),
        *("throttlingException", "additionalModelResponseFields", "total_tokens"),
        *("input_tokens_details", "output_tokens_details", "cache_read_input_tokens"),
        *(
            word.decode()
            for entry in read_inputs("translations")
            for word in re.findall(rb'"([\w.]{2,40})"', entry)
        ),
    }
)
"""Names and values of requests and answers in all APIs."""


def change_lines(data: bytes, words: Sequence[bytes], rng: random.Random) -> bytes:
    """Drop, repeat, insert and rewrite some lines; `words` are those of their format."""
    lines = [line for line in _LINES.findall(data) if line] or [b""]
    for _ in range(rng.choice((1, 1, 2, 4))):
        at, word = rng.randrange(len(lines)), rng.choice(words)
        line = lines[at]
        place = rng.randrange(len(line) + 1)
        lines[at : at + 1] = rng.choice(
            (
                [line] * rng.choice((0, 2, 3, 9)),
                [rng.choice(lines), line],
                [word.rstrip(b"\r\n") + rng.choice((b"\r\n", b"\n")), line],
                [line.rstrip(b"\r\n") + rng.choice((b"\r\n", b"\n", b"\r", b""))],
                [line[:place] + word + line[place:]],
                [re.sub(rb"\d+", rng.choice(_NUMBERS).encode(), line, count=1)],
            )
        )
        lines = lines or [b""]
    return b"".join(lines)


def change_json(data: bytes, rng: random.Random) -> bytes:
    """Change a JSON text, which stays valid; leave other and too deep texts unchanged."""
    try:
        root = [json.loads(data)]
        for _ in range(rng.choice((1, 1, 2, 4))):
            _change_place(root, rng)
        text = json.dumps(
            root[0],
            ensure_ascii=rng.random() < 0.5,
            separators=(",", ":") if rng.random() < 0.5 else None,
        )
    except (ValueError, RecursionError):
        return data
    return text.encode("utf-8", "replace")


def _change_place(root: list[Any], rng: random.Random) -> None:
    """Change one value in a tree, or the name of one, or add or remove one."""
    places = list(_places(root))
    (container, key), (source, source_key) = rng.choice(places), rng.choice(places)
    value, word = container[key], rng.choice(_WORDS)
    copied = json.loads(json.dumps(source[source_key]))
    new = rng.choice((copied, copied, _new_value(rng), [value], [value] * 3, {word: value}))
    match rng.randrange(4):
        case 0 if container is not root:
            del container[key]
        case 1 if isinstance(container, dict):
            container[word] = container.pop(key)
        case 2 if isinstance(container, dict):
            container[word] = copied
        case 2 if container is not root:
            container.insert(key, copied)
        case _:
            container[key] = new


def _places(value: Any) -> Iterator[tuple[Any, Any]]:  # noqa: ANN401 - any JSON
    """Yield each container in a value, with the key or index of each of its values."""
    members = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in members:
        yield value, key
        if isinstance(inner, (dict, list)):
            yield from _places(inner)


def _new_value(rng: random.Random) -> Any:  # noqa: ANN401 - any JSON
    nested: Any = []
    for _ in range(rng.choice((70, 260))):
        nested = [nested]
    word, number = rng.choice(_WORDS), rng.choice(_NUMBERS)
    odd = ("\u0000\u2028\U0001f600", "\ud83d", math.nan, math.inf, 10**19)
    return rng.choice((*VALUES, *odd, word, word * 50, number, int(number), nested))
