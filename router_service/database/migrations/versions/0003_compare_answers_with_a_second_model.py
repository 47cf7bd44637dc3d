"""Compare answers with a second model."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Change the tables."""
    op.create_table(
        "comparisons",
        sa.Column(
            "id",
            sa.String(length=40).with_variant(sa.String(length=40, collation="C"), "postgresql"),
            nullable=False,
        ),
        sa.Column("ended_s", sa.Float(), nullable=False),
        sa.Column(
            "key",
            sa.String(length=200).with_variant(sa.String(length=200, collation="C"), "postgresql"),
            nullable=True,
        ),
        sa.Column(
            "tool",
            sa.String(length=200).with_variant(sa.String(length=200, collation="C"), "postgresql"),
            nullable=True,
        ),
        sa.Column(
            "model",
            sa.String(length=200).with_variant(sa.String(length=200, collation="C"), "postgresql"),
            nullable=False,
        ),
        sa.Column(
            "other",
            sa.String(length=200).with_variant(sa.String(length=200, collation="C"), "postgresql"),
            nullable=False,
        ),
        sa.Column("is_same", sa.Boolean(), nullable=True),
        sa.Column("cost_nusd", sa.BigInteger(), nullable=True),
        sa.Column("other_nusd", sa.BigInteger(), nullable=False),
        sa.Column("seconds", sa.Float(), nullable=False),
        sa.Column("other_seconds", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_comparisons")),
    )
    with op.batch_alter_table("comparisons", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_comparisons_ended_s"), ["ended_s"], unique=False)
