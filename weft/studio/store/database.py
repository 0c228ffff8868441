"""Opens the database of a studio, upgrades it to the tables of this weft, and turns its errors into sentences."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, NoSuchModuleError, OperationalError
from sqlalchemy.orm import Session

from ...errors import RunError, UserError

MIGRATIONS = Path(__file__).parent / "migrations"
BUSY = 5.0  # seconds that a change waits for another program to finish its own
UPGRADE_LOCK = 0x77656674  # PostgreSQL: studios that start together upgrade one after the other


class DatabaseUnavailable(RunError):
    """The database cannot be used now; nothing was changed."""


class Database:
    """A database whose tables are those of this weft."""

    def __init__(self, url: str, busy: float = BUSY) -> None:
        self.engine = _engine(url, busy)
        self._writer = self.engine.execution_options(writes=True)
        self.upgrade()

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """A session that changes nothing."""
        with _explained(self.engine), Session(self.engine, expire_on_commit=False) as session:
            yield session

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """A session whose changes are stored together at its end, or not at all."""
        with _explained(self.engine), Session(self._writer, expire_on_commit=False) as session, session.begin():
            yield session

    def upgrade(self) -> None:
        """Bring older tables up to date, all of it in one transaction. Those of a newer weft are rejected."""
        revisions = ScriptDirectory(str(MIGRATIONS))
        with _explained(self.engine):
            with self.engine.connect() as connection:
                if _revision(connection) == revisions.get_current_head():
                    return
            with self._writer.begin() as connection:
                if connection.dialect.name == "postgresql":
                    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({UPGRADE_LOCK})")
                found = _revision(connection)
                if found is not None and found not in {one.revision for one in revisions.walk_revisions()}:
                    raise UserError(
                        "studio",
                        f"a database of this weft or an older one is required, got revision {found} of a newer one. "
                        "Install that weft, or name another database: weft studio database=sqlite:///other.sqlite.",
                    )
                config = Config()
                config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
                config.attributes["connection"] = connection
                command.upgrade(config, "head")

    def close(self) -> None:
        self.engine.dispose()


def _engine(url: str, busy: float) -> Engine:
    try:
        parsed = make_url(url)
        if parsed.get_backend_name() == "sqlite":
            return _sqlite_engine(url, busy)
        return create_engine(parsed, pool_pre_ping=True)
    except (ArgumentError, NoSuchModuleError, ModuleNotFoundError) as error:
        raise UserError(
            "studio",
            f"a database that SQLAlchemy and an installed driver know is required, got {_without_password(url)} ({error}). "
            "Write for example database=postgresql+psycopg://user@/name, with pip install 'psycopg[binary]'.",
        ) from None


def _sqlite_engine(url: str, busy: float) -> Engine:
    engine = create_engine(url, connect_args={"timeout": busy, "check_same_thread": False})

    def connected(connection: Any, record: Any) -> None:
        connection.isolation_level = None  # transactions are begun below, so that tables are changed inside of them too
        connection.execute("PRAGMA journal_mode=WAL")  # readers do not wait for the writer
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute("PRAGMA foreign_keys=ON")

    def begins(connection: Connection) -> None:
        # A change takes the lock at its beginning: waiting is possible only then, not between reading and writing.
        connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.get_execution_options().get("writes") else "BEGIN")

    event.listen(engine, "connect", connected)
    event.listen(engine, "begin", begins)
    return engine


def _revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


@contextmanager
def _explained(engine: Engine) -> Iterator[None]:
    """Errors of the database as errors of weft."""
    try:
        yield
    except OperationalError as error:
        reason = str(error.orig).strip().splitlines()[0]
        if "locked" in reason:
            reason = "another program is writing to it"
        raise DatabaseUnavailable(
            "studio", f"the database {_name(engine)} cannot be used now: {reason}. Nothing was changed; try again."
        ) from error
    except DatabaseError as error:  # of the file itself: "file is not a database", "database disk image is malformed"
        if not any(word in str(error.orig) for word in ("not a database", "malformed")):
            raise
        raise DatabaseUnavailable(
            "studio",
            f"a SQLite database is required, got {_name(engine)}, which is another file or damaged. Runs, datasets and jobs are not in it and are "
            "safe. End the studio and restore a copy of the file, or move it away: accounts then are to be added again.",
        ) from error


def _name(engine: Engine) -> str:
    return engine.url.database or "" if engine.dialect.name == "sqlite" else _without_password(str(engine.url))


def _without_password(url: str) -> str:
    try:
        return make_url(url).render_as_string(hide_password=True)
    except ArgumentError:
        return repr(url.partition(":")[0] + ":...")
