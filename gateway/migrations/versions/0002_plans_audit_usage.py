"""Keys with plans, scopes, models, overrides, rotation and last use; the audit log; usage per day."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

REFUSAL = "the audit log is append-only"
KEYS = sa.table(
    "api_keys",
    sa.column("id", sa.String),
    sa.column("requests_per_minute", sa.Integer),
    sa.column("overrides", sa.JSON),
    sa.column("disabled_at", sa.Double),
    sa.column("revoked_at", sa.Double),
)


def upgrade() -> None:
    with op.batch_alter_table("api_keys") as table:
        for column in _new_columns():
            table.add_column(column)
    _own_limits_to_overrides()
    with op.batch_alter_table("api_keys") as table:
        table.drop_column("requests_per_minute")
    _create_audit()
    _create_usage()


def downgrade() -> None:
    """What the older schema cannot hold is lost: audit, usage, and what keys have beyond a request limit. A
    disabled key becomes a revoked one: it must not come back to life.
    """
    op.drop_table("ledger_marks")
    op.drop_table("usage_days")
    op.drop_table("audit")
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION refuse_audit_change()")
    with op.batch_alter_table("api_keys") as table:
        table.add_column(sa.Column("requests_per_minute", sa.Integer))
    _overrides_to_own_limits()
    ended = sa.func.coalesce(KEYS.c.revoked_at, KEYS.c.disabled_at)
    op.get_bind().execute(sa.update(KEYS).values(revoked_at=ended))
    with op.batch_alter_table("api_keys") as table:
        for column in _new_columns():
            table.drop_column(column.name)


def _new_columns() -> list[sa.Column[Any]]:
    return [
        sa.Column("previous_digest", sa.LargeBinary(32)),
        sa.Column("previous_pepper_id", sa.String(12)),
        sa.Column("previous_until", sa.Double),
        sa.Column("plan", sa.String(100)),
        sa.Column("scopes", sa.JSON(none_as_null=True)),
        sa.Column("models", sa.JSON(none_as_null=True)),
        sa.Column("overrides", sa.JSON, nullable=False, server_default="{}"),
        sa.Column("disabled_at", sa.Double),
        sa.Column("last_used_at", sa.Double),
    ]


def _own_limits_to_overrides() -> None:
    connection = op.get_bind()
    limited = sa.select(KEYS.c.id, KEYS.c.requests_per_minute).where(KEYS.c.requests_per_minute.is_not(None))
    for key_id, limit in connection.execute(limited).all():
        overrides = {"requests_per_minute": limit}
        connection.execute(sa.update(KEYS).where(KEYS.c.id == key_id).values(overrides=overrides))


def _overrides_to_own_limits() -> None:
    connection = op.get_bind()
    for key_id, overrides in connection.execute(sa.select(KEYS.c.id, KEYS.c.overrides)).all():
        limit = overrides.get("requests_per_minute")
        connection.execute(sa.update(KEYS).where(KEYS.c.id == key_id).values(requests_per_minute=limit))


def _create_audit() -> None:
    number = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    op.create_table(
        "audit",
        sa.Column("id", number, primary_key=True, autoincrement=True),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("key_id", sa.Text),
        sa.Column("tenant", sa.Text),
        sa.Column("detail", sa.JSON, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_audit_key_id", "audit", ["key_id"])
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            "CREATE FUNCTION refuse_audit_change() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN RAISE EXCEPTION '{REFUSAL}'; END $$"
        )
        op.execute(
            "CREATE TRIGGER audit_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_audit_change()"
        )
        return
    for change in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER audit_no_{change.lower()} BEFORE {change} ON audit "
            f"BEGIN SELECT RAISE(ABORT, '{REFUSAL}'); END"
        )


def _create_usage() -> None:
    op.create_table(
        "usage_days",
        sa.Column("day", sa.String(10), primary_key=True),
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("key_id", sa.Text, primary_key=True),
        sa.Column("model", sa.Text, primary_key=True),
        sa.Column("requests", sa.BigInteger, nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger, nullable=False),
        sa.Column("completion_tokens", sa.BigInteger, nullable=False),
        sa.Column("estimated_requests", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "ledger_marks",
        sa.Column("spool", sa.Text, primary_key=True),
        sa.Column("offset", sa.BigInteger, nullable=False),
    )
