"""The tables, as the newest migration leaves them. A test compares the two.

Times are seconds since the epoch, UTC: SQLite has no type of its own for them, and a number has one reading
everywhere. Text from tokens' claims is unbounded here: what is too long for a column would hold up all usage
behind it.
"""

import sqlalchemy as sa

METADATA = sa.MetaData()
# SQLite numbers rows by themselves in this type alone.
AUDIT_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")

API_KEYS = sa.Table(
    "api_keys",
    METADATA,
    sa.Column("id", sa.String(10), primary_key=True),
    sa.Column("name", sa.String(100), nullable=False),
    sa.Column("tenant", sa.String(100), nullable=False),
    sa.Column("digest", sa.LargeBinary(32), nullable=False),
    sa.Column("pepper_id", sa.String(12), nullable=False),
    sa.Column("previous_digest", sa.LargeBinary(32)),
    sa.Column("previous_pepper_id", sa.String(12)),
    sa.Column("previous_until", sa.Double),
    sa.Column("plan", sa.String(100)),
    sa.Column("scopes", sa.JSON(none_as_null=True)),
    sa.Column("models", sa.JSON(none_as_null=True)),
    sa.Column("overrides", sa.JSON, nullable=False, server_default="{}"),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("expires_at", sa.Double),
    sa.Column("disabled_at", sa.Double),
    sa.Column("revoked_at", sa.Double),
    sa.Column("changed_at", sa.Double, nullable=False, index=True),
    sa.Column("last_used_at", sa.Double),
)

AUDIT = sa.Table(
    "audit",
    METADATA,
    sa.Column("id", AUDIT_ID, primary_key=True, autoincrement=True),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("action", sa.Text, nullable=False),
    sa.Column("key_id", sa.Text, index=True),
    sa.Column("tenant", sa.Text),
    sa.Column("detail", sa.JSON, nullable=False),
    sqlite_autoincrement=True,
)

USAGE_DAYS = sa.Table(
    "usage_days",
    METADATA,
    sa.Column("day", sa.String(10), primary_key=True),
    sa.Column("tenant", sa.Text, primary_key=True),
    sa.Column("key_id", sa.Text, primary_key=True),
    sa.Column("model", sa.Text, primary_key=True),
    sa.Column("requests", sa.BigInteger, nullable=False),
    sa.Column("prompt_tokens", sa.BigInteger, nullable=False),
    sa.Column("completion_tokens", sa.BigInteger, nullable=False),
    sa.Column("estimated_requests", sa.BigInteger, nullable=False),
)

# How far each spool file is counted in usage_days: moved in the same transaction as the sums.
LEDGER_MARKS = sa.Table(
    "ledger_marks",
    METADATA,
    sa.Column("spool", sa.Text, primary_key=True),
    sa.Column("offset", sa.BigInteger, nullable=False),
)
