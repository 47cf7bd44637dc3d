"""The admin API of keys and teams."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Query
from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from router_service.access.accounts import MAX_PAGE_SIZE, PAGE_SIZE, Accounts
from router_service.access.specs import (
    CreatedKey,
    KeyChange,
    KeyPage,
    KeyStatus,
    KeyView,
    NewKey,
    NewTeam,
    Rotation,
    TeamChange,
    TeamPage,
    TeamView,
    describe_mistake,
)
from router_service.apis.conversation import decode_object
from router_service.apis.openapi import Document, RequestSchema
from router_service.core.errors import DatabaseError
from router_service.database.schema import MAX_NAME
from router_service.http.schemas import ACCOUNTS, ERRORS, json_request
from router_service.http.transfer import call_of, gateway_of, json_answer, read_body, read_database

MAX_BODY_BYTES = 128 * 1024

routes = APIRouter(prefix="/admin", tags=[ACCOUNTS], responses=ERRORS)

Search = Annotated[
    str | None, Query(max_length=MAX_NAME, description="Part of a name or an owner.")
]
PageSize = Annotated[int, Query(ge=1, le=MAX_PAGE_SIZE)]
After = Annotated[str | None, Query(max_length=MAX_NAME, description="`next` of the page before.")]

_log = logging.getLogger("switchcraft.accounts")

S = TypeVar("S", bound=BaseModel)
T = TypeVar("T")


def _body_of(spec: type[BaseModel], example: Document) -> Document:
    """Return the OpenAPI description of a body."""
    schema = spec.model_json_schema()
    definitions = schema.pop("$defs", {})

    def inline(node: Any) -> Any:  # noqa: ANN401 - any part of a schema
        if isinstance(node, list):
            return [inline(each) for each in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            found = definitions[node["$ref"].rpartition("/")[2]]
            node = {**found, **{name: value for name, value in node.items() if name != "$ref"}}
        return {name: inline(value) for name, value in node.items()}

    document = json_request(RequestSchema(inline(schema), example))
    document["requestBody"]["required"] = "required" in schema  # or else it may be missing
    return document


async def _read(request: Request, spec: type[S]) -> S:
    """Return the body of a request, in which each field may be missing if it has a default.

    Raises InvalidRequestError, which names the field.
    """
    body = await read_body(
        call_of(request), request.receive, gateway_of(request).server, MAX_BODY_BYTES
    )
    body = body or b"{}"
    decode_object(body)  # refuses what pydantic accepts: NaN, and fields that are repeated
    try:
        return spec.model_validate_json(body, strict=True)
    except ValidationError as exc:
        raise describe_mistake(exc) from exc


async def _show(request: Request, read: Callable[[Accounts], BaseModel]) -> Response:
    """Return what a method of `Accounts` reads."""
    accounts = _accounts_of(request)

    def write() -> bytes:
        return read(accounts).model_dump_json().encode()

    return json_answer(request, await read_database(request, write))


def _accounts_of(request: Request) -> Accounts:
    gateway = gateway_of(request)
    failure = gateway.database.failure
    if failure is not None:
        raise failure  # at once, instead of after the connection's timeout
    return Accounts(gateway.database.database, gateway.engine.settings.keys)


async def _change(
    request: Request,
    action: str,
    name: str,
    work: Callable[[Accounts], T],
    change: BaseModel | None = None,
) -> T:
    """Change a key or a team in a thread, and log who has done what.

    The change is valid in this process when the function returns.
    """
    gateway = gateway_of(request)
    result = await asyncio.to_thread(work, _accounts_of(request))
    details = "{}"
    if change is not None:
        details = change.model_dump_json(exclude_unset=True, exclude={"name", "metadata"})
    _log.info("%s: name=%r by=%r changes=%s", action, name, call_of(request).key.name, details)
    with suppress(DatabaseError):  # the change is made, and the database's thread will read it
        await asyncio.to_thread(gateway.stored_keys.refresh, gateway.database.database)
    return result


# Keys. A name may contain slashes, so the routes that end with a word come first.


_KEY_EXAMPLE: Document = {
    "name": "search-agent",
    "team": "search",
    "owner": "ana@example.com",
    "budget": {"usd": 50, "period": "month"},
    "requests_per_minute": 600,
}
_TEAM_EXAMPLE: Document = {"name": "search", "budget": {"usd": 500, "period": "month"}}


@routes.post(
    "/keys",
    status_code=201,
    openapi_extra=_body_of(NewKey, _KEY_EXAMPLE),
    summary="Create a key",
)
async def create_key(request: Request) -> CreatedKey:
    """Create a key and return its secret, which is shown only here and stored as a hash.

    The key is valid in this process at once, and in all others within a second.
    """
    spec = await _read(request, NewKey)
    return await _change(
        request, "created a key", spec.name, lambda accounts: accounts.create_key(spec), spec
    )


@routes.get("/keys", summary="List the keys", response_model=KeyPage)
async def list_keys(
    request: Request,
    search: Search = None,
    team: Annotated[str | None, Query(max_length=MAX_NAME)] = None,
    status: KeyStatus | None = None,
    limit: PageSize = PAGE_SIZE,
    after: After = None,
) -> Response:
    """List the keys of the database by name, with what they have spent.

    Keys of the configuration file are not in this list.
    """
    return await _show(
        request, lambda accounts: accounts.list_keys(search, team, status, limit, after)
    )


@routes.post(
    "/keys/{name:path}/rotate",
    openapi_extra=_body_of(Rotation, {"overlap_s": 3600}),
    summary="Rotate a key",
)
async def rotate_key(request: Request, name: str) -> CreatedKey:
    """Give a key another secret and return it; the old one stays valid for the overlap.

    The old secret of an earlier rotation is no longer valid.
    """
    rotation = await _read(request, Rotation)
    overlap_s = rotation.overlap_s
    return await _change(
        request, "rotated a key", name, lambda accounts: accounts.rotate_key(name, overlap_s)
    )


@routes.post("/keys/{name:path}/revoke", summary="Revoke a key")
async def revoke_key(request: Request, name: str) -> KeyView:
    """Make a key invalid for ever, in all processes within a second.

    A key that is revoked already stays as it is.
    """
    return await _change(request, "revoked a key", name, lambda accounts: accounts.revoke_key(name))


@routes.get("/keys/{name:path}", summary="Get a key", response_model=KeyView)
async def get_key(request: Request, name: str) -> Response:
    """Return a key without its secret, and what it has spent."""
    return await _show(request, lambda accounts: accounts.get_key(name))


@routes.patch(
    "/keys/{name:path}",
    openapi_extra=_body_of(KeyChange, {"budget": {"usd": 100, "period": "month"}}),
    summary="Change a key",
)
async def change_key(request: Request, name: str) -> KeyView:
    """Change the fields that are sent; null removes a limit. A key's name never changes."""
    change = await _read(request, KeyChange)
    return await _change(
        request, "changed a key", name, lambda accounts: accounts.change_key(name, change), change
    )


