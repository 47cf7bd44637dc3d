"""Creates the tables of a new database, and migrates those of an older version with Alembic.

Alembic is imported only to migrate. It takes 9 MB and 0.1 s, and most starts find the newest
version.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, column, insert, inspect, select, table, text

from router_service.core.errors import DatabaseError
from router_service.database.schema import REVISION, metadata, state

FOLDER = Path(__file__).parent / "migrations"
"""Alembic's folder; `versions` has a file for each migration."""

_VERSION = table("alembic_version", column("version_num"))


def revision_of(connection: Connection) -> str | None:
    """Return the version of the tables, or None if the database has no tables yet."""
    if not inspect(connection).has_table(_VERSION.name):
        return None
    return connection.execute(select(_VERSION.c.version_num)).scalar_one_or_none()


def create(connection: Connection) -> None:
    """Create all tables of the newest version, as all migrations together do.

    Fails if the database has a table of the same name, which belongs to another program.
    """
    metadata.create_all(connection, checkfirst=False)
    connection.execute(insert(state).values(name="revision", value=0))
    connection.execute(
        text(  # as Alembic creates it
            "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL, "
            "CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num))"
        )
    )
    connection.execute(insert(_VERSION).values(version_num=REVISION))


def newer_version_problem(found: str) -> str:
    """Return what is wrong with a database of a version that is unknown here, and what to do."""
    return (
        f"its tables have the version {found} of a newer Switchcraft, and this one knows "
        f"{REVISION}; update this gateway, or restore a backup that was made before the update"
    )


def migrate(connection: Connection, place: str, to: str = REVISION, folder: Path = FOLDER) -> None:
    """Apply the missing migrations within the connection's transaction.

    Raise DatabaseError if the tables are those of a newer version.
    """
    from alembic.config import Config  # noqa: PLC0415
    from alembic.runtime.environment import EnvironmentContext  # noqa: PLC0415
    from alembic.script import ScriptDirectory  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    scripts = ScriptDirectory.from_config(config)
    known = {script.revision for script in scripts.walk_revisions()}
    found = revision_of(connection)
    if found is not None and found not in known:
        raise DatabaseError("migrate", place, newer_version_problem(found))
    # What Alembic's command `upgrade` does, but with our connection and without a file env.py.
    with EnvironmentContext(
        config,
        scripts,
        fn=lambda revision, _: scripts._upgrade_revs(to, revision),
    ) as environment:
        environment.configure(
            connection=connection, target_metadata=metadata, transactional_ddl=True
        )
        environment.run_migrations()
