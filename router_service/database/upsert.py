"""Statements that insert rows which may exist already, in the words of each database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy import Table
    from sqlalchemy.dialects import postgresql, sqlite


def insert_into(table: Table, *, is_postgresql: bool) -> postgresql.Insert | sqlite.Insert:
    """Return an insert statement that can say what to do if a row exists already."""
    # Imported here, so that only the dialect in use is loaded.
    if is_postgresql:
        from sqlalchemy.dialects.postgresql import insert  # noqa: PLC0415
    else:
        from sqlalchemy.dialects.sqlite import insert  # noqa: PLC0415
    return insert(table)


def add_to_sums(
    table: Table, sums: Sequence[str], *, is_postgresql: bool
) -> postgresql.Insert | sqlite.Insert:
    """Return a statement that inserts a row, or adds these columns of it to those of the old row.

    Its parameters are the columns of a row; a row is found by its primary key.
    """
    statement = insert_into(table, is_postgresql=is_postgresql)
    added = {name: table.c[name] + statement.excluded[name] for name in sums}
    return statement.on_conflict_do_update(index_elements=list(table.primary_key), set_=added)