@routes.delete("/keys/{name:path}", summary="Revoke a key, as POST /admin/keys/{name}/revoke does")
async def delete_key(request: Request, name: str) -> KeyView:
    """Make a key invalid for ever; its name stays taken, because usage refers to it."""
    return await revoke_key(request, name)


# Teams.


@routes.post(
    "/teams",
    status_code=201,
    openapi_extra=_body_of(NewTeam, _TEAM_EXAMPLE),
    summary="Create a team",
)
async def create_team(request: Request) -> TeamView:
    """Create a team, whose limits and budget hold for all of its keys together."""
    spec = await _read(request, NewTeam)
    return await _change(
        request, "created a team", spec.name, lambda accounts: accounts.create_team(spec), spec
    )


@routes.get("/teams", summary="List the teams", response_model=TeamPage)
async def list_teams(
    request: Request, search: Search = None, limit: PageSize = PAGE_SIZE, after: After = None
) -> Response:
    """List the teams by name, with what they have spent."""
    return await _show(request, lambda accounts: accounts.list_teams(search, limit, after))


@routes.get("/teams/{name:path}", summary="Get a team", response_model=TeamView)
async def get_team(request: Request, name: str) -> Response:
    """Return a team, and what it has spent."""
    return await _show(request, lambda accounts: accounts.get_team(name))


@routes.patch(
    "/teams/{name:path}",
    openapi_extra=_body_of(TeamChange, {"tokens_per_minute": 1_000_000}),
    summary="Change a team",
)
async def change_team(request: Request, name: str) -> TeamView:
    """Change the fields that are sent; null removes a limit. A team's name never changes."""
    change = await _read(request, TeamChange)
    return await _change(
        request, "changed a team", name, lambda accounts: accounts.change_team(name, change), change
    )


@routes.delete(
    "/teams/{name:path}", status_code=204, response_class=Response, summary="Delete a team"
)
async def delete_team(request: Request, name: str) -> None:
    """Delete a team that has no keys any more; its name stays taken, because usage refers to it."""
    await _change(request, "deleted a team", name, lambda accounts: accounts.delete_team(name))
