"""What bounds a kernel, and what would help: an interpretation of the roofline."""

from __future__ import annotations

from ..records import dataclass
from ..runtime.facts import Roofline

SHORT = 3e-6  # seconds: below, launch overhead exceeds the work
NEAR = 0.7  # fraction of the roof above which there is little to gain
FAR = 0.25
REUSED = 0.25  # fraction of the bytes that are weights, above which a larger batch reuses them
IDLE = 0.5  # fraction of the threads' time above which load imbalance dominates


@dataclass(frozen=True)
class Bound:
    """What limits a kernel: "compute", "memory", "launch" or "waiting" (load imbalance of threads), and advice."""

    limit: str
    advice: str


def bound_of(
    name: str,
    seconds: float,
    flops: float,
    nbytes: float,
    least: float,
    format: str,
    roof: Roofline,
    waiting: float = 0.0,
    known: str = "",
    weights: float | None = None,
) -> Bound:
    """What limits a kernel, given its time, operations, bytes, roofline time, and the fraction of time in which its threads wait.

    `known`: what limits it, if the device knows. `weights`: those of its bytes that outlive a call; by default all.
    """
    reuses = weights is None or weights >= REUSED * nbytes
    if known == "waiting":
        return Bound(known, "It waits for the results of the stage before: a larger batch gives it work meanwhile.")
    if known:
        return Bound(known, _advice(name, known, least / seconds, format, reuses))
    if seconds < SHORT and least < FAR * seconds:
        return Bound("launch", "A larger batch, or fewer and larger layers: launching it takes longer than its work.")
    if waiting > IDLE and least < FAR * seconds:
        return Bound(
            "waiting",
            "Threads wait for the slowest: a larger batch gives all of them work; other programs may hold a core.",
        )
    memory = nbytes / roof.bandwidth if nbytes else 0.0
    limit = "memory" if memory >= least else "compute"
    return Bound(limit, _advice(name, limit, least / seconds, format, reuses))


def _advice(name: str, limit: str, roof: float, format: str, reuses: bool) -> str:
    is_product = name.startswith(("matmul", "conv"))
    if roof >= NEAR:
        narrower = (
            "a 16-bit format moves half of the bytes"
            if limit == "memory"
            else "int8 or a 16-bit format computes faster"
        )
        return (
            f"It is near the roof: only less work helps; {narrower}."
            if format == "float32"
            else "It is near the roof: only less work helps."
        )
    if is_product and limit == "memory" and reuses:
        return "A larger batch reuses the weights that it reads; int8 or shared weights are fewer bytes."
    if is_product and limit == "compute":
        return "Sizes that are multiples of the vector (16 channels or more), or a larger batch, fill the units better."
    if limit == "memory":
        return "It moves data: fewer passes (a fused op), a 16-bit format, or a layout that is read in order."
    return "Its operations are few for each element: fuse it with a neighbour, or replace costly functions."
