"""Quotas of waiting jobs."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("users", sa.Column("waiting_jobs", sa.Integer(), nullable=True))
