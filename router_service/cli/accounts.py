"""The commands `switchcraft keys` and `switchcraft teams`, which work on the gateway's database."""

from __future__ import annotations

import json as json_format
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias, TypeVar

from cyclopts import App, Parameter

from router_service.command_line import SEVERAL, Count
from router_service.core.errors import InvalidRequestError
from router_service.core.text import aligned, printable

if TYPE_CHECKING:
    from cyclopts import Token
    from pydantic import BaseModel

    from router_service.access.accounts import Accounts
    from router_service.access.specs import BudgetView, CreatedKey, KeyView, TeamView
    from router_service.database.engine import Database
    from router_service.settings import Settings

    S = TypeVar("S", bound=BaseModel)

keys = App(
    "keys",
    help="""Create and change API keys in the gateway's database.

    Example: `switchcraft keys create search-agent --budget 50/month`
    """,
)
teams = App(
    "teams",
    help="""Create and change teams of keys, which share limits and a budget.

    Example: `switchcraft teams create search --budget 500/month`
    """,
)

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 24 * 3600, "w": 7 * 24 * 3600}
_DURATION = re.compile(r"(\d{1,9})([smhdw])")


def _read_duration(text: str) -> timedelta:
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError(f"{text[:40]!r} is not a time; write a number and s, m, h, d or w: 24h")
    return timedelta(seconds=int(found[1]) * _UNITS_S[found[2]])


def _convert_duration(_type: type, tokens: Sequence[Token]) -> float:
    return _read_duration(tokens[0].value).total_seconds()


def _convert_expiry(_type: type, tokens: Sequence[Token]) -> datetime:
    text = tokens[0].value
    try:
        if _DURATION.fullmatch(text):
            return datetime.now(UTC) + _read_duration(text)
        given = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text[:40]!r} is not a date; write 2027-01-31, 2027-01-31T18:00+01:00, or the time "
            "from now, such as 90d"
        ) from None
    return given if given.tzinfo else given.replace(tzinfo=UTC)


def _convert_budget(_type: type, tokens: Sequence[Token]) -> dict[str, object]:
    text = tokens[0].value
    usd, _, period = text.partition("/")
    try:
        return {"usd": float(usd), "period": period or "month"}
    except ValueError:
        raise ValueError(
            f"{text[:40]!r} is not a budget; write USD/PERIOD, such as 50/month, with the period "
            "day, week, month or total"
        ) from None


