"""Makes the first account, signs in and manages people in a browser, on a studio that other machines could reach."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from studio_tools import BROWSER, LocalStudio, chromium, make_run, served_studio

pytestmark = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium on this machine")
PASSWORD = "a good password"
TABS = ("users", "settings")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStudio]:
    runs = tmp_path_factory.mktemp("accounts") / "runs"
    make_run(runs, "good-1", [0.5, 0.8])
    with served_studio(runs, host="0.0.0.0", hosts=("localhost",)) as started:
        yield started


@pytest.fixture
def page(server: LocalStudio) -> Iterator[Any]:
    """A page; anything written to its console as an error fails the test, but answers that refuse something."""
    with chromium() as browser:
        opened = browser.new_page(viewport={"width": 1280, "height": 900})
        problems: list[str] = []
        opened.on("pageerror", lambda error: problems.append(str(error)))
        opened.on(
            "console", lambda m: problems.append(m.text) if m.type == "error" and "status of 4" not in m.text else None
        )
        yield opened
        assert problems == []


def sign_in(page: Any, name: str, password: str = PASSWORD) -> None:
    page.fill("#name", name)
    page.fill("#password", password)
    page.click("[type=submit]")


def test_from_the_first_account_to_a_viewer_who_changes_nothing(server: LocalStudio, page: Any) -> None:
    # The printed address makes the first account.
    page.goto(server.way_in)
    sign_in(page, "anna")
    page.wait_for_selector(".rail .me .name >> text=anna")
    assert page.url == f"{server.address}/"
    page.wait_for_selector("text=good-1")  # pages work: their channel is open

    # Tabs of Admin, and no layout that is too wide.
    for path in (*(f"/admin?tab={tab}" for tab in TABS), "/account"):
        page.goto(server.address + path)
        page.wait_for_selector("main .card")
        for width in (390, 1280):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{path} at {width}"

    # Add somebody who only looks.
    page.goto(f"{server.address}/admin")
    page.fill("#n-name", "guest")
    page.fill("#n-password", "short")
    page.evaluate("document.querySelector('#n-password').minLength = 0")
    page.click("#add [type=submit]")
    page.wait_for_selector("#add .problem >> text=a password of 10 to 256 characters is required, got 5")
    page.fill("#n-password", PASSWORD)
    page.select_option("#n-role", "viewer")
    page.click("#add [type=submit]")
    page.wait_for_selector("text=guest can sign in.")
    page.wait_for_selector("#users tr.sel >> text=guest")

    # A token is shown once.
    page.goto(f"{server.address}/account")
    page.fill("#t-name", "nightly")
    page.click("[aria-label='New token'] [type=submit]")
    page.wait_for_selector("[data-token] code >> text=weft_")
    token = page.inner_text("[data-token] code")
    found = httpx.get(f"{server.address}/api/v1/account", headers={"Authorization": f"Bearer {token}"})
    assert found.json() == {"name": "anna", "role": "member", "way": "token"}

    # The viewer: a wrong password, then every page, but nothing that changes something.
    page.click(".rail [aria-label='Sign out']")
    page.wait_for_selector("text=to the studio on localhost")
    page.goto(f"{server.address}/runs?x=1")
    sign_in(page, "guest", "not the password")
    page.wait_for_selector(".problem >> text=do not belong together")
    sign_in(page, "guest")
    page.wait_for_selector(".rail .me .name >> text=guest")
    assert page.url == f"{server.address}/runs?x=1"
    page.wait_for_selector("text=good-1")
    assert page.locator("a.btn[href*='/train']:visible").count() == 0
    page.goto(f"{server.address}/train")
    page.wait_for_selector("text=This is for members. You are signed in as guest, a viewer.")
    refused = page.evaluate(
        "fetch('/api/v1/jobs/1/stop', {method: 'POST', headers: {'X-Weft-Studio': '1'}}).then((a) => a.status)"
    )
    assert refused == 403
