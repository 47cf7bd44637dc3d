"""List the latest requests, and expected accuracy in usage."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Change the tables."""
    op.create_table(
        "recent_requests",
        sa.Column("ended_us", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column(
            "id",
            sa.String(length=40).with_variant(sa.String(length=40, collation="C"), "postgresql"),
            nullable=False,
        ),
        sa.Column("request_id", sa.String(length=200), nullable=True),
        sa.Column(
            "key",
            sa.String(length=200).with_variant(sa.String(length=200, collation="C"), "postgresql"),
            nullable=True,
        ),
        sa.Column(
            "team",
            sa.String(length=200).with_variant(sa.String(length=200, collation="C"), "postgresql"),
            nullable=True,
        ),
        sa.Column("path", sa.String(length=200), nullable=False),
        sa.Column(
            "model",
            sa.String(length=200).with_variant(sa.String(length=200, collation="C"), "postgresql"),
            nullable=True,
        ),
        sa.Column("deployment", sa.String(length=200), nullable=True),
        sa.Column("arm", sa.String(length=200), nullable=True),
        sa.Column(
            "policy",
            sa.String(length=200).with_variant(sa.String(length=200, collation="C"), "postgresql"),
            nullable=True,
        ),
        sa.Column("reason", sa.String(length=20), nullable=True),
        sa.Column("outcome", sa.String(length=10), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("ending", sa.String(length=12), nullable=False),
        sa.Column("error", sa.String(length=60), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("latency_s", sa.Float(), nullable=False),
        sa.Column("first_byte_s", sa.Float(), nullable=True),
        sa.Column("cost_nusd", sa.BigInteger(), nullable=True),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=True),
        sa.Column("completion_tokens", sa.BigInteger(), nullable=True),
        sa.Column("candidates", sa.Integer(), nullable=True),
        sa.Column("unverified", sa.String(length=30), nullable=True),
        sa.Column("conversation", sa.String(length=200), nullable=True),
        sa.PrimaryKeyConstraint("ended_us", "id", name=op.f("pk_recent_requests")),
        sqlite_with_rowid=False,
    )
    with op.batch_alter_table("recent_requests", schema=None) as batch_op:
        batch_op.create_index("recent_requests_by_key", ["key", "ended_us", "id"], unique=False)

    with op.batch_alter_table("usage", schema=None) as batch_op:
        batch_op.add_column(
            sa.Column("estimated", sa.BigInteger(), server_default="0", nullable=False)
        )
        batch_op.add_column(
            sa.Column("correct_ppm", sa.BigInteger(), server_default="0", nullable=False)
        )
        batch_op.add_column(
            sa.Column("baseline_correct_ppm", sa.BigInteger(), server_default="0", nullable=False)
        )
        batch_op.add_column(
            sa.Column("variance_ppm", sa.BigInteger(), server_default="0", nullable=False)
        )
        batch_op.add_column(
            sa.Column("error_ppm", sa.BigInteger(), server_default="0", nullable=False)
        )
        batch_op.add_column(
            sa.Column("feedback_correct", sa.BigInteger(), server_default="0", nullable=False)
        )
        batch_op.add_column(
            sa.Column("feedback_wrong", sa.BigInteger(), server_default="0", nullable=False)
        )
        batch_op.add_column(
            sa.Column("invalid_calls", sa.BigInteger(), server_default="0", nullable=False)
        )
        batch_op.add_column(
            sa.Column("tool_errors", sa.BigInteger(), server_default="0", nullable=False)
        )
        batch_op.add_column(
            sa.Column("repeated_calls", sa.BigInteger(), server_default="0", nullable=False)
        )
