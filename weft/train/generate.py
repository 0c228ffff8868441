"""Text generation: characters are sampled one by one from the network's predictions.

    train.generate(model, text, "ROMEO:", 500, temperature=0.8)

A recurrent network keeps its state, so a character costs one step. A network with a context window, such as a GPT, is given the
last characters again for each new one.
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
from ..ops.elementwise import where
from ..ops.indexing import take
from ..ops.movement import reshape
from ..ops.reduce import argmax, cumulative_sum
from ..ops.sorting import top_k
from ..ops.statistics import softmax
from ..random import Generator
from ..tensor import Tensor
from ..tracing.jit import jit

Draw = Callable[[Tensor], Tensor]  # from the logits of the next character to its index
_COLDEST = 1e-30  # smaller probabilities may be 0 in single precision


def generate(
    model: Module,
    text: Text,
    prompt: str,
    length: int = 500,
    *,
    temperature: float = 1.0,
    top: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
) -> str:
    """The prompt followed by `length` generated characters; `text` has the vocabulary.

    A `temperature` below 1 favours likely characters, 0 is greedy decoding. `top` is top-k sampling: only the k most likely
    characters are sampled. `top_p` is nucleus sampling: only the most likely ones whose probabilities together reach it. The same
    seed gives the same text.

    >>> from weft import zoo
    >>> text = Text(np.array([0, 1, 2, 1, 0], np.int32), "abc", length=2)
    >>> written = generate(zoo.char_lstm(3, 4, layers=1), text, "ab", 5)
    >>> len(written), written[:2]
    (7, 'ab')
    """
    found = generated(model, text, prompt, length, temperature=temperature, top=top, top_p=top_p, seed=seed)
    return prompt + "".join(found)


def generated(
    model: Module,
    text: Text,
    prompt: str,
    length: int = 500,
    *,
    temperature: float = 1.0,
    top: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
) -> Iterator[str]:
    """The characters that `generate` puts after the prompt, one by one as they are sampled.

    >>> from weft import zoo
    >>> text = Text(np.array([0, 1, 2, 1, 0], np.int32), "abc", length=2)
    >>> network = zoo.char_lstm(3, 4, layers=1)
    >>> "ab" + "".join(generated(network, text, "ab", 5)) == generate(network, text, "ab", 5)
    True
    """
    _check(prompt, length, temperature, top, top_p)
    ids, stream = text.encode(prompt), Generator(seed)

    def draw(logits: Tensor) -> Tensor:
        return _drawn(logits, temperature, top, top_p, stream)

    def characters() -> Iterator[str]:
        with _in_use(model):
            signs = _signs(model, draw, ids, len(text.vocabulary))
            yield from (text.vocabulary[sign] for sign in islice(signs, length))

    return characters()


def _check(prompt: str, length: int, temperature: float, top: int | None, top_p: float | None) -> None:
    if not prompt:
        raise UserError("generate", "the prompt is empty. Give at least one character to continue from.")
    whole("generate", "length", length)
    if not 0 <= temperature < math.inf:
        raise UserError("generate", f"temperature must be 0 or more, got {temperature}.")
    if top is not None:
        whole("generate", "number of characters to sample from", top, least=1)
    if top_p is not None and not 0 < top_p <= 1:
        raise UserError("generate", f"top_p must be above 0 and at most 1, got {top_p}.")


@contextmanager
def _in_use(model: Module) -> Iterator[None]:
    """Evaluation mode inside; afterwards every module has its previous mode."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in before:
            module.training = mode


# --- sampling -------------------------------------------------------------------------------------------------------------


def _signs(model: Module, draw: Draw, ids: np.ndarray, vocabulary: int) -> Iterator[int]:
    """The indices of the characters that follow, without end."""
    found = model(asarray(ids[None, :1]))  # traced for its shape: nothing is computed
    logits = found[0] if isinstance(found, tuple) else found
    if logits.ndim != 3 or logits.shape[-1] != vocabulary:
        raise UserError(
            "generate",
            f"logits (batch, time, {vocabulary}), one for each character of the vocabulary, are required, got shape {logits.shape}.",
        )
    if isinstance(found, tuple):
        return _carried(model, draw, ids)
    context = getattr(model, "context", None)
    if not isinstance(context, int):
        raise UserError("generate", f"{type(model).__name__} returns no state, so it requires an attribute `context`.")
    return _windows(model, draw, ids, context)


def _carried(model: Module, draw: Draw, ids: np.ndarray) -> Iterator[int]:
    """Sampling from a network that returns (logits, state): first the prompt, then one character at a time."""

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
    """Sampling from a network that returns only logits: it gets the last characters in a window of a fixed size.

    They are at the start of the window; what follows does not matter, since such a network is causal.
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
        raise RunError("generate", "the network returns nan. Check its training: the loss may have become nan too.")


def _drawn(logits: Tensor, temperature: float, top: int | None, top_p: float | None, stream: Generator) -> Tensor:
    """Sample an index from the softmax of the logits divided by the temperature."""
    if temperature == 0:
        return argmax(logits)
    places, count = None, logits.shape[0]
    if (top is not None and top < count) or top_p is not None:
        logits, places = top_k(logits, min(top or count, count))
    colder = (logits - logits.max()).astype("float32") / max(temperature, _COLDEST)
    shares = softmax(colder)
    sums = cumulative_sum(shares)
    total = sums[-1]
    if top_p is not None:  # they are sorted: the nucleus is a beginning, the one that reaches top_p included
        total = where(sums - shares < top_p * total, shares, 0.0).sum()
    chosen = (sums <= stream.uniform() * total).astype("int64").sum()
    return chosen if places is None else take(places, chosen)
