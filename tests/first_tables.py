"""The tables of the first version, from which tests migrate."""

from __future__ import annotations

from functools import partial
from typing import Any

import sqlalchemy as sa

NAME, SCOPE = (
    sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")
    for length in (200, 205)
)
"""Types of texts that PostgreSQL orders by their bytes, as SQLite does."""

FIRST = sa.MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "ix": "ix_%(table_name)s_%(column_0_name)s",
    }
)


def required(kind: Any, names: str, **options: Any) -> list[sa.Column[Any]]:  # noqa: ANN401
    """Return columns of a type that are never NULL, unless the options say so."""
    options = {"nullable": False, **options}
    return [sa.Column(name, kind, **options) for name in names.split()]


optional = partial(required, nullable=True)
key = partial(required, primary_key=True, autoincrement=False)
"""Columns of the primary key."""


def limits() -> list[sa.Column[Any]]:
    """Return what keys and teams have in common."""
    return [
        *optional(sa.String(200), "owner"),
        *required(sa.Text, "search"),
        *optional(sa.Integer, "requests_per_minute tokens_per_minute parallel_requests"),
        *optional(sa.BigInteger, "budget_nusd"),
        *optional(sa.String(10), "budget_period"),
        *required(sa.JSON, "metadata"),
        *required(sa.Float, "created_s"),
        *required(sa.BigInteger, "revision", index=True),
    ]


def counted() -> list[sa.Column[Any]]:
    """Return the beginning of the key of what is counted by time, model and policy."""
    return [
        *key(SCOPE, "scope"),
        *key(sa.Integer, "step_s"),
        *key(sa.BigInteger, "start_s"),
        *key(NAME, "model policy"),
    ]


sa.Table(
    "alerts",
    FIRST,
    *key(sa.String(205), "subject"),
    *key(sa.String(10), "period"),
    *key(sa.BigInteger, "start_s"),
    *key(sa.Float, "share"),
    *optional(sa.Float, "sent_s"),
    *required(sa.Integer, "attempts"),
    *required(sa.Float, "next_attempt_s"),
    sa.Index("alerts_due", "sent_s", "next_attempt_s"),
)
sa.Table(
    "latencies",
    FIRST,
    *counted(),
    *key(sa.Integer, "bin"),
    *required(sa.BigInteger, "requests"),
    sqlite_with_rowid=False,
)
sa.Table(
    "leases",
    FIRST,
    *key(sa.String(205), "subject"),
    *key(sa.String(10), "period"),
    *key(sa.BigInteger, "start_s"),
    *key(sa.String(40), "holder"),
    *required(sa.BigInteger, "amount_nusd reserved_nusd number"),
    *required(sa.Float, "expires_s"),
)
sa.Table(
    "spending",
    FIRST,
    *key(SCOPE, "subject"),
    *key(sa.String(12), "period"),
    *key(sa.BigInteger, "start_s"),
    *required(sa.BigInteger, "spent_nusd"),
    *required(sa.Float, "wanted_until_s"),
    sa.Index("spending_by_amount", "period", "start_s", "spent_nusd"),
)
sa.Table("state", FIRST, *key(sa.String(40), "name"), *required(sa.BigInteger, "value"))
sa.Table("teams", FIRST, *key(NAME, "name"), *limits(), *optional(sa.Float, "deleted_s"))
sa.Table(
    "usage",
    FIRST,
    *counted(),
    *required(
        sa.BigInteger,
        "requests errors unpriced cost_nusd compared_nusd baseline_nusd prompt_tokens"
        " completion_tokens cached_tokens reasoning_tokens candidates unfamiliar",
    ),
    sa.Index("usage_by_time", "step_s", "start_s"),
    sqlite_with_rowid=False,
)
sa.Table(
    "keys",
    FIRST,
    *key(NAME, "name"),
    *required(sa.String(64), "digest", unique=True),
    *required(sa.String(8), "hint"),
    *optional(sa.String(64), "previous_digest", unique=True),
    *optional(sa.Float, "previous_until_s expires_s revoked_s"),
    sa.Column("team", NAME, sa.ForeignKey("teams.name"), index=True),
    *required(sa.Boolean, "is_admin"),
    *optional(sa.JSON(none_as_null=True), "models policies"),
    *limits(),
)


def create_first_tables(connection: sa.Connection) -> None:
    """Create the tables of the version 0001, as its gateways did."""
    FIRST.create_all(connection)
    connection.execute(FIRST.tables["state"].insert().values(name="revision", value=0))
