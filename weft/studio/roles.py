"""What each role may do: one table for every page and route, by path and method. What is not in the table is rejected for every role.

Viewers look, members also change things, admins also manage the studio. A test walks all routes with every role.
"""

from __future__ import annotations

import re

from ..records import dataclass
from .store.accounts import Role

SAFE = ("GET", "HEAD", "OPTIONS")
PUBLIC = "public"  # without signing in


@dataclass(frozen=True)
class AccessRule:
    """Which role a path needs: to look at it, and to change something."""

    path: str  # a regular expression for the whole path
    look: Role | str
    change: Role | str

    def fits(self, path: str) -> bool:
        return re.fullmatch(self.path, path) is not None


# Pages of forms, of no use to those who may not send them. Browsers of viewers hide the links to them by this pattern.
MEMBER_PAGES = r"/train|/classify|/use|/[a-z]+/new|/networks/(design|import)(/.*)?"
# The first rule that fits holds.
RULES = (
    AccessRule(r"/(login|setup)|/api/v1/(login|setup)|/assets/.*|/favicon\.ico", PUBLIC, PUBLIC),
    AccessRule(r"/account|/api/v1/(account(/.*)?|logout)", "viewer", "viewer"),  # one's own account
    AccessRule(r"/admin(/.*)?|/api/v1/admin(/.*)?", "admin", "admin"),
    # The channel of the pages. Pages that change something without the API are for members: see MEMBER_PAGES.
    AccessRule(r"/_nicegui_ws/.*", "viewer", "viewer"),
    AccessRule(r"/_nicegui/.*", "viewer", "member"),
    AccessRule(r"/api/2\.0/mlflow/(.*/)?search", "viewer", "viewer"),  # MLflow's clients search by POST
    # What reads files of the server by their path, for the forms of members.
    AccessRule(r"/api/v1/(paths|datasets/(scan|preview)|predictions/file\.jpg)", "member", "member"),
    AccessRule(r"/api/.*", "viewer", "member"),
    AccessRule(r"/docs(/.*)?|/openapi\.json", "viewer", "member"),
    AccessRule(MEMBER_PAGES, "member", "member"),
    AccessRule(
        r"/|/classify/batches/.*|/(runs|networks|datasets|compare|queue|sweeps?|folds)(/.*)?", "viewer", "member"
    ),
)
# Requests that compute and change nothing, or that the log knows in more detail.
UNLOGGED = re.compile(
    r"/api/v1/(admin|account|login|logout|setup)(/.*)?|/api/.*/(classify|text|check|preview|forecast|complete)(/.*)?"
)


def needed_role(method: str, path: str) -> Role | str | None:
    """The role that a request needs, PUBLIC, or None where no rule fits.

    >>> needed_role("GET", "/api/v1/runs"), needed_role("POST", "/api/v1/jobs/1/stop"), needed_role("GET", "/admin")
    ('viewer', 'member', 'admin')
    """
    for rule in RULES:
        if rule.fits(path):
            return rule.look if method in SAFE else rule.change
    return None
