"""Speculative decoding: greedily the tokens of the large network alone, sampled its distribution, whatever the draft network is."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2

import weft
from weft import nn, text, zoo
from weft.errors import RunError, UserError
from weft.testing import counted
from weft.text.decoder import CachedDecoder
from weft.text.sampling import Sampler, Sampling
from weft.text.speculative import SpeculativeDecoder

VOCABULARY, CONTEXT = 4, 24


def network(seed: int, features: int = 16, scale: float = 6.0, **settings: Any) -> Any:
    """With weights large enough to expect other tokens after other tokens."""
    weft.seed(seed)
    given = {"context": CONTEXT, "heads": 4, "layers": 2, **settings}
    model = zoo.gpt(given.pop("vocabulary", VOCABULARY), features=features, **given).eval()
    for tensor in model.named_parameters().values():
        tensor.assign(tensor * scale)
    return model


# --- greedy ---------------------------------------------------------------------------------------------------------------------

KINDS: dict[str, dict[str, Any]] = {
    "learned": {},
    "rotary, grouped": {"positions": "rotary", "key_heads": 2},
    "alibi, window": {"positions": "alibi", "window": 5},
}


@pytest.mark.sweep(share=0.3)
@pytest.mark.parametrize("kind", KINDS)
def test_greedy_tokens_are_those_of_the_network_alone(kind: str) -> None:
    """Of prompts that fill the context, with texts beyond it, and however many tokens are asked for."""
    model, similar = network(1, **KINDS[kind]), network(1, **KINDS[kind])
    similar.blocks[1].feed_forward.second.weight.assign(similar.blocks[1].feed_forward.second.weight * 0.5)
    prompts = [[1, 2, 3], [0] * 9, [3, 1] * 11]
    rejected = []
    for other in (network(2, 8), similar):
        for tokens in (1, 4):
            draft = text.DraftModel(other, tokens=tokens)
            for length in (0, 2, 7, 40):
                found = text.generate(model, prompts, max_new_tokens=length, temperature=0, draft=draft)
                assert found == text.generate(model, prompts, max_new_tokens=length, temperature=0)
                counted()
            assert draft.accepted > 0
            rejected.append(draft.tokens * draft.steps - draft.accepted)
    assert max(rejected) > 0


def test_a_perfect_draft_is_accepted() -> None:
    model = network(1)
    for tokens in (1, 3):
        draft = text.DraftModel(model, tokens=tokens)
        text.generate(model, [1, 2], max_new_tokens=1 + 2 * (tokens + 1), temperature=0, draft=draft)
        assert (draft.steps, draft.accepted, draft.accepted_per_step) == (2, 2 * tokens, tokens)
        draft = text.DraftModel(model, tokens=tokens)
        text.generate(model, [1, 2], max_new_tokens=1 + 2 * (tokens + 1), seed=3, draft=draft)
        assert draft.accepted_per_step == tokens  # min(1, p / q) is 1


def test_both_caches_hold_what_was_accepted() -> None:
    """After rejected tokens, their next logits are those of the whole text."""
    model, other, how = network(1), network(2, 8), Sampling(temperature=0)
    decoder = SpeculativeDecoder(model, text.DraftModel(other, tokens=3), Sampler(how.kind, 1, VOCABULARY), CONTEXT)
    row = [2, 0, 1]
    row += decoder.begin([row], how)[0].tolist()
    for _ in range(4):
        row += decoder.advance(4)[0].tolist()
        assert decoder.cache.length.item() == decoder.draft_cache.length.item() == decoder.filled == len(row) - 1
        for net, cache in ((model, decoder.cache), (other, decoder.draft_cache)):
            found = net([row[-1:]], cache=cache.advance()).numpy()[0, 0]
            cache.rewind(1)
            np.testing.assert_allclose(found, net([row]).numpy()[0, -1], rtol=1e-4, atol=1e-4)
            counted()
    assert 0 < decoder.draft.accepted < 3 * decoder.draft.steps


def test_steps_write_in_place_and_prepare_weights_once() -> None:
    """A step of the large network writes its rows of the cache, copies nothing, and finds its weights packed."""
    how = Sampling(temperature=0)
    draft = text.DraftModel(network(2, 8), tokens=3)
    decoder = SpeculativeDecoder(network(1, 64), draft, Sampler(how.kind, 1, VOCABULARY), CONTEXT)
    decoder.begin([[1, 2]], how)
    decoder.advance(4)
    check = decoder._check._for((decoder.drafted, decoder.draft_shares), {}).executable
    assert check.facts.kept > 0
    prepared = [check._status[2]]
    for _ in range(2):
        decoder.advance(4)
        prepared.append(check._status[2])
    assert prepared == [1, 0, 0]
    phases = [call.phase for call in check.program.calls if call.phase is not None]
    assert (
        sum(phase.symbol.startswith("update_slice") for phase in phases) == 2 * 2 * 4
    )  # layers, keys and values, tokens
    assert not any(phase.copies for phase in phases)


# --- sampled --------------------------------------------------------------------------------------------------------------------

COUNT = 700
SMALL: dict[str, Any] = {"scale": 3.0, "layers": 1, "heads": 2}
SAMPLED: dict[str, dict[str, Any]] = {
    "colder": {"temperature": 0.8},
    "the likeliest three": {"top_k": 3},
    "the nucleus": {"top_p": 0.8, "temperature": 1.5},
}


def shares(model: Any, row: list[int], temperature: float = 1.0, top_k: int = VOCABULARY, top_p: float = 1.0) -> Any:
    """The distribution of the next token, in NumPy."""
    logits = model([row]).numpy()[0, -1].astype(np.float64)
    order = np.argsort(-logits, kind="stable")[:top_k]
    found = np.exp((logits[order] - logits.max()) / temperature)
    found /= found.sum()
    found = np.where(np.cumsum(found) - found < top_p, found, 0.0)
    result = np.zeros(VOCABULARY)
    result[order] = found / found.sum()
    return result


@pytest.mark.sweep(share=0.3)
@pytest.mark.parametrize(
    ("name", "tokens"),
    [("colder", 1), ("the likeliest three", 2), ("the nucleus", 2), pytest.param("colder", 2, marks=pytest.mark.slow)],
)
def test_the_distribution_is_that_of_the_network_alone(name: str, tokens: int) -> None:
    """Of three tokens: one from the prompt, then drafted ones that are accepted or replaced, then one behind accepted ones."""
    settings, prompt = SAMPLED[name], [1, 2]
    model, other = network(5, **SMALL), network(6, 8, **SMALL)
    draft = text.DraftModel(other, tokens=tokens)
    found = text.generate(model, [prompt] * COUNT, max_new_tokens=3, draft=draft, seed=1, **settings)
    counts: dict[tuple[int, ...], int] = dict.fromkeys(itertools.product(range(VOCABULARY), repeat=3), 0)
    for row in found:
        counts[tuple(row[2:])] += 1
    share_of = functools.cache(lambda row: shares(model, list(row), **settings))
    statistic, freedom = 0.0, -1
    for three, count in counts.items():
        expected = float(COUNT)
        for i in range(3):
            expected *= share_of((*prompt, *three[:i]))[three[i]]
        if expected == 0.0:
            assert count == 0, three
        else:
            statistic, freedom = statistic + (count - expected) ** 2 / expected, freedom + 1
    assert statistic < chi2.ppf(0.999, freedom)
    assert 0.2 * tokens < draft.accepted_per_step < 0.9 * tokens  # both are frequent: accepting and replacing
    counted()


def test_tokens_are_accepted_as_often_as_the_distributions_overlap() -> None:
    model, other, prompt = network(5, **SMALL), network(6, 8, **SMALL), [1, 2]
    first = shares(model, prompt)
    overlap = sum(
        first[t] * np.minimum(shares(model, [*prompt, t]), shares(other, [*prompt, t])).sum() for t in range(VOCABULARY)
    )
    draft = text.DraftModel(other, tokens=1)
    text.generate(model, [prompt] * COUNT, max_new_tokens=2, draft=draft, seed=2)
    assert draft.steps == COUNT
    assert abs(draft.accepted_per_step - overlap) < 4 * np.sqrt(overlap * (1 - overlap) / COUNT)


def test_the_same_seed_gives_the_same_text() -> None:
    model, other = network(5), network(6, 8)
    prompts = [[1, 2]] * 3
    found = text.generate(model, prompts, max_new_tokens=20, draft=other, seed=4)
    assert text.generate(model, prompts, max_new_tokens=20, draft=other, seed=4) == found
    assert len({tuple(row) for row in found}) == 3
    assert list(text.stream(model, [1, 2], max_new_tokens=20, draft=other, seed=4)) == found[0][2:]
    assert text.generate(model, prompts, max_new_tokens=20, draft=other, seed=5) != found


# --- with text, on a GPU, and what is refused -------------------------------------------------------------------------------------


def test_texts_and_stop_words() -> None:
    model, other, letters = network(1), network(2, 8), text.CharTokenizer("abcd")
    whole = text.generate(model, "ab", letters, max_new_tokens=30, temperature=0)
    stop = whole[9:12]
    found = text.generate(model, "ab", letters, max_new_tokens=30, temperature=0, draft=other, stop=stop)
    assert found == whole[: whole.index(stop, 2)]
    modes = [other.train(), model.train()]
    pieces = text.stream(model, "ab", letters, max_new_tokens=30, temperature=0, draft=other)
    assert "ab" + next(pieces) + "".join(pieces) == whole
    assert all(part.training for net in modes for part in net.modules())


def test_decoders_are_kept_for_the_next_text() -> None:
    model, first, second = network(1), network(2, 8), network(3, 8)
    for draft in (first, first, second):
        text.generate(model, [1, 2], max_new_tokens=5, draft=draft)
    kept = [one[1] for one in model._decoders]
    assert [one.draft.model for one in kept] == [first, second]
    text.generate(model, [1, 2], max_new_tokens=5)
    assert type(model._decoders[-1][1]) is CachedDecoder
    second.astype("bfloat16")
    assert not kept[1].is_of(model)


def test_on_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """A fake one, which runs the kernels under Triton's interpreter."""
    pytest.importorskip("triton")
    sizes = {"layers": 1, "heads": 2, "context": 16}
    nets = [network(1, **sizes), network(2, 8, **sizes)]
    wanted = [
        text.generate(nets[0], [1, 2], max_new_tokens=6, draft=text.DraftModel(nets[1], 2), **how)
        for how in ({"temperature": 0}, {"top_k": 3})
    ]
    values = [{name: np.array(t.numpy()) for name, t in net.named_tensors().items()} for net in nets]
    pytest.importorskip("fake_gpu").install(monkeypatch)
    with weft.knobs.set(device="cuda", cache=str(tmp_path)):
        model, other = (network(i, f, **sizes).load(v) for i, f, v in zip((1, 2), (16, 8), values, strict=True))
        for how, expected in zip(({"temperature": 0}, {"top_k": 3}), wanted, strict=True):
            assert text.generate(model, [1, 2], max_new_tokens=6, draft=text.DraftModel(other, 2), **how) == expected


