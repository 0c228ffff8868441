"""Checks how people sign in, what protects them, and what admins do."""

from __future__ import annotations

import asyncio
import io
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI, Request
from sqlalchemy import text
from starlette.testclient import TestClient

from store_tools import PASSWORD, QUICK_HASHER, new_store
from weft.cli import main
from weft.compiler.disk_cache import ObjectCache
from weft.errors import UserError
from weft.jobs.queue.job_queue import JobQueue
from weft.studio import access
from weft.studio.access import SESSION, AccessMiddleware, current_user
from weft.studio.api import account, admin, sessions
from weft.studio.api.errors import answer_errors
from weft.studio.config import StudioConfig
from weft.studio.forwarded import ForwardedMiddleware
from weft.studio.keys import OneTimeToken
from weft.studio.library.owners import check_disk_quota, uses_by_owner
from weft.studio.library.storage import DiskStorage
from weft.studio.pages import login
from weft.studio.rate_limit import MOST, LoginLimiter
from weft.studio.serve import _way_in
from weft.studio.store import accounts
from weft.studio.store.accounts import Quota
from weft.studio.store.database import Database
from weft.studio.store.store import open_store

CHANGE = {"X-Weft-Studio": "1"}


@pytest.fixture(autouse=True)
def _fast_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts, "HASHER", QUICK_HASHER)


class Site:
    """The routes of accounts behind the studio's middleware, without NiceGUI."""

    def __init__(self, runs: Path, **config: Any) -> None:
        self.config = StudioConfig(runs, **{"host": "0.0.0.0", **config})
        self.store, self.token = new_store(runs), OneTimeToken()
        self.studio: Any = SimpleNamespace(
            config=self.config, store=self.store,
            storage=DiskStorage(runs, runs / "datasets", lambda: ObjectCache(runs / "cache", 1 << 20)),
        )  # fmt: skip
        app = FastAPI()
        for router in (
            account.router(self.studio),
            admin.router(self.studio),
            sessions.router(self.studio, self.token),
        ):
            app.include_router(router, prefix="/api/v1")
        app.include_router(login.router(self.studio, self.token))

        @app.get("/")
        def home(request: Request) -> dict[str, Any]:
            return {"user": vars(current_user(request)), "client": request.client and request.client.host}

        @app.post("/api/v1/jobs/1/stop")
        def stop() -> dict[str, Any]:
            return {}

        answer_errors(app)
        app.add_middleware(AccessMiddleware, config=self.config, token=self.token, store=self.store)
        app.add_middleware(ForwardedMiddleware, proxies=self.config.proxies, prefix=self.config.prefix)
        self.app = app

    def browser(self, url: str = "http://studio.example", address: str = "10.0.0.9") -> TestClient:
        return TestClient(self.app, url, follow_redirects=False, client=(address, 5000), root_path=self.config.prefix)

    def signed_in(self, name: str, role: str = "member", url: str = "http://studio.example") -> TestClient:
        self.store.accounts.add(name, PASSWORD, role)
        self.store.changed()
        browser = self.browser(url)
        assert sign_in(browser, name).status_code == 200
        browser.headers |= CHANGE
        return browser


def sign_in(browser: TestClient, name: str, password: str = PASSWORD, **more: Any) -> Any:
    return browser.post("/api/v1/login", json={"name": name, "password": password, **more}, headers=CHANGE)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


# --- signing in -------------------------------------------------------------------------------------------------------------------


