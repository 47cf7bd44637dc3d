"""`switchcraft setup`, which points a coding agent at a gateway in the agent's own settings.

Beside the file that it changes are a copy (`.before-switchcraft`) and what it has set
(`.switchcraft`). `--undo` needs both to leave what was changed since.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias
from urllib.parse import quote

from cyclopts import Group, Parameter
from cyclopts.validators import mutually_exclusive

from router_service.core.addresses import check_http_address
from router_service.core.errors import ConfigError
from router_service.core.keys import HIDDEN, without_keys

if TYPE_CHECKING:
    from cyclopts import Token

Change: TypeAlias = dict[str, Any]
"""Values to set, by key, as deep as the file's; None takes a key away."""

TIMEOUT_S = 5.0
OUTPUT_TOKENS = 32_000
"""The longest answer that OpenCode asks for, and that Claude Code asks a model for that it does not
know. It asks Claude Opus 5.5 for 128,000 tokens, which few of a gateway's models can write."""

OWN_SECTIONS: Final = frozenset({"switchcraft", "openai-compatible"})
"""Names of providers. `--undo` removes such a section as a whole if it did not exist before,
because agents add keys to it that mean nothing without ours. If its address was changed since, it
stays as a whole."""

KEPT: Final = "version"
"""`--undo` removes it only if nothing else is left, because Cline ignores a file without it."""


@dataclass(frozen=True)
class SetupTarget:
    """The gateway that an agent shall use, and what the gateway says about the model's limits."""

    url: str
    """Without `/v1`."""
    model: str
    key: str | None
    key_variable: str | None
    window_tokens: int | None
    output_tokens: int
    """The longest answer to ask for."""


@dataclass(frozen=True)
class Client:
    """A coding agent: where its settings are, and what they need."""

    home: tuple[str, str]
    """The variable with the folder of its settings, and the usual folder below the user's home."""
    files: tuple[str, ...]
    """Names of the settings files in that folder. If none exists, the first one is created."""
    change: Callable[[SetupTarget], Change]

    @property
    def file(self) -> Path:
        """The file to change, without symbolic links, so that a link stays one."""
        variable, usual = self.home
        folder = Path(os.environ.get(variable) or Path.home() / usual)
        files = [(folder / name).resolve() for name in self.files]
        return max(files, key=lambda file: (_record_of(file).exists(), file.exists()))


