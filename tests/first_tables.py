"""The tables of the first version, from which tests migrate."""

import sqlalchemy as sa
from alembic.migration import MigrationContext
from alembic.operations import Operations


def ordered(length: int) -> sa.String:
    """Return the type of texts that PostgreSQL orders by their bytes, as SQLite does."""
    other = sa.String(length=length, collation="C")
    return sa.String(length=length).with_variant(other, "postgresql")


def create_first_tables(connection: sa.Connection) -> None:
    """Create the tables of the version 0001, as its gateways did."""
    op = Operations(MigrationContext.configure(connection))
    op.create_table(
        "alerts",
        sa.Column("subject", sa.String(length=205), nullable=False),
        sa.Column("period", sa.String(length=10), nullable=False),
        sa.Column("start_s", sa.BigInteger(), nullable=False),
        sa.Column("share", sa.Float(), nullable=False),
        sa.Column("sent_s", sa.Float(), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_attempt_s", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("subject", "period", "start_s", "share", name=op.f("pk_alerts")),
    )
    with op.batch_alter_table("alerts", schema=None) as batch_op:
        batch_op.create_index("alerts_due", ["sent_s", "next_attempt_s"], unique=False)

    op.create_table(
        "latencies",
        sa.Column("scope", ordered(205), nullable=False),
        sa.Column("step_s", sa.Integer(), nullable=False),
        sa.Column("start_s", sa.BigInteger(), nullable=False),
        sa.Column("model", ordered(200), nullable=False),
        sa.Column("policy", ordered(200), nullable=False),
        sa.Column("bin", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint(
            "scope", "step_s", "start_s", "model", "policy", "bin", name=op.f("pk_latencies")
        ),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "leases",
        sa.Column("subject", sa.String(length=205), nullable=False),
        sa.Column("period", sa.String(length=10), nullable=False),
        sa.Column("start_s", sa.BigInteger(), nullable=False),
        sa.Column("holder", sa.String(length=40), nullable=False),
        sa.Column("amount_nusd", sa.BigInteger(), nullable=False),
        sa.Column("reserved_nusd", sa.BigInteger(), nullable=False),
        sa.Column("expires_s", sa.Float(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("subject", "period", "start_s", "holder", name=op.f("pk_leases")),
    )
    op.create_table(
        "spending",
        sa.Column("subject", ordered(205), nullable=False),
        sa.Column("period", sa.String(length=12), nullable=False),
        sa.Column("start_s", sa.BigInteger(), nullable=False),
        sa.Column("spent_nusd", sa.BigInteger(), nullable=False),
        sa.Column("wanted_until_s", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("subject", "period", "start_s", name=op.f("pk_spending")),
    )
    with op.batch_alter_table("spending", schema=None) as batch_op:
        batch_op.create_index(
            "spending_by_amount", ["period", "start_s", "spent_nusd"], unique=False
        )

    op.create_table(
        "state",
        sa.Column("name", sa.String(length=40), nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_state")),
    )
    op.create_table(
        "teams",
        sa.Column("name", ordered(200), nullable=False),
        sa.Column("owner", sa.String(length=200), nullable=True),
        sa.Column("search", sa.Text(), nullable=False),
        sa.Column("requests_per_minute", sa.Integer(), nullable=True),
        sa.Column("tokens_per_minute", sa.Integer(), nullable=True),
        sa.Column("parallel_requests", sa.Integer(), nullable=True),
        sa.Column("budget_nusd", sa.BigInteger(), nullable=True),
        sa.Column("budget_period", sa.String(length=10), nullable=True),
        sa.Column("metadata", sa.JSON(), nullable=False),
        sa.Column("created_s", sa.Float(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("deleted_s", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_teams")),
    )
    with op.batch_alter_table("teams", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_teams_revision"), ["revision"], unique=False)

    op.create_table(
        "usage",
        sa.Column("scope", ordered(205), nullable=False),
        sa.Column("step_s", sa.Integer(), nullable=False),
        sa.Column("start_s", sa.BigInteger(), nullable=False),
        sa.Column("model", ordered(200), nullable=False),
        sa.Column("policy", ordered(200), nullable=False),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.Column("errors", sa.BigInteger(), nullable=False),
        sa.Column("unpriced", sa.BigInteger(), nullable=False),
        sa.Column("cost_nusd", sa.BigInteger(), nullable=False),
        sa.Column("compared_nusd", sa.BigInteger(), nullable=False),
        sa.Column("baseline_nusd", sa.BigInteger(), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("completion_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("reasoning_tokens", sa.BigInteger(), nullable=False),
        sa.Column("candidates", sa.BigInteger(), nullable=False),
        sa.Column("unfamiliar", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint(
            "scope", "step_s", "start_s", "model", "policy", name=op.f("pk_usage")
        ),
        sqlite_with_rowid=False,
    )
    with op.batch_alter_table("usage", schema=None) as batch_op:
        batch_op.create_index("usage_by_time", ["step_s", "start_s"], unique=False)

    op.create_table(
        "keys",
        sa.Column("name", ordered(200), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("hint", sa.String(length=8), nullable=False),
        sa.Column("previous_digest", sa.String(length=64), nullable=True),
        sa.Column("previous_until_s", sa.Float(), nullable=True),
        sa.Column("team", ordered(200), nullable=True),
        sa.Column("is_admin", sa.Boolean(), nullable=False),
        sa.Column("expires_s", sa.Float(), nullable=True),
        sa.Column("revoked_s", sa.Float(), nullable=True),
        sa.Column("models", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("policies", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("owner", sa.String(length=200), nullable=True),
        sa.Column("search", sa.Text(), nullable=False),
        sa.Column("requests_per_minute", sa.Integer(), nullable=True),
        sa.Column("tokens_per_minute", sa.Integer(), nullable=True),
        sa.Column("parallel_requests", sa.Integer(), nullable=True),
        sa.Column("budget_nusd", sa.BigInteger(), nullable=True),
        sa.Column("budget_period", sa.String(length=10), nullable=True),
        sa.Column("metadata", sa.JSON(), nullable=False),
        sa.Column("created_s", sa.Float(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["team"], ["teams.name"], name=op.f("fk_keys_team")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_keys")),
        sa.UniqueConstraint("digest", name=op.f("uq_keys_digest")),
        sa.UniqueConstraint("previous_digest", name=op.f("uq_keys_previous_digest")),
    )
    with op.batch_alter_table("keys", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_keys_revision"), ["revision"], unique=False)
        batch_op.create_index(batch_op.f("ix_keys_team"), ["team"], unique=False)
    op.bulk_insert(
        sa.table("state", sa.column("name"), sa.column("value")), [{"name": "revision", "value": 0}]
    )
