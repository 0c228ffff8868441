"""The key-value cache: its logits are those of the whole prefix computed anew, for every kind of position and attention; it is written in place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from weft import nn, text, zoo
from weft.errors import UserError
from weft.testing import counted
from weft.text.decoder import CachedDecoder
from weft.text.sampling import Sampler, Sampling

VOCABULARY, WIDTH = 50, 16
KINDS: dict[str, dict[str, Any]] = {
    "learned": {},
    "rotary": {"positions": "rotary"},
    "alibi": {"positions": "alibi"},
    "grouped": {"key_heads": 2},
    "window": {"window": 5},
    "all": {"positions": "rotary", "key_heads": 1, "window": 4},
}


def network(**settings: Any) -> Any:
    """With weights large enough that positions and neighbours matter."""
    weft.seed(1)
    model = zoo.gpt(VOCABULARY, context=32, features=32, heads=4, layers=2, **settings).eval()
    for tensor in model.named_parameters().values():
        tensor.assign(tensor * 4.0)
    return model


def laid_out(rows: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Prompts that end together, in a table with room, and the padding before each."""
    longest = max(map(len, rows))
    table, padding = np.zeros((len(rows), WIDTH), np.int32), np.array([longest - len(r) for r in rows], np.int32)
    for line, row, before in zip(table, rows, padding, strict=True):
        line[before:longest] = row
    return table, padding


CASES = [("learned", (9, 9)), *((kind, (9, 4)) for kind in KINDS)]
QUICK = ("learned", (9, 9)), ("all", (9, 4))


@pytest.mark.parametrize(
    ("kind", "lengths"), [pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow) for case in CASES]
)
def test_logits_are_those_of_the_whole_prefix(kind: str, lengths: tuple[int, int]) -> None:
    model, rng = network(**KINDS[kind]), np.random.default_rng(0)
    rows = [rng.integers(0, VOCABULARY, n).tolist() for n in lengths]
    padded = len(set(lengths)) > 1
    cache = model.new_cache(len(rows), 24, padded=padded)
    prefill = weft.jit(lambda x, n, p: model(x, cache=cache.begin(n, p if padded else None), last=n - 1))
    decode = weft.jit(lambda x: model(x, cache=cache.advance()))
    table, padding = laid_out(rows)
    logits = prefill(table, np.int32(max(lengths)), padding).numpy()[:, 0]
    for _ in range(8):
        for row, found in zip(rows, logits, strict=True):
            np.testing.assert_allclose(found, model([row]).numpy()[0, -1], rtol=2e-5, atol=2e-5)
            counted()
        tokens = logits.argmax(axis=1)
        for row, token in zip(rows, tokens.tolist(), strict=True):
            row.append(token)
        logits = decode(tokens[:, None].astype(np.int32)).numpy()[:, 0]
    assert cache.length.item() == max(lengths) + 8


@pytest.mark.sweep(share=0.3)
@pytest.mark.parametrize("kind", ["learned", "all", pytest.param("alibi", marks=pytest.mark.slow)])
def test_several_tokens_in_a_pass_and_some_forgotten(kind: str) -> None:
    """Of examples with padding; what is forgotten is written again."""
    model, rng = network(**KINDS[kind]), np.random.default_rng(0)
    rows = [rng.integers(0, VOCABULARY, n).tolist() for n in (20, 16)]
    table, padding = laid_out([row[:-14] for row in rows])
    cache = model.new_cache(2, 24, padded=True)
    model(table, cache=cache.begin(6, padding))

    @weft.jit
    def step(x: Any, forgotten: Any) -> Any:
        logits = model(x, cache=cache.advance(4))
        cache.rewind(forgotten)
        return logits

    at = 6
    for forgotten in (0, 3, 4, 1):
        found = step(
            np.array([row[at - before :][:4] for row, before in zip(rows, padding, strict=True)], np.int32), forgotten
        )
        for row, before, logits in zip(rows, padding, found.numpy(), strict=True):
            whole = model([row[: at - before + 4]]).numpy()[0, -4:]
            np.testing.assert_allclose(logits, whole, rtol=5e-5, atol=5e-5)
            counted()
        at += 4 - forgotten
        assert cache.length.item() == at


