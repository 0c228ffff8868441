"""People: names, passwords, roles and quotas. Every change is written to the audit log in the same transaction."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, get_args

from argon2 import PasswordHasher
from argon2.exceptions import VerificationError
from sqlalchemy import delete, func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from ...errors import RunError, UserError
from ...hints import nearest
from ...jobs.queue.quotas import JobQuota
from ...records import dataclass
from .database import Database
from .records import record
from .tables import LoginRow, UserRow

Role = Literal["viewer", "member", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)  # each may do what those before it may
LOCAL = "local"  # who holds the token of a studio without accounts
SHORTEST, LONGEST = 10, 256  # characters of a password
HASHER = PasswordHasher()  # argon2id, 64 MiB
_AT_ONCE = threading.Semaphore(2)  # passwords that are hashed at the same time: each needs memory and a core
_WAITING = threading.Semaphore(
    10
)  # these and those that wait; more are sent away, so that they do not hold all threads
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


@dataclass(frozen=True)
class Quota:
    """What one person may use at the same time; None is no limit."""

    gpu_jobs: int | None = None
    cpu_jobs: int | None = None
    disk_bytes: int | None = None
    waiting_jobs: int | None = None

    def __str__(self) -> str:
        """
        >>> print(Quota(gpu_jobs=1, disk_bytes=150 * 10**9), Quota(waiting_jobs=1), sep="; ")
        1 GPU job, any CPU jobs, 150 GB; any GPU jobs, any CPU jobs, any disk space, 1 waiting job
        """
        disk = "any disk space" if self.disk_bytes is None else f"{self.disk_bytes / 1e9:.6g} GB"
        waiting = "" if self.waiting_jobs is None else f", {_jobs('waiting', self.waiting_jobs)}"
        return f"{_jobs('GPU', self.gpu_jobs)}, {_jobs('CPU', self.cpu_jobs)}, {disk}{waiting}"

    def of_jobs(self) -> JobQuota:
        """What the queue of jobs respects of it."""
        return JobQuota(self.gpu_jobs, self.cpu_jobs, self.waiting_jobs)


def _jobs(kind: str, count: int | None) -> str:
    return f"any {kind} jobs" if count is None else f"{count} {kind} job{'' if count == 1 else 's'}"


@dataclass(frozen=True)
class Account:
    """A person as others see them."""

    name: str
    role: Role
    disabled: bool
    created: float
    last_seen: float | None
    quota: Quota


class Accounts:
    """The accounts of a studio."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._unknown = ""  # what the password of an unknown name is compared with

    def all(self) -> list[Account]:
        """All accounts by name."""
        with self.database.reading() as session:
            return [_account(row) for row in session.scalars(select(UserRow).order_by(UserRow.name))]

    def get(self, name: str) -> Account:
        """One account by its name."""
        with self.database.reading() as session:
            return _account(_find(session, name))

    def has_admin(self) -> bool:
        """Whether somebody can sign in and manage the others."""
        with self.database.reading() as session:
            return _admins(session) > 0

    def add(self, name: str, password: str, role: str = "member", by: str = LOCAL) -> Account:
        """Add a person."""
        checked, hashed = _checked_name(name), self._hash(password)
        try:
            with self.database.writing() as session:
                made = UserRow(name=checked, password_hash=hashed, role=checked_role(role), created=time.time())
                session.add(made)
                session.flush()
                record(session, by, "add account", f"{checked} as {role}")
                return _account(made)
        except IntegrityError:
            raise UserError("studio", f"a new name is required, got {checked}, which is in use.") from None

    def set_password(self, name: str, password: str, by: str = LOCAL, keep: str = "") -> None:
        """Set a new password. All login sessions of the person end, but the one whose hash is `keep`."""
        hashed = self._hash(password)
        with self.database.writing() as session:
            row = _find(session, name)
            row.password_hash = hashed
            session.execute(delete(LoginRow).where(LoginRow.user_id == row.id, LoginRow.secret_hash != keep))
            record(session, by, "set password", row.name)

    def change(self, name: str, by: str = LOCAL, role: str | None = None, disabled: bool | None = None) -> Account:
        """Change a role, disable or enable an account. Disabling ends its login sessions; somebody must remain admin."""
        with self.database.writing() as session:
            row, admins = _find(session, name), _admins(session)
            if role is not None and row.role != checked_role(role):
                record(session, by, "change role", f"{row.name} from {row.role} to {role}")
                row.role = role
            if disabled is not None and row.disabled != disabled:
                record(session, by, "disable account" if disabled else "enable account", row.name)
                row.disabled = disabled
                session.execute(delete(LoginRow).where(LoginRow.user_id == row.id))
            session.flush()
            if admins and not _admins(session):
                raise UserError("studio", f"an admin who can sign in is required, and {row.name} is the last one.")
            return _account(row)

    def set_quota(self, name: str, quota: Quota, by: str = LOCAL) -> Account:
        """Limit what a person may use at the same time."""
        for field in ("gpu_jobs", "cpu_jobs", "disk_bytes", "waiting_jobs"):
            value = getattr(quota, field)
            if value is not None and value < 0:
                raise UserError("studio", f"a quota of 0 or more is required, got {field}={value}.")
        with self.database.writing() as session:
            row = _find(session, name)
            row.gpu_jobs, row.cpu_jobs, row.disk_bytes = quota.gpu_jobs, quota.cpu_jobs, quota.disk_bytes
            row.waiting_jobs = quota.waiting_jobs
            record(session, by, "set quota", f"{row.name}: {quota}")
            return _account(row)

    def check_password(self, name: str, password: str) -> Account | None:
        """The person with this name and password; None if there is none. Unknown names take as long as wrong passwords."""
        with self.database.reading() as session:
            row = session.scalar(select(UserRow).where(UserRow.name == _normal(name)))
        with _hashing():
            self._unknown = self._unknown or HASHER.hash("nobody has this password")
            try:
                HASHER.verify(self._unknown if row is None else row.password_hash, password[:LONGEST])
            except VerificationError:
                return None
        return None if row is None or row.disabled else _account(row)

    def _hash(self, password: str) -> str:
        if not SHORTEST <= len(password) <= LONGEST:
            raise UserError(
                "studio", f"a password of {SHORTEST} to {LONGEST} characters is required, got {len(password)}."
            )
        if len(set(password)) < 4:
            raise UserError("studio", "a password of at least 4 different characters is required.")
        with _hashing():
            return HASHER.hash(password)


