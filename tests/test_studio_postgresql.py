"""Runs the studio's accounts on a real PostgreSQL server, where one is installed; only make test-all does (see sampling.py)."""

from __future__ import annotations

import glob
import os
import pwd
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from store_tools import PASSWORD, QUICK_HASHER
from weft.errors import UserError
from weft.studio.store import accounts
from weft.studio.store.accounts import Quota
from weft.studio.store.database import Database, DatabaseUnavailable
from weft.studio.store.store import AccountStore
from weft.studio.store.tables import Tables

BINARIES = sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb")) or [one for one in [shutil.which("initdb")] if one]


def server_user() -> str | None:
    """Somebody who may run the server: not root."""
    if os.getuid() != 0:
        return pwd.getpwuid(os.getuid()).pw_name
    names = {one.pw_name for one in pwd.getpwall()}
    return next((name for name in ("postgres", "nobody") if name in names), None)


def why_not() -> str:
    if not BINARIES:
        return "PostgreSQL is not installed: apt-get install postgresql"
    return "" if server_user() else "PostgreSQL needs a user other than root, and there is none"


pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())


@pytest.fixture(autouse=True)
def _fast_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts, "HASHER", QUICK_HASHER)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A server in a folder of its own, which is reached by a socket in that folder only."""
    user, binaries = server_user(), Path(BINARIES[-1]).parent
    place = Path(tempfile.mkdtemp(prefix="weft-pg-", dir="/tmp"))
    place.chmod(0o755)
    data = place / "data"
    data.mkdir()
    if os.getuid() == 0:
        for one in (place, data):
            shutil.chown(one, user)
    own = {"user": user, "cwd": place} if os.getuid() == 0 else {"cwd": place}

    def run(*command: str) -> None:
        done = subprocess.run(command, capture_output=True, text=True, **own)  # type: ignore[call-overload]
        assert done.returncode == 0, done.stdout + done.stderr

    run(str(binaries / "initdb"), "-D", str(data), "-U", "weft", "--auth=trust", "--no-sync", "-E", "UTF8")
    options = f"-c listen_addresses='' -c unix_socket_directories={place} -c fsync=off"
    run(str(binaries / "pg_ctl"), "-D", str(data), "-o", options, "-l", str(place / "log"), "-w", "start")
    try:
        yield place
    finally:
        run(str(binaries / "pg_ctl"), "-D", str(data), "-m", "immediate", "stop")
        shutil.rmtree(place, ignore_errors=True)


@pytest.fixture
def url(folder: Path) -> str:
    """A new database."""
    with psycopg.connect(f"host={folder} user=weft dbname=postgres", autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS studio WITH (FORCE)")
        connection.execute("CREATE DATABASE studio")
    return f"postgresql+psycopg://weft@/studio?host={folder}"


def test_the_revisions_make_the_tables_that_the_code_uses(url: str) -> None:
    database = Database(url)
    with database.engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Tables.metadata) == []
    database.close()


def test_accounts_sessions_tokens_log_and_settings(url: str) -> None:
    store = AccountStore(url)
    anna = store.accounts.add("anna", PASSWORD, "admin")
    store.accounts.add("ben", PASSWORD)
    with pytest.raises(UserError, match="which is in use"):
        store.accounts.add("ben", PASSWORD)
    assert store.accounts.check_password("anna", PASSWORD) == anna
    session = store.credentials.open_session(anna)
    token = store.credentials.create_token("ben", "nightly")
    assert [found and found.name for found in (store.user_of_session(session), store.user_of_token(token))] == [
        "anna",
        "ben",
    ]
    store.accounts.set_quota("ben", Quota(1, 2, 5 * 10**12))
    store.settings.change({"stay_days": 7}, by="anna")
    store.preferences.set("anna", "columns", ["name", "ä"])
    store.log("anna", "post", "/jobs/1/stop")
    store.flush()
    assert store.quota("ben") == Quota(1, 2, 5 * 10**12)
    assert (store.settings["stay_days"], store.preferences.get("anna", "columns")) == (7, ["name", "ä"])
    assert [one.target for one in store.audit.entries(words="STOP")] == ["/jobs/1/stop"]
    assert store.accounts.get("anna").last_seen is not None
    store.accounts.change("ben", disabled=True)
    store.changed()
    assert store.user_of_token(token) is None
    store.close()


def test_studios_that_start_together_upgrade_once(url: str) -> None:
    problems: list[BaseException] = []

    def start() -> None:
        try:
            AccountStore(url).close()
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []


def test_a_server_that_is_gone_is_told(folder: Path) -> None:
    with pytest.raises(DatabaseUnavailable, match="cannot be used now") as caught:
        Database(f"postgresql+psycopg://weft:secret@/nothing?host={folder}/nowhere")
    assert "secret" not in caught.value.message
