"""Statements that insert rows which may exist already, in the words of each database, and keys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Connection, Table
    from sqlalchemy.dialects import postgresql, sqlite


def insert_into(connection: Connection, table: Table) -> postgresql.Insert | sqlite.Insert:
    """Return an insert statement that can say what to do if a row exists already."""
    # Imported here, so that only the dialect in use is loaded.
    if connection.dialect.name == "postgresql":
        from sqlalchemy.dialects.postgresql import insert  # noqa: PLC0415
    else:
        from sqlalchemy.dialects.sqlite import insert  # noqa: PLC0415
    return insert(table)


def add_to_sums(
    connection: Connection, table: Table, sums: Sequence[str]
) -> postgresql.Insert | sqlite.Insert:
    """Return a statement that inserts a row, or adds these columns of it to those of the old row.

    Its parameters are the columns of a row; a row is found by its primary key.
    """
    statement = insert_into(connection, table)
    added = {name: table.c[name] + statement.excluded[name] for name in sums}
    return statement.on_conflict_do_update(index_elements=list(table.primary_key), set_=added)


def has_key(table: Table, names: Iterable[str]) -> ColumnElement[bool]:
    """Return the condition for rows with the values that `key_parameters` has for these columns."""
    from sqlalchemy import and_, bindparam  # noqa: PLC0415

    return and_(*(table.c[name] == bindparam(f"key_{name}") for name in names))


def key_parameters(names: Iterable[str], values: Iterable[object]) -> dict[str, Any]:
    """Return parameters with the values of columns; their names must differ from columns'."""
    return {f"key_{name}": value for name, value in zip(names, values, strict=True)}
