"""The tables. Times are seconds since 1970, as everywhere in weft. A change here needs a revision in migrations/versions."""

from __future__ import annotations

from typing import Any, ClassVar

from sqlalchemy import JSON, BigInteger, Double, ForeignKey, Index, Integer, MetaData, String, Text, false
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

# SQLite can change a constraint only by its name.
NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_name)s", "uq": "uq_%(table_name)s_%(column_0_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s", "pk": "pk_%(table_name)s",
}  # fmt: skip


class Tables(DeclarativeBase):
    """The base of all tables."""

    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map: ClassVar = {float: Double}


class UserRow(Tables):
    """A person. A quota that is null is not limited."""

    __tablename__ = "users"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(64), unique=True)
    password_hash: Mapped[str] = mapped_column(Text)
    role: Mapped[str] = mapped_column(String(16))
    disabled: Mapped[bool] = mapped_column(default=False, server_default=false())
    created: Mapped[float]
    last_seen: Mapped[float | None]
    gpu_jobs: Mapped[int | None] = mapped_column(Integer)  # at once
    cpu_jobs: Mapped[int | None] = mapped_column(Integer)
    disk_bytes: Mapped[int | None] = mapped_column(BigInteger)
    waiting_jobs: Mapped[int | None] = mapped_column(Integer)


class LoginRow(Tables):
    """A login session: the hash of the random text in the cookie."""

    __tablename__ = "logins"
    id: Mapped[int] = mapped_column(primary_key=True)
    secret_hash: Mapped[str] = mapped_column(String(64), unique=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), index=True)
    created: Mapped[float]
    expires: Mapped[float]
    address: Mapped[str] = mapped_column(String(64), default="")
    user: Mapped[UserRow] = relationship()


class TokenRow(Tables):
    """An API token: the hash of its text. Its role is the most that it may do, whatever its owner may."""

    __tablename__ = "tokens"
    id: Mapped[int] = mapped_column(primary_key=True)
    secret_hash: Mapped[str] = mapped_column(String(64), unique=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), index=True)
    name: Mapped[str] = mapped_column(String(64))
    role: Mapped[str] = mapped_column(String(16))
    created: Mapped[float]
    expires: Mapped[float | None]
    last_used: Mapped[float | None]
    user: Mapped[UserRow] = relationship()


class AuditRow(Tables):
    """Who did what, when, and on what. Names are kept as text: the log outlives accounts."""

    __tablename__ = "audit_log"
    __table_args__ = (Index("ix_audit_log_time", "time"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    time: Mapped[float]
    who: Mapped[str] = mapped_column(String(64))
    action: Mapped[str] = mapped_column(String(64))
    target: Mapped[str] = mapped_column(String(400), default="")
    address: Mapped[str] = mapped_column(String(64), default="")


class SettingRow(Tables):
    """A setting of the studio that differs from its default."""

    __tablename__ = "settings"
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    value: Mapped[Any] = mapped_column(JSON)


class PreferenceRow(Tables):
    """What a person has chosen for their pages, such as the columns of a table."""

    __tablename__ = "preferences"
    user: Mapped[str] = mapped_column(String(64), primary_key=True)
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    value: Mapped[Any] = mapped_column(JSON)
