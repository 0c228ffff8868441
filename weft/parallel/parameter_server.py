"""Asynchronous data parallelism: a parameter server with bounded staleness (stale synchronous parallel; Ho et al., 2013).

Rank 0 along an axis of a mesh is the server: it holds the parameters, and applies gradients as they arrive. All others are workers: each
pulls parameters, computes the gradients of a batch, pushes them, and continues without waiting for other workers.

def train(batches):
    mesh = parallel.Mesh(data=parallel.world().size)
    training = parallel.ParameterServer(model, weft.cross_entropy, partial(optim.sgd, rate=0.1), staleness=4)
    print(training.run(batches[training.worker :: training.workers]))
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from math import inf
from typing import Any

import numpy as np

from ..derivatives import gradients
from ..dtypes import DTypeLike
from ..errors import UserError
from ..mesh import mesh as meshes
from ..mesh.connection import control_page
from ..mesh.links import Star
from ..nn.module import Module
from ..optim import Optimizer
from ..tensor import Tensor, as_tensor
from ..tracing.jit import jit
from .pipeline_stage import Loss
from .server_messages import DONE, FINAL, GRADIENTS, PARAMETERS, MessageLayout, ServerHeader, ServerMessage
from .server_report import ServerReport, ServerUpdate, share_updates

SHORTEST_SLEEP, LONGEST_SLEEP = 2e-5, 1e-3  # seconds between polls of the links when nothing arrives

Batches = Iterable[tuple[Any, Any]]
Listener = Callable[[ServerUpdate], None]


class ParameterServer:
    """A parameter server, or one of its workers, depending on the rank of this process.

    A worker that is more than `staleness` steps ahead of the slowest one waits. With 0, training is synchronous and deterministic: all workers
    compute gradients with the same parameters, and the server applies them in the order of the workers. None: no worker ever waits.
    `optimizer` creates an optimizer for given parameters; each gradient is one step of it, and only the server has one.
    A process that runs alone is both server and worker.
    """

    def __init__(
        self,
        model: Module,
        loss: Loss,
        optimizer: Callable[[list[Tensor]], Optimizer],
        *,
        axis: str = "data",
        staleness: int | None = 4,
        precision: DTypeLike | None = None,
        loss_of_batch: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> None:
        """`loss_of_batch`: computes the loss of a batch (x, y), in place of loss(model(x), y)."""
        _check("staleness", staleness, "steps")
        self.mesh, self.axis, self.staleness = meshes.current(), axis, staleness
        size, here = self.mesh.size(axis), self.mesh.index(axis)
        if self.mesh.engine != "local":
            raise UserError("ParameterServer", "all ranks must be on one machine, got several machines.")
        self.workers = max(1, size - 1)
        self.is_server, self.worker = here == 0, here - 1 if here else (0 if size == 1 else None)
        self.model, self.loss, self.loss_of_batch = model.train(), loss, loss_of_batch
        self.parameters = model.parameters()
        self.optimizer = optimizer(self.parameters) if self.is_server else None
        self.layout = MessageLayout(self.parameters)
        self._links = Star(self.mesh, axis, self.layout.nbytes) if size > 1 else None
        self._compute = jit(self._gradients, precision=precision)
        self._update = jit(self._apply)

    def run(
        self, batches: Batches, *, updates: int | None = None, listener: Listener = lambda update: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> ServerReport:  # fmt: skip
        """Train until all workers have reached the end of their batches, or for a total number of updates, or until the server's `stop`
        returns True; all processes must call this.

        Afterwards all have the same parameters, and the running statistics of the first worker. The server calls `listener` for each update.
        """
        _check("updates", updates, "in all")
        self._agree_on_others(root=0)
        recorded: list[ServerUpdate] = []
        if self._links is None:
            self._run_alone(batches, updates, recorded, listener, stop)
        elif self.is_server:
            _ServerLoop(self, self._links, updates, recorded, listener, stop).run()
        else:
            self._work(self._links, iter(batches))
        self._agree_on_others(root=1)
        return ServerReport(self.staleness, self.workers, share_updates(recorded, self.mesh, self.axis))

    # --- compiled steps -------------------------------------------------------------------------------------------------------------

    def _gradients(self, values: list[Tensor] | None, x: Tensor, y: Tensor) -> tuple[Tensor, list[Tensor]]:
        if values is not None:
            self._assign(values)
        loss = self.loss(self.model(x), y) if self.loss_of_batch is None else self.loss_of_batch(x, y)
        return loss, gradients(loss, self.parameters)

    def _apply(self, found: list[Tensor]) -> None:
        assert self.optimizer is not None
        # Groups of parameters have an order of their own.
        of = {id(parameter): gradient for parameter, gradient in zip(self.parameters, found, strict=True)}
        self.optimizer.step([of[id(parameter)] for parameter in self.optimizer.parameters])

    def memory(self, x: Any, y: Any) -> int:
        """The bytes that a worker needs for a batch. Its step is compiled."""
        arguments = (self.layout.zeros(), x, y)
        self._compute.lower(*arguments)
        return self._compute.memory(*arguments).total

    # --- a worker -------------------------------------------------------------------------------------------------------------------

    def _work(self, links: Star, batches: Iterator[tuple[Any, Any]]) -> None:
        with _waiting_for(lambda: {self._rank_of(0)}):
            received, waiting = self._pull(links)
            while received.header.kind != FINAL:
                self._push(links, received, batches, waiting)
                received, waiting = self._pull(links)
        self._assign([as_tensor(a) for a in received.arrays])

    def _pull(self, links: Star) -> tuple[ServerMessage, float]:
        begin = time.perf_counter()
        return self.layout.receive(links.received_from[0]), time.perf_counter() - begin

    def _push(self, links: Star, received: ServerMessage, batches: Iterator[tuple[Any, Any]], waiting: float) -> None:
        version, begin = received.header.version, time.perf_counter()
        batch = next(batches, None)
        if batch is None:
            self.layout.send(links.to[0], ServerHeader(DONE, version), [])
            return
        loss, found = self._compute(received.arrays, *batch)
        value = float(loss.item())
        header = ServerHeader(GRADIENTS, version, value, time.perf_counter() - begin, waiting)
        self.layout.send(links.to[0], header, found)

    # --- both -----------------------------------------------------------------------------------------------------------------------

    def _run_alone(
        self, batches: Batches, updates: int | None, recorded: list[ServerUpdate], tell: Listener, stop: Callable[[], bool]
    ) -> None:  # fmt: skip
        start = begin = time.perf_counter()
        for step, (x, y) in enumerate(batches):
            if step == updates or stop():
                break
            loss, found = self._compute(None, x, y)
            value, computed = float(loss.item()), time.perf_counter()
            self._update(found)
            recorded.append(ServerUpdate(0, step, 0, 0, value, computed - begin, 0.0, computed - start))
            tell(recorded[-1])
            begin = time.perf_counter()

    def _assign(self, values: list[Tensor]) -> None:
        for parameter, value in zip(self.parameters, values, strict=True):
            parameter.assign(value)

    def _agree_on_others(self, root: int) -> None:
        """Broadcast the running statistics and frozen parameters of one process: the server never uses them."""
        if self._links is None:
            return
        for tensor in self.model.named_tensors().values():
            if not tensor.requires_grad:
                value = np.asarray(tensor.numpy())
                shared = meshes.run_collective("broadcast", value, self.axis, self.mesh.axes, root)
                tensor.assign(as_tensor(shared))

    def _rank_of(self, index: int) -> int:
        return self.mesh.ranks_along(self.axis)[index]


class _ServerLoop:
    """One run of the server. A worker is answered when it may continue, so each has at most one message in flight."""

    def __init__(
        self, owner: ParameterServer, links: Star, limit: int | None, recorded: list[ServerUpdate], tell: Listener,
        stop: Callable[[], bool],
    ) -> None:  # fmt: skip
        self.owner, self.links, self.limit, self.recorded, self.tell = owner, links, limit, recorded, tell
        self.stop, self.stopped = stop, False
        everyone = list(links.to)
        self.clocks: dict[int, float] = dict.fromkeys(everyone, 0)  # steps by worker; inf if it has no batch left
        self.ahead = dict.fromkeys(everyone, 0)
        self.unanswered = set(everyone)
        self.pending: dict[int, ServerMessage] = {}  # gradients that are not applied yet
        self.start = time.perf_counter()

    def run(self) -> None:
        with _waiting_for(lambda: {self.owner._rank_of(i) for i in self.links.to if i not in self.unanswered}):
            self._answer()
            self.owner._update.lower(self.owner.layout.zeros())  # compiles it while the workers compile their step
            pause = SHORTEST_SLEEP
            while len(self.unanswered) < len(self.clocks) or not self._finished():
                if self._receive():
                    self._apply_pending()
                    self._answer()
                    pause = SHORTEST_SLEEP
                else:
                    control_page().check()
                    time.sleep(pause)
                    pause = min(2 * pause, LONGEST_SLEEP)
        for worker in self.links.to:
            self._send(worker, FINAL)

    def _finished(self) -> bool:
        """Whether no more gradients are applied. Gradients in flight are received, and dropped."""
        self.stopped = self.stopped or self.stop()
        return (
            self.stopped
            or min(self.clocks.values()) == inf
            or (self.limit is not None and len(self.recorded) >= self.limit)
        )

    def _receive(self) -> bool:
        """Receive the messages that have arrived, from any worker; whether there were any."""
        arrived = [worker for worker, link in self.links.received_from.items() if link.ready()]
        for worker in arrived:
            message = self.owner.layout.receive(self.links.received_from[worker])
            self.unanswered.add(worker)
            if message.header.kind == DONE:
                self.clocks[worker] = inf
            else:
                self.pending[worker] = message
        return bool(arrived)

    def _apply_pending(self) -> None:
        if self.owner.staleness == 0 and len(self.unanswered) < len(self.clocks):
            return  # wait for all workers: the order must not depend on which is faster
        for worker in sorted(self.pending):
            message = self.pending.pop(worker)
            if not self._finished():
                self._apply(worker, message)

    def _apply(self, worker: int, message: ServerMessage) -> None:
        self.owner._update(message.arrays)
        sent, step = message.header, int(self.clocks[worker])
        done, now = len(self.recorded), time.perf_counter() - self.start
        self.recorded.append(
            ServerUpdate(
                worker - 1, step, done - sent.version, self.ahead[worker], sent.loss, sent.computing, sent.waiting, now
            )
        )
        self.clocks[worker] += 1
        self.tell(self.recorded[-1])

    def _answer(self) -> None:
        """Send the parameters to all workers that may continue."""
        if self._finished():
            return
        slowest, bound = min(self.clocks.values()), self.owner.staleness
        for worker in sorted(self.unanswered):
            ahead = self.clocks[worker] - slowest
            if ahead < inf and worker not in self.pending and (bound is None or ahead <= bound):
                self.ahead[worker] = int(ahead)
                self._send(worker, PARAMETERS)

    def _send(self, worker: int, kind: int) -> None:
        header = ServerHeader(kind, len(self.recorded))
        self.owner.layout.send(self.links.to[worker], header, self.owner.parameters)
        self.unanswered.discard(worker)


@contextmanager
def _waiting_for(ranks: Callable[[], set[int]]) -> Iterator[None]:
    """While active, this process waits for these ranks: if one of them has ended, all give up."""
    waits = control_page().waits
    waits.append(ranks)
    try:
        yield
    finally:
        waits.remove(ranks)


def _check(name: str, value: Any, what: str) -> None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
        raise UserError("ParameterServer", f"{name} is 0 or more {what}, or None (unbounded), got {value!r}.")
