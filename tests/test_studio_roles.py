"""Walks every page and route of the studio with every role, and with credentials that have ended."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from weft.studio.roles import RULES, needed_role

STUDIO = Path(__file__).resolve().parent.parent / "weft" / "studio"
SAFE = ("GET", "HEAD", "OPTIONS")
LEVEL = {"viewer": 1, "member": 2, "admin": 3}
WHO = {
    "nobody": 0, "viewer": 1, "member": 2, "admin": 3, "token of viewer": 1, "token of member": 2, "token of admin": 3,
    "reading token of admin": 1, "revoked token": 0, "expired token": 0, "expired session": 0, "invented session": 0,
    "disabled account": 0, "disabled token": 0, "program elsewhere": 0,
}  # fmt: skip

# Said here once more, in other words than the table of the studio: what needs no account, what is one's own, what only members use.
PUBLIC = re.compile(r"(GET|HEAD) /(login|setup|assets/1)|POST /api/v1/(login|setup)|POST /assets/1")
OWN = re.compile(r"[A-Z]+ /(account|api/v1/account.*|api/v1/logout|_nicegui_ws/1|api/2.0/mlflow/.*search)")
ADMIN = re.compile(r"[A-Z]+ (/api/v1)?/admin.*")
MEMBERS = re.compile(
    r"(GET|HEAD) /(train|classify|use|[a-z]+/new|networks/(design|import).*)"
    r"|(GET|HEAD) /api/v1/(paths|datasets/scan|datasets/preview|predictions/file.jpg)"  # files of the server by their path
)


def expected(route: str) -> int:
    """The level that a route needs: 0 is nobody's."""
    if PUBLIC.fullmatch(route):
        return 0
    if OWN.fullmatch(route):
        return 1
    if ADMIN.fullmatch(route):
        return 3
    return 2 if MEMBERS.fullmatch(route) or route.split()[0] not in SAFE else 1


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    runs = tmp_path_factory.mktemp("walk") / "runs"
    command = [sys.executable, str(Path(__file__).with_name("walk_routes.py")), str(runs)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "WEFT_CACHE": "off"})
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_every_route_answers_every_role_as_it_should(walked: dict[str, Any]) -> None:
    assert set(walked["answers"]) == set(WHO)
    wrong = []
    for who, answers in walked["answers"].items():
        assert len(answers) > 40
        for route, status in answers.items():
            level = expected(route)
            if route.startswith("WEBSOCKET"):
                right = status == (101 if WHO[who] else 403)
            elif WHO[who] >= level:
                right = status == 204
            elif WHO[who] == 0:
                right = status == (401 if "/api/" in route else 303)
            else:
                right = status == 403
            if not right:
                wrong.append(f"{who}: {route} answers {status}, needs level {level}")
    assert wrong == []


def test_the_walk_knows_the_pages_and_routes(walked: dict[str, Any]) -> None:
    routes = set(walked["answers"]["admin"])
    known = {
        "GET /", "GET /train", "GET /runs/1", "GET /admin", "GET /account", "GET /login", "GET /setup", "GET /docs", "GET /api/v1/openapi.json",
        "POST /api/v1/login", "POST /api/v1/logout", "POST /api/v1/jobs/1/stop", "DELETE /api/v1/admin/tokens/1", "GET /_nicegui_ws/1",
        "WEBSOCKET /_nicegui_ws/socket.io/",
        "PUT /api/v1/account/preferences/1", "POST /api/v1/networks/1/classify",
    }  # fmt: skip
    assert known <= routes


def test_a_page_without_a_rule_is_refused(walked: dict[str, Any]) -> None:
    assert walked["invented"] == 404
    assert needed_role("GET", "/a-page-without-a-rule") is None
    assert needed_role("GET", "/trainer") is None
    assert all(rule.look in ("public", *LEVEL) and rule.change in ("public", *LEVEL) for rule in RULES)


def test_other_sites_change_nothing(walked: dict[str, Any]) -> None:
    assert set(walked["foreign"].values()) == {403}
    in_api = {route: status for route, status in walked["headerless"].items() if " /api/" in route}
    assert set(in_api.values()) == {403}


# What changes files or the queue. Pages that viewers may open call none of it: their channel is not checked by method and path.
CHANGES = {
    "submit", "cancel", "pause", "resume", "unlink", "rmtree", "write_text", "write_bytes", "mkdir", "rename", "add_job", "delete",
    "set_password", "set_quota", "revoke", "create_token",
}  # fmt: skip


def test_pages_for_viewers_change_nothing_by_themselves() -> None:
    found = []
    for file in sorted([*(STUDIO / "pages").glob("*.py"), *(STUDIO / "ui").glob("*.py")]):
        if needed_role("GET", f"/{file.stem}") in ("member", "admin"):
            continue
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                if name in CHANGES or name.startswith(("submit_", "continue_", "pause_", "resume_")):
                    found.append(f"{file.name}:{node.lineno} calls {name}: let the page send a request to the API")
    assert found == []
