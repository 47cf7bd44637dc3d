"""Remove alerts about budgets."""

from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Change the tables."""
    with op.batch_alter_table("alerts", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("alerts_due"))

    op.drop_table("alerts")
