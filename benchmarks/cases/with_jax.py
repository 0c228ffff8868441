"""The contestants' work as JAX does it: jitted, parameters donated; inside networks images are channels last."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .measure import Ready
from .networks import Supply, Task
from .peers import need
from .with_weft import STEPS


class JaxOps:
    """The words of the networks. New statistics of batch norms are gathered, since nothing changes in place."""

    def __init__(self) -> None:
        jax = need("jax")
        self.jnp, self.lax, self.nn = jax.numpy, jax.lax, jax.nn
        self.statistics: list[Any] = []

    def conv(self, x: Any, w: Any, b: Any = None, stride: int = 1, padding: int = 0) -> Any:
        y = self.lax.conv_general_dilated(
            x, w, (stride, stride), [(padding, padding)] * 2, dimension_numbers=("NHWC", "OIHW", "NHWC")
        )
        return y if b is None else y + b

    def linear(self, x: Any, w: Any, b: Any) -> Any:
        return x @ w.T + b

    def relu(self, x: Any) -> Any:
        return self.nn.relu(x)

    def gelu(self, x: Any) -> Any:
        return self.nn.gelu(x, approximate=True)

    def add(self, x: Any, y: Any) -> Any:
        return x + y

    def max_pool(self, x: Any, size: int, stride: int, padding: int = 0) -> Any:
        pads = ((0, 0), (padding, padding), (padding, padding), (0, 0))
        return self.lax.reduce_window(x, -np.inf, self.lax.max, (1, size, size, 1), (1, stride, stride, 1), pads)

    def mean_pool(self, x: Any) -> Any:
        return x.mean((1, 2))

    def flatten(self, x: Any) -> Any:
        return x.transpose(0, 3, 1, 2).reshape(x.shape[0], -1)

    def batch_norm(self, x: Any, scale: Any, shift: Any, mean: Any, var: Any) -> Any:
        here, spread, count = x.mean((0, 1, 2)), x.var((0, 1, 2)), x.size // x.shape[3]
        self.statistics += [0.9 * mean + 0.1 * here, 0.9 * var + (0.1 * count / (count - 1)) * spread]
        return (x - here) * (scale * self.lax.rsqrt(spread + 1e-5)) + shift


def _last(x: Any) -> Any:
    return x.transpose(0, 2, 3, 1) if x.ndim == 4 else x


def _cross_entropy(logits: Any, y: Any) -> Any:
    jax = need("jax")
    picked = jax.numpy.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1)
    return -picked.mean()


class Trained:
    """A network with its parameters, and the step that trains it."""

    def __init__(self, task: Task, forward: Callable[..., Any] | None = None) -> None:
        jax = need("jax")
        self.start = task.fresh.parameters
        self.state = tuple(
            [jax.numpy.array(a) for a in some]
            for some in (self.start, [np.zeros_like(p) for p in self.start if task.momentum], task.fresh.statistics)
        )
        x, y = task.batch()
        self.x, self.y = jax.numpy.asarray(np.ascontiguousarray(_last(x))), jax.numpy.asarray(y)

        def loss(parameters: Any, statistics: Any, x: Any, y: Any) -> Any:
            ops = JaxOps()
            run = forward or (lambda supply, x: task.network(ops, supply, x))
            logits = run(Supply(parameters, statistics), x)
            return _cross_entropy(logits, y), ops.statistics

        def step(state: Any, x: Any, y: Any) -> Any:
            parameters, momenta, statistics = state
            (value, statistics), gradients = jax.value_and_grad(loss, has_aux=True)(parameters, statistics, x, y)
            if task.momentum:
                momenta = gradients = [task.momentum * m + g for m, g in zip(momenta, gradients, strict=True)]
            parameters = [p - task.rate * g for p, g in zip(parameters, gradients, strict=True)]
            return value, (parameters, momenta, statistics)

        self.step = jax.jit(step, donate_argnums=0)

    def call(self) -> Any:
        value, self.state = self.step(self.state, self.x, self.y)
        need("jax").block_until_ready(self.state)
        return value

    def compile(self) -> float:
        """The seconds it takes to trace and compile."""
        start = time.perf_counter()
        self.step.lower(self.state, self.x, self.y).compile()
        return time.perf_counter() - start

    def values(self) -> list[np.ndarray]:
        losses = [np.asarray(self.call()) for _ in range(STEPS)]
        changes = [np.asarray(p) - s for p, s in zip(self.state[0], self.start, strict=True)]
        return [np.stack(losses), *changes, *(np.asarray(s) for s in self.state[2])]


def training(task: Task, forward: Callable[..., Any] | None = None) -> Ready:
    made = Trained(task, forward)
    return Ready(made.call, made.values)


def inference(task: Task) -> Ready:
    jax = need("jax")
    parameters = [jax.numpy.array(p) for p in task.fresh.parameters]
    x = jax.numpy.asarray(np.ascontiguousarray(_last(task.batch()[0])))
    step = jax.jit(lambda parameters, x: task.network(JaxOps(), Supply(parameters), x))
    return Ready(lambda: step(parameters, x).block_until_ready(), lambda: [np.asarray(step(parameters, x))])


def function(f: Callable[..., Any], arrays: Sequence[np.ndarray]) -> Ready:
    """A function of arrays that gives a list of arrays, jitted."""
    jax = need("jax")
    compiled, inputs = jax.jit(f), [jax.numpy.asarray(a) for a in arrays]
    return Ready(lambda: jax.block_until_ready(compiled(*inputs)), lambda: [np.asarray(t) for t in compiled(*inputs)])


def lstm_forward(supply: Supply, x: Any) -> Any:
    """A layer of long short-term memory over (time, batch, features), and a classifier of its last output."""
    jax = need("jax")
    w_in, w_hidden, b_in, b_hidden = (supply.weight() for _ in range(4))
    w_out, b_out = supply.weight(), supply.weight()
    start = jax.numpy.zeros((x.shape[1], w_hidden.shape[1]), x.dtype)

    def cell(carry: Any, given: Any) -> Any:
        h, c = carry
        i, f, g, o = jax.numpy.split(given + h @ w_hidden.T, 4, axis=1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jax.numpy.tanh(g)
        return (jax.nn.sigmoid(o) * jax.numpy.tanh(c), c), None

    (h, _), _ = jax.lax.scan(cell, (start, start), x @ w_in.T + (b_in + b_hidden))
    return h @ w_out.T + b_out
