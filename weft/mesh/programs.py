"""Compiled programs with collectives: the mesh that they run on, and a check that all processes run the same one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np

from ..compiler.ir.collectives import collectives
from ..errors import RunError, UserError
from ..graph.graph import Graph
from ..records import dataclass
from .host_calls import linked_symbol
from .mesh import Mesh, run_collective, with_axes


@dataclass(eq=False)
class CollectiveProgram:
    """The collectives of one program."""

    mesh: Mesh
    axes: tuple[str, ...]  # along which it has collectives
    verified: bool = False

    @classmethod
    def of(cls, graph: Graph) -> CollectiveProgram | None:
        """The collectives of a graph; None if it has none."""
        nodes = list(collectives(graph))
        if not nodes:
            return None
        meshes = {n.param("mesh") for n in nodes}
        if len(meshes) > 1:
            raise UserError(
                "mesh", f"all collectives of a program must use one mesh, got {', '.join(map(str, meshes))}."
            )
        return cls(with_axes(meshes.pop()), tuple(sorted({n.param("axis") for n in nodes})))

    def linked_symbol(self, symbol: str) -> str:
        """The symbol to link for a function that the program calls."""
        return linked_symbol(symbol, self.mesh.engine)

    def verify(self, text: Callable[[], str]) -> None:
        """Raise an error unless all processes run the program that this text describes. All call this before its first run."""
        if self.verified:
            return
        number = int.from_bytes(hashlib.blake2b(text().encode(), digest_size=7).digest())
        for axis in (a for a in self.axes if self.mesh.size(a) > 1):
            numbers = run_collective("all_gather", np.asarray(number), axis, self.mesh.axes, "summed")
            different = [i for i, n in enumerate(numbers.tolist()) if n != number]
            if different:
                raise RunError(
                    "parallel",
                    f"all ranks must run the same program, got one on rank {self.mesh.index(axis)} of the axis {axis!r} that differs from that of "
                    f"ranks {different}. Shapes, settings and code must not depend on the rank.",
                )
        self.verified = True

    def failure(self, peer: int) -> RunError:
        """Why a run was aborted."""
        return self.mesh.failure(peer)
