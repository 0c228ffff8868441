"""Account: one's own password and tokens."""

from __future__ import annotations

import asyncio

from nicegui import ui

from ..access import current_user
from ..store.accounts import LOCAL, ROLES, SHORTEST
from ..ui.context import Studio
from ..ui.fragment import fragment
from ..ui.frame import frame, studio_page
from ..ui.rendering import render


def add(studio: Studio) -> None:
    """Register the page."""

    @studio_page("/account")
    async def account() -> None:
        user, base = current_user(ui.context.client.request), studio.config.prefix
        header = ("header Account", lambda snapshot: render("account_header.html", base=base))
        known = user.name != LOCAL
        tokens = await asyncio.to_thread(studio.store.credentials.tokens, user.name) if known else []
        days = await asyncio.to_thread(lambda: studio.store.settings["token_days"])
        ui.add_head_html(f'<script src="{base}/assets/forms.js" defer></script>')
        with frame(studio, "Account", "admin", header):
            fragment(
                "account.html", user=user, known=known, tokens=tokens, roles=ROLES[: ROLES.index(user.role) + 1], days=days,
                shortest=SHORTEST, base=base, address=studio.config.address,
            )  # fmt: skip
