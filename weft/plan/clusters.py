"""Described clusters: nodes of several ranks, the links inside a node and between nodes, each figure with its source.

The table is `clusters.yaml`. The machine of a rank is one of `weft.insight.machines()`. A file of the same form adds clusters:

    weft.plan.cluster("dgx-h100")
    weft.plan.clusters("ours.yaml")
"""

from __future__ import annotations

from pathlib import Path

from ..errors import UserError
from ..hints import nearest
from ..insight.machines import DescribedMachine, machine
from ..insight.table_reader import Figure, TableEntry, read_table
from ..records import dataclass
from .collectives import AlphaBeta, CollectiveCost, NodeLinks, RankGroup
from .step_work import StepWork

TABLE = Path(__file__).with_name("clusters.yaml")
HERE = "here"


@dataclass(frozen=True)
class DescribedCluster:
    """Nodes with equal ranks. Bandwidths are per direction: `inside` of a rank, `between` of a whole node.

    >>> dgx = cluster("dgx-h100")
    >>> dgx.ranks_per_node, dgx.machine, float(dgx.between_bandwidth) / 1e9
    (8, 'h100', 400.0)
    """

    name: str
    title: str
    machine: str
    ranks_per_node: int
    inside_latency: Figure
    inside_bandwidth: Figure
    between_latency: Figure
    between_bandwidth: Figure

    overlap = True  # copy engines and a few multiprocessors reduce gradients during the backward pass

    @property
    def links(self) -> NodeLinks:
        inside = AlphaBeta(self.inside_latency.value, self.inside_bandwidth.value)
        return NodeLinks(inside, AlphaBeta(self.between_latency.value, self.between_bandwidth.value))

    @property
    def rank(self) -> DescribedMachine:
        """The machine of one rank."""
        return machine(self.machine)

    def copy_seconds(self, nbytes: float, ranks: int) -> float:
        """The time to read or write `nbytes` bytes of a rank's memory."""
        return nbytes / self.rank.memory_bandwidth.value

    def most_ranks(self) -> int | None:
        """Unlimited."""
        return None

    def rank_memory(self, ranks: int) -> float | None:
        """The memory of a rank, in bytes."""
        return None if self.rank.memory_bytes is None else self.rank.memory_bytes.value

    def work(self, measured: StepWork, ranks: int, format: str | None = None) -> StepWork:
        """A step of one rank, projected to its machine."""
        return measured.on(self.rank, format)

    def all_reduce(self, group: RankGroup, nbytes: float) -> CollectiveCost:
        """The all-reduce by the fastest algorithm."""
        return self.links.all_reduce(group, nbytes)

    def half_all_reduce(self, group: RankGroup, nbytes: float) -> float:
        """A reduce-scatter or an all-gather."""
        return self.links.half_all_reduce(group, nbytes)

    def send(self, nbytes: float, crosses_nodes: bool, sharing: int = 1) -> float:
        """A message from one rank to another."""
        return self.links.send(nbytes, crosses_nodes, sharing)


@dataclass(frozen=True)
class PublishedScaling:
    """A published scaling efficiency.

    >>> {row.ranks for row in published_scaling()}
    {512}
    """

    network: str
    cluster: str
    ranks: int
    batch: int  # per rank
    parameters: float  # of the network: a number of values
    images_per_second: Figure  # of a single rank
    efficiency: float
    source: str


def cluster(name: str, file: str | Path | None = None) -> DescribedCluster:
    """A cluster by name."""
    found = clusters(file)
    if name not in found:
        raise UserError("cluster", f"there is no cluster {name!r}. {nearest(name, [*found, HERE])}")
    return found[name]


def clusters(file: str | Path | None = None) -> dict[str, DescribedCluster]:
    """All clusters by name: the built-in ones, and those of a file."""
    found: dict[str, DescribedCluster] = {}
    for path in (TABLE, *([Path(file).expanduser()] if file else [])):
        top = read_table(path)
        top.only(("sources", "clusters", "published"))
        entries = top.optional_entry("clusters")
        found |= {} if entries is None else {name: _cluster(name, entry) for name, entry in entries.entries()}
    return found


def published_scaling() -> list[PublishedScaling]:
    """Published scaling efficiencies, with their sources."""
    return [_published(row) for row in read_table(TABLE).items("published")]


def _cluster(name: str, entry: TableEntry) -> DescribedCluster:
    entry.only(("title", "machine", "ranks_per_node", "inside", "between"))
    if name == HERE:
        entry.fail(
            "title", f"another name than {HERE} is required, which is this machine, got {HERE}. Rename the cluster."
        )
    figures = {f"{place}_{key}": _link(entry, place, key) for place in ("inside", "between") for key in ("latency", "bandwidth")}  # fmt: skip
    per_node = entry.number("ranks_per_node")
    if per_node < 1 or per_node != int(per_node):
        entry.fail("ranks_per_node", f"requires a whole number of 1 or more, got {per_node:g}.")
    return DescribedCluster(name, entry.text("title", name), entry.text("machine"), int(per_node), **figures)


def _link(entry: TableEntry, place: str, key: str) -> Figure:
    found = entry.entry(place)
    found.only(("latency", "bandwidth"))
    figure = found.figure(key)
    if key == "bandwidth" and figure.value == 0:
        found.fail(key, "requires a number above 0, got 0.")
    return figure


def _published(entry: TableEntry) -> PublishedScaling:
    rate = entry.figure("images_per_second")
    return PublishedScaling(
        entry.text("network"), entry.text("cluster"), int(entry.number("ranks")), int(entry.number("batch")),
        entry.number("parameters"), rate, entry.number("efficiency"), entry.source(),
    )  # fmt: skip
