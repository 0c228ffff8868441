"""A training on a node of a cluster: a process of its own in a temporary folder, whose events and files the driver asks for.

Nothing here knows Ray: an actor is made of `RemoteTraining`, whose methods return at once.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from ...errors import RunError
from ...locks import lock_holder, one_writer
from ...records import dataclass
from ...version import __version__
from ..events import Event, events_from
from ..queue.record import FAILED, LOST, WAITING, JobRecord, State
from .file_copies import CHECKPOINT, FileCopy, PackedInput, changed_files, file_stamps, unpacked_input, write_copies

TEXTS = (".yaml", ".json", ".jsonl", ".txt", ".html", ".csv")  # files of a run that may name paths
FOLDER = "weft-training-"  # prefix of temporary folders of trainings
STALE_SECONDS = 60.0  # a folder without a process that is older was left by one that was killed
LONGEST_OUTPUT = 4000  # characters of what a process has printed


@dataclass(frozen=True)
class RemoteWork:
    """What a node has to do: settings, the files of the run so far, and which settings name packed inputs."""

    settings: Mapping[str, Any]
    home: str  # folder of runs of the driver
    run: str | None = None  # below the folder of runs
    files: Mapping[str, FileCopy] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()  # names of settings, in the order of the packed inputs
    threads: int = 1
    version: str = __version__


@dataclass(frozen=True)
class RemoteReport:
    """The status of a training. Paths are those of the driver."""

    state: str
    why: str
    ended: bool  # its process has; one that was killed leaves the state waiting
    run: str | None  # below the folder of runs
    events: list[Event]
    place: int  # in the events
    files: Mapping[str, FileCopy]
    names: tuple[str, ...]  # all files of the run; with `files` only
    output: str = ""  # what its process has printed, when it has ended


class RemoteTraining:
    """The training of a node."""

    def begin(self, work: RemoteWork, *packed: PackedInput) -> str:
        """Start the process; the name of the machine."""
        if work.version != __version__:
            raise RunError("cluster", f"weft {work.version} is required on all nodes, got {__version__} on {socket.gethostname()}.")  # fmt: skip
        remove_left_folders(Path(tempfile.gettempdir()))
        self.work, self.folder, self.held = work, Path(tempfile.mkdtemp(prefix=FOLDER)), ExitStack()
        self.held.enter_context(one_writer(self.folder))
        cache = Path(tempfile.gettempdir()) / f"weft-inputs-{os.getuid()}"
        inputs = [str(unpacked_input(one, cache)) for one in packed]
        own = {"runs": str(self.folder / "runs"), **dict(zip(work.inputs, inputs, strict=True))}
        homes = {**work.settings, "runs": work.home}
        self.paths = {there: str(homes[name]) for name, there in own.items()}  # here -> at the driver
        self.job = JobRecord.create(self.folder / "jobs", {**work.settings, **own})
        if work.run is not None:
            run = self.folder / "runs" / work.run
            write_copies(run, self._placed(work.files))
            self.job.set(WAITING, run=str(run))
        self._start()
        return socket.gethostname()

    def report(self, place: int, seen: Mapping[str, int] | None) -> RemoteReport:
        """Its status: the events from `place` on. With `seen` (see `file_stamps`) also the files that are new, once there is a new checkpoint."""
        code = self.process.poll()
        now = self._state(code)  # before the events: all of them are there when it has ended
        events, place = events_from(self.job.folder, place)
        run = None if now.run is None else Path(now.run)
        files: dict[str, FileCopy] = {}
        names: tuple[str, ...] = ()
        if run is not None and seen is not None and (code is not None or self._has_new_checkpoint(run, seen)):
            files = {name: self._sent(name, one) for name, one in changed_files(run, seen).items()}
            names = tuple(file_stamps(run))
        return RemoteReport(
            now.state, self._at_home(now.why), code is not None,
            None if run is None else run.relative_to(self.folder / "runs").as_posix(),
            [Event.of_line(self._at_home(one.line())) for one in events if one.type != "state"], place, files, names,
            "" if code is None else self._output(),
        )  # fmt: skip

    def stop(self, request: str) -> None:
        """Ask it to stop after its step, with a checkpoint."""
        if not self.job.state.has_ended:
            self.job.stop(request)

    def close(self) -> None:
        """Remove what is left of it on this machine."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.held.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self) -> None:
        threads = {"WEFT_THREADS": str(self.work.threads), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, "-m", "weft.jobs.cluster.remote_worker", str(self.job.folder)]
        with (self.job.folder / "output.txt").open("ab") as output:
            self.process = subprocess.Popen(
                command, env={**os.environ, **threads}, stdin=subprocess.PIPE, stdout=output, stderr=output
            )

    def _state(self, code: int | None) -> State:
        """The state, also of a process that could not record its end: a killed one waits to be continued."""
        now = self.job.state
        if not code or (now.has_ended and now.why != LOST):
            return now
        if code < 0:
            return replace(now, state=WAITING, why=f"its process ended with {signal.Signals(-code).name}")
        last = (self._output().strip().splitlines() or ["it printed nothing"])[-1]
        return replace(now, state=FAILED, why=f"its process ended with code {code}: {last}")

    def _has_new_checkpoint(self, run: Path, seen: Mapping[str, int]) -> bool:
        """Before the first checkpoint there is nothing that another node could continue."""
        try:
            return seen.get(CHECKPOINT) != (run / CHECKPOINT).stat().st_mtime_ns
        except FileNotFoundError:
            return False

    def _output(self) -> str:
        return (self.job.folder / "output.txt").read_text("utf-8", "replace")[-LONGEST_OUTPUT:]

    # --- paths ----------------------------------------------------------------------------------------------------------------

    def _at_home(self, text: str) -> str:
        """A text with the paths of the driver. Paths here have unique names."""
        for here, there in self.paths.items():
            text = text.replace(here, there)
        return text

    def _sent(self, name: str, one: FileCopy) -> FileCopy:
        if not name.endswith(TEXTS):
            return one
        return replace(one, content=self._at_home(one.content.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape"))  # fmt: skip

    def _placed(self, files: Mapping[str, FileCopy]) -> dict[str, FileCopy]:
        """The files of a run with the paths of this machine in its settings."""
        text = files["args.yaml"].content.decode()
        for here, there in self.paths.items():
            text = text.replace(json.dumps(there), json.dumps(here))
        return {**files, "args.yaml": replace(files["args.yaml"], content=text.encode())}


def remove_left_folders(root: Path) -> None:
    """Remove the folders of trainings whose actor was killed, with its node or its driver."""
    for folder in root.glob(f"{FOLDER}*"):
        with suppress(OSError):  # another training removes it, or it belongs to another user
            if time.time() - folder.stat().st_mtime > STALE_SECONDS and lock_holder(folder) is None:
                shutil.rmtree(folder)