class TooBusy(RunError):
    """Too many people do this at the same time."""


@contextmanager
def _hashing() -> Iterator[None]:
    if not _WAITING.acquire(blocking=False):
        raise TooBusy("studio", "too many people sign in at the same time. Try again in a moment.")
    try:
        with _AT_ONCE:
            yield
    finally:
        _WAITING.release()


def logged_name(name: str) -> str:
    """A name as a stranger has typed it, for the log: nothing that could not be a name."""
    return _normal(name) if _NAME.fullmatch(_normal(name)) else "unknown"


def checked_role(role: str) -> Role:
    """A role that exists."""
    for known in ROLES:
        if role == known:
            return known
    raise UserError("studio", f"a role is required: viewer, member or admin, got {role!r}.")


def _normal(name: str) -> str:
    return name.strip().lower()


def _checked_name(name: str) -> str:
    found = _normal(name)
    if not _NAME.fullmatch(found) or found == LOCAL:
        raise UserError(
            "studio",
            f"a name of up to 64 letters, digits, dots, dashes or underscores is required, got {name!r}"
            + (", which stands for this machine." if found == LOCAL else "."),
        )
    return found


def _find(session: Session, name: str) -> UserRow:
    row = session.scalar(select(UserRow).where(UserRow.name == _normal(name)))
    if row is None:
        known = list(session.scalars(select(UserRow.name)))
        raise UserError("studio", f"there is no account {name!r}. {nearest(name, known) if known else ''}".strip())
    return row


def _admins(session: Session) -> int:
    admins: Any = select(func.count()).select_from(UserRow).where(UserRow.role == "admin", UserRow.disabled.is_(False))
    return session.scalar(admins) or 0


def _account(row: UserRow) -> Account:
    quota = Quota(row.gpu_jobs, row.cpu_jobs, row.disk_bytes, row.waiting_jobs)
    return Account(row.name, checked_role(row.role), row.disabled, row.created, row.last_seen, quota)
