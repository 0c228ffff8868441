"""Runs of programs with collectives on GPUs, which start only if all processes run the same program."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from zlib import crc32

from ...compiler.gpu.commands import Collective, CommandList
from ...graph.graph import Graph
from ...mesh.programs import CollectiveProgram
from ...options import CompileOptions
from .nccl import Communicators


class CollectiveRuns:
    """The runs of one program."""

    def __init__(
        self,
        collectives: CollectiveProgram,
        graph: Graph,
        commands: CommandList[int],
        options: CompileOptions,
        communicators: Communicators,
    ) -> None:
        self._graph, self._commands, self._options = graph, commands, options
        self._collectives, self._communicators = collectives, communicators

    @classmethod
    def of(
        cls, graph: Graph, commands: CommandList[int], options: CompileOptions, communicators: Communicators
    ) -> CollectiveRuns | None:
        """The collectives of a graph and its commands; None if it has none."""
        found = CollectiveProgram.of(graph)
        return None if found is None else cls(found, graph, commands, options, communicators)

    @contextmanager
    def run(self) -> Iterator[None]:
        """Around a run: checks that all processes run the same program, and counts the runs that were started."""
        mesh, axes = self._collectives.mesh, self._collectives.axes
        self._collectives.verify(lambda: self._identity)
        self._communicators.prepare(mesh, axes)
        with self._communicators.enqueueing():
            for axis in (a for a in axes if mesh.size(a) > 1):
                peer = mesh.channel(axis).begin_on_device(self._tag)
                if peer is not None:
                    raise self._collectives.failure(peer)
            yield

    @property
    def _identity(self) -> str:
        """What must be equal in all processes: the collectives in order, the options, and the graph."""
        order = [str(c.spec) for c in self._commands.flat if isinstance(c, Collective)]
        return f"{order} {self._options.key} {self._graph.text()}"

    @cached_property
    def _tag(self) -> int:
        """A small number that identifies a program."""
        return crc32(self._identity.encode()) & 0xFFFF