class Uncached(nn.Module):
    context = CONTEXT

    def forward(self, x: weft.Tensor) -> weft.Tensor:
        return weft.zeros((*x.shape, VOCABULARY))


def test_errors() -> None:
    model, other = network(1), network(2, 8)
    wrong: list[tuple[Any, dict[str, Any], str]] = [
        (
            model,
            {"draft": network(2, 8, vocabulary=5)},
            "a draft with the same vocabulary of 4 tokens is required, got 5",
        ),
        (model, {"draft": network(2, 8, context=6)}, "a draft with a context of 7 tokens or more is required, got 6"),
        (model, {"draft": other, "repetition_penalty": 1.1}, "repetition_penalty and draft cannot be combined"),
        (model, {"draft": "small"}, "draft must be a network or a text.DraftModel, got str"),
        (model, {"draft": Uncached()}, r"a network with a key-value cache \(new_cache\) is required, got Uncached"),
        (
            Uncached(),
            {"draft": other},
            "a draft is for a network with a key-value cache.* got Uncached. Leave draft out",
        ),
    ]
    for net, settings, message in wrong:
        with pytest.raises(UserError, match=message):
            text.generate(net, [1, 2], max_new_tokens=5, **settings)
    with pytest.raises(UserError, match="the number of tokens must be an int of 1 or more, got 0"):
        text.DraftModel(other, tokens=0)
    other.tokens.weight.assign(other.tokens.weight * np.nan)
    for how in ({"temperature": 0}, {}):
        with pytest.raises(RunError, match="the network or its draft returns nan"):
            text.generate(model, [1, 2], max_new_tokens=5, draft=other, **how)