def decoder(batch: int = 2, capacity: int = 24, **settings: Any) -> CachedDecoder:
    how = Sampling(temperature=0)
    found = CachedDecoder(network(**settings), Sampler(how.kind, batch, VOCABULARY), capacity, padded=False)
    found.begin([[3, 1, 4, 1, 5]] * batch, how)
    return found


def test_a_step_writes_its_row_in_place() -> None:
    """The caches keep their memory, and no copy of a cache is among the kernels."""
    found = decoder()
    tokens = np.concatenate([found.advance(1) for _ in range(16)], axis=1).tolist()
    found.begin([[3, 1, 4, 1, 5]] * 2, Sampling(temperature=0))
    assert found.advance(16).tolist() == tokens  # however often they are read
    assert (found.filled, found.room) == (21, 3)
    found.begin([[3, 1, 4, 1, 5]] * 2, Sampling(temperature=0))
    states = [t for layer in found.cache.layers.values() for t in (layer.keys, layer.values)]
    found.advance(2)
    before, places = [np.array(t.numpy()) for t in states], [t.numpy().ctypes.data for t in states]
    found.advance(1)
    for state, old, place in zip(states, before, places, strict=True):
        now = state.numpy()
        assert now.ctypes.data == place
        changed = np.flatnonzero((now != old).any(axis=(0, 1, 3)))
        assert changed.tolist() == [found.filled - 1]
        counted()
    calls = found._decode._for((), {}).executable.program.calls
    phases = [call.phase for call in calls if call.phase is not None]
    assert sum(phase.symbol.startswith("update_slice") for phase in phases) == len(states) + 1  # the tokens, too
    assert not any(phase.copies for phase in phases)
    assert not any(call.kind == "copy" for call in calls)


def test_16_bits() -> None:
    """The cache has the dtype of the weights."""
    model = network(positions="rotary").astype("bfloat16")
    cache = model.new_cache(1, 8)
    assert cache.nbytes == 2 * 2 * 8 * 32 * 2
    found = model([[1, 2, 3]], cache=cache.begin(3)).numpy()[0, -1].astype(np.float32)
    wide = network(positions="rotary")([[1, 2, 3]]).numpy()[0, -1]
    assert np.abs(found - wide).max() < 0.05 * np.abs(wide).max()


def test_a_block_without_a_network() -> None:
    block = nn.TransformerBlock(8, 2, rotary=True).eval()
    x = weft.asarray(np.random.default_rng(0).normal(size=(1, 6, 8)).astype(np.float32))
    cache = nn.KVCache([block.attention], 1, 6)
    parts = [block(x[:, :4], cache=cache.begin(4)), *(block(x[:, i : i + 1], cache=cache.advance()) for i in (4, 5))]
    found = np.concatenate([part.numpy() for part in parts], axis=1)
    np.testing.assert_allclose(found, block(x).numpy(), rtol=1e-5, atol=1e-6)


def test_values_of_another_size_than_keys() -> None:
    layer = nn.MultiHeadAttention(8, 4, key_heads=2, head_size=6, value_size=3, rotary=True, window=3).eval()
    x = weft.asarray(np.random.default_rng(0).normal(size=(2, 6, 8)).astype(np.float32))
    cache = nn.KVCache([layer], 2, 6)
    assert cache.nbytes == 2 * 2 * 6 * (6 + 3) * 4
    parts = [layer(x[:, :4], cache=cache.begin(4)), *(layer(x[:, i : i + 1], cache=cache.advance()) for i in (4, 5))]
    found = np.concatenate([part.numpy() for part in parts], axis=1)
    np.testing.assert_allclose(found, layer(x, causal=True).numpy(), rtol=1e-5, atol=1e-6)


