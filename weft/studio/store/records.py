"""The audit log, the settings of the studio, and the preferences of people."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from ...errors import UserError
from ...jobs.schema import Setting, count, validated
from ...records import dataclass
from .database import Database
from .tables import AuditRow, PreferenceRow, SettingRow

LONGEST_PREFERENCE = 20_000  # characters of JSON
MOST_PREFERENCES = 200  # of one person
MOST_ENTRIES = 200_000  # of the audit log


def _days(text: str) -> int:
    found = count(text)
    if not 1 <= found <= 3650:
        raise ValueError("it must be from 1 to 3650 days")
    return found


SETTINGS: Mapping[str, Setting] = {
    "stay_days": Setting(_days, 30, "days that a browser stays signed in", "Signing in"),
    "token_days": Setting(_days, 90, "days that a new API token lasts, unless its owner says otherwise", "Signing in"),
    "gpu_jobs": Setting(count, None, "GPU jobs at once of an account without a quota of its own", "Quotas"),
    "cpu_jobs": Setting(count, None, "CPU jobs at once of an account without a quota of its own", "Quotas"),
    "waiting_jobs": Setting(count, None, "waiting jobs of an account without a quota of its own", "Quotas"),
    "disk_gb": Setting(count, None, "gigabytes of an account without a quota of its own", "Quotas"),
    "audit_days": Setting(_days, 365, "days that the log of changes is kept", "Log"),
}


@dataclass(frozen=True)
class AuditEntry:
    """Who did what, when, and on what."""

    time: float
    who: str
    action: str
    target: str = ""
    address: str = ""


def record(session: Session, who: str, action: str, target: str = "", address: str = "") -> None:
    """Write to the audit log, as part of a change."""
    session.add(AuditRow(time=time.time(), who=who[:64], action=action[:64], target=target[:400], address=address[:64]))


class AuditLog:
    """The log of changes, the newest first."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def add(self, entries: Iterable[AuditEntry]) -> None:
        """Add entries."""
        rows = [AuditRow(**vars(one)) for one in entries]
        if rows:
            with self.database.writing() as session:
                session.add_all(rows)

    def entries(self, most: int = 100, words: str = "") -> list[AuditEntry]:
        """The newest entries whose account, action or target holds the words."""
        query = select(AuditRow).order_by(AuditRow.time.desc(), AuditRow.id.desc()).limit(most)
        if words.strip():
            text = AuditRow.who + " " + AuditRow.action + " " + AuditRow.target
            query = query.where(func.lower(text).contains(words.strip().lower(), autoescape=True))
        with self.database.reading() as session:
            return [
                AuditEntry(row.time, row.who, row.action, row.target, row.address) for row in session.scalars(query)
            ]

    def forget(self, before: float, most: int = MOST_ENTRIES) -> None:
        """Delete older entries, and the oldest ones beyond a number."""
        with self.database.writing() as session:
            session.execute(delete(AuditRow).where(AuditRow.time < before))
            last = session.scalar(select(func.max(AuditRow.id))) or 0
            session.execute(delete(AuditRow).where(AuditRow.id <= last - most))


class StudioSettings:
    """The settings that admins change while the studio runs. Those that were never changed have their defaults."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def all(self) -> dict[str, Any]:
        """Every setting with its value."""
        with self.database.reading() as session:
            stored = {row.name: row.value for row in session.scalars(select(SettingRow))}
        return {name: stored.get(name, setting.default) for name, setting in SETTINGS.items()}

    def __getitem__(self, name: str) -> Any:
        return self.all()[name]

    def change(self, given: Mapping[str, Any], by: str) -> dict[str, Any]:
        """Change settings; all of them are checked first. An empty value is the default."""
        chosen = {name: value for name, value in given.items() if value not in (None, "")}
        values = {**{name: SETTINGS[name].default for name in given if name in SETTINGS}}
        checked = validated("studio", chosen, SETTINGS)
        values |= {name: checked[name] for name in chosen}
        before = self.all()
        with self.database.writing() as session:
            for name, value in values.items():
                if value != before[name]:
                    session.merge(SettingRow(name=name, value=value))
                    record(session, by, "change setting", f"{name} from {before[name]} to {value}")
        return self.all()


class Preferences:
    """What people have chosen for their pages, by account and name."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def get(self, user: str, name: str, default: Any = None) -> Any:
        """What was chosen, or the default."""
        with self.database.reading() as session:
            row = session.get(PreferenceRow, (user, name))
            return default if row is None else row.value

    def set(self, user: str, name: str, value: Any) -> None:
        """Keep a choice."""
        if not 0 < len(name) <= 64 or len(json.dumps(value)) > LONGEST_PREFERENCE:
            raise UserError(
                "studio",
                f"a name of up to 64 characters and a value of up to {LONGEST_PREFERENCE:,} characters are required, got {name!r:.80}.",
            )
        with self.database.writing() as session:
            known = session.scalar(select(func.count()).select_from(PreferenceRow).where(PreferenceRow.user == user))
            if (known or 0) >= MOST_PREFERENCES and session.get(PreferenceRow, (user, name)) is None:
                raise UserError("studio", f"at most {MOST_PREFERENCES} preferences are kept for each account.")
            session.merge(PreferenceRow(user=user, name=name, value=value))
