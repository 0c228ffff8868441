"""Login sessions and API tokens: random texts of 256 bits, of which only hashes are stored. Both can be revoked at any time."""

from __future__ import annotations

import hashlib
import secrets
import time

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from ...errors import UserError
from ...records import dataclass
from .accounts import ROLES, Account, Role, checked_role
from .database import Database
from .records import record
from .tables import LoginRow, TokenRow, UserRow

SHORT_SESSION = 12 * 3600.0  # seconds, where one does not stay signed in
MOST_SESSIONS = 20  # of one person; the oldest end
MOST_TOKENS = 50
PREFIX = "weft_"  # lets scanners of repositories find tokens that were published by mistake
DAY = 86400.0


@dataclass(frozen=True)
class StudioUser:
    """Who sends a request, and what they may do."""

    name: str
    role: Role
    way: str = ""  # session, token, or local: who holds the token of a studio without accounts

    def may(self, role: Role) -> bool:
        """Whether they may do what this role may."""
        return ROLES.index(self.role) >= ROLES.index(role)


@dataclass(frozen=True)
class ApiToken:
    """A token as it is listed; its text is shown once, when it is made."""

    id: int
    name: str
    user: str
    role: Role
    created: float
    expires: float | None
    last_used: float | None


def digest(secret: str) -> str:
    """What is stored of a random text. It is long and random, so that a fast hash suffices."""
    return hashlib.sha256(secret.encode()).hexdigest()


class Credentials:
    """The sessions and tokens of all accounts."""

    def __init__(self, database: Database) -> None:
        self.database = database

    # --- login sessions -----------------------------------------------------------------------------------------------------------

    def open_session(self, account: Account, seconds: float = SHORT_SESSION, address: str = "") -> str:
        """Start a session; the text of its cookie."""
        secret, now = secrets.token_urlsafe(32), time.time()
        with self.database.writing() as session:
            user = _user(session, account.name)
            mine = select(LoginRow.id).where(LoginRow.user_id == user.id).order_by(LoginRow.created.desc())
            extra = list(session.scalars(mine.offset(MOST_SESSIONS - 1)))
            session.execute(delete(LoginRow).where(LoginRow.id.in_(extra)))
            row = LoginRow(secret_hash=digest(secret), user_id=user.id, created=now, expires=now + seconds)
            row.address = address[:64]
            session.add(row)
            record(session, account.name, "sign in", "", address)
        return secret

    def user_of_session(self, secret: str) -> StudioUser | None:
        """Who has this session, unless it has ended."""
        with self.database.reading() as session:
            row = session.scalar(select(LoginRow).where(LoginRow.secret_hash == digest(secret)))
            if row is None or row.expires <= time.time() or row.user.disabled:
                return None
            return StudioUser(row.user.name, checked_role(row.user.role), "session")

    def close_session(self, secret: str) -> None:
        """End a session."""
        with self.database.writing() as session:
            session.execute(delete(LoginRow).where(LoginRow.secret_hash == digest(secret)))

    def close_sessions(self, name: str, but: str = "") -> None:
        """End all sessions of a person, but the one with this secret."""
        with self.database.writing() as session:
            user = _user(session, name)
            session.execute(delete(LoginRow).where(LoginRow.user_id == user.id, LoginRow.secret_hash != digest(but)))
            record(session, name, "sign out everywhere")

    def sessions(self) -> int:
        """How many sessions have not ended."""
        with self.database.reading() as session:
            live = select(func.count()).select_from(LoginRow).where(LoginRow.expires > time.time())
            return session.scalar(live) or 0

    # --- API tokens ---------------------------------------------------------------------------------------------------------------

    def create_token(self, user: str, name: str, role: str = "member", days: float | None = 90, by: str = "") -> str:
        """Make a token; its text, which is never shown again. None: it lasts until it is revoked."""
        if not 0 < len(name.strip()) <= 64:
            raise UserError("studio", "a name of 1 to 64 characters is required for a token: what it is for.")
        if days is not None and not 0 < days <= 3650:
            raise UserError("studio", f"from 1 to 3650 days are required for a token, got {days:g}.")
        secret, now = PREFIX + secrets.token_urlsafe(32), time.time()
        with self.database.writing() as session:
            owner = _user(session, user)
            if ROLES.index(checked_role(role)) > ROLES.index(checked_role(owner.role)):
                raise UserError("studio", f"a token may do no more than its owner: {owner.role}, got {role}.")
            known = session.scalar(select(func.count()).select_from(TokenRow).where(TokenRow.user_id == owner.id))
            if (known or 0) >= MOST_TOKENS:
                raise UserError("studio", f"at most {MOST_TOKENS} tokens are kept for each account. Revoke one first.")
            expires = None if days is None else now + days * DAY
            row = TokenRow(secret_hash=digest(secret), user_id=owner.id, name=name.strip(), role=role)
            row.created, row.expires = now, expires
            session.add(row)
            record(session, by or user, "make token", f"{name.strip()} of {user}")
        return secret

    def tokens(self, user: str | None = None) -> list[ApiToken]:
        """All tokens, or those of one person, the newest first."""
        query = select(TokenRow).order_by(TokenRow.created.desc(), TokenRow.id.desc())
        with self.database.reading() as session:
            found = [
                ApiToken(t.id, t.name, t.user.name, checked_role(t.role), t.created, t.expires, t.last_used)
                for t in session.scalars(query)
            ]
        return [one for one in found if user is None or one.user == user]

    def user_of_token(self, secret: str) -> StudioUser | None:
        """Who a token speaks for, unless it has ended. It may do what both its owner and itself may."""
        with self.database.reading() as session:
            row = session.scalar(select(TokenRow).where(TokenRow.secret_hash == digest(secret)))
            if row is None or (row.expires or float("inf")) <= time.time() or row.user.disabled:
                return None
            role = min(checked_role(row.role), checked_role(row.user.role), key=ROLES.index)
            return StudioUser(row.user.name, role, "token")

    def revoke(self, number: int, by: str, owner: str | None = None) -> None:
        """End a token; of this owner only, if one is given."""
        with self.database.writing() as session:
            row = session.get(TokenRow, number)
            if row is None or (owner is not None and row.user.name != owner):
                raise UserError("studio", f"there is no token {number}.")
            record(session, by, "revoke token", f"{row.name} of {row.user.name}")
            session.delete(row)

    def forget_expired(self) -> None:
        """Delete the sessions that have ended."""
        with self.database.writing() as session:
            session.execute(delete(LoginRow).where(LoginRow.expires <= time.time()))


def _user(session: Session, name: str) -> UserRow:
    row = session.scalar(select(UserRow).where(UserRow.name == name))
    if row is None:
        raise UserError("studio", f"there is no account {name!r}.")
    return row
