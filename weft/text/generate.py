"""Text generation: a language model continues prompts, token by token.

    text.generate(model, ["Once upon a time", "In the beginning"], tokenizer, temperature=0.8, top_k=50)
    for piece in text.stream(model, "Once upon a time", tokenizer): print(piece, end="", flush=True)

The steps are compiled once for a network, a number of prompts and a kind of sampling, and kept with the network: see decoder.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np

from ..errors import RunError, UserError
from ..nn.module import Module
from ..ops.convert import asarray
from ..ops.declare import whole
from ..random import Generator
from ..records import dataclass
from ..runtime import device as find_device
from ..tensor import Tensor
from .decoder import CachedDecoder, CachedNetwork, Decoder, RecurrentDecoder, WindowDecoder, padded_width
from .pieces import Stops, WrittenText, WrittenTokens
from .sampling import NOT_A_NUMBER, Sampler, Sampling
from .speculative import DraftModel, SpeculativeDecoder
from .tokenizer import Tokenizer

KEPT = 2  # decoders that stay with a network for the next texts


def generate(
    model: Module,
    prompt: Any,
    tokenizer: Tokenizer | None = None,
    *,
    max_new_tokens: int = 200,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    repetition_penalty: float = 1.0,
    stop: str | int | Iterable[str | int] = (),
    seed: int = 0,
    drop: int | None = None,
    draft: DraftModel | Module | None = None,
) -> Any:
    """A prompt and its continuation: of a text a text, of token ids a list of token ids. A list of prompts gives a list.

    Prompts of a list may differ in length; they are continued together. A `temperature` below 1 favours likely tokens, 0 is greedy
    decoding. `top_k`: only so many of the most likely tokens are sampled. `top_p`: only the most likely ones whose probabilities together
    reach it (nucleus sampling). A `repetition_penalty` above 1 makes tokens less likely that there were before. A text ends before a `stop`
    word, at a token id in `stop`, at the tokenizer's end of text, or after `max_new_tokens`. The same seed gives the same text.

    Where a network's context is full, its `drop` oldest tokens (half of the context by default) are forgotten at once; drop=1 is exactly the
    last tokens that fit, at the cost of reading all of them again for each new one.

    With a `draft`, a small network of the same vocabulary, or a `DraftModel`, tokens are drafted by it and checked by the model, several in a step
    (speculative decoding): greedily the same tokens, or samples of the same distribution, one text after the other.

    >>> from weft import text, zoo
    >>> model, letters = zoo.gpt(3, context=8, features=8, heads=2, layers=1), text.CharTokenizer("abc")
    >>> written = generate(model, "ab", letters, max_new_tokens=5)
    >>> len(written), written[:2]
    (7, 'ab')
    >>> [len(row) for row in generate(model, [[0, 1, 2], [2]], max_new_tokens=5, top_k=2)]
    [8, 6]
    """
    how = Sampling(temperature, top_k, top_p, repetition_penalty, seed)
    asked = _read_prompts(prompt, tokenizer)
    stops, limit = Stops(stop, tokenizer, asked.texts is not None), whole("generate", "max_new_tokens", max_new_tokens)
    found: list[Any] = [list(ids) for ids in asked.prompts] if asked.texts is None else list(asked.texts)
    drafted = _drafting(draft, model, how)
    window = _window(model, asked.prompts, tokenizer, limit, drop, drafted)
    for places in _together(model, asked.prompts) if drafted is None else ([i] for i in range(len(asked.prompts))):
        own = how if drafted is None else _of_place(how, places[0])
        for pieces in _written(model, asked.at(places), tokenizer, stops, own, limit, window, drafted):
            for i, piece in zip(places, pieces, strict=True):
                found[i] = found[i] + piece
    return found[0] if asked.is_single else found


def stream(
    model: Module,
    prompt: Any,
    tokenizer: Tokenizer | None = None,
    *,
    max_new_tokens: int = 200,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    repetition_penalty: float = 1.0,
    stop: str | int | Iterable[str | int] = (),
    seed: int = 0,
    drop: int | None = None,
    draft: DraftModel | Module | None = None,
) -> Iterator[Any]:
    """What `generate` puts after one prompt, piece by piece: texts, or token ids.

    >>> from weft import text, zoo
    >>> model, letters = zoo.gpt(3, context=8, features=8, heads=2, layers=1), text.CharTokenizer("abc")
    >>> "ab" + "".join(stream(model, "ab", letters, max_new_tokens=5)) == generate(model, "ab", letters, max_new_tokens=5)
    True
    """
    how = Sampling(temperature, top_k, top_p, repetition_penalty, seed)
    asked = _read_prompts(prompt, tokenizer)
    if not asked.is_single:
        count = len(asked.prompts)
        raise UserError("stream", f"one prompt is required, got a list of {count}. Use generate for several.")
    stops, limit = Stops(stop, tokenizer, asked.texts is not None), whole("generate", "max_new_tokens", max_new_tokens)
    drafted = _drafting(draft, model, how)
    window = _window(model, asked.prompts, tokenizer, limit, drop, drafted)

    def pieces() -> Iterator[Any]:
        for [piece] in _written(model, asked, tokenizer, stops, how, limit, window, drafted):
            if isinstance(piece, str):
                yield from [piece] if piece else []
            else:
                yield from piece

    return pieces()


# --- prompts ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Prompts:
    """The token ids of each prompt, their texts if they are texts, and whether there is just one that is not in a list."""

    prompts: Sequence[list[int]]
    texts: Sequence[str] | None
    is_single: bool

    def at(self, places: Sequence[int]) -> _Prompts:
        """Some of them."""
        texts = None if self.texts is None else [self.texts[i] for i in places]
        return _Prompts([self.prompts[i] for i in places], texts, self.is_single)


def _read_prompts(prompt: Any, tokenizer: Tokenizer | None) -> _Prompts:
    prompt = prompt.numpy() if isinstance(prompt, Tensor) else prompt
    prompt = prompt.tolist() if isinstance(prompt, np.ndarray) else prompt
    is_text = isinstance(prompt, str)
    if not is_text and not isinstance(prompt, Iterable):
        raise UserError("generate", f"a text or token ids are required, got {type(prompt).__name__}.")
    several = [prompt] if is_text else list(prompt)
    if not several:
        raise UserError("generate", "the prompt is empty. Give at least one token to continue from.")
    is_ids = all(isinstance(one, int | np.integer) for one in several)
    several = [several] if is_ids else several
    texts = [one for one in several if isinstance(one, str)]
    if texts and (tokenizer is None or len(texts) < len(several)):
        problem = "a tokenizer" if tokenizer is None else "all others to be texts, too"
        raise UserError("generate", f"a prompt that is a text requires {problem}.")
    return _Prompts([_ids(one, tokenizer) for one in several], texts or None, is_text or is_ids)


def _ids(prompt: Any, tokenizer: Tokenizer | None) -> list[int]:
    if isinstance(prompt, str) and tokenizer is not None:
        found = tokenizer.encode(prompt)
    else:
        found = np.asarray(prompt.numpy() if isinstance(prompt, Tensor) else prompt)
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        raise UserError("generate", f"a text or token ids are required, got {prompt!r}.")
    if not found.size:
        raise UserError("generate", "the prompt is empty. Give at least one token to continue from.")
    return [int(i) for i in found]


def _together(model: Module, prompts: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """The places of prompts that are continued together: of a recurrent network, those of one length."""
    if isinstance(model, CachedNetwork) or not isinstance(_outputs(model, prompts[0]), tuple):
        yield list(range(len(prompts)))
        return
    for length in sorted({len(p) for p in prompts}):
        yield [i for i, p in enumerate(prompts) if len(p) == length]


# --- the loop ---------------------------------------------------------------------------------------------------------------


def _written(
    model: Module,
    asked: _Prompts,
    tokenizer: Tokenizer | None,
    stops: Stops,
    how: Sampling,
    limit: int,
    window: _Window,
    draft: DraftModel | None,
) -> Iterator[list[Any]]:
    """For every step, the piece that each prompt gets."""
    texts: list[WrittenText | WrittenTokens] = [
        WrittenTokens(stops) if tokenizer is None or asked.texts is None else WrittenText(tokenizer, ids, stops)
        for ids in asked.prompts
    ]
    with _evaluating(model), nullcontext() if draft is None else _evaluating(draft.model):
        for tokens in _tokens(model, asked.prompts, how, limit, window, draft):
            yield [text.add(token) for text, token in zip(texts, tokens, strict=True)]
            if all(text.has_ended for text in texts):
                return
    yield [text.end() for text in texts]


def _tokens(
    model: Module,
    prompts: Sequence[Sequence[int]],
    how: Sampling,
    limit: int,
    window: _Window,
    draft: DraftModel | None,
) -> Iterator[list[int]]:
    """The tokens of every step, without end but for the limit."""
    rows = [list(prompt) for prompt in prompts]
    with _decoder(model, rows, how, limit, window, draft) as decoder:
        steps, left = 1, limit
        while left:
            if left == limit:
                found = decoder.begin([window.of(row) for row in rows], how)
            elif decoder.room == 0:
                found = decoder.read([window.of(row) for row in rows])
            else:
                steps = decoder.at_once(steps)
                found = decoder.advance(min(steps, left, decoder.room or left))
            left -= found.shape[1]
            if (found == NOT_A_NUMBER).any():
                which = "the network returns" if draft is None else "the network or its draft returns"
                raise RunError("generate", f"{which} nan. Check its training: the loss may have become nan too.")
            for tokens in found.T.tolist():
                for row, token in zip(rows, tokens, strict=True):
                    row.append(token)
                yield tokens


class _Window:
    """Which tokens a network sees: all of them until its context is full, then the oldest are dropped, some at once."""

    def __init__(self, vocabulary: int, context: int | None, drop: int | None) -> None:
        self.vocabulary, self.context = vocabulary, context
        self.drop = max(1, (context or 2) // 2) if drop is None else whole("generate", "drop", drop, least=1)
        if context is not None and self.drop > context:
            raise UserError("generate", f"drop must be at most the context of {context} tokens, got {drop}.")

    def of(self, row: list[int]) -> list[int]:
        over = 0 if self.context is None else max(0, len(row) - self.context)
        return row[-(-over // self.drop) * self.drop :]


# --- networks -----------------------------------------------------------------------------------------------------------------


def _window(
    model: Module,
    prompts: Sequence[Sequence[int]],
    tokenizer: Tokenizer | None,
    limit: int,
    drop: int | None,
    draft: DraftModel | None,
) -> _Window:
    """What the networks see, and whether they fit the prompts."""
    vocabulary, context = _sizes(model, prompts, tokenizer)
    if draft is not None:
        _check_draft(draft, vocabulary, min(context or 0, max(map(len, prompts)) + limit))
    return _Window(vocabulary, context, drop)


def _sizes(model: Module, prompts: Sequence[Sequence[int]], tokenizer: Tokenizer | None) -> tuple[int, int | None]:
    """The vocabulary of a network, and how many tokens it can see; None: any number."""
    outputs = _outputs(model, prompts[0])
    logits = outputs[0] if isinstance(outputs, tuple) else outputs
    known = logits.shape[-1] if tokenizer is None else len(tokenizer.vocabulary)
    if logits.ndim != 3 or logits.shape[-1] != known:
        raise UserError(
            "generate",
            f"logits (batch, time, {known}), one for each token of the vocabulary, are required, got shape {logits.shape}.",
        )
    wrong = [token for prompt in prompts for token in prompt if not 0 <= token < known]
    if wrong:
        raise UserError("generate", f"token ids from 0 to {known - 1} are required, got {wrong[0]}.")
    if isinstance(outputs, tuple):
        return known, None
    context = getattr(model, "context", None)
    if not isinstance(context, int):
        raise UserError("generate", f"{type(model).__name__} returns no state, so it requires an attribute `context`.")
    return known, context


def _outputs(model: Module, prompt: Sequence[int]) -> Any:
    """What a network returns, for its shape: nothing is computed, and no random number is drawn."""
    with _evaluating(model):
        return model(asarray(np.array([prompt[:1]], np.int32)))


@contextmanager
def _evaluating(model: Module) -> Iterator[None]:
    """Evaluation mode inside; afterwards every module has its previous mode."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in before:
            module.training = mode


