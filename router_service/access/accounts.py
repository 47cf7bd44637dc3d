"""Keys and teams of the database: created, listed, changed, rotated and revoked."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Table,
    func,
    insert,
    literal,
    or_,
    select,
    tuple_,
    update,
)

from router_service.access.key import BudgetPeriod
from router_service.access.keyring import has_keys, read_limits
from router_service.access.specs import (
    BudgetView,
    CreatedKey,
    KeyChange,
    KeyPage,
    KeyStatus,
    KeyView,
    NewKey,
    NewTeam,
    TeamChange,
    TeamPage,
    TeamView,
    to_time,
)
from router_service.core.errors import InvalidRequestError
from router_service.core.keys import HASHED, digest_of, new_key
from router_service.core.money import NANO
from router_service.core.refusals import account_not_found
from router_service.database.engine import Database
from router_service.database.schema import USAGE_MONTH, keys, spending, state, teams
from router_service.settings import ADMIN, METRICS, KeySettings

HINT_CHARACTERS = 4
PAGE_SIZE = 50
MAX_PAGE_SIZE = 500


class Accounts:
    """The keys and teams of a database. Each change is a transaction of its own.

    All methods raise DatabaseError if the database cannot be used. Methods that take the name of a
    key or a team raise InvalidRequestError if no key or team has that name.
    """

    def __init__(
        self,
        database: Database,
        configured: KeySettings | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Use a database; `configured` are the keys of the configuration, whose names are taken.

        `clock` returns Unix seconds.
        """
        self._database = database
        self._configured = configured or KeySettings()
        self._clock = clock

    # Keys.

    def create_key(self, spec: NewKey) -> CreatedKey:
        """Create a key, and return it with its secret, which is stored only as a hash.

        Raises InvalidRequestError if the name is taken, if the team is unknown, or if the key would
        be the only one of an open gateway and is not an admin key.
        """
        secret = new_key()
        return CreatedKey(secret=secret, key=self._add_key(spec, _hash_columns(secret)))

    def import_key(self, spec: NewKey, digest: str) -> KeyView:
        """Create a key with the secret that a client has already, given as `sha256:HEX`.

        Raises the errors of `create_key`, and others if this is no hash or that of another key.
        """
        try:
            found = digest_of(digest).hex() if digest.startswith(HASHED) else None
        except ValueError:
            found = None
        if found is None:
            raise InvalidRequestError(
                "The hash is not valid. Write sha256: and the 64 hexadecimal digits of the "
                "secret's SHA-256.",
                param="hash",
                code="invalid_value",
            )
        return self._add_key(spec, {"digest": found, "hint": ""})

    def _add_key(self, spec: NewKey, hash_columns: Mapping[str, object]) -> KeyView:
        with self._change() as connection:
            if spec.name in {*self._configured.api, ADMIN, METRICS}:
                raise _conflict(
                    f"The name {spec.name!r} belongs to the configuration's keys. Choose another "
                    "name.",
                    param="name",
                    code="name_taken",
                )
            self._check_free(connection, keys, spec.name)
            is_open = not self._configured.by_path() and not has_keys(connection)
            if is_open and not spec.is_admin:
                raise _conflict(
                    "This gateway has no keys yet, so everyone who can connect may use it. The "
                    "first key ends that, and must be an admin key, because without one nobody "
                    "could use the admin API and the page any more. Create an admin key first "
                    "(is_admin, or `switchcraft keys create NAME --admin`), or set keys.admin.",
                    param="is_admin",
                    code="admin_key_needed",
                )
            self._check_team(connection, spec.team)
            digest = hash_columns["digest"]
            same = or_(keys.c.digest == digest, keys.c.previous_digest == digest)
            holder = connection.execute(select(keys.c.name).where(same)).scalar()
            if holder is not None:
                raise _conflict(
                    f"The key {holder!r} has this secret. Create a key with a secret of its own.",
                    param="hash",
                    code="secret_taken",
                )
            self._insert(connection, keys, spec, hash_columns)
            return self._key_view(connection, spec.name)

    def get_key(self, name: str) -> KeyView:
        """Return a key."""
        with self._database.read() as connection:
            return self._key_view(connection, name)

    def list_keys(
        self,
        search: str | None = None,
        team: str | None = None,
        status: KeyStatus | None = None,
        limit: int = PAGE_SIZE,
        after: str | None = None,
    ) -> KeyPage:
        """Return the keys after the name `after`, in the order of their names.

        `search` is a part of the key's name or owner. Capitals and small letters are the same.
        """
        if not _are_storable(search, team, after):
            return KeyPage(keys=(), total=0, next=None)
        conditions: list[ColumnElement[bool]] = []
        if team is not None:
            conditions.append(keys.c.team == team)
        is_expired = keys.c.expires_s <= self._clock()
        match status:
            case "revoked":
                conditions.append(keys.c.revoked_s.is_not(None))
            case "expired":
                conditions += (keys.c.revoked_s.is_(None), is_expired)
            case "active":
                is_current = or_(keys.c.expires_s.is_(None), ~is_expired)
                conditions += (keys.c.revoked_s.is_(None), is_current)
        with self._database.read() as connection:
            rows, total, following = _page(connection, keys, conditions, search, limit, after)
            return KeyPage(keys=self._key_views(connection, rows), total=total, next=following)

    def change_key(self, name: str, change: KeyChange) -> KeyView:
        """Change the fields of a key that are set in `change`, and return the key.

        Raises InvalidRequestError if the key is revoked or if the team is unknown.
        """
        with self._change() as connection:
            self._check_active(connection, name)
            if "team" in change.model_fields_set:
                self._check_team(connection, change.team)
            _update(connection, keys, name, _columns(name, change, is_new=False))
            return self._key_view(connection, name)

    def rotate_key(self, name: str, overlap_s: float) -> CreatedKey:
        """Give a key another secret, and return it; the old one stays valid for a while.

        Only one old secret is valid: another rotation within the overlap ends the older one. Raises
        InvalidRequestError if the key is revoked.
        """
        secret = new_key()
        with self._change() as connection:
            row = self._check_active(connection, name)
            previous = {"previous_digest": None, "previous_until_s": None}
            if overlap_s > 0:
                until_s = self._clock() + overlap_s
                previous = {"previous_digest": row.digest, "previous_until_s": until_s}
            _update(connection, keys, name, _hash_columns(secret) | previous)
            return CreatedKey(secret=secret, key=self._key_view(connection, name))

    def revoke_key(self, name: str) -> KeyView:
        """Make a key invalid for ever, and return it; a revoked key stays as it is."""
        with self._change() as connection:
            if _find(connection, keys, name).revoked_s is None:
                _update(connection, keys, name, {"revoked_s": self._clock()})
            return self._key_view(connection, name)

    # Teams.

    def create_team(self, spec: NewTeam) -> TeamView:
        """Create a team; raises InvalidRequestError if the name is taken."""
        with self._change() as connection:
            self._check_free(connection, teams, spec.name)
            self._insert(connection, teams, spec, {})
            return self._team_view(connection, spec.name)

    def get_team(self, name: str) -> TeamView:
        """Return a team that is not deleted."""
        with self._database.read() as connection:
            return self._team_view(connection, name)

    def list_teams(
        self, search: str | None = None, limit: int = PAGE_SIZE, after: str | None = None
    ) -> TeamPage:
        """Return the teams after the name `after`, in the order of their names.

        `search` is a part of the team's name or owner.
        """
        if not _are_storable(search, after):
            return TeamPage(teams=(), total=0, next=None)
        conditions = [teams.c.deleted_s.is_(None)]
        with self._database.read() as connection:
            rows, total, following = _page(connection, teams, conditions, search, limit, after)
            return TeamPage(teams=self._team_views(connection, rows), total=total, next=following)

    def change_team(self, name: str, change: TeamChange) -> TeamView:
        """Change the fields of a team that are set in `change`, and return the team."""
        with self._change() as connection:
            _find(connection, teams, name)
            _update(connection, teams, name, _columns(name, change, is_new=False))
            return self._team_view(connection, name)

    def delete_team(self, name: str) -> None:
        """Delete a team; raises InvalidRequestError if it has a key that is not revoked."""
        with self._change() as connection:
            _find(connection, teams, name)
            count = _count_keys(connection, [name]).get(name, 0)
            if count:
                raise _conflict(
                    f"The team {name!r} has {count} {'key' if count == 1 else 'keys'}. Revoke them,"
                    " or move them to another team, and delete the team then.",
                    code="team_has_keys",
                )
            _update(connection, teams, name, {"deleted_s": self._clock()})

    # What changes have in common.

    @contextmanager
    def _change(self) -> Iterator[Connection]:
        """Yield a connection for a change, which has a number of its own.

        The number is increased first, which makes changes wait for each other. So what one has
        checked stays true until it is made.
        """
        with self._database.write() as connection:
            query = update(state).where(state.c.name == "revision")
            connection.execute(query.values(value=state.c.value + 1))
            yield connection

    def _insert(
        self,
        connection: Connection,
        table: Table,
        spec: NewKey | NewTeam,
        others: Mapping[str, object],
    ) -> None:
        columns = {**_columns(spec.name, spec, is_new=True), **others, "name": spec.name}
        columns |= {"created_s": self._clock(), "revision": _REVISION}
        connection.execute(insert(table).values(columns))

    def _check_free(self, connection: Connection, table: Table, name: str) -> None:
        row = connection.execute(select(table).where(table.c.name == name)).first()
        if row is None:
            return
        kind = _kind_of(table)
        ended = "revoked" if table is keys else "deleted"
        problem = "exists already. Choose another name"
        if row._mapping[f"{ended}_s"] is not None:
            problem = (
                f"is {ended}, and its name is never used again, because usage and records refer to "
                "it. Choose another name"
            )
        raise _conflict(f"The {kind} {name!r} {problem}.", param="name", code="name_taken")

    def _check_active(self, connection: Connection, name: str) -> Row[Any]:
        row = _find(connection, keys, name)
        if row.revoked_s is not None:
            raise _conflict(
                f"The key {name!r} is revoked, which is final. Create another key.",
                param="name",
                code="key_revoked",
            )
        return row

    def _check_team(self, connection: Connection, name: str | None) -> None:
        if name is not None and _row(connection, teams, name) is None:
            raise InvalidRequestError(
                f"There is no team with the name {name!r}. Create it with POST /admin/teams or "
                "`switchcraft teams create`, or leave the team out.",
                param="team",
                code="team_not_found",
            )

    # What people read.

    def _key_view(self, connection: Connection, name: str) -> KeyView:
        return self._key_views(connection, [_find(connection, keys, name)])[0]

    def _key_views(self, connection: Connection, rows: Sequence[Row[Any]]) -> tuple[KeyView, ...]:
        names = {row.team for row in rows if row.team is not None}
        query = select(teams).where(teams.c.name.in_(names))
        by_team = {row.name: row for row in connection.execute(query)} if names else {}
        subjects = [f"key:{row.name}" for row in rows] + [f"team:{name}" for name in by_team]
        spent, now_s = _read_spent(connection, subjects, self._clock()), self._clock()
        views = []
        for row in rows:
            is_expired = row.expires_s is not None and row.expires_s <= now_s
            until_s = row.previous_until_s
            has_previous = until_s is not None and until_s > now_s and row.revoked_s is None
            team = by_team.get(row.team)
            status: KeyStatus = "expired" if is_expired else "active"
            view = KeyView(
                **_common_fields(row),
                hint=row.hint,
                status=status if row.revoked_s is None else "revoked",
                team=row.team,
                is_admin=row.is_admin,
                expires=to_time(row.expires_s),
                revoked=to_time(row.revoked_s),
                previous_until=to_time(until_s) if has_previous else None,
                models=row.models,
                policies=row.policies,
                spent_month_usd=spent.get((f"key:{row.name}", USAGE_MONTH), 0.0),
                budget_state=_budget_view(spent, "key", row, now_s),
                team_budget_state=None
                if team is None
                else _budget_view(spent, "team", team, now_s),
            )
            views.append(view)
        return tuple(views)

    def _team_view(self, connection: Connection, name: str) -> TeamView:
        return self._team_views(connection, [_find(connection, teams, name)])[0]

    def _team_views(self, connection: Connection, rows: Sequence[Row[Any]]) -> tuple[TeamView, ...]:
        counts = _count_keys(connection, [row.name for row in rows])
        now_s = self._clock()
        spent = _read_spent(connection, [f"team:{row.name}" for row in rows], now_s)
        return tuple(
            TeamView(
                **_common_fields(row),
                keys=counts.get(row.name, 0),
                spent_month_usd=spent.get((f"team:{row.name}", USAGE_MONTH), 0.0),
                budget_state=_budget_view(spent, "team", row, now_s),
            )
            for row in rows
        )


