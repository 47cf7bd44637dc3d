"""Creates the tables of a new database, and migrates those of an older version with Alembic.

Alembic is imported only to migrate. It takes 10 MB and 0.1 s, and most starts find the newest
version.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, column, insert, inspect, select, table, text

from router_service.core.errors import DatabaseError
from router_service.database.schema import REVISION, metadata, state

FOLDER = Path(__file__).parent
_VERSION = table("alembic_version", column("version_num"))


def revision_of(connection: Connection) -> str | None:
    """Return the version of the tables, or None if there are none."""
    if not inspect(connection).has_table(_VERSION.name):
        return None
    return connection.execute(select(_VERSION.c.version_num)).scalar_one_or_none()


def create(connection: Connection) -> None:
    """Create all tables of the newest version."""
    metadata.create_all(connection)
    connection.execute(insert(state).values(name="revision", value=0))
    connection.execute(
        text("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)")
    )
    connection.execute(insert(_VERSION).values(version_num=REVISION))


def migrate(connection: Connection, place: str, to: str = REVISION, folder: Path = FOLDER) -> None:
    """Apply the missing migrations within the connection's transaction.

    Raise DatabaseError if the tables are those of a newer version.
    """
    from alembic.config import Config  # noqa: PLC0415
    from alembic.runtime.environment import EnvironmentContext  # noqa: PLC0415
    from alembic.script import ScriptDirectory  # noqa: PLC0415
    from alembic.util import CommandError  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(folder))
    scripts = ScriptDirectory.from_config(config)
    with EnvironmentContext(
        config,
        scripts,
        fn=lambda revision, _: scripts._upgrade_revs(to, revision),
    ) as environment:
        environment.configure(
            connection=connection, target_metadata=metadata, transactional_ddl=True
        )
        try:
            environment.run_migrations()
        except CommandError as exc:
            problem = (
                "its tables are those of a newer version of Switchcraft; update this gateway, or "
                "restore a backup"
            )
            raise DatabaseError("migrate", place, problem) from exc
