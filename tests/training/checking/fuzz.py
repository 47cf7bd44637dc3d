"""Random pairs for the checker: valid and invalid schemas, expected calls and answers.

`python tests/training/checking/fuzz.py 1000000` checks a million of them.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

from router_service.apis.conversation import Json
from router_service.checker.comparison import OneOf
from router_service.checker.toolbox import Call, ExpectedCall
from router_service.core.errors import SchemaError
from switchcraft_training.checking import check
from switchcraft_training.records import Expected

NAMES = "f g a.b a_b ls".split()
KEYS = "a b c to".split()
TYPES = (
    "string integer number boolean array object null any dict float tuple String ArrayList HashMap "
    "Bigint long char Boolean quaternion"
).split()
TEXTS = [
    "", " ", "Oslo", "oslo", "New York", "-5", "5", "5.0", "1,500", ".5", "1e400", "NaN", "true",
    "null", "2024-01-02", "2024-13-45", "1990-05-15T00:00:00Z", "9999-12-31T23:59:59-23:59",
    "15th June",
    "x_y", "x-y", "x²", "()", "f(", "[1, 2", "{k: 'v'}", "new int[]{1}", "new HashMap<>(){{put(",
    "a@b.org", "/a/b", "3*x**2", "lambda x: x",
    "\x00", "\ud83d\ude00", "İ", "ß", "\u2212", "'", '"', "\\",
    "Default is 5.", "default: [1, 2", "This is Java ArrayList type in string representation.",
    "This is JavaScript Foo type in string representation. Defaults to 'x", "the coordinates",
]  # fmt: skip
NUMBERS = [
    0,
    1,
    -1,
    5,
    5.0,
    0.1,
    1e308,
    -1e-308,
    1 / 3,
    0.333333333,
    10**30,
    float("inf"),
    float("nan"),
]


class Fuzz:
    """Generator of random pairs from one seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def scalar(self) -> Json:
        """Return a random scalar."""
        choice = self.rng.random()
        if choice < 0.5:
            return self.rng.choice(TEXTS)
        return self.rng.choice(NUMBERS) if choice < 0.8 else self.rng.choice([True, False, None])

    def value(self, depth: int = 0) -> Json:
        """Return a random JSON value."""
        choice = self.rng.random()
        if depth > 2 or choice < 0.6:
            return self.scalar()
        parts = [self.value(depth + 1) for _ in range(self.rng.randrange(4))]
        if choice < 0.8:
            return parts
        return {self.rng.choice(KEYS): part for part in parts}

    def accepted(self, depth: int = 0) -> Json:
        """Return a random accepted value, which may contain choices."""
        value = self.value(depth)
        if isinstance(value, dict) and self.rng.random() < 0.5:
            return {key: OneOf((inner,), self.rng.random() < 0.3) for key, inner in value.items()}
        return value

    def schema(self, depth: int = 0) -> Json:
        """Return a random schema, sometimes an invalid one."""
        rng = self.rng
        schema: dict[str, Any] = {}
        if rng.random() < 0.9:
            schema["type"] = rng.choice(TYPES) if rng.random() < 0.9 else rng.sample(TYPES, 2)
        if rng.random() < 0.3:
            schema["description"] = " ".join(rng.sample(TEXTS, 2))
        for key in ("default", "const"):
            if rng.random() < 0.05:
                schema[key] = self.value()
        if rng.random() < 0.1:
            schema["enum"] = [self.scalar() for _ in range(3)] if rng.random() < 0.9 else 7
        if depth < 3:
            schema |= self.parts(depth)
        return schema if rng.random() < 0.99 else rng.choice([True, 5, "string", None])

    def parts(self, depth: int) -> dict[str, Any]:
        """Return random keywords that contain schemas."""
        rng, parts = self.rng, dict[str, Any]()
        for key in ("items", "additionalProperties"):
            if rng.random() < 0.2:
                parts[key] = self.schema(depth + 1)
        for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
            if rng.random() < 0.04:
                parts[key] = [self.schema(depth + 1) for _ in range(2)]
        if rng.random() < 0.3:
            parts["properties"] = {key: self.schema(depth + 1) for key in rng.sample(KEYS, 2)}
            parts["required"] = rng.sample(KEYS, 1)
        if rng.random() < 0.05:
            parts["$ref"] = rng.choice(["#", "#/properties/a", "#/$defs/none", "http://x", 5])
        return parts

    def pair(self) -> tuple[list[Any], Expected, list[Call] | None]:
        """Return random tools, expected calls, and calls that are similar to the expected ones."""
        rng = self.rng
        tools = [
            {"function": {"name": name, "parameters": self.schema()}}
            for name in rng.sample(NAMES, 2)
        ]
        wanted, calls = [], []
        for index in range(rng.choice((0, 1, 1, 1, 2, 3))):
            name = rng.choice(NAMES[:3])
            values = {key: self.accepted() for key in rng.sample(KEYS, rng.randrange(4))}
            accepted = {key: (value, self.value()) for key, value in values.items()}
            after = frozenset(range(index)) if rng.random() < 0.1 else frozenset[int]()
            wanted.append(ExpectedCall(name, accepted, frozenset(rng.sample(KEYS, 1)), after))
            calls.append(Call(name, {key: self.changed(value) for key, value in values.items()}))
        rng.shuffle(calls)
        made = None if rng.random() < 0.02 else calls[: rng.choice((1, 3, 3, 3))]
        return tools, Expected(tuple(wanted), rng.random() < 0.02), made

    def changed(self, value: Json) -> Json:
        """Return a plain value that is accepted, or sometimes another."""
        if self.rng.random() < 0.2:
            return self.value()
        if isinstance(value, OneOf):
            return value.values[0]
        if isinstance(value, dict):
            return {key: self.changed(inner) for key, inner in value.items()}
        return value


def outcomes(pairs: int, seed: int = 0) -> Iterator[str]:
    """Check random pairs; yield `right`, `wrong` or `no schema` for each."""
    fuzz = Fuzz(seed)
    for _ in range(pairs):
        try:
            verdict = check(*fuzz.pair())
        except SchemaError:
            yield "no schema"
            continue
        assert 0 <= verdict.score <= 1
        assert verdict.correct == (not verdict.errors)
        yield "right" if verdict.correct else "wrong"


if __name__ == "__main__":
    print(dict(Counter(outcomes(int(sys.argv[1])))))  # noqa: T201 - a command line prints
