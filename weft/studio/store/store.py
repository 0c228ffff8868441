"""All that a studio keeps in its database, and who a request comes from."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import update

from ...errors import RunError
from ...jobs.queue.job_queue import JobQueue
from ...jobs.queue.quotas import write_quotas
from ..keys import private_folder
from .accounts import Accounts, Quota
from .credentials import DAY, Credentials, StudioUser, digest
from .database import Database, DatabaseUnavailable
from .records import AuditEntry, AuditLog, Preferences, StudioSettings
from .tables import TokenRow, UserRow

REMEMBERED = 1.0  # seconds that an answer of the database is used again: a page asks for twenty files at once
MOST = 1000  # answers that are remembered
PERIOD = 5.0  # seconds between two visits of the keeper


def database_url(runs: Path, url: str | None = None) -> str:
    """The database of a studio: the one that is named, or a SQLite file among the keys below the runs."""
    return url or f"sqlite:///{private_folder(runs) / 'studio.sqlite'}"


class AccountStore:
    """The accounts, sessions, tokens, settings and the log of a studio."""

    def __init__(self, url: str, queue: Path | None = None) -> None:
        self.database = Database(url)
        self._queue = queue  # folder of the queue of jobs that is told the quotas
        self.accounts = Accounts(self.database)
        self.credentials = Credentials(self.database)
        self.audit = AuditLog(self.database)
        self.settings = StudioSettings(self.database)
        self.preferences = Preferences(self.database)
        self._known: OrderedDict[tuple[str, str], tuple[float, object]] = OrderedDict()
        self._lock = threading.Lock()
        self._seen: dict[str, float] = {}  # not stored yet: by name, and by the hash of a token
        self._used: dict[str, float] = {}
        self._entries: list[AuditEntry] = []
        self._ended = threading.Event()
        self._keeper: threading.Thread | None = None
        self._has_admin: bool | None = None  # as it was last answered

    # --- who it is ---------------------------------------------------------------------------------------------------------------

    def user_of_session(self, secret: str) -> StudioUser | None:
        """Who has this session."""
        found: StudioUser | None = self._remember(
            "session", digest(secret), lambda: self.credentials.user_of_session(secret)
        )
        return self._note(found)

    def user_of_token(self, secret: str) -> StudioUser | None:
        """Who has this API token."""
        hashed = digest(secret)
        found: StudioUser | None = self._remember("token", hashed, lambda: self.credentials.user_of_token(secret))
        if found is not None:
            self._used[hashed] = time.time()
        return self._note(found)

    def has_admin(self) -> bool:
        """Whether accounts are in use: one of an admin exists.

        A studio that had none goes on without its database: nobody can get an account while it cannot be written.
        """
        try:
            self._has_admin = bool(self._remember("admin", "", self.accounts.has_admin))
        except DatabaseUnavailable:
            if self._has_admin is not False:
                raise
        return self._has_admin

    def changed(self) -> None:
        """Accounts, sessions or tokens were changed here: nothing remembered holds any more."""
        with self._lock:
            self._known.clear()

    def quota(self, name: str) -> Quota:
        """What a person may use at the same time: their own quota, else that of the settings."""
        return _filled(self.accounts.get(name).quota, self.settings.all())

    def publish_quotas(self) -> None:
        """Tell the queue of jobs what people may use, if that has changed."""
        if self._queue is not None:
            common = self.settings.all()
            write_quotas(self._queue, {one.name: _filled(one.quota, common).of_jobs() for one in self.accounts.all()})

    def _note(self, user: StudioUser | None) -> StudioUser | None:
        if user is not None:
            self._seen[user.name] = time.time()
        return user

    def _remember(self, kind: str, key: str, ask: Callable[[], object]) -> Any:
        now = time.monotonic()
        with self._lock:
            known = self._known.get((kind, key))
        if known is not None and now - known[0] < REMEMBERED:
            return known[1]
        answer = ask()
        with self._lock:
            self._known[kind, key] = now, answer
            self._known.move_to_end((kind, key))
            while len(self._known) > MOST:
                self._known.popitem(last=False)
        return answer

    # --- what is written later ----------------------------------------------------------------------------------------------------

    def log(self, who: str, action: str, target: str = "", address: str = "") -> None:
        """Write to the audit log within seconds; a request does not wait for it."""
        self._entries.append(AuditEntry(time.time(), who[:64], action[:64], target[:400], address[:64]))

    def last_seen(self, name: str, stored: float | None) -> float | None:
        """When a person was last seen, with what is not stored yet."""
        return self._seen.get(name, stored)

    def flush(self) -> None:
        """Store what has gathered. It is kept for the next time where the database cannot be written."""
        entries, self._entries = self._entries, []
        seen, self._seen = self._seen, {}
        used, self._used = self._used, {}
        try:
            self.audit.add(entries)
            entries = []
            if seen or used:
                with self.database.writing() as session:
                    for name, at in seen.items():
                        session.execute(update(UserRow).where(UserRow.name == name).values(last_seen=at))
                    for hashed, at in used.items():
                        session.execute(update(TokenRow).where(TokenRow.secret_hash == hashed).values(last_used=at))
        except DatabaseUnavailable:
            self._entries = entries + self._entries
            self._seen, self._used = seen | self._seen, used | self._used
            raise

    def start(self) -> None:
        """Store what gathers, and forget what has expired, from now on."""
        self._keeper = threading.Thread(target=self._keep, name="weft-studio-store", daemon=True)
        self._keeper.start()

    def close(self) -> None:
        """Store the rest and close the database."""
        self._ended.set()
        if self._keeper is not None:
            self._keeper.join(timeout=10)
        try:
            self.flush()
        except DatabaseUnavailable:  # only the last seconds of the log and of "last seen"
            pass
        self.database.close()

    def _keep(self) -> None:
        cleaned = 0.0
        while not self._ended.wait(PERIOD):
            try:
                self.flush()
                self.publish_quotas()  # they may have been changed by another process
                if time.monotonic() - cleaned > 3600 or not cleaned:
                    cleaned = time.monotonic()
                    self.credentials.forget_expired()
                    self.audit.forget(time.time() - self.settings["audit_days"] * DAY)
            except (DatabaseUnavailable, RunError):  # kept, and stored the next time
                continue


def open_store(runs: Path, url: str | None = None) -> AccountStore:
    """The store of the studio of a folder of runs. The queue of its jobs respects the quotas of the accounts."""
    return AccountStore(database_url(runs, url), JobQueue(runs).folder)


def _filled(own: Quota, common: Mapping[str, Any]) -> Quota:
    """A quota of an account; what it does not limit is limited as the settings say."""
    disk = None if common["disk_gb"] is None else common["disk_gb"] * 10**9
    return Quota(
        common["gpu_jobs"] if own.gpu_jobs is None else own.gpu_jobs,
        common["cpu_jobs"] if own.cpu_jobs is None else own.cpu_jobs,
        disk if own.disk_bytes is None else own.disk_bytes,
        common["waiting_jobs"] if own.waiting_jobs is None else own.waiting_jobs,
    )