def test_the_first_admin_is_made_by_who_holds_the_printed_address(site: Site) -> None:
    browser = site.browser()
    assert _way_in(site.studio, site.token) == f"{site.config.address}/setup?token={site.token.value}"
    assert browser.get("/").headers["location"] == "/login?next=/"
    assert browser.get("/login").status_code == 401
    assert browser.get("/setup?token=wrong").status_code == 401
    value = site.token.value
    assert "First account" in browser.get(f"/setup?token={value}").text
    given = {"token": value, "name": "anna", "password": PASSWORD}
    assert browser.post("/api/v1/setup", json={**given, "token": "x"}, headers=CHANGE).status_code == 403
    assert browser.post("/api/v1/setup", json={**given, "password": "short"}, headers=CHANGE).status_code == 400
    assert browser.post("/api/v1/setup", json=given, headers=CHANGE).status_code == 200
    assert browser.get("/").json()["user"] == {"name": "anna", "role": "admin", "way": "session"}
    assert _way_in(site.studio, site.token) == site.config.address
    again = site.browser().post("/api/v1/setup", json={**given, "token": site.token.value}, headers=CHANGE)
    assert (again.status_code, site.browser().get(f"/setup?token={site.token.value}").status_code) == (400, 303)
    assert site.browser().get(f"/?token={site.token.value}").status_code == 303  # the token alone opens nothing here


def test_cookies_are_hidden_from_scripts_and_other_sites_and_secure_over_tls(site: Site) -> None:
    site.store.accounts.add("anna", PASSWORD, "admin")
    cookie = sign_in(site.browser("https://studio.example"), "anna", stay=True).headers["set-cookie"].lower()
    for part in ("httponly", "samesite=strict", "secure", "path=/", f"max-age={30 * 86400}"):
        assert part in cookie
    plain = sign_in(site.browser(), "anna").headers["set-cookie"].lower()
    assert "secure" not in plain
    assert "max-age" not in plain
    secure = site.browser("https://studio.example").get("/login").headers
    assert secure["strict-transport-security"] == "max-age=31536000"
    assert "strict-transport-security" not in site.browser().get("/login").headers


def test_signing_out_and_changing_a_password_end_sessions(site: Site) -> None:
    first = site.signed_in("anna", "admin")
    second = site.browser()
    sign_in(second, "anna")
    wrong = first.post("/api/v1/account/password", json={"current": "x", "password": PASSWORD + "2"})
    assert (wrong.status_code, wrong.json()) == (403, {"message": "The current password is another one."})
    changed = first.post("/api/v1/account/password", json={"current": PASSWORD, "password": PASSWORD + "2"})
    assert changed.status_code == 200
    assert (first.get("/").status_code, second.get("/").status_code) == (200, 303)
    assert sign_in(second, "anna").status_code == 401
    assert sign_in(second, "anna", PASSWORD + "2").status_code == 200
    assert first.post("/api/v1/account/sign-out-everywhere").status_code == 200
    assert (first.get("/").status_code, second.get("/").status_code) == (200, 303)
    kept = first.cookies[SESSION]
    assert first.post("/api/v1/logout").json() == {"open": "/login"}
    assert SESSION not in first.cookies
    first.cookies.set(SESSION, kept)
    assert first.get("/").status_code == 303


def test_wrong_names_and_wrong_passwords_get_the_same_answer(site: Site) -> None:
    site.store.accounts.add("anna", PASSWORD, "admin")
    site.store.accounts.add("gone", PASSWORD)
    site.store.accounts.change("gone", disabled=True)
    answers = [sign_in(site.browser(), name, word) for name, word in
               (("anna", "wrong"), ("nobody", "wrong"), ("gone", PASSWORD), ("", ""))]  # fmt: skip
    assert {(one.status_code, one.text) for one in answers} == {(401, answers[0].text)}
    site.store.flush()
    assert [one.who for one in site.store.audit.entries(words="refused")] == ["unknown", "gone", "nobody", "anna"]