class _KeptDecoders(list[tuple[Any, Decoder]]):
    """Decoders that a network keeps, under what they are for. A copy of the network has none."""

    def __deepcopy__(self, memo: Any) -> _KeptDecoders:
        return _KeptDecoders()


@contextmanager
def _decoder(
    model: Module,
    rows: Sequence[Sequence[int]],
    how: Sampling,
    limit: int,
    window: _Window,
    draft: DraftModel | None,
) -> Iterator[Decoder]:
    """A decoder that no other thread uses. It is kept afterwards, unless an error has left it in an unknown state."""
    kept = vars(model).setdefault("_decoders", _KeptDecoders())
    ragged = len({len(window.of(list(row))) for row in rows}) > 1
    needed = max(map(len, rows)) + limit
    key = (len(rows), ragged, how.kind, find_device().name)
    found = next((one for one in kept if one[0] == key and _can_serve(one[1], model, needed, window, draft)), None)
    if found is not None:
        kept.remove(found)
        decoder = found[1]
        if isinstance(decoder, SpeculativeDecoder) and draft is not None:
            decoder.draft = draft  # which counts
    else:
        decoder = _new_decoder(model, Sampler(how.kind, len(rows), window.vocabulary), needed, window, ragged, draft)
    try:
        yield decoder
    except GeneratorExit:  # the caller stopped reading
        _keep(kept, key, decoder)
        raise
    _keep(kept, key, decoder)


