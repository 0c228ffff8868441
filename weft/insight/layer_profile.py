"""The time, work and energy of kernels and layers, and the aggregation of kernels to layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from ..errors import Scope
from ..records import dataclass

NOTHING = 1e-6  # fraction of the time: layers that only rename values, such as a flatten, are not listed


@dataclass(frozen=True)
class KernelProfile:
    """A kernel of a program."""

    number: int
    name: str
    seconds: float
    flops: float
    nbytes: float
    least: float  # seconds at the roofline
    live: int  # bytes of memory in use while it runs
    format: str
    joules: float  # modelled
    layers: tuple[tuple[Scope, float], ...]
    sources: tuple[str, ...]
    workspace: int = 0  # bytes besides its tensors
    persistent: float = 0.0  # its bytes that outlive a call: parameters, packed weights, arguments
    waiting: float = 0.0  # fraction of the threads' time spent waiting for the slowest
    starts: int = 1  # sequential launches: many for a scan
    limit: str = ""  # what bounds it, if the device knows
    anchor: str = ""  # class of the op that it is built around: contraction, convolution, control; "" for loops

    @property
    def roof(self) -> float:
        """The fraction of the roofline that it reaches: 1 is at the roof."""
        return self.least / self.seconds

    @property
    def is_convolution(self) -> bool:
        """Whether it computes a convolution or one of its gradients, by an algorithm of its own."""
        return self.anchor == "convolution"

    @property
    def intensity(self) -> float:
        """Arithmetic intensity: operations per byte moved."""
        return self.flops / self.nbytes if self.nbytes else 0.0


@dataclass(frozen=True)
class LayerProfile:
    """A layer in one phase of a step, or in all of them."""

    path: str
    kind: str
    phase: str  # forward, backward, update; "" for the sum of them
    seconds: float = 0.0
    flops: float = 0.0
    nbytes: float = 0.0
    least: float = 0.0
    joules: float = 0.0
    live: int = 0
    kernels: tuple[int, ...] = ()
    root: int = 0

    @property
    def roof(self) -> float:
        return self.least / self.seconds if self.seconds else 0.0

    @property
    def intensity(self) -> float:
        return self.flops / self.nbytes if self.nbytes else 0.0

    @property
    def label(self) -> str:
        return Scope(self.path, self.kind, self.phase).label

    def __add__(self, other: LayerProfile) -> LayerProfile:
        sums = {
            name: getattr(self, name) + getattr(other, name)
            for name in ("seconds", "flops", "nbytes", "least", "joules")
        }
        kernels = tuple(dict.fromkeys((*self.kernels, *other.kernels)))
        return replace(self, **sums, live=max(self.live, other.live), kernels=kernels)


def summed(kernels: Iterable[KernelProfile], group: Callable[[Scope], Scope]) -> tuple[LayerProfile, ...]:
    """The kernels' figures aggregated by layer group, in the order in which they first run."""
    found: dict[Scope, LayerProfile] = {}
    for kernel in kernels:
        for scope, share in kernel.layers:
            wanted = group(scope)
            before = found.get(wanted) or LayerProfile(wanted.path, wanted.kind, wanted.phase, root=wanted.root)
            found[wanted] = before + part_of(kernel, share)
    least = NOTHING * sum(one.seconds for one in found.values())
    return _told_apart([one for one in found.values() if one.seconds > least])


def part_of(kernel: KernelProfile, share: float) -> LayerProfile:
    """A fraction of a kernel."""
    return LayerProfile(
        "",
        "",
        "",
        share * kernel.seconds,
        share * kernel.flops,
        share * kernel.nbytes,
        share * kernel.least,
        share * kernel.joules,
        kernel.live,
        (kernel.number,),
    )


def _told_apart(layers: Sequence[LayerProfile]) -> tuple[LayerProfile, ...]:
    """The same, with paths prefixed by the network's name if the program contains several networks."""
    roots = list(dict.fromkeys(one.root for one in layers if one.root))
    if len(roots) < 2:
        return tuple(layers)
    names = {root: next((o.kind for o in layers if o.root == root and not o.path), "network") for root in roots}
    several = {name for name in names.values() if list(names.values()).count(name) > 1}
    unique = {root: f"{name}{i + 1}" if name in several else name for i, (root, name) in enumerate(names.items())}
    return tuple(replace(one, path=f"{unique[one.root]}/{one.path}".rstrip("/")) if one.root else one for one in layers)
