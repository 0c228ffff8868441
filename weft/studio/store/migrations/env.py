"""Runs the revisions in the transaction that `database.upgrade` has opened."""

from alembic import context

from weft.studio.store.tables import Tables

context.configure(
    connection=context.config.attributes["connection"], target_metadata=Tables.metadata, render_as_batch=True
)
context.run_migrations()
