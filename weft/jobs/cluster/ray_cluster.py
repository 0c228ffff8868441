"""Ray as a place for trainings: connecting to a cluster, and one actor for each training with its CPUs and GPUs declared.

Actors are not restarted by Ray: a training that was lost with its node needs the files of its run, which the driver has (see runner.py). They end with the
process that started them.
"""

from __future__ import annotations

import importlib
import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ...errors import RunError, UserError
from ...hints import install
from ...version import __version__
from .file_copies import PackedInput, packed_input
from .remote_training import RemoteTraining, RemoteWork
from .settings import ClusterPlan

WHERE = "cluster"
LONGEST = 120  # characters of why a node was lost
NOT_INSTALLED = (
    "failed to import on the worker"  # what Ray says of a node without weft, as of any other death of an actor
)
CLOSING = 10.0  # seconds that a node has to remove the files of a training


class NodeLost(Exception):
    """A training was lost with its node, or with the Ray process that hosted it."""


def ray_package() -> Any:
    """The package `ray`, imported when a cluster is used: weft works without it."""
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        message = f"clusters require the package ray, which is not installed. {install('ray')}"
        raise UserError(WHERE, message) from None


class RayCluster:
    """A Ray cluster, and what each training needs of a node."""

    def __init__(self, plan: ClusterPlan) -> None:
        self.plan, self.ray = plan, ray_package()
        self._inputs: dict[Path, Any] = {}  # packed and stored in the cluster once

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Inside, trainings can be started. A connection that exists already is used, and stays."""
        if self.ray.is_initialized():
            self._check_room()
            yield
            return
        self._connect()
        try:
            self._check_room()
            yield
        finally:
            self._inputs.clear()
            self.ray.shutdown()

    def start(self, work: RemoteWork, inputs: list[Path]) -> RayTraining:
        """Start a training as soon as a node has room for it."""
        refs = [self._stored(path) for path in inputs]
        made = self.ray.remote(RemoteTraining).options(
            num_cpus=self.plan.cpus, num_gpus=self.plan.gpus, max_restarts=0, scheduling_strategy="SPREAD"
        )
        return RayTraining(self.ray, made.remote(), work, refs)

    def _stored(self, path: Path) -> Any:
        if path not in self._inputs:
            packed: PackedInput = packed_input(WHERE, path)
            self._inputs[path] = self.ray.put(packed)
        return self._inputs[path]

    def _connect(self) -> None:
        address = self.plan.address
        if address == "ray":
            address = os.environ.get("RAY_ADDRESS", "auto")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # as Ray will do; without, it warns
        here = threading.current_thread() is threading.main_thread()
        handler = signal.getsignal(signal.SIGTERM)
        _keep_quiet(self.ray)
        try:
            self.ray.init(address=address, namespace="weft", log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, OSError, RuntimeError, ValueError) as error:
            raise RunError(
                WHERE,
                f"the Ray cluster {address!r} cannot be reached: {_first_line(error)} Start one with: ray start --head, or give cluster=ray://HOST:10001.",
            ) from error
        finally:
            if here and handler is not None:
                signal.signal(signal.SIGTERM, handler)  # Ray's own would end this process before trainings have stopped

    def _check_room(self) -> None:
        """A training that no node has room for would wait for ever."""
        nodes = [one["Resources"] for one in self.ray.nodes() if one["Alive"]]
        plan = self.plan
        if not any(one.get("CPU", 0) >= plan.cpus and one.get("GPU", 0) >= plan.gpus for one in nodes):
            have = "; ".join(f"{one.get('CPU', 0):g} CPUs and {one.get('GPU', 0):g} GPUs" for one in nodes) or "none"
            raise UserError(WHERE, f"a node with cpus={plan.cpus} and gpus={plan.gpus:g} is required, got nodes with {have}. Ask for less, or add a node.")  # fmt: skip


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _keep_quiet(ray: Any) -> None:
    """Ray prints what its nodes report to stdout, where the results of a command belong. It has no setting for that."""
    worker: Any = getattr(getattr(ray, "_private", None), "worker", None)
    if hasattr(worker, "print_to_stdstream"):
        worker.print_to_stdstream = lambda *arguments, **named: None


class RayTraining:
    """A handle to a training on a cluster: one remote call at a time, whose result is read later."""

    def __init__(self, ray: Any, actor: Any, work: RemoteWork, inputs: list[Any]) -> None:
        self.ray, self.actor = ray, actor
        self.question = actor.begin.remote(work, *inputs)

    def ask(self, method: str, *arguments: Any) -> None:
        self.question = getattr(self.actor, method).remote(*arguments)

    def is_answered(self) -> bool:
        return bool(self.ray.wait([self.question], timeout=0)[0])

    def answer(self) -> Any:
        """Wait for the result of the last call. Raises NodeLost, or RunError with what went wrong on the node."""
        errors = self.ray.exceptions
        try:
            return self.ray.get(self.question)
        except errors.RayTaskError as error:
            cause = getattr(error, "cause", error)
            raise RunError(WHERE, getattr(cause, "message", None) or f"{type(cause).__name__}: {cause}") from None
        except errors.RayError as error:
            if NOT_INSTALLED in str(error):
                last = str(error).strip().splitlines()[-1]
                raise RunError(WHERE, f"weft {__version__} is required on all nodes, and one of them has: {last}. {install('ray')}") from None  # fmt: skip
            raise NodeLost(_first_line(error)[:LONGEST]) from None

    def send(self, method: str, *arguments: Any) -> None:
        """Call a method without waiting for its result."""
        getattr(self.actor, method).remote(*arguments)

    def end(self, tidy: bool) -> None:
        """Free the resources of the training; `tidy` also removes its files on the node, which must be there."""
        with suppress(self.ray.exceptions.RayError):
            if tidy:
                self.ray.get(self.actor.close.remote(), timeout=CLOSING)
        self.ray.kill(self.actor)
