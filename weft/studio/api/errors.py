"""How the API answers errors: with a status, and JSON that says what is required, what was given, and what to do."""

from __future__ import annotations

import errno
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exception_handlers import http_exception_handler
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from ...errors import UserError, WeftError
from ..access import refused
from ..store.accounts import TooBusy
from ..store.database import DatabaseUnavailable


class ErrorMessage(BaseModel):
    """What is required, what was given, and what to do."""

    message: str
    where: str | None = None


# What any route may answer, for its description.
ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorMessage, "description": "the request cannot be fulfilled; the message says what to change"},
    401: {"model": ErrorMessage, "description": "a token or a login is required"},
    403: {"model": ErrorMessage, "description": "this token or login may not do that"},
    404: {"model": ErrorMessage, "description": "there is no such thing"},
    422: {"model": ErrorMessage, "description": "a value has the wrong type, or is out of range"},
    500: {"model": ErrorMessage, "description": "the server failed"},
    503: {"model": ErrorMessage, "description": "the database is busy; try again"},
}


def answer_errors(app: FastAPI) -> None:
    """Errors of weft become answers with a message; a user's mistake is 400, a busy database 503, anything else 500. Called when all routes are there."""

    @app.api_route("/api/{path:path}", methods=["GET", "POST", "PUT", "PATCH", "DELETE"], include_in_schema=False)
    def missing(path: str) -> None:
        raise HTTPException(404, f"there is no /api/{path}; /docs describes the API.")

    @app.exception_handler(WeftError)
    async def answer(request: Request, error: WeftError) -> JSONResponse:
        busy = isinstance(error, DatabaseUnavailable | TooBusy)
        status = 400 if isinstance(error, UserError) else 503 if busy else 500
        return JSONResponse({"message": error.message, "where": error.where}, status)

    @app.exception_handler(OSError)
    async def answer_system(request: Request, error: OSError) -> JSONResponse:
        if error.errno == errno.ENAMETOOLONG:
            return JSONResponse({"message": "a shorter name is required.", "where": "studio"}, 400)
        reason = error.strerror or str(error)
        space = " Free some space: Admin, Storage shows what takes it." if error.errno == errno.ENOSPC else ""
        message = f"a file of the server could not be read or written: {reason}.{space}"
        return JSONResponse({"message": message, "where": "studio"}, 507 if space else 500)

    @app.exception_handler(OverflowError)
    async def answer_overflow(request: Request, error: OverflowError) -> JSONResponse:
        return JSONResponse({"message": "a smaller number is required.", "where": "studio"}, 400)

    @app.exception_handler(HTTPException)
    async def answer_http(request: Request, error: HTTPException) -> Response:
        if "/api/" not in request.url.path:
            return await http_exception_handler(request, error)
        return JSONResponse({"message": str(error.detail)}, error.status_code, error.headers)

    @app.exception_handler(RequestValidationError)
    async def answer_invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        return JSONResponse({"message": f"{'.'.join(map(str, first['loc']))}: {first['msg']}"}, 422)


def answer_page_errors(app: FastAPI) -> None:
    """Errors of pages become pages of the studio, with the way back."""

    @app.exception_handler(404)
    async def missing(request: Request, error: HTTPException) -> Response:
        return refused(request, 404, str(error.detail) if error.detail != "Not Found" else "There is no such page.")

    @app.exception_handler(WeftError)
    async def answer(request: Request, error: WeftError) -> Response:
        return refused(request, 503 if isinstance(error, DatabaseUnavailable) else 500, error.message)
