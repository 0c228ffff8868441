"""The optimizer: parameter groups, a chain of transforms per group, and the update step.

In a compiled step the optimizer is part of the program:

    optimizer = optim.adam(model, rate=1e-3, clip_norm=1.0)

    @weft.jit
    def step(x, y):
        loss = weft.cross_entropy(model(x), y)
        optimizer.minimize(loss)
        return loss
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import reduce
from typing import Any

from ..control import cond
from ..derivatives import gradients
from ..dtypes import float32, int64
from ..errors import Scope, UserError, in_scope
from ..mesh.parts import Part, part_of
from ..ops.collective import all_reduce
from ..ops.convert import asarray
from ..ops.creation import zeros
from ..ops.elementwise import stop_gradient, where
from ..ops.math import logical_and
from ..precision import LossScale, all_finite
from ..random import default_generator
from ..tensor import Tensor, as_tensor
from .accumulation import GradientTree
from .clip import Along, Total, clip_norm, clip_value, squared_norm
from .common import Common
from .sharing import Alone, Local, Replicated, Sharded, sharing
from .transform import State, Transform, wide

Rate = (
    float | Callable[[Tensor], Any]
)  # a number, or a schedule: a function from the number of completed steps (0, 1, ...) to a learning rate
Chain = Callable[..., Sequence[Transform]]

COLLECTED = "collected."  # prefix of the names of gradients that wait for an update
_UPDATE = Scope(phase="update")


class Group:
    """A parameter group: parameters, their settings, and their chain of transforms with its state."""

    def __init__(
        self, chain: Chain, parameters: Sequence[Tensor], rate: Rate, settings: Mapping[str, Any], share: Alone
    ) -> None:
        self.parameters, self.rate, self.settings, self.share = list(parameters), rate, dict(settings), share
        self.chain = list(chain(**settings))
        self.states: list[list[State]] = [[t.start(share.state_of(p)) for p in self.parameters] for t in self.chain]

    def updates(self, gs: Sequence[Tensor], which: Sequence[int], done: Tensor, scale: Tensor) -> Sequence[Tensor]:
        """The updates of the parameters `which`, given their gradients."""
        ps = [self.share.state_of(_plain(self.parameters[i])) for i in which]
        for transform, states in zip(self.chain, self.states, strict=True):
            gs = transform.apply_all(gs, ps, [states[i] for i in which], done + 1)
        if self.chain and self.chain[-1].rated:
            return [g * scale.astype(g.dtype) for g in gs]
        rate = self.rate(done) if callable(self.rate) else self.rate
        return [g * (as_tensor(rate, g.dtype).astype(g.dtype) * scale.astype(g.dtype)) for g in gs]


class Optimizer:
    """Updates parameters by their gradients. Created by the functions of `weft.optim`."""

    def __init__(self, name: str, groups: Sequence[Group], common: Common, share: Alone) -> None:
        self.name, self.groups, self.common, self.share = name, list(groups), common, share
        for group in groups:
            share.check(name, group.chain)
        self.parameters = [p for group in groups for p in group.parameters]
        _check(name, self.parameters)
        _check_parts(name, groups)
        self.steps = zeros((), dtype=int64).realize()  # completed steps
        self.scale = asarray(
            1.0, dtype=float32
        ).realize()  # multiplies the learning rate; it can be changed without recompilation
        self.calls = zeros((), dtype=int64).realize()  # calls since the last update, if gradients are accumulated
        self.collected = GradientTree(self.parameters, common.accumulate)
        self.averages = [_copy(p) for p in self.parameters] if common.average else []

    def __repr__(self) -> str:
        lines = [f"{len(g.parameters)} parameters, rate {g.rate}, {g.settings}" for g in self.groups]
        return f"{self.name}({'; '.join(lines)})"

    # --- steps ----------------------------------------------------------------------------------------------------------

    def minimize(self, loss: Tensor, scale: LossScale | None = None) -> None:
        """Differentiate the loss and update the parameters. With a loss scale, an update with overflowing gradients is skipped."""
        which = self._trained()
        parameters = [self.parameters[i] for i in which]
        differentiate = gradients if scale is None else scale.unscaled_gradients
        self._step(differentiate(loss, parameters), which, scale)

    def agreed(self, flag: Tensor) -> Tensor:
        """Whether a condition holds in all processes that have parts of these parameters, or that average their gradients."""
        for axis in dict.fromkeys(part.axis for p in self.parameters if (part := part_of(p)) is not None):
            flag = all_reduce(flag.astype("int32"), axis, "min") > 0
        return self.share.agreed(flag)

    @contextmanager
    def in_micro_batch(self) -> Iterator[None]:
        """Inside, a batch is one of several whose gradients are averaged: it draws random numbers of its own.

        Those of the n-th batch of a step are the same whether one process accumulates all batches, or each process has some.
        """
        accumulate = self.common.accumulate
        if accumulate * self.share.processes == 1:
            yield
            return
        number = self.share.rank * accumulate + self.calls
        with default_generator.substream(number, self.calls + 1 >= accumulate):
            yield

    @property
    def statistics_axis(self) -> str | None:
        """The axis of the processes that train one network in step, and share its running statistics."""
        return self.common.axis if isinstance(self.share, Replicated) else None

    def step(self, given: Sequence[Tensor] | None = None) -> None:
        """Update the parameters by these gradients, or by their `.grad`, which is then cleared."""
        gs = self._from_grad() if given is None else list(given)
        if len(gs) != len(self.parameters):
            raise UserError(self.name, f"{len(self.parameters)} gradients are required, got {len(gs)}.")
        which = self._trained()
        self._step([gs[i] for i in which], which)

    def _trained(self) -> list[int]:
        """The indices of the parameters that are not frozen; frozen parameters and their state are unchanged."""
        found = [i for i, p in enumerate(self.parameters) if p.requires_grad]
        if not found:
            raise UserError(self.name, "all parameters are frozen: there is nothing to train.")
        return found

    def _step(self, gs: Sequence[Tensor], which: Sequence[int], scale: LossScale | None = None) -> None:
        with in_scope(_UPDATE):
            self._update([self._fitting(g, self.parameters[i]) for g, i in zip(gs, which, strict=True)], which, scale)

    def _update(self, gs: Sequence[Tensor], which: Sequence[int], scale: LossScale | None) -> None:
        """Update the parameters, or collect gradients for the update; if any of those of an update overflowed, it is skipped as a whole."""
        full: Tensor | None = None
        if self.common.accumulate > 1:
            full = self.calls + 1 >= self.common.accumulate
            gs = self.collected.add(gs, which, self.calls)  # an overflow is infinite or nan in the sums, too
        conditions = [] if full is None else [full]
        if scale is not None:
            finite = self._all_finite(gs, full)
            gs = [where(finite, g, 0.0) for g in gs]
            conditions.append(finite)
            scale.update(finite, full)
        kept = {id(t) for t in (self.calls, *self.collected.named_tensors().values())}
        changed = [t for t in self.tensors() if id(t) not in kept]
        with assigning_if(reduce(logical_and, conditions), changed) if conditions else nullcontext():
            self._move(gs, which, full)
        if full is not None:
            self.calls.assign(where(full, 0, self.calls + 1))

    def _all_finite(self, gs: Sequence[Tensor], full: Tensor | None) -> Tensor:
        """Whether gradients are finite, in all processes; they communicate only at the last call of several."""
        finite = all_finite(gs)
        return self.agreed(finite) if full is None else cond(full, self.agreed, lambda flag: flag, finite)

    def _fitting(self, g: Any, p: Tensor) -> Tensor:
        """A gradient in the update's dtype, detached: the state must not keep its graph alive."""
        g = as_tensor(g)
        if g.shape != p.shape:
            raise UserError(self.name, f"a gradient of shape {p.shape} is required, got {g.shape}.")
        return stop_gradient(g).astype(wide(p.dtype))

    def _from_grad(self) -> list[Tensor]:
        if all(p.grad is None for p in self.parameters):
            raise UserError(self.name, "no parameter has a gradient. Call loss.backward() first, or minimize(loss).")
        found = [zeros(p.shape, dtype=p.dtype) if p.grad is None else p.grad for p in self.parameters]
        for p in self.parameters:
            p.grad = None
        return found

    def _move(self, gs: Sequence[Tensor], which: Sequence[int], full: Tensor | None = None) -> None:
        """Update the parameters by the sums of the gradients of all calls and processes; nothing is sent unless it is `full`."""
        gs = self._means(gs, full)
        if self.common.clip_norm is not None:
            gs = clip_norm(gs, self.common.clip_norm, self._parts(which), *self._sums_of_squares(full))
        self._apply(gs, which, full)

    def _means(self, gs: Sequence[Tensor], full: Tensor | None) -> Sequence[Tensor]:
        """The means of gradients over all calls and processes, of the parts of parameters that this process updates."""
        batches = self.common.accumulate * self.share.size
        sums = self._sums(gs, full)
        gs = [g / float(batches) for g in sums] if batches > 1 else sums
        return gs if self.common.clip_value is None else clip_value(gs, self.common.clip_value)

    def _apply(self, gs: Sequence[Tensor], which: Sequence[int], full: Tensor | None) -> None:
        """Update the parameters by means of gradients."""
        done, first, given = as_tensor(self.steps), 0, dict(zip(which, gs, strict=True))
        for group in self.groups:
            mine = [i for i in range(len(group.parameters)) if first + i in given]
            updates = group.updates([given[first + i] for i in mine], mine, done, self.scale) if mine else ()
            parameters = [group.parameters[i] for i in mine]
            moved = [self.share.state_of(_plain(p)) - update for p, update in zip(parameters, updates, strict=True)]
            for p, new in zip(parameters, self._gathered(moved, parameters, full), strict=True):
                p.assign(new.astype(p.dtype))
            first += len(group.parameters)
        self.steps.assign(done + 1)
        for average, p in zip(self.averages, self.parameters, strict=False):
            keep = self.common.average or 0.0
            average.assign(average * keep + _plain(p) * (1.0 - keep))
        self.average_ranks([t for t in self._trained_tensors(which) if t.dtype.is_float])

    def _trained_tensors(self, which: Sequence[int]) -> list[Tensor]:
        """What an update of these parameters changes: they, their state and their averages."""
        trained = {id(self.parameters[i]) for i in which}
        state = self.named_state()
        owned = [state[name] for name, p in self.state_parameters().items() if id(p) in trained and not name.startswith(COLLECTED)]  # fmt: skip
        return [*(self.parameters[i] for i in which), *owned]

    # --- local SGD: processes that train by themselves between two averages ------------------------------------------------------------

    def average_ranks(self, tensors: Sequence[Tensor]) -> None:
        """Average tensors over processes that train by themselves, if that is due after this step: then all of them have the same state."""
        if isinstance(self.share, Local):
            self._assign_means(tensors, self.share.averaged(list(map(_plain, tensors)), as_tensor(self.steps)))

    def synchronize(self, tensors: Sequence[Tensor] = ()) -> None:
        """Average the state of such processes, and more tensors, now: at the end of an epoch, for example. A collective call."""
        if isinstance(self.share, Local) and not self.in_step:
            own = [t for t in self._trained_tensors(self._trained()) if t.dtype.is_float]
            self._assign_means([*own, *tensors], self.share.means([_plain(t) for t in (*own, *tensors)]))

    @property
    def in_step(self) -> bool:
        """Whether all processes have the same state, so that one of them can write a checkpoint."""
        return not isinstance(self.share, Local) or int(self.steps.item()) % self.share.every == 0

    @staticmethod
    def _assign_means(tensors: Sequence[Tensor], means: Sequence[Tensor]) -> None:
        for tensor, mean in zip(tensors, means, strict=True):
            tensor.assign(mean.astype(tensor.dtype))

    def _sums(self, gs: Sequence[Tensor], full: Tensor | None) -> Sequence[Tensor]:
        """The sums of gradients over all processes, if the last call of several is done."""
        if full is None or self.share.size == 1:
            return self.share.sums(gs)
        found: Sequence[Tensor] = cond(
            full, lambda *gs: tuple(self.share.sums(gs)), lambda *gs: tuple(map(self.share.state_of, gs)), *gs
        )
        return found

    def _gathered(self, moved: Sequence[Tensor], parameters: Sequence[Tensor], full: Tensor | None) -> Sequence[Tensor]:
        """New values of whole parameters, if the last call of several is done; else the old ones."""
        if full is None or not moved or not isinstance(self.share, Sharded):
            return self.share.whole(moved, parameters)
        found: Sequence[Tensor] = cond(
            full, lambda *new: tuple(self.share.whole(new, parameters)), lambda *new: tuple(map(_plain, parameters)), *moved
        )  # fmt: skip
        return found

    def _sums_of_squares(self, full: Tensor | None) -> tuple[Total, Along]:
        """How squares are summed over processes, if the last call of several is done."""
        if full is None:
            return self.share.total, all_reduce

        def total(x: Tensor) -> Tensor:
            return cond(full, self.share.total, lambda x: x, x) if isinstance(self.share, Sharded) else x

        def along(x: Tensor, axis: str) -> Tensor:
            return cond(full, lambda x: all_reduce(x, axis), lambda x: x, x)  # type: ignore[no-any-return]

        return total, along

    def _parts(self, which: Sequence[int]) -> list[Part | None]:
        return [part_of(self.parameters[i]) for i in which]

    # --- in two halves: for processes that have different parameters, such as the stages of a pipeline -------------------------------

    def means(self, gs: Sequence[Tensor]) -> list[Tensor]:
        """The first half of `step`: the means of gradients over the processes, of the parts of parameters that this process updates."""
        with in_scope(_UPDATE):
            return list(self._means([self._fitting(g, p) for g, p in zip(gs, self.parameters, strict=True)], None))

    def squares(self, means: Sequence[Tensor], counted: Sequence[int]) -> Tensor:
        """The sum of the squares of the means of some parameters, by their numbers: of whole parameters."""
        return squared_norm([means[i] for i in counted], self._parts(counted), self.share.total)

    def apply_means(self, means: Sequence[Tensor]) -> None:
        """The second half of `step`, without gradient clipping by norm."""
        which = self._trained()
        with in_scope(_UPDATE):
            self._apply([means[i] for i in which], which, None)

    def average_along(self, axis: str) -> None:
        """Average gradients over the processes along an axis of the mesh from now on, as if it had been created with axis=."""
        if self.common.axis not in (None, axis):
            raise UserError(self.name, f"gradients are averaged along {self.common.axis!r} already, got {axis!r}.")
        if self.common.axis is None:
            self.common, self.share = replace(self.common, axis=axis), sharing(axis, 0, 1)
            for group in self.groups:
                group.share = self.share

    # --- around steps -----------------------------------------------------------------------------------------------------

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Inside, the parameters have the values of their moving averages."""
        if not self.averages:
            raise UserError(self.name, "no averages are kept. Pass average=0.999 when you create the optimizer.")
        before = [_copy(p) for p in self.parameters]
        for p, average in zip(self.parameters, self.averages, strict=True):
            p.assign(average.astype(p.dtype))
        try:
            yield
        finally:
            for p, old in zip(self.parameters, before, strict=True):
                p.assign(old.astype(p.dtype))

    def rates(self) -> list[float]:
        """The learning rate of each group at the next step."""
        scale = self.scale.item()
        return [
            float(as_tensor(g.rate(self.steps.detach()) if callable(g.rate) else g.rate).item()) * scale
            for g in self.groups
        ]

    def named_state(self) -> dict[str, Tensor]:
        """The optimizer's state by name, to save and to restore with `load`."""
        found = {"steps": self.steps, "scale": self.scale, "calls": self.calls}
        for number, i, j, name in self._places():
            found[f"{number}.{i}.{j}.{name}"] = self.groups[number].states[i][j][name]
        found |= {f"{COLLECTED}{name}": t for name, t in self.collected.named_tensors().items()}
        return found | {f"average.{i}": t for i, t in enumerate(self.averages)}

    def whole_state(self) -> dict[str, Tensor]:
        """The same, of whole parameters if processes share it (zero=1, 2): a collective call."""
        found = self.named_state() | {
            name: self.share.gathered(state, p) for name, (state, p) in self._shared_state().items()
        }
        if self.calls.item() == 0:  # between two updates nothing is collected
            found = {name: t for name, t in found.items() if not name.startswith(COLLECTED)}
        return found

    def local_state(self, whole: Mapping[str, Any]) -> dict[str, Any]:
        """What this process keeps of the state of whole parameters."""
        shared = self._shared_state()
        return {
            name: self.share.local(as_tensor(value), shared[name][1]) if name in shared else value
            for name, value in whole.items()
        }

    def _shared_state(self) -> dict[str, tuple[Tensor, Tensor]]:
        """The state that belongs to parameters, by name, with its parameter."""
        return {
            f"{n}.{i}.{j}.{name}": (self.groups[n].states[i][j][name], self.groups[n].parameters[j])
            for n, i, j, name in self._places()
        }

    def _places(self) -> list[tuple[int, int, int, str]]:
        return [
            (n, i, j, name)
            for n, group in enumerate(self.groups)
            for i, states in enumerate(group.states)
            for j, state in enumerate(states)
            for name in state
        ]

    def state_parameters(self) -> dict[str, Tensor]:
        """The parameter that each tensor of the state belongs to, by the names of `named_state`."""
        found = {f"{n}.{i}.{j}.{name}": self.groups[n].parameters[j] for n, i, j, name in self._places()}
        found |= {
            f"{COLLECTED}{n}.{i}": p for n in range(len(self.collected.levels)) for i, p in enumerate(self.parameters)
        }
        found |= {f"average.{i}": p for i, p in enumerate(self.parameters) if self.averages}
        return found

    def load(self, values: Mapping[str, Any]) -> None:
        """Restore a state returned by `named_state`; all names and shapes must match."""
        own = self.named_state()
        missing, extra = [n for n in own if n not in values], [n for n in values if n not in own]
        wrong = [n for n in own if n in values and as_tensor(values[n]).shape != own[n].shape]
        if missing or extra or wrong:
            raise UserError(
                self.name,
                f"this is another optimizer's state. Missing: {missing}, extra: {extra}, other shapes: {wrong}.",
            )
        for name, tensor in own.items():
            tensor.assign(as_tensor(values[name]).astype(tensor.dtype))

    def tensors(self) -> list[Tensor]:
        """All tensors that a step may change."""
        return [*self.parameters, *self.named_state().values()]