def _claude_code(target: SetupTarget) -> Change:
    env: Change = {
        "ANTHROPIC_BASE_URL": target.url,
        # It would be sent to the gateway, too.
        "ANTHROPIC_API_KEY": None,
        "ANTHROPIC_AUTH_TOKEN": None if target.key_variable else target.key or "none",
    }
    if target.model != DEFAULT_MODEL:
        env["ANTHROPIC_MODEL"] = target.model
    if target.window_tokens:
        # The first one lowers the window of Claude's names, the second one sets that of others.
        env["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] = str(target.window_tokens)
        env["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] = str(target.window_tokens)
        env["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] = str(target.output_tokens)
    if target.key_variable:
        return {"env": env, "apiKeyHelper": f"printenv {target.key_variable}"}
    return {"env": env}


def _codex(target: SetupTarget) -> Change:
    # Only with a command for the key does Codex read the gateway's list of models.
    command = ["printenv", target.key_variable] if target.key_variable else None
    program, *arguments = command or ["echo", target.key or "none"]
    change: Change = {
        "model": target.model,
        "model_provider": "switchcraft",
        "web_search": "disabled",  # only OpenAI runs this tool
        "model_providers": {
            "switchcraft": {
                "name": "Switchcraft",
                "base_url": f"{target.url}/v1",
                "wire_api": "responses",
                "env_key": None,
                "auth": {"command": program, "args": arguments},
            }
        },
    }
    if target.window_tokens:
        change["model_context_window"] = target.window_tokens
    return change


def _opencode(target: SetupTarget) -> Change:
    model: Change = {"name": target.model}
    if target.window_tokens:
        model["limit"] = {"context": target.window_tokens, "output": target.output_tokens}
    key = f"{{env:{target.key_variable}}}" if target.key_variable else target.key or "none"
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Switchcraft",
        "options": {"baseURL": f"{target.url}/v1", "apiKey": key},
        "models": {target.model: model},
    }
    return {
        "model": f"switchcraft/{target.model}",
        "small_model": f"switchcraft/{target.model}",  # titles would go elsewhere otherwise
        "provider": {"switchcraft": provider},
    }


def _cline(target: SetupTarget) -> Change:
    if target.key_variable:
        raise ConfigError("--key-env", problem="Cline reads no key from a variable; use --key")
    settings: Change = {
        "provider": "openai-compatible",
        "apiKey": target.key or "none",
        "model": target.model,
        "baseUrl": f"{target.url}/v1",
    }
    if target.window_tokens:
        settings["contextWindow"] = target.window_tokens
    entry = {
        "settings": settings,
        "updatedAt": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S}.000Z",
        "tokenSource": "manual",
    }
    return {
        "lastUsedProvider": "openai-compatible",
        "providers": {"openai-compatible": entry},
        KEPT: 1,
    }


DEFAULT_MODEL: Final = "switchcraft"
CLIENTS: Final[Mapping[str, Client]] = {
    "claude-code": Client(("CLAUDE_CONFIG_DIR", ".claude"), ("settings.json",), _claude_code),
    "codex": Client(("CODEX_HOME", ".codex"), ("config.toml",), _codex),
    "opencode": Client(
        ("XDG_CONFIG_HOME", ".config"),
        ("opencode/opencode.json", "opencode/opencode.jsonc"),
        _opencode,
    ),
    "cline": Client(("CLINE_DIR", ".cline"), ("data/settings/providers.json",), _cline),
}


def _read_url(_type: type, tokens: tuple[Token, ...]) -> str:
    address = check_http_address(tokens[0].value, has_query=False)
    return address.rstrip("/").removesuffix("/v1")


def _check_variable(_type: type, name: str | None) -> None:
    if name is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError("give the name of a variable, such as SWITCHCRAFT_KEY")


_one_key = Group(validator=mutually_exclusive)


def setup(
    client: Literal["claude-code", "codex", "opencode", "cline"],
    /,
    *,
    url: Annotated[str, Parameter(converter=_read_url, metavar="URL")] = "http://127.0.0.1:8080",
    key: Annotated[str | None, Parameter(group=_one_key)] = None,
    key_env: Annotated[
        str | None, Parameter(group=_one_key, validator=_check_variable, metavar="NAME")
    ] = None,
    model: str = DEFAULT_MODEL,
    print_: bool = False,
    undo: bool = False,
    yes: bool = False,
) -> None:
    """Let a coding agent use a gateway.

    Shows what changes in the agent's own settings, asks, and writes them. A copy of the file stays
    beside it, with `.before-switchcraft` at its end. The context window comes from the gateway,
    which should be running.

    Example: `switchcraft setup claude-code --url http://127.0.0.1:8080 --key-env SWITCHCRAFT_KEY`

    Args:
        client: the agent
        url: the gateway's address
        key: a key of the gateway, which the agent's settings then contain
        key_env: the variable from which the agent reads the key (not for Cline)
        model: the model that the agent asks for. Claude Code asks for Claude's names by default
        print_: show the change, and write nothing
        undo: take back what this command has set, except what was changed since
        yes: do not ask
    """
    agent = CLIENTS[client]
    file = agent.file
    copy, record = _copy_of(file), _record_of(file)
    if undo and not record.exists():
        raise ConfigError(str(file), problem="`switchcraft setup` has not changed this file")
    change: Change = {} if undo else agent.change(_ask_gateway(url, model, key, key_env))
    current = _read(file)
    original = _without_setup(file, current, change)
    text = original
    if not undo:
        document = _parse(file, original, change)
        _apply(document, change)
        text = _format(file, document, original)
    if text == current:
        print(f"{file} needs no change.")
    else:
        _show(file, current, text, key)
    is_done = text == current and not undo
    if print_ or is_done or not (yes or _is_wanted()):
        return
    if undo:
        if text:
            _write(file, text)
        else:
            file.unlink(missing_ok=True)
        record.unlink()
        copy.unlink(missing_ok=True)
        print(f"{file} is as it was, except for what was changed since.")
        return
    if original:
        _write(copy, original)
    _write(record, json.dumps(change))
    _write(file, text)
    print(f"{file} is changed. `switchcraft setup {client} --undo` takes it back.")


def _ask_gateway(url: str, model: str, key: str | None, key_variable: str | None) -> SetupTarget:
    """Return the gateway with its model's limits, which are None if no gateway answers.

    Raises ConfigError if the gateway refuses the key or the model.
    """
    import httpx

    secret = key or os.environ.get(key_variable or "")
    headers = {"anthropic-version": "2023-06-01"}  # the format that has the limits
    if secret:
        headers["authorization"] = f"Bearer {secret}"
    address = f"{url}/v1/models/{quote(model)}"
    card: Mapping[str, Any] = {}
    problem = f"the gateway does not know the context window of {model}"
    try:
        answer = httpx.get(address, headers=headers, timeout=TIMEOUT_S)
        if answer.status_code in (401, 403, 404):
            reason, hint = answer.json()["error"]["message"], ""
            if key_variable is None:
                hint = "Keys are given with --key or --key-env."
            elif not os.environ.get(key_variable):
                hint = f"The variable {key_variable} is not set."
            raise ConfigError(url, problem=f"{reason} {hint}".rstrip())
        card = answer.raise_for_status().json()
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as exc:
        problem = f"no gateway answers at {url} ({type(exc).__name__})"
    window_tokens = card.get("max_input_tokens")
    if window_tokens is None:
        print(
            f"switchcraft: {problem}. The context window is left out. Run this command again when a"
            " gateway knows it.",
            file=sys.stderr,
        )
    output_tokens = min(card.get("max_tokens") or OUTPUT_TOKENS, OUTPUT_TOKENS)
    return SetupTarget(url, model, key, key_variable, window_tokens, output_tokens)


def _apply(document: MutableMapping[str, Any], change: Change) -> None:
    for name, value in change.items():
        if isinstance(value, dict):
            if not isinstance(document.get(name), MutableMapping):
                document[name] = {}
            _apply(document[name], value)
        elif value is not None:
            document[name] = value
        elif name in document:
            del document[name]


def _revert(
    document: MutableMapping[str, Any], change: Change, original: Mapping[str, Any]
) -> None:
    """Restore the original values that a change has replaced, unless they were changed since."""
    for name, value in change.items():
        part = document.get(name)
        if isinstance(value, dict) and isinstance(part, MutableMapping):
            if name in OWN_SECTIONS and name not in original:
                if _addresses(part) == _addresses(value):
                    del document[name]
                continue
            _revert(part, value, original.get(name) or {})
            if name not in original and not part:
                del document[name]
        elif part == value and name in original:
            document[name] = original[name]
        elif part == value and name in document and (name != KEPT or len(document) == 1):
            del document[name]


def _addresses(section: Mapping[str, Any]) -> list[str]:
    return re.findall(r'https?://[^"]*', json.dumps(section))


def _without_setup(file: Path, current: str, change: Change) -> str:
    """Return the text of a file without what an earlier call has set."""
    if not current or not _record_of(file).exists():
        return current
    before = _read(_copy_of(file))
    original, document = _parse(file, before, change), _parse(file, current, change)
    _revert(document, json.loads(_read(_record_of(file))), original)
    # Without later changes, also comments and spaces are as they were.
    return before if document == original else _format(file, document, current)


def _parse(file: Path, text: str, change: Change) -> MutableMapping[str, Any]:
    """Return a file's contents. Raises ConfigError, which says what to add by hand instead."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        if file.suffix == ".toml":
            return tomlkit.parse(text)
        document = json.loads(text or "{}")
        if isinstance(document, dict):
            return document
        problem = "is not a JSON object"
    except TOMLKitError as exc:
        problem = f"is not TOML: {exc}"
    except ValueError:
        problem = "is not plain JSON, because of comments, final commas or a mistake"
    remedy = "Remove by hand what `switchcraft setup` has set"
    if change:
        added: MutableMapping[str, Any] = {}
        _apply(added, change)
        remedy = f"Add this by hand:\n{_format(file, added, '')}"
    raise ConfigError(str(file), problem=f"{problem}. Nothing was written. {remedy}")


def _format(file: Path, document: Mapping[str, Any], like: str) -> str:
    """Return the text of a file's contents; JSON is indented as in an earlier text."""
    import tomlkit

    if file.suffix == ".toml":
        return tomlkit.dumps(document)
    indent = re.search(r"^[ \t]+", like, re.MULTILINE)
    text = json.dumps(document, indent=indent[0] if indent else 2, ensure_ascii=False)
    return text if like and not like.endswith("\n") else f"{text}\n"


def _show(file: Path, current: str, text: str, key: str | None) -> None:
    """Print a change as a unified diff without keys."""
    before, after = current.splitlines(), text.splitlines()
    lines = difflib.unified_diff(before, after, str(file), str(file), lineterm="")
    shown = without_keys("\n".join(lines))
    print(shown.replace(json.dumps(key), json.dumps(HIDDEN)) if key else shown)


def _is_wanted() -> bool:
    if not sys.stdin.isatty():
        raise ConfigError(
            "standard input", problem="is no terminal, so nothing was written; add --yes or --print"
        )
    print("Write this? [y/N] ", end="", flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _copy_of(file: Path) -> Path:
    return file.with_name(f"{file.name}.before-switchcraft")


def _record_of(file: Path) -> Path:
    return file.with_name(f"{file.name}.switchcraft")


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8") if file.exists() else ""
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(str(file), problem=f"cannot be read: {exc}") from exc


def _write(file: Path, text: str) -> None:
    """Replace a file atomically; only its user can read it, because it may have a key."""
    partial = file.with_name(f"{file.name}.{os.getpid()}.partial")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
        partial.replace(file)
    except OSError as exc:
        raise ConfigError(str(file), problem=f"cannot be written: {exc.strerror}") from exc
