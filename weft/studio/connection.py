"""The connection of a client to a studio: requests, uploads, and streams of server-sent events."""

from __future__ import annotations

import http.client
import json
import os
import ssl
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote, urlencode, urlsplit

from ..errors import RunError, UserError

TOKEN = "WEFT_STUDIO_TOKEN"  # the environment variable that holds the token
IDLE = 3.0  # seconds after which a connection is opened anew: servers close those that wait longer
CHUNK = 1 << 20


class StudioConnection:
    """A studio at an address. It is asked by one thread at a time; others wait."""

    def __init__(self, url: str, token: str | None = None, *, timeout: float = 60.0, ca: str | None = None) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UserError("client", f"an address such as http://127.0.0.1:8800 is required, got {url!r}.")
        self.url = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
        self.token = token if token is not None else os.environ.get(TOKEN, "").strip()
        self._host, self._port, self._prefix = parts.hostname, parts.port, parts.path.rstrip("/")
        self._tls = ssl.create_default_context(cafile=ca) if parts.scheme == "https" else None
        self._timeout, self._lock = timeout, threading.Lock()
        self._connection: http.client.HTTPConnection | None = None
        self._used = 0.0

    def close(self) -> None:
        """Close the connection; the next request opens a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def download(self, path: str, target: str | os.PathLike[str]) -> Path:
        """Write the content of a file to another file."""
        place = Path(target)
        with self._lock:
            answer = self._send("GET", path, None, {})
            try:
                with place.open("wb") as opened:
                    while chunk := answer.read(CHUNK):
                        opened.write(chunk)
            except BaseException:
                self.close()  # what is left of the answer must not be taken for the next one
                raise
        return place

    def request(
        self, method: str, path: str, body: bytes | IO[bytes] | None = None, headers: Mapping[str, str] | None = None
    ) -> Any:
        """The answer to a request below /api/v1."""
        with self._lock:
            answer = self._send(method, path, body, headers or {})
            content = answer.read()
        return json.loads(content) if content else None

    def upload(self, method: str, path: str, opened: IO[bytes]) -> Any:
        """The answer to a request whose body is a zip file."""
        size = os.fstat(opened.fileno()).st_size
        return self.request(method, path, opened, {"Content-Type": "application/zip", "Content-Length": str(size)})

    def _send(
        self, method: str, path: str, body: bytes | IO[bytes] | None, headers: Mapping[str, str]
    ) -> http.client.HTTPResponse:
        if self._connection is not None and time.monotonic() - self._used > IDLE:
            self.close()
        if self._connection is None:
            self._connection = self._connect(self._timeout)
        try:
            self._connection.request(method, f"{self._prefix}/api/v1{path}", body, {**self._headers(), **headers})
            answer = self._connection.getresponse()
        except ssl.SSLCertVerificationError as error:
            self.close()
            raise RunError(
                "client",
                f"the certificate of {self.url} is not trusted: {error.verify_message}. Give its file: ca=FILE.",
            ) from None
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise RunError(
                "client", f"{self.url} cannot be reached: {error or type(error).__name__}. Is weft studio running?"
            ) from None
        self._used = time.monotonic()
        _check(answer, self.url)
        return answer

    def stream(self, run: str | None, last_id: str) -> Iterator[dict[str, Any]]:
        """What happens to runs and jobs."""
        query = f"?{urlencode({'run': run})}" if run else ""
        return self.streamed("GET", f"/events{query}", None, {"Last-Event-ID": last_id} if last_id else {})

    def streamed(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> Iterator[dict[str, Any]]:
        """The server-sent events that answer a request below /api/v1."""
        connection = self._connect(60.0)
        try:
            connection.request(method, f"{self._prefix}/api/v1{path}", body, {**self._headers(), **headers})
            answer = connection.getresponse()
            _check(answer, self.url)
            yield from _parsed(answer)
        finally:
            connection.close()

    def _connect(self, timeout: float) -> http.client.HTTPConnection:
        if self._tls is not None:
            return http.client.HTTPSConnection(self._host, self._port, timeout=timeout, context=self._tls)
        return http.client.HTTPConnection(self._host, self._port, timeout=timeout)

    def _headers(self) -> dict[str, str]:
        return {"X-Weft-Studio": "1", **({"Authorization": f"Bearer {self.token}"} if self.token else {})}


def _check(answer: http.client.HTTPResponse, url: str) -> None:
    """Raise the error that an answer tells."""
    if answer.status < 300:
        return
    content = answer.read()
    try:
        message = str(json.loads(content)["message"])
    except (ValueError, KeyError, TypeError):
        message = f"{url} answered {answer.status} {answer.reason}. Is it the address of a studio?"
    if answer.status == 401:
        message = f"a token is required by {url}. Give it: Client(url, token), or set {TOKEN}."
    raise (RunError if answer.status >= 500 else UserError)("client", message)


def _parsed(answer: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """Server-sent events as objects."""
    found: dict[str, str] = {}
    while line := answer.readline():
        text = line.decode().rstrip("\n")
        if text.startswith(":"):
            yield {"type": "heartbeat"}
        elif text:
            name, _, value = text.partition(": ")
            found[name] = value
        else:
            if "event" in found:
                yield {**json.loads(found.get("data", "{}")), "type": found["event"], "id": found.get("id", "")}
            found = {}


def form_of(files: Sequence[tuple[str, bytes]]) -> tuple[bytes, str]:
    """Files as multipart/form-data; the body and its type."""
    edge = uuid.uuid4().hex
    parts = []
    for name, content in files:
        shown = quote(Path(name).name, safe=" .-_()")
        parts += [
            f'--{edge}\r\nContent-Disposition: form-data; name="image"; filename="{shown}"\r\n'
            "Content-Type: application/octet-stream\r\n\r\n".encode(), content, b"\r\n",
        ]  # fmt: skip
    return b"".join([*parts, f"--{edge}--\r\n".encode()]), f"multipart/form-data; boundary={edge}"


def path_of(name: str) -> str:
    """A name as a part of an address."""
    return quote(name, safe="/")
