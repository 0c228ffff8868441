"""The collectives of a program. The mesh, with its sockets and shared memory, is imported only for programs that have some."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import mesh
from ..compiler.ir.collectives import collectives
from ..graph.graph import Graph

if TYPE_CHECKING:
    from ..mesh.programs import CollectiveProgram


def collectives_of(graph: Graph) -> CollectiveProgram | None:
    """What a program needs for the collectives of its graph; None if it has none."""
    return None if next(collectives(graph), None) is None else mesh.CollectiveProgram.of(graph)