@contextmanager
def assigning_if(condition: Tensor, tensors: Sequence[Tensor]) -> Iterator[None]:
    """Assignments to the tensors inside take effect only if the condition is true; else the old values are restored."""
    before = [
        stop_gradient(t) for t in tensors
    ]  # not detach(): it would read the current value while a function is traced
    yield
    for t, old in zip(tensors, before, strict=True):
        t.assign(where(condition, stop_gradient(t), old))


def _plain(p: Tensor) -> Tensor:
    """A parameter without its graph, in the dtype of updates."""
    return stop_gradient(p).astype(wide(p.dtype))


def _copy(p: Tensor) -> Tensor:
    return asarray(_plain(p), copy=True).realize()


def _check(name: str, parameters: Sequence[Any]) -> None:
    if not parameters:
        raise UserError(name, "there are no parameters to train.")
    for p in parameters:
        if not isinstance(p, Tensor) or not p.requires_grad:
            raise UserError(name, f"parameters are required (weft.parameter, or unfreeze()), got {p!r}.")
    if len(set(map(id, parameters))) < len(parameters):
        raise UserError(name, "a parameter is given twice.")


def _check_parts(name: str, groups: Sequence[Group]) -> None:
    """Raise an error if whole tensors are needed and some are split between processes."""
    for group in groups:
        if any(not t.elementwise for t in group.chain) and any(part_of(p) for p in group.parameters):
            raise UserError(
                name,
                "it needs whole tensors, got parameters that are split between processes. Use an elementwise one, such as adam.",
            )