class Decoder(nn.Module):
    """Decoder layers that attend to one context."""

    def __init__(self, **options: Any) -> None:
        self.layers = [nn.TransformerDecoderLayer(8, 4, **options) for _ in range(2)]

    def forward(self, x: Any, context: Any = None, **options: Any) -> Any:
        for layer in self.layers:
            x = layer(x, context, **options)
        return x

    def new_cache(self, batch: int, capacity: int, context: int | None) -> nn.KVCache:
        cross = [layer.cross_attention for layer in self.layers] if context else []
        return nn.KVCache([layer.attention for layer in self.layers], batch, capacity, cross=cross, context=context)


@pytest.mark.parametrize("keeps_context", [True, False])
@pytest.mark.parametrize(
    "options", [{"rotary": True, "key_heads": 2}, {"alibi": True, "window": 3}, {"norm_first": False}], ids=str
)
def test_a_decoder_with_a_context(options: dict[str, Any], keeps_context: bool) -> None:
    """Its steps compute what the whole sequence does; keys and values of the context are kept, or computed from it again."""
    weft.seed(1)
    model, rng = Decoder(**options).eval(), np.random.default_rng(0)
    x, context = (rng.normal(size=(2, n, 8)).astype(np.float32) for n in (7, 5))
    lengths = np.array([5, 3])
    cache = model.new_cache(2, 8, 5 if keeps_context else None)
    given = () if keeps_context else (context,)
    begin = weft.jit(lambda x, c, n: model(x, c, context_lengths=n, cache=cache.begin(x.shape[1])))
    step = weft.jit(lambda x, n, *c: model(x, *c, context_lengths=n, cache=cache.advance()))
    for first in (4, 2):  # a second text with the same cache
        parts = [begin(x[:, :first], context, lengths)]
        parts += [step(x[:, i : i + 1], lengths, *given) for i in range(first, 7)]
        found = np.concatenate([part.numpy() for part in parts], axis=1)
        wanted = model(weft.asarray(x), weft.asarray(context), context_lengths=lengths).numpy()
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)
        context = context[:, ::-1].copy()
        given = () if keeps_context else (context,)
    kept = 2 * 2 * 2 * (8 + 5 * keeps_context) * 2 * options.get("key_heads", 4)  # layers, keys and values, examples
    assert cache.nbytes == 4 * kept


def test_errors_of_a_context() -> None:
    layer = nn.TransformerDecoderLayer(8, 2)
    x, context = weft.ones((1, 3, 8)), weft.ones((1, 5, 8))

    def cache() -> nn.KVCache:
        return nn.KVCache([layer.attention], 1, 8, cross=[layer.cross_attention], context=5)

    with pytest.raises(UserError, match="layers and rows of a context belong together, got 1 and None"):
        nn.KVCache([layer.attention], 1, 8, cross=[layer.cross_attention])
    with pytest.raises(UserError, match="the context of cross-attention is missing in the first pass"):
        layer(x, cache=cache().begin(3))
    with pytest.raises(UserError, match="is for the first pass only, which keeps it"):
        layer(x[:, :1], context, cache=cache().advance())
    with pytest.raises(UserError, match="1 contexts of 5 rows are required, got 1 of 3"):
        layer(x, x, cache=cache().begin(3))
    positions = nn.MultiHeadAttention(8, 2, rotary=True)
    with pytest.raises(UserError, match="a cache of a context knows no positions"):
        positions(x, context, cache=nn.KVCache([], 1, 8, cross=[positions], context=5).begin(3))


