"""The OpenAPI document: what FastAPI knows of the routes, and what it does not see: files as answers, and how to send a token."""

from __future__ import annotations

import inspect
from typing import Any, get_type_hints

from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute

TEXT = (
    "Everything the pages of the studio do. Programs send `Authorization: Bearer TOKEN`: the token of an account or, on the machine of the server, "
    "the one in runs/.studio/token. Errors are JSON with a `message` that says what is required, what was given and what to do."
)
_FILE = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}


def describe(app: FastAPI) -> None:
    """Let the application give this document, which is made when it is first asked for."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _document(app: FastAPI) -> dict[str, Any]:
    made = get_openapi(title=app.title, version=app.version, description=TEXT, routes=app.routes)
    made["paths"] = {path: found for path, found in made["paths"].items() if path.startswith("/api/")}
    made.setdefault("components", {})["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    made["security"] = [{"token": []}]
    return made


def documented(router: APIRouter) -> APIRouter:
    """The router, whose routes that answer with a file say so."""
    for route in router.routes:
        if isinstance(route, APIRoute) and _answers_file(route):
            route.response_class = Response  # not JSON, which FastAPI supposes
            route.responses = {200: {"description": "the file", "content": _FILE}, **route.responses}
    return router


def _answers_file(route: APIRoute) -> bool:
    """Whether a route answers with something other than JSON."""
    annotated = get_type_hints(route.endpoint).get("return") if inspect.isfunction(route.endpoint) else None
    return isinstance(annotated, type) and issubclass(annotated, Response) and not issubclass(annotated, JSONResponse)
