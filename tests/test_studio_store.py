"""Checks the database of the studio: accounts, sessions, tokens, the log, and what happens to old, new, locked and foreign databases."""

from __future__ import annotations

import json
import runpy
import sqlite3
import threading
import time
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext

from store_tools import PASSWORD, QUICK_HASHER, new_store
from weft.errors import UserError
from weft.studio.store import accounts
from weft.studio.store.accounts import Quota
from weft.studio.store.credentials import digest
from weft.studio.store.database import Database, DatabaseUnavailable
from weft.studio.store.store import AccountStore
from weft.studio.store.tables import Tables

OLD = Path(__file__).parent / "data" / "studio_0001.sql"


@pytest.fixture(autouse=True)
def _fast_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts, "HASHER", QUICK_HASHER)


@pytest.fixture
def store(tmp_path: Path) -> AccountStore:
    return new_store(tmp_path)


def old_database(path: Path) -> str:
    with sqlite3.connect(path) as database:
        database.executescript(OLD.read_text())
    database.close()
    return f"sqlite:///{path}"


def stored_bytes(store: AccountStore) -> bytes:
    """All that the database has written to disk."""
    return b"".join(path.read_bytes() for path in Path(str(store.database.engine.url.database)).parent.iterdir())


# --- accounts -----------------------------------------------------------------------------------------------------------------


def test_a_password_opens_its_account_only(store: AccountStore) -> None:
    store.accounts.add("Anna", PASSWORD, "admin")
    store.accounts.add("ben", PASSWORD + "2")
    found = store.accounts.check_password(" anna ", PASSWORD)
    assert found is not None
    assert (found.name, found.role) == ("anna", "admin")
    assert store.accounts.check_password("ben", PASSWORD) is None
    assert store.accounts.check_password("nobody", PASSWORD) is None
    store.accounts.change("ben", disabled=True)
    assert store.accounts.check_password("ben", PASSWORD + "2") is None
    assert PASSWORD.encode() not in stored_bytes(store)


@pytest.mark.parametrize(
    ("name", "password", "role", "message"),
    [
        ("anna", "short", "member", "a password of 10 to 256 characters is required, got 5"),
        ("anna", "aaaaaaaaaaaa", "member", "4 different characters"),
        ("an na", PASSWORD, "member", "a name of up to 64 letters"),
        ("../x", PASSWORD, "member", "a name of up to 64 letters"),
        ("local", PASSWORD, "member", "stands for this machine"),
        ("anna", PASSWORD, "root", "viewer, member or admin, got 'root'"),
        ("taken", PASSWORD, "member", "taken, which is in use"),
    ],
)
def test_accounts_that_cannot_be_are_refused(
    name: str, password: str, role: str, message: str, store: AccountStore
) -> None:
    store.accounts.add("taken", PASSWORD)
    with pytest.raises(UserError, match=message):
        store.accounts.add(name, password, role)
    assert [one.name for one in store.accounts.all()] == ["taken"]


def test_the_last_admin_stays(store: AccountStore) -> None:
    store.accounts.add("ben", PASSWORD)
    store.accounts.change("ben", role="viewer")  # nobody is admin yet
    store.accounts.add("anna", PASSWORD, "admin")
    for change in ({"disabled": True}, {"role": "member"}):
        with pytest.raises(UserError, match="anna is the last one"):
            store.accounts.change("anna", **change)  # type: ignore[arg-type]
    assert store.accounts.get("anna").role == "admin"
    store.accounts.change("ben", role="admin")
    store.accounts.change("anna", disabled=True)


def test_quotas_are_an_accounts_own_or_those_of_the_settings(store: AccountStore) -> None:
    store.accounts.add("anna", PASSWORD)
    assert store.quota("anna") == Quota()
    store.settings.change({"gpu_jobs": "2", "disk_gb": 5}, by="root")
    store.accounts.set_quota("anna", Quota(cpu_jobs=1, disk_bytes=10**12), by="root")
    assert store.quota("anna") == Quota(2, 1, 10**12)
    with pytest.raises(UserError, match="0 or more"):
        store.accounts.set_quota("anna", Quota(gpu_jobs=-1))
    assert [one.target for one in store.audit.entries(words="QUOTA")] == ["anna: any GPU jobs, 1 CPU job, 1000 GB"]


# --- sessions and tokens --------------------------------------------------------------------------------------------------------


