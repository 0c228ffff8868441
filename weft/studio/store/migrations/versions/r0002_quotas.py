"""Quotas, when people and tokens were last seen, and preferences."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column("users", sa.Column("last_seen", sa.Double(), nullable=True))
    op.add_column("users", sa.Column("gpu_jobs", sa.Integer(), nullable=True))
    op.add_column("users", sa.Column("cpu_jobs", sa.Integer(), nullable=True))
    op.add_column("users", sa.Column("disk_bytes", sa.BigInteger(), nullable=True))
    op.add_column("tokens", sa.Column("last_used", sa.Double(), nullable=True))
    op.create_table(
        "preferences",
        sa.Column("user", sa.String(64), primary_key=True),
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("value", sa.JSON(), nullable=False),
    )
