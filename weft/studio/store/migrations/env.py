"""Runs the revisions in the transaction that `Database.upgrade` has opened."""

from alembic import context

from weft.studio.store.tables import Tables

if __name__ == "env_py":  # the name that Alembic gives it; others only look
    connection = context.config.attributes["connection"]
    context.configure(connection=connection, target_metadata=Tables.metadata, render_as_batch=True)
    context.run_migrations()
