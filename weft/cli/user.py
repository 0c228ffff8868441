"""The verb `user`: the accounts of a studio. It works on the database itself, so that it helps when nobody can sign in."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path

from .. import studio as web
from ..errors import UserError
from ..hints import install
from ..jobs.schema import Setting, count, flag, number
from .arguments import Words, part, read
from .table import as_json, table

_RUNS = Setting(str, "runs", "folder of runs that the studio shows")
_DATABASE = Setting(str, None, "URL of the database of accounts; default: a SQLite file below the runs")
_ROLE = Setting(str, "member", "what they may do", choices=("viewer", "member", "admin"))
_JSON = Setting(flag, False, "print JSON, for programs")
_WHERE = {"runs": _RUNS, "database": _DATABASE}
BY = "command line"  # in the log


def user(words: Sequence[str]) -> None:
    """Manage the accounts of the studio: weft user add NAME, weft user list, weft user password NAME.

    Passwords are read from the terminal, or from the standard input; never from the command, which others can see.
    """
    parts: dict[str, Callable[[Sequence[str]], None]] = {
        "add": _add, "list": _list, "password": _password, "role": _role, "disable": _disable, "enable": _enable,
        "quota": _quota, "token": _token, "log": _log,
    }  # fmt: skip
    part("user", words, parts)


def _add(words: Sequence[str]) -> None:
    """Add an account: weft user add anna role=admin."""
    given = read("user add", words, {"role": _ROLE, **_WHERE}, 1, _add.__doc__)
    name = _name("add", given)
    with _store(given) as store:
        made = store.accounts.add(name, _read_password(name), given["role"], BY)
    print(f"{made.name} can sign in as {made.role}.")


def _list(words: Sequence[str]) -> None:
    """All accounts: weft user list."""
    given = read("user list", words, {"json": _JSON, **_WHERE}, 0, _list.__doc__)
    with _store(given) as store:
        found = store.accounts.all()
        tokens = store.credentials.tokens()
    if given["json"]:
        print(as_json([{**vars(one), "quota": vars(one.quota)} for one in found]))
    elif not found:
        print("there are no accounts; weft user add NAME role=admin adds the first one.")
    else:
        rows = [
            [one.name, one.role, "disabled" if one.disabled else "active", sum(t.user == one.name for t in tokens), _time(one.last_seen)]
            for one in found
        ]  # fmt: skip
        print(table(["account", "role", "state", "tokens", "last seen"], [[str(cell) for cell in row] for row in rows],
                    left=("account", "role", "state", "last seen")))  # fmt: skip


def _password(words: Sequence[str]) -> None:
    """Set a new password: weft user password anna. All browsers of the account have to sign in again."""
    given = read("user password", words, _WHERE, 1, _password.__doc__)
    name = _name("password", given)
    with _store(given) as store:
        store.accounts.get(name)  # an unknown name is reported before the password is typed
        store.accounts.set_password(name, _read_password(name), BY)
    print(f"{name} has a new password.")


def _role(words: Sequence[str]) -> None:
    """Change what an account may do: weft user role anna viewer."""
    given = read("user role", words, _WHERE, 2, _role.__doc__)
    if len(given.plain) != 2:
        raise UserError("weft user role", "a name and a role are required: weft user role anna viewer.")
    with _store(given) as store:
        changed = store.accounts.change(given.plain[0], BY, role=given.plain[1])
    print(f"{changed.name} is {changed.role}.")


def _disable(words: Sequence[str]) -> None:
    """Keep an account from signing in, and end its sessions: weft user disable anna."""
    _set_disabled("disable", words, True)


def _enable(words: Sequence[str]) -> None:
    """Let a disabled account sign in again: weft user enable anna."""
    _set_disabled("enable", words, False)


def _set_disabled(command: str, words: Sequence[str], disabled: bool) -> None:
    given = read(f"user {command}", words, _WHERE, 1, (_disable if disabled else _enable).__doc__)
    with _store(given) as store:
        changed = store.accounts.change(_name(command, given), BY, disabled=disabled)
    print(f"{changed.name} is {'disabled' if changed.disabled else 'active'}.")


def _quota(words: Sequence[str]) -> None:
    """Limit what an account may use at the same time: weft user quota anna gpu_jobs=1 disk_gb=150. What is left out has no limit."""
    known = {
        "gpu_jobs": Setting(count, None, "GPU jobs at once"), "cpu_jobs": Setting(count, None, "CPU jobs at once"),
        "waiting_jobs": Setting(count, None, "jobs that wait"),
        "disk_gb": Setting(number, None, "gigabytes of runs"), **_WHERE,
    }  # fmt: skip
    given = read("user quota", words, known, 1, _quota.__doc__)
    disk = None if given["disk_gb"] is None else round(given["disk_gb"] * 1e9)
    with _store(given) as store:
        quota = web.Quota(given["gpu_jobs"], given["cpu_jobs"], disk, given["waiting_jobs"])
        changed = store.accounts.set_quota(_name("quota", given), quota, BY)
        store.publish_quotas()
        print(f"{changed.name}: {changed.quota}.")


def _token(words: Sequence[str]) -> None:
    """Make an API token, or revoke one: weft user token anna name=nightly days=90. Its text is printed once."""
    known = {
        "name": Setting(str, "command line", "what it is for"), "role": _ROLE,
        "days": Setting(number, 90, "days that it lasts; 0 until it is revoked"),
        "revoke": Setting(count, None, "number of a token to revoke; weft user token NAME json=true lists them"),
        "json": Setting(flag, False, "list the tokens of the account as JSON"), **_WHERE,
    }  # fmt: skip
    given = read("user token", words, known, 1, _token.__doc__)
    name = _name("token", given)
    with _store(given) as store:
        if given["json"]:
            print(as_json([vars(one) for one in store.credentials.tokens(name)]))
        elif given["revoke"] is not None:
            store.credentials.revoke(given["revoke"], BY, owner=name)
            print(f"token {given['revoke']} of {name} is revoked.")
        else:
            print(store.credentials.create_token(name, given["name"], given["role"], given["days"] or None, BY))


def _log(words: Sequence[str]) -> None:
    """Who did what, the newest first: weft user log, weft user log anna."""
    known = {"most": Setting(count, 50, "entries"), "json": _JSON, **_WHERE}
    given = read("user log", words, known, 1, _log.__doc__)
    with _store(given) as store:
        found = store.audit.entries(given["most"], " ".join(given.plain))
    if given["json"]:
        print(as_json([vars(one) for one in found]))
    elif found:
        rows = [[_time(one.time), one.who, one.action, one.target, one.address] for one in found]
        print(
            table(["time", "account", "action", "on", "from"], rows, left=("time", "account", "action", "on", "from"))
        )


# --- the database, names and passwords ------------------------------------------------------------------------------------------------


@contextmanager
def _store(given: Words) -> Iterator[web.AccountStore]:
    """The store of the studio, closed in the end."""
    _check_packages()
    found = web.open_store(Path(given["runs"]), given["database"])
    try:
        yield found
    finally:
        found.close()


def _check_packages() -> None:
    if any(find_spec(name) is None for name in ("sqlalchemy", "alembic", "argon2")):
        raise UserError("weft user", f"the packages of the studio are required. {install('studio')}")


def _name(command: str, given: Words) -> str:
    if not given.plain:
        raise UserError(f"weft user {command}", f"the name of an account is required: weft user {command} anna.")
    return given.plain[0]


def _read_password(name: str) -> str:
    """A password from the terminal, typed twice, or the first line of the standard input."""
    if not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\n")
    first = getpass.getpass(f"new password of {name}: ")
    if getpass.getpass("once more: ") != first:
        raise UserError("weft user", "the same password is required twice, got two different ones.")
    return first


def _time(when: float | None) -> str:
    return "never" if when is None else datetime.fromtimestamp(when).strftime("%Y-%m-%d %H:%M")
