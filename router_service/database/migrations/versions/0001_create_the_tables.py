"""The first version of the tables; new databases get those of the newest one."""

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Change nothing: a database without tables is created, not migrated."""
