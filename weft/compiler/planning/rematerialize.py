"""Rematerialization: a program whose values do not fit into a memory limit computes some of them twice.

A value that is made in the forward pass and read in the backward pass occupies memory in between. If it is dropped after its last early
reader, and computed again just before its first late one, the memory is free for others meanwhile. What is computed again is a kernel of the
program, run a second time on the same operands with the same plan, or, if the value follows element by element from values in memory, a
kernel of loops; either way it writes the same bits to the same place. Nothing else changes: neither the other kernels nor their order.

Values are chosen greedily at the moment of the most live memory: those that free the most bytes for the longest time per estimated
time of computing them again. Their operands must hold their values at that time: state that was updated in place does not, values that were
dropped are computed again as well. The plan is made anew until it fits, and then choices that turn out not to be needed are undone.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field, replace

from ...graph.node import Node
from ...records import dataclass
from ..ir.index import fresh
from ..ir.kernel import Kernel
from ..ir.loops import LoopPhase, Nest, Store, is_inline, plain_loops
from ..ir.storage import nbytes
from ..thresholds import thresholds
from .arena import Interval, live_bytes
from .merge import phase_body
from .overlap import is_collective
from .schedule import KernelSchedule

SMALL = 16  # an operand smaller than a value by this factor is kept live for it, not recomputed
UNDONE = 24  # the number of choices, the most expensive first, that it tries to undo at the end


@dataclass(frozen=True)
class Occurrences:
    """Kernels in order, some of them more than once: each occurrence is a `Kernel` object of its own."""

    kernels: tuple[Kernel, ...]
    again: Mapping[Kernel, Kernel]  # an occurrence that repeats another kernel -> that kernel
    recomputed: frozenset[Kernel]  # all kernels that compute something again
    numbers: tuple[int, ...]  # for each of them, the number of the original kernel that it is, or precedes

    @classmethod
    def once(cls, kernels: Sequence[Kernel]) -> Occurrences:
        """Each kernel once."""
        return cls(tuple(kernels), {}, frozenset(), tuple(range(len(kernels))))


Lifetimes = Callable[[Occurrences], Sequence[Interval]]  # the buffers of the arena
Fits = Callable[[Occurrences], int]  # the bytes of the arena once buffers have offsets


@dataclass(frozen=True)
class Rules:
    """What rematerialization needs of a program in addition to its kernels."""

    fixed: Collection[Node]  # values that have memory of their own
    shared: Collection[Node]  # values whose memory another one is written to
    persistent: Collection[Node]  # values that are computed once for many runs
    cost: Callable[[Kernel], float]  # the estimated time of a kernel, in any unit
    by_graph: Callable[
        [Kernel], bool
    ]  # whether its results are, bit for bit, what loops compute from the same operands


@dataclass(frozen=True)
class Recomputation:
    """How a value is computed again: by a kernel, which may repeat another one."""

    kernel: Kernel
    original: Kernel | None


@dataclass
class _Choice:
    """Values to be dropped, each after a kernel by number; the bytes that are free at the moment of the most memory, and at all times
    together, and the cost of computing the values again."""

    cuts: dict[Node, tuple[int, Recomputation]]
    saved: int
    area: float
    cost: float = 0.0
    operands: set[Node] = field(default_factory=set)  # of everything that is computed again

    @property
    def score(self) -> float:
        return self.area / max(self.cost, 1.0)


@dataclass(frozen=True)
class _UsesOfValue:
    """When the values of a sequence of kernels are used, while choices are made."""

    numbers: Sequence[int]
    uses: Mapping[Node, list[int]]  # of each value that is not dropped, the steps that write or read it
    redone: Mapping[Node, int]  # the step at which each dropped value is computed again

    def is_gone(self, node: Node, late: int) -> bool:
        """Whether a value that is not dropped is no longer in memory at a step."""
        return node in self.uses and self.numbers[self.uses[node][-1]] < self.numbers[late]


def rematerialize(
    order: KernelSchedule, rules: Rules, limit: int, lifetimes: Lifetimes, arena_bytes: Fits
) -> Occurrences:
    """The kernels for an arena of at most `limit` bytes, or of as few bytes as it found."""
    return _Rematerialization(order, rules, limit, lifetimes, arena_bytes).run()


class _Rematerialization:
    def __init__(
        self, order: KernelSchedule, rules: Rules, limit: int, lifetimes: Lifetimes, arena_bytes: Fits
    ) -> None:
        self.base, self.rules, self.limit = order.kernels, rules, limit
        self.lifetimes, self.arena_bytes = lifetimes, arena_bytes
        self.maker = {node: i for i, kernel in enumerate(self.base) for node in kernel.outputs}
        self.overwritten = self._overwritten(order)
        self.in_memory = {n for kernel in self.base for n in (*kernel.outputs, *kernel.reads)}
        self.droppable = {n for n in self.maker if self._is_droppable(n, order)}
        self.dropped: dict[Node, tuple[int, Recomputation]] = {}
        self._recipes: dict[Node, list[Recomputation]] = {}
        self._costs: dict[Kernel, float] = {}

    def _overwritten(self, order: KernelSchedule) -> dict[Node, int]:
        """Values that another one is written over, and the number of the kernel that does so."""
        found: dict[Node, int] = {}
        for new, old in (*order.in_place.items(), *order.written_over.items()):
            found[old] = min(self.maker[new], found.get(old, len(self.base)))
        return found

    def _is_droppable(self, node: Node, order: KernelSchedule) -> bool:
        rules = self.rules
        elsewhere = node in rules.fixed or node in rules.persistent or node in rules.shared
        return not elsewhere and node not in order.written_over and node not in self.overwritten

    # --- the loop -------------------------------------------------------------------------------------------------------

    def run(self) -> Occurrences:
        target, best = self.limit, (self.arena_bytes(self.sequence()), self.sequence())
        lowest: tuple[int, Occurrences] | None = None  # the least peak of all, and its kernels
        while True:
            found = self.sequence()
            buffers = self.lifetimes(found)
            alive = live_bytes(buffers)
            peak = max((n for _, n in alive), default=0)
            if lowest is None or peak < lowest[0]:
                lowest = peak, found
            if peak <= target:
                size = self.arena_bytes(found)
                best = min(best, (size, found), key=lambda one: one[0])
                if size <= self.limit:
                    return self._undone(found)
                target = min(target, peak) - max(1, min(size - self.limit, target // 64))
                if target <= 0:
                    return best[1]
                continue
            if not self._drop_some(found, alive, peak - target):
                ends = [(self.arena_bytes(one), one) for one in (found, lowest[1])]
                return min(best, *ends, key=lambda one: one[0])[1]

    def _drop_some(self, found: Occurrences, alive: Sequence[tuple[int, int]], excess: int) -> bool:
        """Drop values at the moment of the most memory until enough is saved there; whether there were any."""
        step = max(alive, key=lambda one: one[1])[0]
        changed: set[Node] = set()
        for choice in sorted(self._choices(found, step), key=lambda one: -one.score):
            if changed.isdisjoint(choice.operands) and changed.isdisjoint(choice.cuts):
                self.dropped |= choice.cuts
                changed |= {*choice.cuts, *choice.operands}
                excess -= choice.saved
                if excess <= 0:
                    break
        return bool(changed)

    def _undone(self, found: Occurrences) -> Occurrences:
        """The same with fewer values computed again, if it still fits.

        A value that was computed again early, for another one, is then computed again later, where its operands may be overwritten.
        """
        costs = {node: self._cost(recipe.original or recipe.kernel) for node, (_, recipe) in self.dropped.items()}
        for node in sorted(costs, key=lambda n: -costs[n])[:UNDONE]:
            cut = self.dropped.pop(node)
            without = self.sequence()
            if self._reads_no_old_state(without) and self.arena_bytes(without) <= self.limit:
                found = without
            else:
                self.dropped[node] = cut
        return found

    def _reads_no_old_state(self, found: Occurrences) -> bool:
        """Whether everything that is computed again reads its operands before they are overwritten."""
        again = ((k, number) for k, number in zip(found.kernels, found.numbers, strict=True) if k in found.recomputed)
        return all(self.overwritten.get(operand, number) >= number for k, number in again for operand in k.reads)

    # --- the order ------------------------------------------------------------------------------------------------------

    def sequence(self) -> Occurrences:
        """All kernels with those that compute dropped values again, each just before the first kernel that needs it."""
        kernels: list[Kernel] = []
        numbers: list[int] = []
        again: dict[Kernel, Kernel] = {}
        recomputed: set[Kernel] = set()
        there: set[Node] = set()  # values that were computed again
        for i, kernel in enumerate(self.base):
            stack = [n for n in kernel.reads if self._is_missing(n, i, there)]
            while stack:
                node = stack[-1]
                recipe = self.dropped[node][1]
                waiting = [n for n in recipe.kernel.reads if self._is_missing(n, i, there)]
                if node not in there and waiting:
                    stack += waiting
                    continue
                stack.pop()
                if node in there:
                    continue
                occurrence = replace(recipe.kernel)
                if recipe.original is not None:
                    again[occurrence] = recipe.original
                recomputed.add(occurrence)
                kernels.append(occurrence)
                numbers.append(i)
                there.update(recipe.kernel.outputs)
            kernels.append(kernel)
            numbers.append(i)
        return Occurrences(tuple(kernels), again, frozenset(recomputed), tuple(numbers))

    def _is_missing(self, node: Node, number: int, there: Collection[Node]) -> bool:
        return node in self.dropped and self.dropped[node][0] < number and node not in there

    # --- choices --------------------------------------------------------------------------------------------------------

    def _choices(self, found: Occurrences, step: int) -> list[_Choice]:
        """The candidates at a moment: values that are live before and after it, and not used at it."""
        uses: dict[Node, list[int]] = defaultdict(list)
        redone: dict[Node, int] = {}
        for i, kernel in enumerate(found.kernels):
            for node in (*kernel.reads, *kernel.outputs):
                if node in self.droppable and node not in self.dropped:
                    uses[node].append(i)
            if kernel in found.recomputed:
                redone |= {node: i for node in kernel.outputs if node in self.dropped}
        moment = _UsesOfValue(found.numbers, uses, redone)
        choices = []
        for node, steps in uses.items():
            after = bisect_right(steps, step)
            if not after or after == len(steps) or steps[after - 1] == step:
                continue
            early, late = steps[after - 1], steps[after]
            if found.numbers[early] < found.numbers[late]:
                ways = (self._choice(node, recipe, early, late, moment) for recipe in self._recipes_of(node))
                choices += sorted((way for way in ways if way is not None), key=lambda one: -one.score)[:1]
        return choices

    def _choice(self, node: Node, recipe: Recomputation, early: int, late: int, moment: _UsesOfValue) -> _Choice | None:
        """The cost of dropping a value between two steps: its operands, and theirs, must be available again at the second."""
        number = moment.numbers[late]
        if not self._is_valid(recipe, number):
            return None
        choice = _Choice({node: (moment.numbers[early], recipe)}, nbytes(node), nbytes(node) * (late - early))
        stack, run = [recipe], set[Kernel]()
        while stack:
            recipe = stack.pop()
            source = recipe.original or recipe.kernel
            if source in run:
                continue
            run.add(source)
            choice.operands |= recipe.kernel.reads
            if not self._repeats(recipe):
                choice.cost += self._cost(source)
            for operand in recipe.kernel.reads:
                if operand in choice.cuts:
                    continue
                if operand in moment.redone:  # perhaps earlier than before
                    choice.area -= nbytes(operand) * max(0, moment.redone[operand] - late)
                elif moment.is_gone(operand, late):
                    last = moment.uses[operand][-1]
                    best = self._operand(operand, node, number)
                    if best is not None:
                        choice.cuts[operand] = moment.numbers[last], best
                        stack.append(best)
                    else:  # it stays alive
                        choice.saved -= nbytes(operand)
                        choice.area -= nbytes(operand) * (late - last)
        return choice if choice.saved > 0 and choice.area > 0 else None

    def _is_valid(self, recipe: Recomputation, number: int) -> bool:
        """Whether no operand has been overwritten before a kernel."""
        return all(self.overwritten.get(operand, number) >= number for operand in recipe.kernel.reads)

    def _repeats(self, recipe: Recomputation) -> bool:
        """Whether the kernel runs again anyway, for another of its results."""
        return recipe.original is not None and any(
            n in self.dropped and self.dropped[n][1].original is recipe.original for n in recipe.kernel.outputs
        )

    def _operand(self, operand: Node, node: Node, number: int) -> Recomputation | None:
        """How an operand that is gone is computed again; None if it should stay alive for this."""
        recipes = [recipe for recipe in self._recipes_of(operand) if self._is_valid(recipe, number)]
        if SMALL * nbytes(operand) <= nbytes(node):
            return None
        return min(recipes, key=lambda recipe: self._cost(recipe.original or recipe.kernel), default=None)

    def _cost(self, kernel: Kernel) -> float:
        if kernel not in self._costs:
            self._costs[kernel] = self.rules.cost(kernel)
        return self._costs[kernel]

    # --- recipes --------------------------------------------------------------------------------------------------------

    def _recipes_of(self, node: Node) -> list[Recomputation]:
        """The recipes by which a value can be recomputed."""
        if node not in self._recipes:
            found = []
            kernel = self.base[self.maker[node]]
            if self.rules.by_graph(kernel):
                loops = loops_of(node, self.in_memory)
                found += [] if loops is None else [Recomputation(loops, None)]
            if self._is_repeatable(kernel):
                found.append(Recomputation(kernel, kernel))
            self._recipes[node] = found
        return self._recipes[node]

    def _is_repeatable(self, kernel: Kernel) -> bool:
        """Whether a kernel can run twice: it replaces no state, communicates with no other process, and takes a known time."""
        anchor, rules = kernel.anchor, self.rules
        written = [*kernel.outputs, *([anchor] if anchor is not None else [])]
        if is_collective(kernel) or (anchor is not None and anchor.op.name == "while_loop"):
            return False
        return not any(n in rules.shared or n in rules.fixed or n in rules.persistent for n in written)


def loops_of(node: Node, stored: Collection[Node]) -> Kernel | None:
    """A kernel of loops that computes a node from stored ones, if it follows from them element by element."""
    below, stack = {node}, [node]
    while stack:
        one = stack.pop()
        if not is_inline(one) or len(below) > thresholds.fused_steps:
            return None
        new = [n for n in one.inputs if n not in below and n not in stored]
        below.update(new)
        stack += new
    place = fresh(node.shape)
    phase = LoopPhase((), stores=[Store(node, place)])
    kernel = Kernel(None, Nest(plain_loops(place), [phase]), outputs=[node])
    kernel.bodies = [phase_body(phase, stored, ())]
    kernel.reads = {step.node for step in kernel.bodies[0].steps if step.kind == "load"}
    return kernel


__all__ = ["Occurrences", "Rules", "loops_of", "rematerialize"]