Spent: TypeAlias = Mapping[tuple[str, str], float]
"""What keys and teams have spent in the present periods in USD, by subject and period."""


def _read_spent(connection: Connection, subjects: Iterable[str], now_s: float) -> Spent:
    starts_s = {period.value: period.bounds_s(now_s)[0] for period in BudgetPeriod}
    starts_s[USAGE_MONTH] = starts_s[BudgetPeriod.MONTH]
    query = select(spending).where(
        spending.c.subject.in_(set(subjects)),
        tuple_(spending.c.period, spending.c.start_s).in_(starts_s.items()),
    )
    return {(row.subject, row.period): row.spent_nusd / NANO for row in connection.execute(query)}


def _budget_view(spent: Spent, kind: str, row: Row[Any], now_s: float) -> BudgetView | None:
    """Return the budget of a key or a team with what is left of it; None without one."""
    budget = read_limits(row).budget
    if budget is None:
        return None
    spent_usd = spent.get((f"{kind}:{row.name}", budget.period), 0.0)
    return BudgetView.of(budget, spent_usd, row.created_s, now_s)


_REVISION = select(state.c.value).where(state.c.name == "revision").scalar_subquery()
"""The number of the change that is being made."""


def _update(connection: Connection, table: Table, name: str, columns: Mapping[str, object]) -> None:
    changed = {**columns, "revision": _REVISION}
    connection.execute(update(table).where(table.c.name == name).values(changed))


