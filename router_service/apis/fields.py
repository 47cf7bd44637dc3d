"""Typed access to the JSON of requests; errors name the path of what is malformed."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TypeVar

from router_service.apis.conversation import CLIENT_TOOLS, Json, empty_array, wrong_type
from router_service.apis.parts import Media, OfferedTool, OutputFormat, ToolChoice
from router_service.core.errors import InvalidRequestError

S = TypeVar("S", bound=str)

_EMPTY: tuple[Json, ...] = (None, [], {}, "")

_CHOICES: Mapping[str, ToolChoice] = {
    "auto": ToolChoice("auto"),
    "none": ToolChoice("none"),
    "required": ToolChoice("required"),
    "any": ToolChoice("required"),  # Mistral's word
}


class Field:
    """A value of a request's body, and its place.

    Methods with a `name` read a member of an object. They raise InvalidRequestError.
    """

    __slots__ = ("_key", "_parent", "lost", "value")

    def __init__(
        self, value: Json, lost: list[str], parent: Field | None = None, key: str | int = ""
    ) -> None:
        """Without a `parent`, this is the body."""
        self.value = value
        self.lost = lost
        """Paths of what a translation of the request would lose."""
        self._parent = parent
        self._key = key

    @classmethod
    def of_body(
        cls,
        body: Mapping[str, Json],
        carried: Collection[str],
        neutral: Mapping[str, Sequence[Json]],
    ) -> Field:
        """Return a body. Unknown fields count as lost.

        `carried` are the fields that are read, and those that change no answer. `neutral` has
        values that mean the same as a missing field.
        """
        lost = [
            name
            for name, value in body.items()
            if name not in carried and value not in _EMPTY and value not in neutral.get(name, ())
        ]
        return cls(body, lost)

    @property
    def path(self) -> str:
        """Where the value is in the body."""
        place, path = self, ""
        while place._parent is not None:  # no recursion, because tools may be nested deeply
            path = (
                f"[{place._key}]{path}" if isinstance(place._key, int) else f".{place._key}{path}"
            )
            place = place._parent
        return path.removeprefix(".")

    def lose(self, name: str = "") -> None:
        """Note that a translation would lose this value, or its member."""
        self.lost.append(self.member(name).path if name else self.path)

    def has(self, name: str) -> bool:
        """Return whether a member is there and not empty."""
        return bool(self.value.get(name))

    def member(self, name: str) -> Field:
        """Return a member; its value is None if it is missing."""
        return Field(self.value.get(name), self.lost, self, name)

    def wrong_type(self, name: str, wanted: str, *, is_needed: bool = False) -> InvalidRequestError:
        """Return the error for a member of the wrong type, or for a missing one."""
        member, is_missing = self.member(name), is_needed and name not in self.value
        return wrong_type(member.path, wanted, member.value, missing=is_missing)

    def as_object(self) -> Field:
        """Return the value, which must be an object."""
        if not isinstance(self.value, dict):
            raise wrong_type(self.path, "an object", self.value)
        return self

    def object(self, name: str) -> Field:
        """Return a member that must be an object."""
        return self.member(name).as_object()

    def optional_object(self, name: str) -> Field | None:
        """Return a member that must be an object, or None if it is missing or null."""
        return None if self.value.get(name) is None else self.object(name)

    def options(self, name: str) -> Field:
        """Return a member that must be an object; an empty one if it is missing or null."""
        return self.optional_object(name) or Field({}, self.lost, self, name)

    def array(self, name: str) -> list[Json]:
        """Return a member that must be an array; an empty one if it is missing or null."""
        value = self.value.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.wrong_type(name, "an array")
        return value

    def objects(self, name: str) -> Iterator[Field]:
        """Yield the items of an array, which must be objects; none if it is missing or null."""
        parent = self.member(name)
        for index, item in enumerate(self.array(name)):
            found = Field(item, self.lost, parent, index)
            yield found if isinstance(item, dict) else found.as_object()

    def parts(self, name: str) -> Iterator[tuple[str, Field]]:
        """Yield the parts of a content, each with its type; a string is one text."""
        value = self.value.get(name)
        if isinstance(value, str):
            yield "text", Field({"text": value}, self.lost, self, name)
            return
        if not isinstance(value, list):
            raise self.wrong_type(name, "a string or an array")
        for part in self.objects(name):
            yield part.text("type"), part

    def text(self, name: str) -> str:
        """Return a member that must be a string."""
        value = self.value.get(name)
        if not isinstance(value, str):
            raise self.wrong_type(name, "a string", is_needed=True)
        return value

    def identifier(self, name: str) -> str:
        """Return a member that must be a string which is not empty."""
        value = self.value.get(name)
        if not isinstance(value, str) or not value:
            raise self.wrong_type(name, "a non-empty string", is_needed=True)
        return value

    def optional_text(self, name: str) -> str | None:
        """Return a member that must be a string, or None if it is missing or null."""
        return None if self.value.get(name) is None else self.text(name)

    def optional_number(self, name: str) -> float | None:
        """Return a member that must be a number, or None if it is missing or null."""
        value: float | None = self.value.get(name)
        if value is None or type(value) in {int, float}:
            return value
        raise self.wrong_type(name, "a number")

    def optional_count(self, name: str) -> int | None:
        """Return a member that must be a positive integer, or None if it is missing or null."""
        value = self.value.get(name)
        if value is None:
            return None
        if type(value) is not int:  # true is an int too
            raise self.wrong_type(name, "an integer")
        if value < 1:
            raise _invalid(self.member(name).path, f"{value}. Send an integer of at least 1.")
        return value

    def optional_flag(self, name: str) -> bool | None:
        """Return a member that must be a boolean, or None if it is missing or null."""
        value = self.value.get(name)
        if value is None or isinstance(value, bool):
            return value
        raise self.wrong_type(name, "a boolean")

    def one_of(self, name: str, allowed: Collection[S], default: S | None = None) -> S:
        """Return a member that must be one of several strings; `default` if it is missing."""
        value: S = self.value.get(name, default)
        if not isinstance(value, str):
            wanted = f"one of the strings {', '.join(allowed)}"
            raise self.wrong_type(name, wanted, is_needed=default is None)
        if value not in allowed:
            shown = f"{value[:80]!r}. Use one of these: {', '.join(allowed)}."
            raise _invalid(self.member(name).path, shown)
        return value

    def texts(self, name: str, wanted: str = "an array of strings") -> tuple[str, ...]:
        """Return a member that must be an array of strings; `wanted` is its type in errors."""
        values = self.array(name)
        if not all(isinstance(value, str) for value in values):
            raise self.wrong_type(name, wanted)
        return tuple(values)

    def messages(self) -> Iterator[Field]:
        """Yield the messages, of which there must be one."""
        if not isinstance(self.value.get("messages"), list):
            raise self.wrong_type("messages", "an array")
        if not self.value["messages"]:
            raise empty_array("messages", "message")
        return self.objects("messages")

    def image(self, name: str, detail: str | None) -> Media:
        """Return an image from its address or its data URL."""
        url = self.identifier(name)
        if not url.startswith("data:"):
            return Media("image", url=url, detail=detail)
        media_type, data = _read_data_url(url, self.member(name).path)
        return Media("image", data=data, media_type=media_type, detail=detail)

    def document(self, name: str, title: str | None, media_type: str | None = None) -> Media:
        """Return a document of a type, or from its data URL, or else a PDF; the data is base64."""
        data, path = self.text(name), self.member(name).path
        if media_type is None and data.startswith("data:"):
            media_type, data = _read_data_url(data, path)
        elif media_type is None:
            media_type = "application/pdf"
        if media_type is not None and media_type.startswith("text/"):
            media_type = "text/plain"
            try:
                data = base64.b64decode(data, validate=True).decode()
            except (binascii.Error, UnicodeDecodeError) as exc:
                raise InvalidRequestError(
                    f"The text in '{path}' cannot be read: {exc}. Send UTF-8, encoded as base64.",
                    param=path,
                    code="invalid_value",
                ) from exc
        return Media("document", data=data, media_type=media_type, name=title)

    def audio(self) -> Media:
        """Return the recording of a part in OpenAI's form."""
        audio = self.object("input_audio")
        data, form = audio.identifier("data"), audio.identifier("format")
        return Media("audio", data=data, media_type=f"audio/{form}")

    def function(self) -> OfferedTool:
        """Return the function that the value defines in OpenAI's form."""
        name, description = self.identifier("name"), self.optional_text("description") or ""
        parameters, is_strict = self.optional_object("parameters"), self.optional_flag("strict")
        return OfferedTool(name, description, parameters and parameters.value, is_strict)

    def named(self, kind: str, *, is_nested: bool) -> Field:
        """Return the object with a name: in Chat Completions it is nested, in Responses not."""
        return self.object(kind) if is_nested else self

    def tool_choice(self, *, is_nested: bool) -> ToolChoice | None:
        """Return the choice among the tools in OpenAI's form."""
        value = self.value.get("tool_choice")
        if value is None:
            return None
        if isinstance(value, str):
            return _CHOICES[self.one_of("tool_choice", _CHOICES)]
        choice = self.object("tool_choice")
        kind = choice.text("type")
        if kind in CLIENT_TOOLS:
            name = choice.named(kind, is_nested=is_nested).identifier("name")
            return ToolChoice("required", (name,))
        if kind != "allowed_tools":
            choice.lose()
            return None
        allowed = choice.named(kind, is_nested=is_nested)
        names = []
        for tool in allowed.objects("tools"):
            kind = tool.text("type")
            if kind in CLIENT_TOOLS:
                names.append(tool.named(kind, is_nested=is_nested).identifier("name"))
            else:
                tool.lose()
        mode = allowed.one_of("mode", ("auto", "required"))
        return ToolChoice(_CHOICES[mode].mode, tuple(names))

    def output_format(self, name: str, *, is_nested: bool) -> OutputFormat | None:
        """Return the format of the answer's text in OpenAI's form."""
        value = self.optional_object(name)
        if value is None:
            return None
        kind = value.text("type")
        if kind == "json_object":
            return OutputFormat()
        if kind == "json_schema":
            form = value.named(kind, is_nested=is_nested)
            schema = form.options("schema") if is_nested else form.object("schema")
            return OutputFormat(
                schema=schema.value,
                name=form.identifier("name"),
                description=form.optional_text("description"),
                is_strict=form.optional_flag("strict"),
            )
        if kind != "text":
            value.lose()
        return None


