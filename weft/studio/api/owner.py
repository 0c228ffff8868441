"""Who sends a request."""

from __future__ import annotations

from fastapi import Request


def owner_of(request: Request) -> str:
    """The name of the person behind a request, as the access check noted it; nobody in particular on a studio without accounts."""
    state = request.scope.get("state") or {}
    user = state.get("user") if isinstance(state, dict) else None
    name = user.get("name") if isinstance(user, dict) else getattr(user, "name", user)
    return name if isinstance(name, str) else ""