Config: TypeAlias = Annotated[
    Path | None,
    Parameter(
        "--config",
        help="the gateway's YAML configuration (default: `SWITCHCRAFT_CONFIG`); "
        "`SWITCHCRAFT_DATABASE_URL` overrides its database",
    ),
]
Json: TypeAlias = Annotated[bool, Parameter("--json", help="print JSON")]
Page: TypeAlias = Annotated[Count, Parameter(help="largest number of lines")]
After: TypeAlias = Annotated[str | None, Parameter(help="continue a list after this name")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class LimitOptions:
    """Options of keys and teams; those that are None are not given."""

    owner: Annotated[
        str | None, Parameter(help="responsible person or group, for example an e-mail address")
    ] = None
    budget: Annotated[
        dict[str, object] | None,
        Parameter(
            converter=_convert_budget,
            n_tokens=1,
            accepts_keys=False,
            metavar="USD/PERIOD",
            help="the most that may be spent in a day, week or month (UTC), or in total: 50/month",
        ),
    ] = None
    requests_per_minute: Annotated[Count | None, Parameter(help="limit of requests")] = None
    tokens_per_minute: Annotated[
        Count | None, Parameter(help="limit of tokens of requests and answers together")
    ] = None
    parallel_requests: Annotated[
        Count | None, Parameter(help="limit of requests at the same time")
    ] = None
    metadata: Annotated[
        Sequence[str] | None,
        SEVERAL,
        Parameter(metavar="NAME=VALUE", help="your own notes, in place of those that exist"),
    ] = None


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class KeyOptions(LimitOptions):
    """Options of keys."""

    team: Annotated[str | None, Parameter(help="team whose limits and budget hold, too")] = None
    admin: Annotated[
        bool | None, Parameter(help="the key may also use the admin API and the whole page")
    ] = None
    expires: Annotated[
        datetime | None,
        Parameter(
            converter=_convert_expiry,
            metavar="TIME",
            help="a date (UTC), a time with its zone, or the time from now: 90d",
        ),
    ] = None
    models: Annotated[
        Sequence[str] | None,
        SEVERAL,
        Parameter(help="the only models that may be used"),
    ] = None
    policies: Annotated[
        Sequence[str] | None,
        SEVERAL,
        Parameter(help="the only policies that may be used; the first one is the default"),
    ] = None


Name: TypeAlias = Annotated[str, Parameter(help="name in logs, usage and records")]
_LimitField: TypeAlias = Literal[
    "owner", "budget", "requests-per-minute", "tokens-per-minute", "parallel-requests", "metadata"
]
_KeyField: TypeAlias = Literal[_LimitField, "team", "admin", "expires", "models", "policies"]
_REMOVE = Parameter("--remove", help="remove limits and other fields")


# Keys.


@keys.command(name="create")
def create_key(
    name: Name,
    /,
    *,
    options: KeyOptions | None = None,
    hash_: Annotated[
        str | None,
        Parameter(
            "--hash",
            metavar="sha256:HEX",
            help="use the secret with this SHA-256, which a client has already; nothing is printed",
        ),
    ] = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Create a key, and print it on standard output.

    It is shown only this once, and stored as a hash. Running gateways accept it within a second.
    Its name is never used again.

    Example: `KEY=$(switchcraft keys create search-agent --team search --budget 50/month)`
    """
    from router_service.access.specs import NewKey

    spec = _build(NewKey, {"name": name, **_given(options)})
    _warn_of_unknown_models(config, spec.models)
    with _open_accounts(config) as accounts:
        if hash_ is None:
            _print_secret(accounts.create_key(spec), as_json=json)
            return
        imported = accounts.import_key(spec, hash_)
    if json:
        _print_json(imported)


@keys.command(name="list")
def list_keys(
    search: str | None = None,
    /,
    *,
    team: str | None = None,
    status: Literal["active", "expired", "revoked"] | None = None,
    limit: Page = 50,
    after: After = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """List keys by name, with what they have spent in this month.

    Example: `switchcraft keys list --team search --status active`

    Args:
        search: part of a name or an owner
        team: only the keys of this team
        status: only the keys with this status
    """
    with _open_accounts(config) as accounts:
        page = accounts.list_keys(search, team, status, limit, after)
    if json:
        _print_json(page)
        return
    rows = [
        (
            key.name, key.status, key.team or "", _usd(key.spent_month_usd),
            _describe_budget(key.budget_state), _date(key.expires), key.hint and f"...{key.hint}",
        )
        for key in page.keys
    ]  # fmt: skip
    _print_table(("NAME", "STATUS", "TEAM", "USD/MONTH", "BUDGET", "EXPIRES", "KEY"), rows)
    _print_more(len(rows), page.total, page.next)


@keys.command(name="show")
def show_key(name: Name, /, *, config: Config = None, json: Json = False) -> None:
    """Show a key without its secret, and what it has spent.

    Example: `switchcraft keys show search-agent`
    """
    with _open_accounts(config) as accounts:
        _print_fields(accounts.get_key(name), as_json=json)


@keys.command(name="edit")
def edit_key(
    name: Name,
    /,
    *,
    options: KeyOptions | None = None,
    remove: Annotated[Sequence[_KeyField], SEVERAL, _REMOVE] = (),
    config: Config = None,
    json: Json = False,
) -> None:
    """Change a key. What is not given stays as it is.

    Example: `switchcraft keys edit search-agent --budget 100/month --remove expires`
    """
    from router_service.access.specs import KeyChange

    change = _build(KeyChange, _given(options) | _removed(remove))
    _warn_of_unknown_models(config, change.models)
    with _open_accounts(config) as accounts:
        _print_fields(accounts.change_key(name, change), as_json=json)


@keys.command(name="rotate")
def rotate_key(
    name: Name,
    /,
    *,
    overlap: Annotated[
        float,
        Parameter(
            converter=_convert_duration,
            metavar="TIME",
            show_default=lambda _: "24h",
            help="how long the old secret stays valid: 0s, 24h, 7d",
        ),
    ] = 24 * 3600.0,
    config: Config = None,
    json: Json = False,
) -> None:
    """Give a key another secret, and print it on standard output.

    Example: `switchcraft keys rotate search-agent --overlap 1h`
    """
    from router_service.access.specs import Rotation

    rotation = _build(Rotation, {"overlap_s": overlap})
    with _open_accounts(config) as accounts:
        _print_secret(accounts.rotate_key(name, rotation.overlap_s), as_json=json)


@keys.command(name="revoke")
def revoke_key(name: Name, /, *, config: Config = None, json: Json = False) -> None:
    """Make a key invalid for ever, in all running gateways within a second.

    Example: `switchcraft keys revoke search-agent`
    """
    with _open_accounts(config) as accounts:
        _print_fields(accounts.revoke_key(name), as_json=json)


# Teams.


@teams.command(name="create")
def create_team(
    name: Name, /, *, options: LimitOptions | None = None, config: Config = None, json: Json = False
) -> None:
    """Create a team. Its limits and its budget hold for all of its keys together.

    Example: `switchcraft teams create search --budget 500/month`
    """
    from router_service.access.specs import NewTeam

    spec = _build(NewTeam, {"name": name, **_given(options)})
    with _open_accounts(config) as accounts:
        _print_fields(accounts.create_team(spec), as_json=json)


@teams.command(name="list")
def list_teams(
    search: str | None = None,
    /,
    *,
    limit: Page = 50,
    after: After = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """List teams by name, with what they have spent in this month.

    Example: `switchcraft teams list`

    Args:
        search: part of a name or an owner
    """
    with _open_accounts(config) as accounts:
        page = accounts.list_teams(search, limit, after)
    if json:
        _print_json(page)
        return
    rows = [
        (
            team.name,
            str(team.keys),
            _usd(team.spent_month_usd),
            _describe_budget(team.budget_state),
        )
        for team in page.teams
    ]
    _print_table(("NAME", "KEYS", "USD/MONTH", "BUDGET"), rows)
    _print_more(len(rows), page.total, page.next)


@teams.command(name="show")
def show_team(name: Name, /, *, config: Config = None, json: Json = False) -> None:
    """Show a team, and what it has spent.

    Example: `switchcraft teams show search`
    """
    with _open_accounts(config) as accounts:
        _print_fields(accounts.get_team(name), as_json=json)


@teams.command(name="edit")
def edit_team(
    name: Name,
    /,
    *,
    options: LimitOptions | None = None,
    remove: Annotated[Sequence[_LimitField], SEVERAL, _REMOVE] = (),
    config: Config = None,
    json: Json = False,
) -> None:
    """Change a team. What is not given stays as it is.

    Example: `switchcraft teams edit search --requests-per-minute 600`
    """
    from router_service.access.specs import TeamChange

    change = _build(TeamChange, _given(options) | _removed(remove))
    with _open_accounts(config) as accounts:
        _print_fields(accounts.change_team(name, change), as_json=json)


@teams.command(name="delete")
def delete_team(name: Name, /, *, config: Config = None) -> None:
    """Delete a team whose keys are all revoked or in other teams.

    Example: `switchcraft teams delete search`
    """
    with _open_accounts(config) as accounts:
        accounts.delete_team(name)


# What commands have in common.


def _warn_of_unknown_models(config: Path | None, models: Iterable[str] | None) -> None:
    """Print a warning if a key may use models that the configuration does not have.

    That is no error, because the models may be configured later.
    """
    from router_service.settings import match_wildcard, read_settings

    settings = read_settings(config)
    if not (models and settings.has_models):
        return
    router = settings.router.model_name
    known = [model.name for model in settings.models]
    known += [*settings.aliases, *settings.router.known_aliases, router, f"{router}:*"]
    known += [wildcard.pattern for wildcard in settings.wildcards]
    unknown = [
        name
        for name in models
        if name not in known and all(match_wildcard(each, name) is None for each in known)
    ]
    if unknown:
        print(
            f"switchcraft: warning: {settings.source} has no model {', '.join(unknown)}; it has"
            f" {', '.join(known)}",
            file=sys.stderr,
        )


@contextmanager
def _open_accounts(config: Path | None) -> Iterator[Accounts]:
    """Yield the accounts of the configuration's database."""
    from router_service.access.accounts import Accounts

    with open_database(config) as (settings, database):
        yield Accounts(database, settings.keys)


@contextmanager
def open_database(config: Path | None) -> Iterator[tuple[Settings, Database]]:
    """Yield a configuration, and its database, whose tables are created if missing."""
    from router_service.database.engine import SETTING, Database
    from router_service.settings import read_settings

    settings = read_settings(config)
    if settings.database.url is None:
        raise settings.error(
            SETTING,
            "is not set, and this user has no home directory for a database; set it, or "
            "SWITCHCRAFT_DATABASE_URL",
        )
    database = Database(settings.database.url.get_secret_value())
    try:
        database.prepare()
        yield settings, database
    finally:
        database.close()


def _given(options: LimitOptions | None) -> dict[str, object]:
    """Return the fields of the options that are given; raises InvalidRequestError."""
    if options is None:
        return {}
    fields = {name: value for name, value in vars(options).items() if value is not None}
    if "admin" in fields:
        fields["is_admin"] = fields.pop("admin")
    if options.metadata is not None:
        pairs = [text.partition("=") for text in options.metadata]
        if not all(separator for _, separator, _ in pairs):
            raise InvalidRequestError("Write metadata as NAME=VALUE.", param="--metadata")
        fields["metadata"] = {name: value for name, _, value in pairs}
    return fields


def _removed(names: Iterable[str]) -> dict[str, object]:
    """Return the fields whose removal is asked for, each with the value that removes it."""
    empty: dict[str, tuple[str, object]] = {
        "metadata": ("metadata", {}),
        "admin": ("is_admin", False),
    }
    return dict(empty.get(name, (name.replace("-", "_"), None)) for name in names)


def _build(spec: type[S], fields: Mapping[str, object]) -> S:
    """Return a spec with these fields; raises InvalidRequestError, which names a wrong one."""
    from pydantic import ValidationError

    from router_service.access.specs import describe_mistake

    try:
        return spec.model_validate(fields)
    except ValidationError as exc:
        raise describe_mistake(exc) from exc


def _print_secret(created: CreatedKey, *, as_json: bool) -> None:
    if as_json:
        _print_json(created)
        return
    print(created.secret)
    print(
        f"The secret of the key {created.key.name!r} is on standard output. It is not stored, and "
        "not shown again.",
        file=sys.stderr,
    )


def _print_json(value: BaseModel) -> None:
    # In ASCII, so that no character can control a terminal.
    print(json_format.dumps(value.model_dump(mode="json"), indent=2))


def _print_fields(view: KeyView | TeamView, *, as_json: bool) -> None:
    if as_json:
        _print_json(view)
        return
    rows = [("name", view.name)]
    for name, value in view.model_dump(mode="json", exclude={"name", "budget"}).items():
        if value is None or value is False or value in ("", [], {}):
            continue
        if name.endswith("budget_state"):
            text = _describe_budget(getattr(view, name))
        elif isinstance(value, dict):
            text = ", ".join(f"{key}={note}" for key, note in value.items())
        elif isinstance(value, list):
            text = ", ".join(value)
        else:
            text = _usd(value) if isinstance(value, float) else str(value)
        rows.append((name.replace("_", " "), text))
    _print_table(None, rows)


def _describe_budget(budget: BudgetView | None) -> str:
    if budget is None:
        return ""
    period = "in total" if budget.resets is None else f"a {budget.period}"
    end = "" if budget.ends_by is None else f", used up by about {_date(budget.ends_by)}"
    return f"{_usd(budget.spent_usd)} of {_usd(budget.usd)} USD {period}{end}"


def _usd(amount: float) -> str:
    """Return an amount with cents, or with six digits if that is more exact."""
    return f"{amount:.2f}" if round(amount, 2) == amount or amount >= 100 else f"{amount:.6f}"


def _date(time: datetime | None) -> str:
    return "" if time is None else f"{time:%Y-%m-%d}"


def _print_table(header: Sequence[str] | None, rows: Sequence[Sequence[str]]) -> None:
    """Print rows as aligned columns."""
    lines = [*([header] if header else []), *rows]
    print(*aligned([[printable(cell) for cell in line] for line in lines]), sep="\n")


def _print_more(shown: int, total: int, following: str | None) -> None:
    if following is not None:
        name = shlex.quote(printable(following))
        print(f"{shown} of {total} are shown; continue with --after {name}", file=sys.stderr)
