"""The small part of Ray that weft uses, in one process: actors whose nodes can be lost, and trainings that run at once."""

from __future__ import annotations

import types
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

from weft.io.files import append_line
from weft.jobs.events import Event
from weft.jobs.queue.record import DONE, RUNNING, JobRecord
from weft.jobs.training import train_or_resume
from weft.locks import one_writer


class RayError(Exception):
    """What Ray raises if a node is gone."""


class RayTaskError(RayError):
    """What Ray raises if a method has raised `cause`."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class FakeRay(types.ModuleType):
    """One process instead of a cluster. `lose(actor)` decides before each method whether its node is lost."""

    def __init__(self) -> None:
        super().__init__("ray")
        self.exceptions = types.SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)
        self.options: list[dict[str, Any]] = []
        self.actors: list[FakeActor] = []
        self.lose: Callable[[FakeActor, str], bool] = lambda actor, method: False
        self.resources = [{"CPU": 1.0}]
        self.stored = 0
        self.addresses: list[str] = []
        self.death = "The actor died because its node has died.\nand more"
        self.is_full = False  # no node is free

    def is_initialized(self) -> bool:
        return False

    def init(self, address: str, **more: Any) -> None:
        self.addresses.append(address)

    def shutdown(self) -> None:
        pass

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": one} for one in self.resources]

    def put(self, value: Any) -> Any:
        self.stored += 1
        return value

    def remote(self, made: type) -> Any:
        def options(**given: Any) -> Any:
            self.options.append(given)
            return types.SimpleNamespace(remote=lambda: FakeActor(self, made()))

        return types.SimpleNamespace(options=options)

    def wait(self, refs: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        return ([], refs) if self.is_full else (refs, [])

    def get(self, ref: Any, timeout: float | None = None) -> Any:
        if isinstance(ref, Exception):
            raise ref
        return ref

    def kill(self, actor: FakeActor) -> None:
        actor.is_alive = False


class FakeActor:
    """Calls methods at once; what they raise comes with their answer."""

    def __init__(self, ray: FakeRay, made: Any) -> None:
        self.ray, self.made, self.is_alive, self.called = ray, made, True, list[str]()
        ray.actors.append(self)

    def __getattr__(self, name: str) -> Any:
        return types.SimpleNamespace(remote=lambda *arguments: self._call(name, arguments))

    def _call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        self.called.append(name)
        if self.ray.is_full:
            return None
        self.is_alive &= not self.ray.lose(self, name)
        if not self.is_alive:
            return RayError(self.ray.death)
        try:
            return getattr(self.made, name)(*arguments)
        except Exception as error:
            return RayTaskError(error)


class InProcess:
    """The process of a training, which has done all of its work when it has started. With `stops_after`, the first ones hang after that epoch."""

    stops_after: ClassVar[list[int]] = []
    trained: ClassVar[list[int]] = []  # epochs, of all processes

    def __init__(self, job: JobRecord) -> None:
        self.job, self.code, self.held = job, 0, ExitStack()
        (job.folder / "output.txt").touch()
        self.last = InProcess.stops_after.pop(0) if InProcess.stops_after else None
        self.held.enter_context(one_writer(self.job.folder))
        run = self.job.claim().run  # type: ignore[union-attr]
        try:
            train_or_resume(self.job.settings, None if run is None else Path(run), self._listen)
        except Hangs:
            self.code = None
        else:
            self.end(DONE)

    def _listen(self, event: Event) -> None:
        append_line(self.job.folder / "events.jsonl", event.line())
        if event.type == "run":
            self.job.set(RUNNING, run=event["folder"])
        if event.type == "epoch":
            InProcess.trained.append(event["epoch"])
        if event.type == "progress" and event["epoch"] == (self.last or 0) + 1 > 1:
            raise Hangs  # the checkpoint of the epoch before is written

    def end(self, state: str, why: str = "", code: int = 0) -> None:
        if self.code is None or code == 0:
            self.job.set(state, why)
            self.held.close()
        self.code = code

    def poll(self) -> int | None:
        return self.code

    def kill(self) -> None:
        self.code = -9
        self.held.close()

    def wait(self) -> None:
        pass


class Hangs(BaseException):
    pass
