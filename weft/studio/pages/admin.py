"""Admin: accounts, tokens, quotas, storage, settings and the log, each as a tab of tables and forms."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from nicegui import ui

from ..access import current_user
from ..library.owners import OwnUse, uses_by_owner
from ..store.accounts import ROLES, SHORTEST
from ..store.records import SETTINGS
from ..ui.context import Studio
from ..ui.fragment import fragment
from ..ui.frame import frame, studio_page
from ..ui.rendering import render

TABS = ("users", "tokens", "quotas", "storage", "settings", "log")
NEAR = 0.9  # of a quota, from where it is marked
COLOURS = {"runs": "s1", "datasets": "s2", "caches": "s6", "uploads": "s7"}


def add(studio: Studio) -> None:
    """Register the page."""

    @studio_page("/admin")
    async def admin(tab: str = "users", user: str = "", words: str = "") -> None:
        base = studio.config.prefix
        values = await asyncio.to_thread(_values, studio, tab, user, words)
        me = current_user(ui.context.client.request)
        ui.add_head_html(f'<script src="{base}/assets/forms.js" defer></script>')
        header = ("header Admin", lambda snapshot: render("admin_header.html", base=base))
        with frame(studio, "Admin", "admin", header):
            fragment("admin_facts.html", "section", "card", **values).props('aria-label="Facts"')
            counts = {"users": len(values["users"]), "tokens": len(values["tokens"])}
            tabs = [(key, key.capitalize(), counts.get(key)) for key in TABS]
            fragment("tabs.html", tabs=tabs, tab=values["tab"], label="Parts of Admin", address=f"{base}/admin")
            fragment(f"admin_{values['tab']}.html", "div", "sect", me=me, base=base, **values)


def _values(studio: Studio, tab: str, user: str, words: str) -> dict[str, Any]:
    """What the tabs show. It is asked in a thread: the database and the disk may be slow."""
    store = studio.store
    store.flush()
    users, tokens = store.accounts.all(), store.credentials.tokens()
    used = uses_by_owner(studio.queue.jobs())
    disk_used, disk = studio.storage.disk()
    chosen = next((one for one in users if one.name == user), users[0] if users else None)
    return {
        "tab": tab if tab in TABS else "users", "users": users, "tokens": tokens, "chosen": chosen, "roles": ROLES, "shortest": SHORTEST,
        "quotas": {one.name: store.quota(one.name) for one in users}, "used": {one.name: used.get(one.name, OwnUse()) for one in users},
        "token_counts": Counter(one.user for one in tokens), "near": NEAR, "sessions": store.credentials.sessions(),
        "seen": {one.name: store.last_seen(one.name, one.last_seen) for one in users},
        "uses": studio.storage.uses(), "colours": COLOURS, "disk_used": disk_used, "disk": disk, "running": studio.feed.snapshot.count("running"),
        "waiting": studio.feed.snapshot.count("waiting"), "settings": SETTINGS, "values": store.settings.all(), "words": words,
        "entries": store.audit.entries(200 if tab == "log" else 4, words if tab == "log" else ""),
        "database": store.database.engine.url.render_as_string(hide_password=True), "config": studio.config,
    }  # fmt: skip