def test_on_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """A fake one, which runs the kernels under Triton's interpreter: the same tokens, a recorded graph a step, and one wait for several."""
    pytest.importorskip("triton")
    weft.seed(2)
    how, prompts = Sampling(temperature=0), [[1, 2, 3], [4, 5, 6]]
    model = zoo.gpt(11, context=16, features=16, heads=2, layers=1).eval().astype("bfloat16")
    wanted = text.generate(model, prompts, max_new_tokens=7, temperature=0)
    values = {name: np.array(tensor.numpy()) for name, tensor in model.named_tensors().items()}
    fake = pytest.importorskip("fake_gpu").install(monkeypatch)
    with weft.knobs.set(device="cuda", cache=str(tmp_path)):
        model = zoo.gpt(11, context=16, features=16, heads=2, layers=1).eval().load(values).astype("bfloat16")
        found = CachedDecoder(model, Sampler(how.kind, 2, 11), 16, padded=False)
        tokens = [found.begin(prompts, how), found.advance(2)]
        replayed, downloads = fake.replayed, fake.downloads
        tokens.append(found.advance(4))
        assert (fake.replayed - replayed, fake.downloads - downloads) == (4, 1)
        assert np.concatenate([prompts, *tokens], axis=1).tolist() == wanted


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [{"temperature": 0.9}, {"top_k": 4}, {"top_p": 0.7, "repetition_penalty": 1.4}, {"top_k": 6, "top_p": 0.8}],
    ids=str,
)
def test_sampling_on_a_gpu(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """The same tokens as on a CPU, for prompts of different lengths and beyond the context."""
    pytest.importorskip("triton")
    weft.seed(2)
    model, prompts = zoo.gpt(11, context=16, features=16, heads=2, layers=1), [[1, 2, 3], [4]]
    for tensor in model.named_parameters().values():
        tensor.assign(tensor * 4.0)
    wanted = text.generate(model, prompts, max_new_tokens=20, **settings)
    values = {name: np.array(tensor.numpy()) for name, tensor in model.named_tensors().items()}
    pytest.importorskip("fake_gpu").install(monkeypatch)
    with weft.knobs.set(device="cuda", cache=str(tmp_path)):
        model = zoo.gpt(11, context=16, features=16, heads=2, layers=1).load(values)
        assert text.generate(model, prompts, max_new_tokens=20, **settings) == wanted


# --- errors -----------------------------------------------------------------------------------------------------------------


def test_errors() -> None:
    model, other = network(), nn.MultiHeadAttention(8, 2)
    cache = model.new_cache(1, 8)
    x = weft.zeros((1, 3, 8))
    with pytest.raises(UserError, match="a capacity of up to 32 tokens is required, got 33"):
        model.new_cache(1, 33)
    with pytest.raises(UserError, match="padding is only for a cache with padded=True"):
        cache.begin(3, [0])
    with pytest.raises(UserError, match="padding is missing for a cache with padded=True"):
        model.new_cache(1, 8, padded=True).begin(3)
    with pytest.raises(UserError, match="one has no place in this cache"):
        other(x, cache=cache.begin(3))
    twice = nn.KVCache([other], 1, 8).begin(3)
    other(x, cache=twice)
    with pytest.raises(UserError, match="one is called twice"):
        other(x, cache=twice)
    with pytest.raises(UserError, match="up to 8 tokens of 1 examples are required, got 9 of 1"):
        model(np.zeros((1, 9), np.int32), cache=cache.begin(9))
    with pytest.raises(UserError, match="one token of 1 examples are required, got 2 of 1"):
        model(np.zeros((1, 2), np.int32), cache=cache.advance())
    with pytest.raises(
        UserError, match="a cache is for causal self-attention, without a mask, key lengths or a context"
    ):
        other(x, mask=weft.ones((3, 3), dtype="bool"), cache=nn.KVCache([other], 1, 8).begin(3))
    with pytest.raises(
        UserError, match="a cache is for causal self-attention, without a mask, key lengths or a context"
    ):
        other(x, key_lengths=[2], cache=nn.KVCache([other], 1, 8).begin(3))
    with pytest.raises(UserError, match="positions must be 'learned', 'rotary' or 'alibi', got 'none'"):
        zoo.gpt(5, positions="none")