def _conflict(message: str, code: str, param: str | None = None) -> InvalidRequestError:
    return InvalidRequestError(message, param=param, code=code, status=409)


def _kind_of(table: Table) -> str:
    return "key" if table is keys else "team"


def _find(connection: Connection, table: Table, name: str) -> Row[Any]:
    """Return the row of a key, or of a team that is not deleted; raises InvalidRequestError."""
    row = _row(connection, table, name)
    if row is None:
        raise account_not_found(_kind_of(table), name)
    return row


def _row(connection: Connection, table: Table, name: str) -> Row[Any] | None:
    query = select(table).where(table.c.name == name)
    if table is teams:
        query = query.where(teams.c.deleted_s.is_(None))
    return connection.execute(query).first() if _are_storable(name) else None


def _are_storable(*texts: str | None) -> bool:
    """Return whether databases can store and compare texts; others are in no row.

    PostgreSQL has no NUL characters, and UTF-8 has no lone surrogates.
    """
    found = "".join(text for text in texts if text is not None)
    return "\0" not in found and not any("\ud800" <= character <= "\udfff" for character in found)


def _page(
    connection: Connection,
    table: Table,
    conditions: Sequence[ColumnElement[bool]],
    search: str | None,
    limit: int,
    after: str | None,
) -> tuple[list[Row[Any]], int, str | None]:
    """Return the rows of a page, the number of all rows that match, and the next page's `after`."""
    order: ColumnElement[str] = table.c.name
    if search:
        found = table.c.search.contains(search.casefold(), autoescape=True)
        conditions = [*conditions, found]
        # Reading all rows in the order of the table is faster than looking each up by its name,
        # which databases would do to avoid sorting.
        order = table.c.name.concat("")
    counted = select(func.count()).select_from(table).where(*conditions)
    total = connection.execute(counted).scalar_one()
    query = select(table).where(*conditions).order_by(order).limit(limit + 1)
    if after is not None:
        query = query.where(table.c.name > literal(after))
    rows = list(connection.execute(query))
    following = rows[limit - 1].name if len(rows) > limit else None
    return rows[:limit], total, following