def _keep(kept: _KeptDecoders, key: Any, decoder: Decoder) -> None:
    kept.append((key, decoder))
    del kept[:-KEPT]


def _can_serve(decoder: Decoder, model: Module, needed: int, window: _Window, draft: DraftModel | None) -> bool:
    if not isinstance(decoder, CachedDecoder):
        return True
    before = decoder.draft if isinstance(decoder, SpeculativeDecoder) else None
    if (before and (before.model, before.tokens)) != (draft and (draft.model, draft.tokens)):
        return False
    return decoder.is_of(model) and decoder.cache.capacity >= min(needed, window.context or needed)


def _new_decoder(
    model: Module, sampler: Sampler, needed: int, window: _Window, ragged: bool, draft: DraftModel | None
) -> Decoder:
    if window.context is None:
        return RecurrentDecoder(model, sampler)
    if not isinstance(model, CachedNetwork):
        return WindowDecoder(model, sampler, window.context)
    capacity = min(window.context, padded_width(needed))
    if draft is None:
        return CachedDecoder(model, sampler, capacity, ragged)
    return SpeculativeDecoder(model, draft, sampler, min(capacity, draft.model.context))


# --- speculative decoding -----------------------------------------------------------------------------------------------------


def _drafting(draft: DraftModel | Module | None, model: Module, how: Sampling) -> DraftModel | None:
    if draft is None:
        return None
    if not isinstance(draft, DraftModel | Module):
        raise UserError("generate", f"draft must be a network or a text.DraftModel, got {type(draft).__name__}.")
    if not isinstance(model, CachedNetwork):
        raise UserError(
            "generate",
            f"a draft is for a network with a key-value cache (new_cache), got {type(model).__name__}. Leave draft out.",
        )
    if how.repetition_penalty != 1.0:
        raise UserError("generate", "repetition_penalty and draft cannot be combined. Leave one of them out.")
    return draft if isinstance(draft, DraftModel) else DraftModel(draft)


def _check_draft(draft: DraftModel, vocabulary: int, needed: int) -> None:
    tokens = _outputs(draft.model, [0]).shape[-1]
    if tokens != vocabulary:
        raise UserError(
            "generate", f"a draft with the same vocabulary of {vocabulary} tokens is required, got {tokens}."
        )
    if draft.model.context < needed:
        raise UserError(
            "generate", f"a draft with a context of {needed} tokens or more is required, got {draft.model.context}."
        )


def _of_place(how: Sampling, place: int) -> Sampling:
    """Texts that are continued one after the other draw numbers of their own."""
    return how if place == 0 else replace(how, seed=int(Generator(how.seed).fork(place).key.item()))