def test_sessions_end_by_time_by_logout_by_password_and_by_disabling(store: AccountStore) -> None:
    anna = store.accounts.add("anna", PASSWORD, "admin")
    ben = store.accounts.add("ben", PASSWORD)
    short, out, kept, gone = (store.credentials.open_session(anna, seconds) for seconds in (-1, 60, 60, 60))
    bens = store.credentials.open_session(ben)
    seen = store.credentials.user_of_session
    assert seen(short) is None
    store.credentials.close_session(out)
    assert seen(out) is None
    store.accounts.set_password("anna", PASSWORD + "!", keep=digest(kept))
    assert seen(gone) is None
    found = seen(kept)
    assert found is not None
    assert (found.name, found.role, found.may("admin"), found.may("viewer")) == ("anna", "admin", True, True)
    store.accounts.change("ben", disabled=True)
    store.accounts.change("ben", disabled=False)
    assert seen(bens) is None
    store.credentials.forget_expired()
    assert store.credentials.sessions() == 1


def test_tokens_do_no_more_than_their_owner_and_end(store: AccountStore) -> None:
    store.accounts.add("anna", PASSWORD, "admin")
    store.accounts.add("ben", PASSWORD, "admin")
    token = store.credentials.create_token("anna", "nightly", "member")
    reader = store.credentials.create_token("anna", "report", "viewer", days=None)
    expired = store.credentials.create_token("anna", "old", days=1e-9)
    who = store.credentials.user_of_token
    found = who(token)
    assert found is not None
    assert (found.name, found.role, found.way) == ("anna", "member", "token")
    assert who(expired) is None
    assert who(token[:-1]) is None
    store.accounts.change("anna", role="viewer")
    demoted = who(token)
    assert demoted is not None
    assert demoted.role == "viewer"
    with pytest.raises(UserError, match="no more than its owner: viewer, got admin"):
        store.credentials.create_token("anna", "more", "admin")
    listed = {one.name: one for one in store.credentials.tokens("anna")}
    with pytest.raises(UserError, match="there is no token"):
        store.credentials.revoke(listed["report"].id, by="ben", owner="ben")
    assert who(reader) is not None
    store.credentials.revoke(listed["report"].id, by="ben")
    assert who(reader) is None
    assert token.encode() not in stored_bytes(store)


def test_what_is_remembered_of_a_session_is_forgotten_when_something_changes(store: AccountStore) -> None:
    anna = store.accounts.add("anna", PASSWORD, "admin")
    session = store.credentials.open_session(anna)
    assert store.user_of_session(session) is not None
    store.credentials.close_session(session)
    store.changed()
    assert store.user_of_session(session) is None
    assert store.has_admin()


# --- the log and settings -------------------------------------------------------------------------------------------------------