def distinct_tools(tools: Sequence[OfferedTool]) -> tuple[OfferedTool, ...]:
    """Return tools without repetitions.

    Raise InvalidRequestError if two different tools have the same name, because an answer's calls
    could not be assigned.
    """
    found: dict[str, OfferedTool] = {}
    for tool in tools:
        if found.setdefault(tool.name, tool) != tool:
            raise InvalidRequestError(
                f"Two different tools have the name {tool.name[:200]!r}. Rename one of them.",
                param="tools",
                code="duplicate_tool",
            )
    return tuple(found.values())


def _read_data_url(url: str, path: str) -> tuple[str | None, str]:
    """Return the type and the base64 of a data URL (RFC 2397)."""
    head, comma, data = url.partition(",")
    if not comma or not head.endswith(";base64"):
        raise InvalidRequestError(
            f"The data URL in '{path}' cannot be read. Write it as 'data:TYPE;base64,DATA', for"
            " example 'data:image/png;base64,iVBORw0...'.",
            param=path,
            code="invalid_value",
        )
    return head.removeprefix("data:").split(";")[0].lower() or None, data


def _invalid(path: str, problem: str) -> InvalidRequestError:
    message = f"Invalid value for '{path}': {problem}"
    return InvalidRequestError(message, param=path, code="invalid_value")
