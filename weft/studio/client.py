"""A client of a studio for programs. It needs nothing but Python.

with Client("http://127.0.0.1:8800", token) as studio:
    job = studio.submit(data="digits", model="lenet", epochs=5)
    studio.wait(job["number"])
    print(studio.runs()[0]["best"])
"""

from __future__ import annotations

import http.client
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from ..errors import RunError, UserError
from .connection import StudioConnection, form_of, path_of

ENDED = ("done", "stopped", "failed")
RETRIES = 5  # attempts to reconnect to a stream of events


class Client:
    """A studio at an address. Errors of the server are raised with its message: UserError if the request is wrong, else RunError.

    `token`: that of an account, or the one in runs/.studio/token; by default the environment variable WEFT_STUDIO_TOKEN.
    `ca`: a file with the certificate of a server that no known authority has signed. Certificates are always checked.
    """

    def __init__(self, url: str, token: str | None = None, *, timeout: float = 60.0, ca: str | None = None) -> None:
        self._connection = StudioConnection(url, token, timeout=timeout, ca=ca)
        self.url = self._connection.url

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the next request opens a new one."""
        self._connection.close()

    # --- runs -------------------------------------------------------------------------------------------------------------------

    def runs(self) -> list[dict[str, Any]]:
        """All runs, the newest first."""
        return list(self.get("/runs"))

    def run(self, run: str) -> dict[str, Any]:
        """One run, with settings, summary and metrics."""
        return dict(self.get(f"/runs/{path_of(run)}"))

    def metrics(self, run: str) -> dict[str, list[float | None]]:
        """The metrics of a run, by epoch."""
        return dict(self.get(f"/runs/{path_of(run)}/metrics"))

    def download(self, run: str, file: str, target: str | os.PathLike[str]) -> Path:
        """Copy a file of a run, such as report.html or weights/best.safetensors."""
        return self._connection.download(f"/runs/{path_of(run)}/files/{path_of(file)}", target)

    # --- jobs -------------------------------------------------------------------------------------------------------------------

    def jobs(self) -> list[dict[str, Any]]:
        """All jobs of the queue, the oldest first."""
        return list(self.get("/jobs"))

    def job(self, number: int) -> dict[str, Any]:
        """One job."""
        return dict(self.get(f"/jobs/{number}"))

    def submit(self, **settings: Any) -> dict[str, Any]:
        """Add a training to the queue, with the settings of weft train; the job."""
        found = self.submit_all(settings)
        if len(found) != 1:
            raise UserError("client", f"settings of one training are required, got {len(found)}. Use submit_all.")
        return found[0]

    def submit_all(self, settings: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Add trainings to the queue: one for each value of a list, such as {"rate": "0.1,0.03"}."""
        return list(self.post("/jobs", {"settings": dict(settings)}))

    def cross_validate(self, folds: int, **settings: Any) -> dict[str, Any]:
        """Add a cross-validation to the queue, with the settings of weft train; its name and the number of its job."""
        return dict(self.post("/folds", {"folds": folds, "settings": settings}))

    def ensemble(self, runs: Sequence[str], **settings: Any) -> dict[str, Any]:
        """Make one run of several: `method` is average, vote or weights; its name and the number of its job."""
        return dict(self.post("/ensembles", {"runs": list(runs), **settings}))

    def pause(self, number: int) -> dict[str, Any]:
        """Stop a job with a checkpoint; it can be resumed."""
        return dict(self.post(f"/jobs/{number}/pause"))

    def resume(self, number: int) -> dict[str, Any]:
        """Put a job that was paused, stopped or has failed into the queue again."""
        return dict(self.post(f"/jobs/{number}/resume"))

    def stop(self, number: int) -> dict[str, Any]:
        """Stop a job for good, with a checkpoint."""
        return dict(self.post(f"/jobs/{number}/stop"))

    def wait(
        self, number: int, seconds: float | None = None, on_event: Callable[[dict[str, Any]], None] | None = None
    ) -> dict[str, Any]:
        """Wait until a job has ended; the job. `on_event` is called with the events of its way: progress, and changes of its state.

        The last one is that of its end, also if the job ended before the stream was open.
        """
        limit = None if seconds is None else time.monotonic() + seconds
        state = None
        for event in self.events(heartbeat=True):
            if event.get("job") == number:
                state = event.get("state")
                if on_event is not None:
                    on_event(event)
            if event["type"] in ("ready", "reset", "heartbeat") or event.get("job") == number:
                job = self.job(number)
                if job["state"] in ENDED:
                    if on_event is not None and state != job["state"]:
                        on_event(
                            {"type": "job", "job": number, **{name: job[name] for name in ("state", "why", "run")}}
                        )
                    return job
            if limit is not None and time.monotonic() > limit:
                raise RunError("client", f"job {number} has not ended within {seconds:g} s.")
        raise RunError("client", "the server has ended the stream of events.")

    def job_events(self, number: int, poll: float = 0.5) -> Iterator[dict[str, Any]]:
        """All events of a job from its beginning, and those to come, until it ends."""
        place = 0
        while True:
            found = self.get(f"/jobs/{number}/events?start={place}")
            yield from found["events"]
            place = found["next"]
            if found["ended"]:
                return
            if not found["events"]:
                time.sleep(poll)

    def events(self, run: str | None = None, last_id: str = "", heartbeat: bool = False) -> Iterator[dict[str, Any]]:
        """What happens from now on: events with type, id and facts. A connection that breaks is opened again, and nothing is lost."""
        failures = 0
        while failures <= RETRIES:
            try:
                for event in self._connection.stream(run, last_id):
                    failures, last_id = 0, event.get("id", last_id)
                    if heartbeat or event["type"] != "heartbeat":
                        yield event
            except (OSError, http.client.HTTPException):
                pass
            failures += 1
            time.sleep(min(failures, 5))
        raise RunError("client", f"{self.url} cannot be reached any more.")

    # --- datasets -----------------------------------------------------------------------------------------------------------------

    def datasets(self) -> list[dict[str, Any]]:
        """All datasets."""
        return list(self.get("/datasets"))

    def create_dataset(self, source: str | os.PathLike[str], name: str, **settings: Any) -> dict[str, Any]:
        """Create a dataset of a zip file on this machine, which is uploaded, or of a folder or list on the server; its job."""
        if Path(source).is_file() and str(source).lower().endswith(".zip"):
            upload = self.post("/uploads")["upload"]
            with open(source, "rb") as opened:
                self._connection.upload("PUT", f"/uploads/{upload}/archive", opened)
            given = {"kind": "upload", "upload": upload}
        else:
            kind = "list" if str(source).lower().endswith((".txt", ".csv")) else "folder"
            given = {"kind": kind, "source": str(source)}
        return dict(self.post("/datasets", {**given, "name": name, **settings}))

    # --- networks -----------------------------------------------------------------------------------------------------------------

    def networks(self) -> list[dict[str, Any]]:
        """The networks that can be used: of runs that have weights, and imported files."""
        return list(self.get("/networks/usable"))

    def classify(
        self, network: str, images: str | os.PathLike[str] | Sequence[str | os.PathLike[str] | bytes], top: int = 5, checkpoint: str = "best"
    ) -> list[dict[str, Any]]:  # fmt: skip
        """Classify image files of this machine, or their contents; for each its classes with probabilities, or its numbers."""
        given = [images] if isinstance(images, (str, os.PathLike)) else list(images)
        named = [(f"image {i + 1}", one) if isinstance(one, bytes) else (str(one), Path(one).read_bytes()) for i, one in enumerate(given)]  # fmt: skip
        body, kind = form_of(named)
        query = urlencode({"top": top, "checkpoint": checkpoint})
        answer = self._connection.request(
            "POST", f"/networks/{path_of(network)}/classify?{query}", body, {"Content-Type": kind}
        )
        return list(answer["results"])

    def write(self, network: str, prompt: str, **settings: Any) -> Iterator[str]:
        """Continue a text; its parts after the prompt, as they are written. Settings: length, temperature, top_k, top_p, seed, checkpoint."""
        query = urlencode({"checkpoint": settings.pop("checkpoint", "best")})
        body = json.dumps({"prompt": prompt, **settings}).encode()
        path = f"/networks/{path_of(network)}/text?{query}"
        for event in self._connection.streamed("POST", path, body, {"Content-Type": "application/json"}):
            if event["type"] == "error":
                raise RunError("client", str(event["message"]))
            if event["type"] == "text":
                yield str(event["text"])

    def predict(self, network: str, source: str | os.PathLike[str], **settings: Any) -> dict[str, Any]:
        """Classify many images as a job: a zip file of this machine, or a folder or list on the server; the batch."""
        if Path(source).is_file() and str(source).lower().endswith(".zip"):
            query = urlencode({"network": network, "name": Path(source).name, **settings})
            with open(source, "rb") as opened:
                return dict(self._connection.upload("POST", f"/predictions/upload?{query}", opened))
        return dict(self.post("/predictions", {"network": network, "path": str(source), **settings}))

    def prediction(self, number: int) -> dict[str, Any]:
        """A batch of predictions with its results."""
        return dict(self.get(f"/predictions/{number}"))

    # --- requests -----------------------------------------------------------------------------------------------------------------

    def get(self, path: str) -> Any:
        """The answer to GET /api/v1/PATH."""
        return self._connection.request("GET", path)

    def post(self, path: str, content: Any = None) -> Any:
        """The answer to POST /api/v1/PATH with JSON."""
        body = None if content is None else json.dumps(content).encode()
        return self._connection.request("POST", path, body, {"Content-Type": "application/json"} if body else {})