def test_what_gathers_is_stored_and_survives_a_locked_database(store: AccountStore) -> None:
    store.database.close()
    store.database = store.audit.database = Database(f"sqlite:///{store.database.engine.url.database}", busy=0.05)
    anna = store.accounts.add("anna", PASSWORD)
    assert store.user_of_session(store.credentials.open_session(anna)) is not None
    store.log("anna", "POST", "/api/v1/jobs")
    with sqlite3.connect(str(store.database.engine.url.database), isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(DatabaseUnavailable, match="another program is writing to it. Nothing was changed"):
            store.flush()
        assert store.accounts.get("anna").last_seen is None  # reading goes on
        other.execute("COMMIT")
    other.close()
    store.flush()
    assert store.audit.entries(1)[0].target == "/api/v1/jobs"
    assert store.accounts.get("anna").last_seen == pytest.approx(time.time(), abs=60)
    store.audit.forget(0.0, most=2)
    assert len(store.audit.entries()) == 2
    store.audit.forget(time.time() + 1)
    assert store.audit.entries() == []


def test_a_change_waits_for_another_one(store: AccountStore) -> None:
    other = sqlite3.connect(str(store.database.engine.url.database), isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    timer = threading.Timer(0.2, lambda: other.execute("COMMIT"))
    timer.start()
    store.accounts.add("anna", PASSWORD)
    timer.join()
    other.close()
    assert store.accounts.get("anna").name == "anna"


def test_settings_are_checked_and_preferences_are_bounded(store: AccountStore) -> None:
    assert store.settings["stay_days"] == 30
    store.settings.change({"stay_days": "7", "gpu_jobs": ""}, by="anna")
    assert store.settings["stay_days"] == 7
    for wrong in ({"stay_days": "0"}, {"stay_days": "9999"}, {"nothing": "1"}):
        with pytest.raises(UserError):
            store.settings.change(wrong, by="anna")
    store.settings.change({"stay_days": ""}, by="anna")
    assert store.settings["stay_days"] == 30
    store.preferences.set("anna", "columns", ["name", "loss"])
    store.preferences.set("anna", "columns", ["name"])
    assert store.preferences.get("anna", "columns") == ["name"]
    assert store.preferences.get("ben", "columns", []) == []
    with pytest.raises(UserError, match="20,000 characters"):
        store.preferences.set("anna", "columns", ["x" * 30_000])


# --- other databases --------------------------------------------------------------------------------------------------------------


def test_a_stored_old_database_is_upgraded_with_all_that_is_in_it(tmp_path: Path) -> None:
    store = AccountStore(old_database(tmp_path / "old.sqlite"))
    assert [(one.name, one.role, one.disabled, one.quota) for one in store.accounts.all()] == [
        ("anna", "admin", False, Quota()),
        ("ben", "member", True, Quota()),
    ]
    assert store.accounts.check_password("anna", "correct horse") is not None
    assert [found and found.name for found in (store.user_of_token("weft_old"), store.user_of_session("cookie"))] == [
        "anna",
        "anna",
    ]
    assert store.settings["stay_days"] == 7
    store.preferences.set("anna", "columns", [])
    store.accounts.set_quota("anna", Quota(1, 2, 3))
    store.close()
    again = AccountStore(f"sqlite:///{tmp_path / 'old.sqlite'}")
    assert again.quota("anna") == Quota(1, 2, 3)


def test_an_upgrade_that_fails_leaves_the_old_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = old_database(tmp_path / "old.sqlite")

    def full(*args: object, **options: object) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patched, pytest.raises(OSError, match="disk full"):
        patched.setattr(Operations, "create_table", full)
        AccountStore(url)
    with sqlite3.connect(tmp_path / "old.sqlite") as database:
        assert database.execute("SELECT version_num FROM alembic_version").fetchall() == [("0001",)]
        assert "gpu_jobs" not in {row[1] for row in database.execute("PRAGMA table_info(users)")}
    database.close()
    assert AccountStore(url).accounts.get("anna").quota == Quota()


def test_the_revisions_make_the_tables_that_the_code_uses(store: AccountStore) -> None:
    with store.database.engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Tables.metadata) == []


def test_databases_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    newer = old_database(tmp_path / "newer.sqlite")
    with sqlite3.connect(tmp_path / "newer.sqlite") as database:
        database.execute("UPDATE alembic_version SET version_num = '9999'")
    database.close()
    with pytest.raises(UserError, match="got revision 9999 of a newer one. Install that weft"):
        AccountStore(newer)
    (tmp_path / "text.sqlite").write_text("hello, this is no database at all" * 40)
    with pytest.raises(DatabaseUnavailable, match="a SQLite database is required, got .*text.sqlite"):
        AccountStore(f"sqlite:///{tmp_path / 'text.sqlite'}")
    with pytest.raises(DatabaseUnavailable, match="unable to open database file"):
        AccountStore(f"sqlite:///{tmp_path / 'no' / 'folder.sqlite'}")
    for url in ("nonsense", "oracle2://x:secret@host/y"):
        with pytest.raises(UserError, match="psycopg") as caught:
            AccountStore(url)
        assert "secret" not in str(caught.value)


# --- make audit -------------------------------------------------------------------------------------------------------------------


def test_an_audit_that_checked_nothing_is_no_success() -> None:
    audit = runpy.run_path(str(OLD.parent.parent.parent / "scripts" / "audit.py"))
    bad = {"name": "x", "version": "1", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2"]}]}
    assert audit["report"](json.dumps({"dependencies": [bad]})) == (
        ["x 1: PYSEC-1, fixed in 2", "1 package checked, 1 advisories"],
        True,
    )
    for answer in ("", "{}", json.dumps({"dependencies": [{"name": "x", "skip_reason": "not found"}]})):
        lines, failed = audit["report"](answer)
        assert failed
        assert "nothing was checked" in lines[0]