def test_unknown_names_are_hashed_as_well(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.store.accounts.add("anna", PASSWORD, "admin")
    verified: list[str] = []
    monkeypatch.setattr(accounts, "HASHER", SimpleNamespace(
        hash=lambda text: "dummy", verify=lambda stored, given: verified.append(stored)))  # fmt: skip
    site.store.accounts.check_password("anna", "x")
    assert site.store.accounts.check_password("nobody", "x") is None
    assert [stored == "dummy" for stored in verified] == [False, True]


def test_a_token_opens_a_browser_until_it_is_revoked(site: Site) -> None:
    anna = site.signed_in("anna", "admin")
    made = anna.post("/api/v1/account/tokens", json={"name": "phone", "role": "viewer"}).json()["token"]
    browser = site.browser()
    assert sign_in(browser, "", "", token=made[:-1]).status_code == 401
    assert sign_in(browser, "", "", token=made).status_code == 200
    assert browser.get("/").json()["user"] == {"name": "anna", "role": "viewer", "way": "token"}
    browser.headers |= CHANGE
    # A stolen token makes no other one, and changes no password.
    assert browser.post("/api/v1/account/tokens", json={"name": "more", "role": "viewer"}).status_code == 403
    assert browser.post("/api/v1/account/password", json={"current": PASSWORD, "password": "x" * 12}).status_code == 403
    (listed,) = anna.get("/api/v1/account/tokens").json()
    assert made not in json.dumps(listed)
    assert anna.delete(f"/api/v1/account/tokens/{listed['id']}").status_code == 200
    assert browser.get("/").status_code == 303
    ben = site.signed_in("ben")
    other = anna.post("/api/v1/account/tokens", json={"name": "x", "days": 0}).status_code
    assert other == 200
    (forever,) = anna.get("/api/v1/account/tokens").json()
    assert forever["expires"] is None
    assert ben.delete(f"/api/v1/account/tokens/{forever['id']}").status_code == 400


# --- on this machine ----------------------------------------------------------------------------------------------------------------


def test_on_this_machine_the_printed_address_is_enough_until_an_admin_has_an_account(tmp_path: Path) -> None:
    site = Site(tmp_path, host="127.0.0.1")
    local = site.browser("http://127.0.0.1:8800", "127.0.0.1")
    local.headers |= CHANGE
    assert local.get("/login").status_code == 303
    local.get(f"/?token={site.token.value}")
    assert local.get("/").json()["user"] == {"name": "local", "role": "admin", "way": "local"}
    member = {"name": "ben", "password": PASSWORD, "role": "member"}
    assert local.post("/api/v1/admin/users", json=member).status_code == 200
    assert local.get("/").status_code == 200
    assert local.post("/api/v1/account/tokens", json={"name": "x"}).status_code == 400
    assert local.post("/api/v1/admin/users", json={**member, "name": "anna", "role": "admin"}).status_code == 200
    assert local.get("/").headers["location"] == "/login?next=/"
    assert sign_in(local, "anna").status_code == 200
    assert local.get("/").json()["user"]["name"] == "anna"
    assert _way_in(site.studio, site.token) == "http://127.0.0.1:8800"
    stored = (tmp_path / ".studio" / "token").read_text().strip()
    program = site.browser("http://127.0.0.1:8800", "127.0.0.1")
    assert program.get("/", headers={"Authorization": f"Bearer {stored}"}).json()["user"]["role"] == "admin"


# --- other sites, names, proxies ------------------------------------------------------------------------------------------------------


def test_requests_of_other_sites_are_refused(site: Site) -> None:
    browser = site.signed_in("anna", "admin")
    assert browser.post("/api/v1/jobs/1/stop", headers={"Origin": "http://studio.example"}).status_code == 200
    for origin in ("http://evil.example", "http://studio.example:81", "null", "http://studio.example.evil.example"):
        assert browser.post("/api/v1/jobs/1/stop", headers={"Origin": origin}).status_code == 403
    del browser.headers["X-Weft-Studio"]
    assert browser.post("/api/v1/jobs/1/stop").status_code == 403
    token = site.store.credentials.create_token("anna", "program")
    program = site.browser().post("/api/v1/jobs/1/stop", headers={"Authorization": f"Bearer {token}"})
    assert program.status_code == 200  # browsers send no token by themselves
    forged = site.browser().post("/api/v1/login", json={"name": "anna", "password": PASSWORD})
    assert forged.status_code == 403  # nor can another site sign somebody in


def test_only_its_own_names_are_answered(tmp_path: Path) -> None:
    site = Site(tmp_path, hosts=("studio.example",))
    for host, status in (
        ("studio.example", 401),
        ("STUDIO.example:8800", 401),
        ("127.0.0.1", 401),
        ("evil.example", 421),
    ):
        assert site.browser().get("/login", headers={"Host": host}).status_code == status


def test_headers_of_a_proxy_are_believed_only_if_it_is_named(tmp_path: Path) -> None:
    headers = {
        "X-Forwarded-For": "6.6.6.6, 9.9.9.9, 10.0.0.1",
        "X-Forwarded-Proto": "https",
        "X-Forwarded-Host": "weft.example",
    }
    site = Site(tmp_path, proxies=("10.0.0.0/8",), prefix="/weft")
    site.store.accounts.add("anna", PASSWORD, "admin")
    behind = site.browser(address="10.0.0.2")
    behind.headers |= headers
    behind.headers["Origin"] = "https://weft.example"
    cookie = sign_in(behind, "anna").headers["set-cookie"].lower()
    assert "secure" in cookie
    assert "path=/weft" in cookie
    behind.cookies.set(SESSION, cookie.split("=", 1)[1].split(";")[0], path="/")
    session = site.store.credentials.open_session(site.store.accounts.get("anna"))
    seen = behind.get("/", headers={"Cookie": f"{SESSION}={session}"})
    assert seen.json()["client"] == "9.9.9.9"
    assert (
        behind.get("/weft/", headers={"Cookie": f"{SESSION}={session}"}).status_code == 200
    )  # a proxy that keeps the prefix
    assert site.browser(address="10.0.0.2").get("/").headers["location"] == "/weft/login?next=/"
    direct = site.browser(address="11.0.0.2")
    direct.headers |= headers
    assert direct.get("/", headers={"Cookie": f"{SESSION}={session}"}).json()["client"] == "11.0.0.2"
    assert direct.post("/api/v1/logout", headers={**CHANGE, "Origin": "https://weft.example"}).status_code == 403


def test_settings_that_do_not_fit_are_refused_before_anything_starts(tmp_path: Path) -> None:
    for wrong, message in (
        ({"tls_cert": tmp_path / "a.pem"}, "required together"),
        ({"tls_cert": tmp_path / "a", "tls_key": tmp_path / "b"}, "which does not exist"),
        ({"prefix": "weft"}, "a prefix such as /weft is required, got 'weft'"),
        ({"proxies": ("nowhere",)}, "addresses such as 127.0.0.1"),
    ):
        with pytest.raises(UserError, match=message):
            StudioConfig(tmp_path, **wrong).check()  # type: ignore[arg-type]
    assert StudioConfig(tmp_path).warnings() == []
    (warning,) = StudioConfig(tmp_path, host="0.0.0.0", hosts=("weft.example",)).warnings()
    assert "http://weft.example:8800 has no TLS" in warning
    assert StudioConfig(tmp_path, host="0.0.0.0", tls_cert=Path("c"), tls_key=Path("k")).warnings() == []


# --- limits -----------------------------------------------------------------------------------------------------------------------------


def test_passwords_cannot_be_tried_quickly(site: Site) -> None:
    site.store.accounts.add("anna", PASSWORD, "admin")
    browser = site.browser()
    assert [sign_in(browser, "anna", "wrong").status_code for _ in range(5)] == [401] * 5
    limited = sign_in(browser, "anna")  # also the right one has to wait
    assert (limited.status_code, limited.headers["retry-after"]) == (429, "1")
    assert sign_in(site.browser(address="10.0.0.10"), "anna").status_code == 429  # from anywhere
    assert sign_in(browser, "ben", "wrong").status_code == 401  # another name from there


def test_the_wait_grows_ends_and_is_forgotten() -> None:
    now = [0.0]
    limiter = LoginLimiter(lambda: now[0])
    waits = []
    for _ in range(40):
        wait = limiter.attempt("anna", "1.2.3.4")
        while wait:
            waits.append(wait)
            now[0] += wait
            wait = limiter.attempt("anna", "1.2.3.4")
    assert waits[:6] == [1, 2, 4, 8, 16, 32]
    assert max(waits) == 900  # the address; the name alone waits for a minute at most
    assert limiter.attempt("anna", "5.6.7.8") > 0
    now[0] += 60
    assert limiter.attempt("anna", "5.6.7.8") == 0
    limiter.succeeded("anna", "5.6.7.8")
    assert [limiter.attempt("anna", "5.6.7.8") for _ in range(5)] == [0] * 5
    now[0] += 4000
    limiter.attempt("anna", "9.9.9.9")
    assert limiter.attempt("anna", "9.9.9.9") == 0


def test_nobody_else_can_keep_somebody_out() -> None:
    limiter = LoginLimiter(lambda: 0.0)
    limiter.attempt("anna", "1.2.3.4")
    limiter.succeeded("anna", "1.2.3.4")
    for i in range(9):
        limiter.attempt("anna", f"6.6.6.{i}")
    assert limiter.attempt("anna", "6.6.6.99") > 0
    assert limiter.attempt("anna", "1.2.3.4") == 0


def test_too_many_passwords_at_once_are_sent_away(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.store.accounts.add("anna", PASSWORD, "admin")
    monkeypatch.setattr(accounts, "_WAITING", threading.Semaphore(0))
    refused = sign_in(site.browser(), "anna")
    assert (refused.status_code, "Try again" in refused.json()["message"]) == (503, True)


def test_strangers_send_little(site: Site) -> None:
    site.store.accounts.add("anna", PASSWORD, "admin")
    big = json.dumps({"name": "anna", "password": "x" * 100_000}).encode()
    sent = {**CHANGE, "Content-Type": "application/json"}
    assert site.browser().post("/api/v1/login", content=big, headers=sent).status_code == 413
    parts = (big[i : i + 9000] for i in range(0, len(big), 9000))  # without a length, the connection ends
    ended = site.browser().post("/api/v1/login", content=parts, headers=sent)
    assert (ended.status_code, ended.json()["message"]) == (400, "There was an error parsing the body")
    anna = site.signed_in("ben", "admin")
    assert anna.put("/api/v1/admin/settings", json={"stay_days": "9" * (17 << 20)}).status_code == 413


def test_many_addresses_need_bounded_memory_and_ipv6_counts_by_network() -> None:
    limiter = LoginLimiter(lambda: 0.0)
    for i in range(MOST):
        limiter.attempt(f"name {i}", f"10.{i >> 16}.{i >> 8 & 255}.{i & 255}")
    assert len(limiter) == MOST
    for i in range(20):
        limiter.attempt(f"other {i}", f"2001:db8::{i:x}")
    assert limiter.attempt("one more", "2001:db8::ffff") > 0
    assert limiter.attempt("one more", "2001:db8:1::1") == 0


# --- an open page -----------------------------------------------------------------------------------------------------------------------


def watched(site: Site, monkeypatch: pytest.MonkeyPatch, change: Callable[[], None]) -> list[str]:
    """What a WebSocket of anna is told when something changes meanwhile."""
    monkeypatch.setattr(access, "CHECKED", -1.0)
    anna = site.store.accounts.add("anna", PASSWORD)
    session = site.store.credentials.open_session(anna)
    sent: list[str] = []

    async def page(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.send", "text": "before"})
        change()
        site.store.changed()
        await send({"type": "websocket.send", "text": "after"})
        sent.append((await receive())["type"])

    async def send(message: Any) -> None:
        sent.append(message.get("text") or message["type"])

    async def receive() -> Any:
        return {"type": "websocket.receive", "text": "click"}

    middleware = AccessMiddleware(page, site.config, site.token, site.store)
    headers = [(b"host", b"studio.example"), (b"cookie", f"{SESSION}={session}".encode())]
    scope = {
        "type": "websocket",
        "path": "/_nicegui_ws/socket.io/",
        "query_string": b"",
        "headers": headers,
        "server": ("x", 1),
    }
    asyncio.run(middleware(scope, receive, send))
    return sent


def test_an_open_page_ends_with_its_session(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    found = watched(site, monkeypatch, lambda: site.store.credentials.close_sessions("anna"))
    assert found == ["websocket.accept", "before", "websocket.close", "websocket.disconnect"]


def test_an_open_page_ends_with_another_role(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    found = watched(site, monkeypatch, lambda: site.store.accounts.change("anna", role="viewer") and None)
    assert found == ["websocket.accept", "before", "websocket.close", "websocket.disconnect"]


def test_an_open_page_stays_while_nothing_changes(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    found = watched(site, monkeypatch, lambda: None)
    assert found == ["websocket.accept", "before", "after", "websocket.receive"]


# --- admins -------------------------------------------------------------------------------------------------------------------------------


def test_admins_manage_accounts_and_it_is_logged(site: Site) -> None:
    anna, ben = site.signed_in("anna", "admin"), site.signed_in("ben")
    assert ben.get("/api/v1/admin/users").status_code == 403
    assert "This is for administrators. You are signed in as ben, a member." in ben.get("/admin").text
    assert [one["name"] for one in anna.get("/api/v1/admin/users").json()] == ["anna", "ben"]
    assert anna.patch("/api/v1/admin/users/ben", json={"role": "viewer"}).json()["role"] == "viewer"
    assert ben.post("/api/v1/jobs/1/stop").status_code == 403
    assert anna.put("/api/v1/admin/users/ben/quota", json={"gpu_jobs": 1, "disk_gb": 1.5}).status_code == 200
    assert site.store.quota("ben") == Quota(1, None, 1_500_000_000)
    assert anna.patch("/api/v1/admin/users/ben", json={"password": "another good one"}).status_code == 200
    assert ben.get("/").status_code == 303
    assert anna.patch("/api/v1/admin/users/anna", json={"disabled": True}).status_code == 400
    assert anna.put("/api/v1/admin/settings", json={"stay_days": "9"}).json()["stay_days"] == 9
    assert anna.post("/api/v1/jobs/1/stop").status_code == 200
    told = [(one["who"], one["action"], one["target"]) for one in anna.get("/api/v1/admin/log").json()]
    for entry in (
        ("anna", "change role", "ben from member to viewer"),
        ("anna", "set quota", "ben: 1 GPU job, any CPU jobs, 1.5 GB"),
        ("anna", "set password", "ben"),
        ("anna", "change setting", "stay_days from 30 to 9"),
        ("anna", "post", "/jobs/1/stop"),
    ):
        assert entry in told
    assert anna.get("/api/v1/admin/log.csv").text.startswith("time,who,action,target,address")
    assert anna.put("/api/v1/account/preferences/columns", json={"value": ["name"]}).status_code == 200
    assert anna.get("/api/v1/account/preferences/columns").json() == ["name"]


def test_storage_is_counted_by_use_and_caches_are_deleted(site: Site, tmp_path: Path) -> None:
    anna = site.signed_in("anna", "admin")
    for path, size in (("a/weights", 100), ("datasets/d/x", 20), ("datasets/upload-1/x", 7)):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_bytes(bytes(size))
    cache = site.studio.storage.compiled()
    cache.put("key", b"code")
    (tmp_path / "cache" / "signing.key").write_text("kept")
    uses = anna.get("/api/v1/admin/storage").json()["uses"]
    assert (uses["datasets"], uses["uploads"]) == ({"bytes": 20, "files": 1}, {"bytes": 7, "files": 1})
    assert uses["runs"]["bytes"] >= 100
    assert uses["caches"]["files"] == 1
    assert "deleted" in anna.delete("/api/v1/admin/storage/caches").json()["message"]
    assert cache.get("key") is None
    assert (tmp_path / "cache" / "signing.key").exists()
    assert anna.get("/api/v1/admin/storage").json()["uses"]["caches"]["files"] == 0


def test_what_people_use_is_read_from_their_jobs(tmp_path: Path) -> None:
    queue = JobQueue(tmp_path)
    first, second, _ = (queue.add({"data": "digits"}) for _ in range(3))
    for job in (first, second):
        file = job.folder / "job.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "owner": "anna"}))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "weights").write_bytes(bytes(1000))
    first.set("stopped", run=str(tmp_path / "run"))
    found = uses_by_owner(queue.jobs())
    assert {name: vars(use) for name, use in found.items()} == {
        "anna": {"running": 0, "waiting": 1, "runs": 1, "bytes": 1000}
    }
    check_disk_quota("anna", Quota(disk_bytes=1001), queue.jobs())
    check_disk_quota("ben", Quota(disk_bytes=1), queue.jobs())
    with pytest.raises(UserError, match="the disk quota of 1e-06 GB is required, got runs of 1e-06 GB"):
        check_disk_quota("anna", Quota(disk_bytes=1000), queue.jobs())


def test_a_locked_database_is_answered_with_a_sentence(site: Site) -> None:
    anna = site.signed_in("anna", "admin")
    quick = Database(site.store.database.engine.url.render_as_string(), busy=0.01)
    site.store.accounts.database = quick
    with site.store.database.writing() as session:
        session.execute(text("SELECT 1"))  # the transaction begins here
        refused = anna.patch("/api/v1/admin/users/anna", json={"password": "another good one"})
        assert anna.get("/").status_code == 200  # reading goes on
    assert refused.status_code == 503
    assert "Nothing was changed; try again." in refused.json()["message"]
    assert anna.patch("/api/v1/admin/users/anna", json={"password": "another good one"}).status_code == 200
    quick.close()


# --- the command line ----------------------------------------------------------------------------------------------------------------------


def test_accounts_are_managed_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def weft(*words: str, typed: str = "") -> tuple[int, str]:
        monkeypatch.setattr("sys.stdin", io.StringIO(typed))
        code = main(["user", *words, f"runs={tmp_path}"])
        out, err = capsys.readouterr()
        return code, (out + err).strip()

    assert weft("list") == (0, "there are no accounts; weft user add NAME role=admin adds the first one.")
    assert weft("add", "anna", "role=admin", typed=PASSWORD + "\n") == (0, "anna can sign in as admin.")
    assert weft("add", "ben", typed="short\n")[0] == 2
    assert weft("add", "ben", typed=PASSWORD)[0] == 0
    code, told = weft("add", "carl", f"password={PASSWORD}")
    assert code == 2
    assert "there is no setting 'password'" in told
    assert weft("quota", "ben", "gpu_jobs=2") == (0, "ben: 2 GPU jobs, any CPU jobs, any disk space.")
    code, token = weft("token", "ben", "name=nightly", "role=viewer")
    store = open_store(tmp_path)
    assert store.accounts.check_password("anna", PASSWORD) is not None
    found = store.user_of_token(token)
    assert found is not None
    assert (found.name, found.role) == ("ben", "viewer")
    (listed,) = json.loads(weft("token", "ben", "json=true")[1])
    assert weft("token", "ben", f"revoke={listed['id']}")[0] == 0
    assert weft("password", "anna", typed="another good one\n") == (0, "anna has a new password.")
    assert weft("role", "ben", "viewer") == (0, "ben is viewer.")
    assert weft("disable", "ben") == (0, "ben is disabled.")
    assert weft("enable", "ben") == (0, "ben is active.")
    assert "is the last one" in weft("disable", "anna")[1]
    assert [one["name"] for one in json.loads(weft("list", "json=true")[1])] == ["anna", "ben"]
    assert "command line  set password" in weft("log", "anna")[1]
    assert weft("password", "nobody")[0] == 2


def test_a_store_that_runs_writes_what_gathers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.studio.store.store.PERIOD", 0.02)
    store = new_store(tmp_path)
    store.start()
    store.log("anna", "post", "/jobs/1/stop")
    until = time.monotonic() + 10
    while not store.audit.entries() and time.monotonic() < until:
        time.sleep(0.02)
    store.log("anna", "post", "/jobs/2/stop")
    store.close()
    again = open_store(tmp_path)
    assert [one.target for one in again.audit.entries()] == ["/jobs/2/stop", "/jobs/1/stop"]