def _count_keys(connection: Connection, names: Sequence[str]) -> dict[str, int]:
    """Return the number of keys that are not revoked, by team."""
    query = select(keys.c.team, func.count()).where(
        keys.c.team.in_(names), keys.c.revoked_s.is_(None)
    )
    return {row[0]: row[1] for row in connection.execute(query.group_by(keys.c.team))}


def _hash_columns(secret: str) -> dict[str, object]:
    return {"digest": digest_of(secret).hex(), "hint": secret[-HINT_CHARACTERS:]}


def _columns(name: str, change: TeamChange | KeyChange, *, is_new: bool) -> dict[str, object]:
    """Return the columns for the fields of a new key or team, or for those that a change sets."""
    columns = change.model_dump(exclude={"name", "budget", "expires"}, exclude_unset=not is_new)
    fields = type(change).model_fields if is_new else change.model_fields_set
    if "owner" in fields:
        columns["search"] = f"{name}\n{change.owner or ''}".casefold()
    if "budget" in fields:
        budget = change.budget
        columns["budget_nusd"] = None if budget is None else round(budget.usd * NANO)
        columns["budget_period"] = None if budget is None else budget.period.value
    if isinstance(change, KeyChange) and "expires" in fields:
        columns["expires_s"] = None if change.expires is None else change.expires.timestamp()
    return columns


def _common_fields(row: Row[Any]) -> dict[str, Any]:
    """Return the fields that the views of keys and teams share."""
    limits = read_limits(row)
    return {
        "name": row.name,
        "owner": row.owner,
        "requests_per_minute": limits.requests_per_minute,
        "tokens_per_minute": limits.tokens_per_minute,
        "parallel_requests": limits.parallel_requests,
        "budget": limits.budget,
        "metadata": row.metadata,
        "created": to_time(row.created_s),
    }
