"""The contestants' work on a GPU as JAX does it: jitted, parameters donated, images channels last, mixed precision by casts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from cases import with_jax
from cases.networks import Supply, Task
from cases.peers import need
from gpu_measure import Contestant


def settle(tf32: bool) -> None:
    need("jax").config.update("jax_default_matmul_precision", "tensorfloat32" if tf32 else "highest")


class _Ops(with_jax.JaxOps):
    """The words of the networks, where the type of the filters is that of the images; batch norms count in float32."""

    def conv(self, x: Any, w: Any, b: Any = None, stride: int = 1, padding: int = 0) -> Any:
        return super().conv(x, w, b if b is None else b.astype(x.dtype), stride, padding)

    def linear(self, x: Any, w: Any, b: Any) -> Any:
        return super().linear(x, w, b.astype(x.dtype))

    def batch_norm(self, x: Any, *rest: Any) -> Any:
        return super().batch_norm(x.astype("float32"), *rest).astype(x.dtype)


def _cast(tensors: Sequence[Any], dtype: str | None) -> list[Any]:
    """Images, filters and matrices in the type of the products; scales and shifts of norms stay in float32."""
    return [t if dtype is None or t.ndim == 1 else t.astype(dtype) for t in tensors]


class Trained:
    """A network with its parameters, and the step that trains it."""

    def __init__(self, task: Task, precision: str | None = None) -> None:
        jax = need("jax")
        self.start = task.fresh.parameters
        self.state = tuple(
            [jax.numpy.array(a) for a in some]
            for some in (self.start, [np.zeros_like(p) for p in self.start], task.fresh.statistics)
        )
        x, y = task.batch()
        self.x, self.y = jax.numpy.asarray(np.ascontiguousarray(with_jax._last(x))), jax.numpy.asarray(y)

        def loss(parameters: Any, statistics: Any, x: Any, y: Any) -> Any:
            ops = _Ops()
            [given] = _cast([x], precision)
            logits = task.network(ops, Supply(_cast(parameters, precision), statistics), given)
            return with_jax._cross_entropy(logits.astype("float32"), y), ops.statistics

        def step(state: Any, x: Any, y: Any) -> Any:
            parameters, momenta, statistics = state
            (value, statistics), gradients = jax.value_and_grad(loss, has_aux=True)(parameters, statistics, x, y)
            momenta = [task.momentum * m + g for m, g in zip(momenta, gradients, strict=True)]
            parameters = [p - task.rate * m for p, m in zip(parameters, momenta, strict=True)]
            return value, (parameters, momenta, statistics)

        self.step = jax.jit(step, donate_argnums=0)

    def call(self) -> Any:
        value, self.state = self.step(self.state, self.x, self.y)
        return value

    def wait(self) -> None:
        need("jax").block_until_ready(self.state)

    def values(self) -> list[np.ndarray]:
        first = np.asarray(self.call())
        changes = [(np.asarray(p) - s).reshape(-1) for p, s in zip(self.state[0], self.start, strict=True)]
        return [np.stack([first, np.asarray(self.call())]), np.concatenate(changes)]


def training(task: Task, precision: str | None = None) -> Contestant:
    made = Trained(task, precision)
    return Contestant(made.call, made.wait, made.values)


def inference(task: Task, precision: str | None = None) -> Contestant:
    jax = need("jax")
    parameters = _cast([jax.numpy.asarray(p) for p in task.fresh.parameters], precision)
    [x] = _cast([jax.numpy.asarray(np.ascontiguousarray(with_jax._last(task.batch()[0])))], precision)
    step = jax.jit(lambda parameters, x: task.network(_Ops(), Supply(parameters), x))
    return _waited(lambda: step(parameters, x), lambda y: y)


def tensor(pattern: np.ndarray, shape: Sequence[int], dtype: str) -> Any:
    """A tensor of the shape, filled with the pattern over and over."""
    jnp = need("jax").numpy
    size = int(np.prod(shape))
    return jnp.tile(jnp.asarray(pattern).astype(dtype), -(-size // pattern.size))[:size].reshape(tuple(shape))


def function(f: Callable[..., Any], inputs: Sequence[Any], look: Callable[[Any], Any]) -> Contestant:
    """A function of tensors that gives one, jitted."""
    compiled = need("jax").jit(f)
    return _waited(lambda: compiled(*inputs), look)


def _waited(work: Callable[[], Any], look: Callable[[Any], Any]) -> Contestant:
    last: list[Any] = [None]

    def call() -> Any:
        last[0] = work()
        return last[0]

    return Contestant(
        call, lambda: need("jax").block_until_ready(last[0]), lambda: [np.asarray(look(work()), np.float32)]
    )
