"""API keys."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(10), primary_key=True),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("tenant", sa.String(100), nullable=False),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("pepper_id", sa.String(12), nullable=False),
        sa.Column("requests_per_minute", sa.Integer),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("expires_at", sa.Double),
        sa.Column("revoked_at", sa.Double),
        sa.Column("changed_at", sa.Double, nullable=False),
    )
    op.create_index("ix_api_keys_changed_at", "api_keys", ["changed_at"])


def downgrade() -> None:
    op.drop_table("api_keys")
