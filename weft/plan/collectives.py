"""Cost of collectives: the alpha-beta model, in which a message of S bytes takes alpha + S / beta seconds on a link.

A group of N ranks spans m nodes, g ranks on each. For an all-reduce of S bytes:

    ring          2 (N - 1) steps of S / N bytes over the slowest link of the ring; 2 (m - 1) of them have the latency of the network
    tree          up and down a binary tree in pipelined pieces: 2 log2(N) latencies, and 2 S bytes over the slowest link
    hierarchical  reduce-scatter inside the nodes, an all-reduce of S / g by each rank between them, all-gather inside
    direct        through memory shared by all ranks: measured on this machine, see calibration.py

A reduce-scatter and an all-gather are each half of a ring, or recursive halving and doubling: log2(N) steps with the same bytes. The
fastest algorithm is chosen, as libraries do by size.
"""

from __future__ import annotations

from math import ceil, log2

from ..records import dataclass

ALGORITHMS = ("ring", "tree", "hierarchical", "direct")


@dataclass(frozen=True)
class AlphaBeta:
    """A link: latency in seconds, and bandwidth in bytes per second in each direction.

    >>> AlphaBeta(1e-6, 1e9).seconds(1e6)
    0.001001
    """

    latency: float
    bandwidth: float

    def seconds(self, nbytes: float) -> float:
        """The time of one message."""
        return self.latency + nbytes / self.bandwidth


@dataclass(frozen=True)
class RankGroup:
    """The ranks of one collective: their number, how many of them are on a node, and how many such groups share the node's network."""

    size: int
    per_node: int
    sharing: int = 1

    @property
    def nodes(self) -> int:
        return ceil(self.size / self.per_node)


@dataclass(frozen=True)
class CollectiveCost:
    """The time of a collective, and its algorithm."""

    seconds: float
    algorithm: str


@dataclass(frozen=True)
class NodeLinks:
    """The links of a cluster: `inside` from each rank to others of its node, `between` from each node to the others."""

    inside: AlphaBeta
    between: AlphaBeta

    def all_reduce(self, group: RankGroup, nbytes: float) -> CollectiveCost:
        """The all-reduce by the fastest algorithm.

        >>> links = NodeLinks(AlphaBeta(0.0, 4e9), AlphaBeta(0.0, 1e9))
        >>> links.all_reduce(RankGroup(4, per_node=4), 4e9)
        CollectiveCost(seconds=1.5, algorithm='ring')
        """
        if group.size == 1:
            return CollectiveCost(0.0, "none")
        found = {
            "ring": 2 * self.half_ring(group, nbytes),
            "tree": self._tree(group, nbytes),
            "hierarchical": self._hierarchical(group, nbytes),
        }
        best = min(found, key=lambda name: found[name])
        return CollectiveCost(found[best], best)

    def half_all_reduce(self, group: RankGroup, nbytes: float) -> float:
        """A reduce-scatter or an all-gather, whose whole operand or result has `nbytes` bytes."""
        if group.size == 1:
            return 0.0
        moved = (group.size - 1) * nbytes / group.size / self.slowest(group).bandwidth
        halving = self._tree_latency(group) + moved
        return min(halving, self.half_ring(group, nbytes), self._hierarchical(group, nbytes) / 2)

    def half_ring(self, group: RankGroup, nbytes: float) -> float:
        """All ranks in one ring that enters and leaves each node once: N - 1 steps."""
        steps = group.size - 1
        latency = (steps - group.nodes + 1) * self.inside.latency + (group.nodes - 1) * self.between.latency
        return latency + steps * nbytes / group.size / self.slowest(group).bandwidth

    def send(self, nbytes: float, crosses_nodes: bool, sharing: int = 1) -> float:
        """A message from one rank to another."""
        return self._between(sharing).seconds(nbytes) if crosses_nodes else self.inside.seconds(nbytes)

    def slowest(self, group: RankGroup) -> AlphaBeta:
        """The slowest link of a ring or tree through all ranks."""
        return self.inside if group.nodes == 1 else self._between(group.sharing)

    def _between(self, sharing: int) -> AlphaBeta:
        return AlphaBeta(self.between.latency, self.between.bandwidth / sharing)

    def _tree(self, group: RankGroup, nbytes: float) -> float:
        return 2 * (self._tree_latency(group) + nbytes / self.slowest(group).bandwidth)

    def _tree_latency(self, group: RankGroup) -> float:
        steps = ceil(log2(min(group.per_node, group.size))), ceil(log2(group.nodes))
        return steps[0] * self.inside.latency + steps[1] * self.between.latency

    def _hierarchical(self, group: RankGroup, nbytes: float) -> float:
        """The ranks of a node send their parts over its network at the same time, so it carries all bytes."""
        here = min(group.per_node, group.size)
        inside = 2 * self.half_ring(RankGroup(here, here), nbytes) if here > 1 else 0.0
        if group.nodes == 1:
            return inside
        return inside + 2 * (group.nodes - 1) * self._between(group.sharing).seconds(nbytes / group.nodes)
