"""A network that has learned a text writes on: sign after sign, each drawn from what the network expects.

    train.generate(model, text, "ROMEO:", 500, temperature=0.8)

A recurrent network carries its state on, so that a sign costs one step. A network that sees a window of signs, such as a
GPT, is given the last of them again for each sign.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np

from ..data import Text
from ..errors import RunError, UserError
from ..nn.module import Module
from ..ops.convert import asarray
from ..ops.declare import whole
from ..ops.indexing import take
from ..ops.movement import reshape
from ..ops.reduce import argmax, cumulative_sum
from ..ops.sorting import top_k
from ..ops.statistics import softmax
from ..random import Generator
from ..tensor import Tensor
from ..tracing.jit import jit

Draw = Callable[[Tensor], Tensor]  # from the logits of the next sign to its number
_COLDEST = 1e-30  # what is below may be 0 in single precision


def generate(
    model: Module,
    text: Text,
    prompt: str,
    length: int = 500,
    *,
    temperature: float = 1.0,
    top: int | None = None,
    seed: int = 0,
) -> str:
    """The prompt and `length` signs that go on from it; `text` says which number is which sign.

    A `temperature` below 1 keeps to what is likely, 0 takes the most likely sign each time. With `top`, only so many of the most
    likely signs are drawn from. The same seed writes the same text.

    >>> from weft import zoo
    >>> text = Text(np.array([0, 1, 2, 1, 0], np.int32), "abc", length=2)
    >>> written = generate(zoo.char_lstm(3, 4, layers=1), text, "ab", 5)
    >>> len(written), written[:2]
    (7, 'ab')
    """
    _check(prompt, length, temperature, top)
    ids, stream = text.encode(prompt), Generator(seed)

    def draw(logits: Tensor) -> Tensor:
        return _drawn(logits, temperature, top, stream)

    with _in_use(model):
        signs = _signs(model, draw, ids, len(text.vocabulary))
        return prompt + text.decode(list(islice(signs, length)))


def _check(prompt: str, length: int, temperature: float, top: int | None) -> None:
    if not prompt:
        raise UserError("generate", "the prompt is empty. Give it at least one character to go on from.")
    whole("generate", "length", length)
    if not 0 <= temperature < math.inf:
        raise UserError("generate", f"temperature must be 0 or more, got {temperature}.")
    if top is not None:
        whole("generate", "number of signs to draw from", top, least=1)


@contextmanager
def _in_use(model: Module) -> Iterator[None]:
    """Inside, nothing of the network is random; then every part has the mode that it had."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in before:
            module.training = mode


# --- writing --------------------------------------------------------------------------------------------------------------


def _signs(model: Module, draw: Draw, ids: np.ndarray, vocabulary: int) -> Iterator[int]:
    """The numbers of the signs that follow, without end."""
    found = model(asarray(ids[None, :1]))  # only looked at from outside: nothing is computed
    logits = found[0] if isinstance(found, tuple) else found
    if logits.ndim != 3 or logits.shape[-1] != vocabulary:
        raise UserError(
            "generate",
            f"logits (batch, time, {vocabulary}), one for each sign of the text, are required, got shape {logits.shape}.",
        )
    if isinstance(found, tuple):
        return _carried(model, draw, ids)
    context = getattr(model, "context", None)
    if not isinstance(context, int):
        raise UserError(
            "generate", f"{type(model).__name__} gives no state to go on from, so it needs an attribute `context`."
        )
    return _windows(model, draw, ids, context)


def _carried(model: Module, draw: Draw, ids: np.ndarray) -> Iterator[int]:
    """By a network that gives (logits, state): the prompt goes through it once, then one sign at a time."""

    def begin(prompt: Tensor) -> tuple[Tensor, Any]:
        logits, state = model(prompt)
        return logits[0, -1], state

    @jit
    def step(logits: Tensor, state: Any) -> tuple[Tensor, Tensor, Any]:
        sign = draw(logits)
        following, state = model(reshape(sign, (1, 1)), state)
        return sign, following[0, -1], state

    logits, state = jit(begin)(asarray(ids[None]))
    while True:
        _stop_if_bad(logits)
        sign, logits, state = step(logits, state)
        yield int(sign.item())


def _windows(model: Module, draw: Draw, ids: np.ndarray, context: int) -> Iterator[int]:
    """By a network that gives logits alone: it sees the last signs, always in a window of the same size.

    Signs are at its beginning and what is behind them does not matter, since such a network looks back only.
    """

    @jit
    def step(window: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        logits = take(model(window)[0], last, axis=0)
        return draw(logits), logits

    seen = ids[-context:].tolist()
    while True:
        window = np.zeros((1, context), ids.dtype)
        window[0, : len(seen)] = seen
        sign, logits = step(asarray(window), asarray(len(seen) - 1))
        _stop_if_bad(logits)
        seen = [*seen, int(sign.item())][-context:]
        yield seen[-1]


def _stop_if_bad(logits: Tensor) -> None:
    if np.isnan(logits.numpy()).any():
        raise RunError("generate", "the network gives nan. Look at its training: the loss may have become nan as well.")


def _drawn(logits: Tensor, temperature: float, top: int | None, stream: Generator) -> Tensor:
    """A number, as likely as the softmax of the logits over the temperature says."""
    if temperature == 0:
        return argmax(logits)
    places = None
    if top is not None and top < logits.shape[0]:
        logits, places = top_k(logits, top)
    colder = (logits - logits.max()).astype("float32") / max(temperature, _COLDEST)
    sums = cumulative_sum(softmax(colder))
    chosen = (sums <= stream.uniform() * sums[-1]).astype("int64").sum()
    return chosen if places is None else take(places, chosen)
