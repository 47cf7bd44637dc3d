"""Writes the migration that a change of the database's tables needs.

`python -m tests.migrations "add the column colour"` compares the tables that the migrations create
with those of `database/schema.py`, and writes the difference as a new migration.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from alembic.autogenerate import produce_migrations, render_python_code
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from router_service.database.migrating import FOLDER, migrate, revision_of
from router_service.database.schema import metadata
from tests.database import empty_sqlite
from tests.first_tables import create_first_tables

_TEMPLATE = '''"""{title}."""

import sqlalchemy as sa
from alembic import op

revision = "{revision}"
down_revision = {before!r}


def upgrade() -> None:
    """Change the tables."""
{code}
'''


def write_migration(title: str, folder: Path = FOLDER) -> Path:
    """Write the migration from the newest version to `database/schema.py`, and return its file."""
    before = ScriptDirectory(str(folder)).get_current_head()
    assert before is not None
    with empty_sqlite() as database, database.write() as connection:
        create_first_tables(connection)
        migrate(connection, "memory", before, folder)
        assert revision_of(connection) == before
        context = MigrationContext.configure(connection)
        operations = produce_migrations(context, metadata).upgrade_ops
        assert operations is not None
        code = render_python_code(operations, render_as_batch=True, migration_context=context)
    code = re.sub(r"^ *#.*\n?", "", code, flags=re.MULTILINE).rstrip()
    revision = f"{int(before) + 1:04}"
    name = re.sub(r"\W+", "_", title.lower()).strip("_")
    file = folder / "versions" / f"{revision}_{name}.py"
    text = _TEMPLATE.format(title=title, revision=revision, before=before, code=code)
    file.write_text(text)
    return file


if __name__ == "__main__":
    print(write_migration(" ".join(sys.argv[1:])))  # noqa: T201 - a command line prints
