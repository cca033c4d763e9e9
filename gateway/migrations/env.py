"""Alembic's environment. The connection comes from whoever runs the migration."""

from alembic import context

from gateway.tables import METADATA

context.configure(
    connection=context.config.attributes["connection"], target_metadata=METADATA, render_as_batch=True
)
with context.begin_transaction():
    context.run_migrations()
