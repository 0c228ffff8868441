"""Attention, positions and transformer layers against a plain float64 writing of their formulas: loops over heads and places."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.special import erf

import weft
from weft import knobs, nn
from weft.dtypes import bfloat16, float16, float32, float64
from weft.nn.positions import alibi_slopes
from weft.testing import check_grads, checks_run, close, counted

BATCH, TIME, KEYS, FEATURES, HEADS = 2, 3, 5, 8, 4


def randoms(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def spread(module: Any, seed: int = 1) -> Any:
    """The module in float64, with parameters that are nowhere 0 or 1."""
    rng = np.random.default_rng(seed)
    module.astype(float64)
    return module.load({n: 0.5 * rng.normal(size=t.shape) for n, t in module.named_tensors().items()})


def values_of(module: Any) -> dict[str, np.ndarray]:
    return {n: t.numpy().astype(np.float64) for n, t in module.named_tensors().items()}


# --- the formulas, in NumPy ------------------------------------------------------------------------------------------------


def linear(w: dict[str, np.ndarray], path: str, x: np.ndarray) -> np.ndarray:
    return x @ w[f"{path}.weight"].T + w.get(f"{path}.bias", 0.0)


def turned(x: np.ndarray, position: int) -> np.ndarray:
    """One vector turned by its position: pairs (i, i + half) are complex numbers."""
    half = len(x) // 2
    z = (x[:half] + 1j * x[half:]) * np.exp(1j * position * 10000.0 ** (-np.arange(half) / half))
    return np.concatenate([z.real, z.imag])


def attended(w: dict[str, np.ndarray], path: str, x: np.ndarray, context: np.ndarray, **options: Any) -> np.ndarray:
    """Multi-head attention, one query of one head after the other."""
    heads, key_heads = options.get("heads", HEADS), options.get("key_heads", options.get("heads", HEADS))
    mask = np.broadcast_to(options.get("mask", True), (len(x), heads, x.shape[1], context.shape[1]))
    q, k, v = (linear(w, path + name, t) for name, t in (("query", x), ("key", context), ("value", context)))
    width, values = k.shape[2] // key_heads, v.shape[2] // key_heads
    lengths = options.get("key_lengths", [context.shape[1]] * len(x))
    joined = np.zeros((*x.shape[:2], heads * values))
    for b, h, i in np.ndindex(len(x), heads, x.shape[1]):
        own, shared = slice(h * width, (h + 1) * width), h // (heads // key_heads)
        theirs = slice(shared * width, (shared + 1) * width)
        position = i if context is x or options.get("causal") == "upper_left" else i + lengths[b] - x.shape[1]
        scores = np.full(context.shape[1], -np.inf)
        for j in range(lengths[b]):
            a, c, added = q[b, i, own], k[b, j, theirs], mask[b, h, i, j]
            if added is np.False_ or added == -np.inf or (options.get("causal") and j > position):
                continue
            if j <= position - options.get("window", np.inf):
                continue
            if options.get("rotary"):
                a, c = turned(a, position), turned(c, j)
            scores[j] = a @ c / math.sqrt(width) + (0.0 if mask.dtype == bool else added)
            scores[j] -= alibi_slopes(heads)[h] * abs(position - j) if options.get("alibi") else 0.0
        if np.isfinite(scores).any():
            weights = np.exp(scores - scores.max())
            joined[b, i, h * values : (h + 1) * values] = (
                weights / weights.sum() @ v[b, :, shared * values : (shared + 1) * values]
            )
    return linear(w, path + "output", joined)


def normed(w: dict[str, np.ndarray], path: str, x: np.ndarray) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * w[f"{path}.scale"] + w[f"{path}.shift"]


def fed(w: dict[str, np.ndarray], x: np.ndarray, activation: str) -> np.ndarray:
    y = linear(w, "feed_forward.first", x)
    y = 0.5 * y * (1.0 + erf(y / math.sqrt(2.0))) if activation == "gelu" else np.maximum(y, 0.0)
    return linear(w, "feed_forward.second", y)


# --- attention -------------------------------------------------------------------------------------------------------------

LOOSE = np.random.default_rng(7).random((BATCH, HEADS, TIME, KEYS)) < 0.6
LOOSE[0, 0, 0] = False  # a query that may look at nothing
ADDED = np.where(LOOSE, randoms(BATCH, HEADS, TIME, KEYS, seed=8), -np.inf)
SELF = LOOSE[..., :TIME]
CASES: dict[str, dict[str, Any]] = {
    "itself": {},
    "causal": {"causal": True},
    "no bias": {"bias": False},
    "grouped": {"key_heads": 2, "causal": True},
    "one key head": {"key_heads": 1, "context": True},
    "context": {"context": True},
    "context, causal": {"context": True, "causal": True},
    "rotary": {"rotary": True},
    "rotary, causal, context": {"rotary": True, "causal": True, "context": True},
    "alibi": {"alibi": True},
    "alibi, causal, context": {"alibi": True, "causal": True, "context": True},
    "mask of pairs": {"mask": SELF[0, 1]},
    "mask of batches": {"mask": LOOSE[:, 0], "context": True},
    "mask of lengths": {"mask": (np.arange(KEYS) < np.array([[4], [2]]))[:, None], "context": True},
    "mask of heads": {"mask": LOOSE, "context": True},
    "mask, causal": {"mask": SELF, "causal": True},
    "added": {"mask": ADDED, "context": True},
    "added, causal": {"mask": ADDED[..., :TIME], "causal": True},
    "added, alibi": {"mask": ADDED, "context": True, "alibi": True},
    "rotary, upper left": {"rotary": True, "causal": "upper_left", "context": True},
    "lengths": {"key_lengths": [3, 1]},
    "lengths, causal": {"key_lengths": [2, 3], "causal": True},
    "lengths, alibi, window": {"key_lengths": [1, 3], "alibi": True, "window": 2},
    "lengths, rotary": {"key_lengths": [1, 3], "rotary": True, "causal": True},
    "lengths of a context": {"key_lengths": [4, 2], "context": True},
    "lengths, causal, context": {"key_lengths": [5, 2], "context": True, "causal": True},
    "lengths, alibi, window, context": {"key_lengths": [4, 2], "context": True, "alibi": True, "window": 2},
    "lengths, rotary, context": {"key_lengths": [4, 1], "context": True, "rotary": True},
    "lengths, upper left": {"key_lengths": [4, 1], "context": True, "rotary": True, "causal": "upper_left"},
    "lengths, mask": {"key_lengths": [4, 2], "context": True, "mask": LOOSE},
    "no keys": {"key_lengths": [0, 5], "context": True},
    "wide heads": {"head_size": 6},
    "narrow values": {"value_size": 1, "context": True, "key_heads": 2},
    "own sizes": {"head_size": 4, "value_size": 7, "key_heads": 2, "rotary": True, "causal": True},
    "all, own sizes": {
        "mask": SELF, "causal": True, "alibi": True, "rotary": True, "key_heads": 2, "bias": False, "head_size": 6, "value_size": 3,
        "key_lengths": [3, 2], "window": 2,
    },
    "all": {
        "mask": SELF, "causal": True, "alibi": True, "rotary": True, "key_heads": 2, "bias": False
    },
}  # fmt: skip
CALLS = ("context", "mask", "causal", "key_lengths")
OWN_SIZES = ("bias", "context", "head_size", "value_size")  # the formula reads them from weights


def four_axes(mask: np.ndarray) -> np.ndarray:
    return mask[:, None] if mask.ndim == 3 else mask


@pytest.mark.parametrize("name", CASES)
def test_attention(name: str) -> None:
    case = CASES[name]
    with knobs.set(device="reference"):
        module = spread(
            nn.MultiHeadAttention(FEATURES, HEADS, **{n: v for n, v in case.items() if n not in CALLS}),
        )
        x = randoms(BATCH, TIME, FEATURES)
        context = randoms(BATCH, KEYS, FEATURES, seed=2) if "context" in case else None
        mask = None if "mask" not in case else weft.asarray(case["mask"])
        found = module(
            weft.asarray(x),
            None if context is None else weft.asarray(context),
            mask=mask,
            causal=case.get("causal", False),
            key_lengths=case.get("key_lengths"),
        )
        options = {n: four_axes(v) if n == "mask" else v for n, v in case.items() if n not in OWN_SIZES}
        close(found.numpy(), attended(values_of(module), "", x, x if context is None else context, **options), float64)


def test_attention_by_hand() -> None:
    """All products are identities: one query of two keys, scores 0 and ln 3, hence weights 1/4 and 3/4."""
    module = nn.MultiHeadAttention(1, 1, bias=False)
    for tensor in module.named_tensors().values():
        tensor.assign(weft.ones((1, 1)))
    context = weft.asarray([[[0.0], [math.log(3.0)]]])
    close(module(weft.ones((1, 1, 1)), context).item(), 0.75 * math.log(3.0), float32)


def weights_of(q: Any, k: Any, **options: Any) -> Any:
    """The attention weights, read through values that are an identity."""
    return weft.dot_product_attention(q, k, weft.eye(k.shape[-2], dtype=k.dtype), **options)


@pytest.mark.parametrize("name", ["mask of heads", "added", "causal", "itself"])
def test_dropout_takes_the_bits_of_the_composite(name: str) -> None:
    case = CASES[name]
    keys = KEYS if "context" in case else TIME
    q, k = (weft.asarray(randoms(BATCH, HEADS, n, 2, seed=n)) for n in (TIME, keys))
    mask = weft.asarray(case["mask"]) if "mask" in case else None
    options = {"mask": mask, "causal": case.get("causal", False)}
    weights = weights_of(q, k, **options)
    sums = weights.numpy().sum(-1)
    assert np.all(np.isclose(sums, 1.0) | (sums == 0.0))
    assert (sums == 0.0).any() == (mask is not None)
    for compiled in (lambda f: f, weft.jit):
        weft.seed(5)
        dropped = compiled(lambda q, k: weights_of(q, k, dropout=0.4, **options))(q, k)
        after = weft.random.bits().item()
        weft.seed(5)
        expected = weft.dropout(weights, 0.4)
        assert weft.random.bits().item() == after
        close(dropped.numpy(), expected.numpy(), float64)
        assert np.array_equal(dropped.numpy() == 0.0, expected.numpy() == 0.0)


@pytest.mark.parametrize(("queries", "keys"), [(3, 5), (5, 3)])
def test_causal_weights_of_other_numbers_of_keys(queries: int, keys: int) -> None:
    """The last query stands at the last key, or the first at the first; one that stands before the first key looks at nothing."""
    q, k = (weft.asarray(randoms(1, 1, n, 2, seed=n)) for n in (queries, keys))
    for causal, diagonal in ((True, keys - queries), ("lower_right", keys - queries), ("upper_left", 0)):
        weights = weights_of(q, k, causal=causal).numpy()[0, 0]
        assert np.array_equal(weights > 0.0, np.tri(queries, keys, diagonal, dtype=bool))
        counted()


def test_dropout_of_weights() -> None:
    """Only in training; the mean stays: of many equal sequences it comes near what there is without dropout."""
    module = nn.MultiHeadAttention(4, 2, dropout=0.3)
    many = weft.asarray(np.broadcast_to(randoms(1, 3, 4), (4000, 3, 4)).astype(np.float32))
    weft.seed(3)
    dropped, plain = module(many).numpy(), module.eval()(many).numpy()
    assert np.array_equal(plain[0], plain[1])
    assert not np.array_equal(dropped[0], dropped[1])
    error = np.abs(dropped.mean(0) - plain[0]) / (dropped.std(0) / math.sqrt(len(dropped)))
    assert error.max() < 5.0
    counted(3)


# --- positions -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("time", "features"), [(3, 4), (7, 6), (4, 5), (1, 1)])
def test_sinusoidal_positions(time: int, features: int) -> None:
    expected = np.zeros((time, features))
    for p, c in np.ndindex(time, features):
        angle = p / 10000.0 ** (2 * (c // 2) / features)
        expected[p, c] = math.cos(angle) if c % 2 else math.sin(angle)
    close(nn.sinusoidal(time, features).numpy(), expected, float32)
    x = randoms(2, time, features)
    close(nn.PositionalEncoding()(weft.asarray(x)).numpy(), x + expected, float64)


def test_positional_encoding_settings() -> None:
    """Another base, positions far away in float32, and dropout in training only."""
    x = weft.zeros((1, 5000, 2))
    far = nn.PositionalEncoding(base=100.0)(x).numpy()[0, 4999]
    close(far, [math.sin(4999.0), math.cos(4999.0)], float32)
    module, ones = nn.PositionalEncoding(dropout=0.5), weft.ones((1, 50, 4))
    weft.seed(0)
    zeros = (module(ones).numpy() == 0.0).mean()
    assert 0.3 < zeros < 0.7
    assert (module.eval()(ones).numpy() != 0.0).mean() > 0.95
    counted(2)


def test_rotary_positions() -> None:
    x = randoms(2, 4, 6)
    for start in (0, 3):
        expected = [[turned(x[b, t], t + start) for t in range(4)] for b in range(2)]
        close(nn.rotary(weft.asarray(x), start=start).numpy(), np.array(expected), float64)
    q, k = weft.asarray(randoms(1, 6, seed=1)), weft.asarray(randoms(1, 6, seed=2))
    near, far = (weft.sum(nn.rotary(q, start=s + 3) * nn.rotary(k, start=s)).item() for s in (0, 40))
    close(near, far, float64)  # the distance alone counts
    other = weft.sum(nn.rotary(q, start=4) * nn.rotary(k, start=0)).item()
    assert abs(near - other) > 1e-3


def test_alibi() -> None:
    close(alibi_slopes(8), [2.0**-n for n in range(1, 9)], float64)
    close(alibi_slopes(3), [2.0**-4, 2.0**-8, 2.0**-2], float64)
    close(alibi_slopes(6), [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3], float64)
    close(alibi_slopes(1), [2.0**-8], float64)
    bias = nn.alibi(2, 2, 3).numpy() * np.array([16.0, 256.0])[:, None, None]
    close(bias, [[[-1.0, 0.0, -1.0], [-2.0, -1.0, 0.0]]] * 2, float32)


def test_learned_positions() -> None:
    module = nn.LearnedPositions(5, None)
    x = weft.asarray(randoms(2, 3, 4), dtype=float32)
    found = module(x)
    close(found.numpy(), x.numpy() + module.weight.numpy()[:3], float32)
    assert module.weight.shape == nn.LearnedPositions(5, 4).weight.shape
    [slope] = weft.gradients(weft.sum(module(x)), [module.weight])
    close(slope.numpy(), [[2.0] * 4] * 3 + [[0.0] * 4] * 2, float32)


# --- transformer layers ----------------------------------------------------------------------------------------------------


def around(w: dict[str, np.ndarray], part: Any, norm: str, x: np.ndarray, norm_first: bool) -> np.ndarray:
    return x + part(normed(w, norm, x)) if norm_first else normed(w, norm, x + part(x))


def layer(
    w: dict[str, np.ndarray], x: np.ndarray, context: Any, norm_first: bool, activation: str, **options: Any
) -> Any:
    own = {"heads": 2, **options}
    x = around(w, lambda y: attended(w, "attention.", y, y, **own), "attention_norm", x, norm_first)
    if context is not None:
        seen = {"heads": 2, "mask": options.get("context_mask", True), "key_heads": options.get("key_heads", 2)}
        seen |= {"key_lengths": options["context_lengths"]} if "context_lengths" in options else {}
        x = around(w, lambda y: attended(w, "cross_attention.", y, context, **seen), "cross_norm", x, norm_first)
    return around(w, lambda y: fed(w, y, activation), "feed_forward_norm", x, norm_first)


@pytest.mark.parametrize(("norm_first", "activation"), [(True, "gelu"), (False, "relu")])
@pytest.mark.parametrize("kind", ["encoder", "block", "decoder"])
def test_transformer_layers(kind: str, norm_first: bool, activation: str) -> None:
    make = {
        "encoder": nn.TransformerEncoderLayer,
        "block": nn.TransformerBlock,
        "decoder": nn.TransformerDecoderLayer,
    }[kind]
    x, context = randoms(BATCH, TIME, 4), randoms(BATCH, KEYS, 4, seed=2)
    mask, context_mask = SELF[:, :1], LOOSE[:, :1]
    with knobs.set(device="reference"):
        module = spread(make(4, 2, hidden=5, activation=activation, norm_first=norm_first))
        given: dict[str, Any] = {"context_mask": weft.asarray(context_mask)} if kind == "decoder" else {}
        rest = [weft.asarray(context)] if kind == "decoder" else []
        found = module(weft.asarray(x), *rest, mask=weft.asarray(mask), **given)
        options = {"mask": mask, "causal": kind != "encoder", "context_mask": context_mask}
        expected = layer(
            values_of(module), x, context if kind == "decoder" else None, norm_first, activation, **options
        )
        close(found.numpy(), expected, float64)


def test_options_of_transformer_layers() -> None:
    """What is handed on to attention; causal can be chosen; a block does not see what comes later."""
    with knobs.set(device="reference"):
        x = randoms(BATCH, TIME, FEATURES)
        options: dict[str, Any] = {"key_heads": 1, "rotary": True, "alibi": True}
        block = spread(nn.TransformerBlock(FEATURES, 2, **options))
        expected = layer(values_of(block), x, None, True, "gelu", causal=True, **options)
        close(block(weft.asarray(x)).numpy(), expected, float64)
        encoder = spread(nn.TransformerEncoderLayer(FEATURES, 2, **options))
        close(encoder(weft.asarray(x), causal=True).numpy(), expected, float64)
        assert np.abs(encoder(weft.asarray(x)).numpy() - expected).max() > 1e-3
        later = np.concatenate([x[:, :2], 9.0 * x[:, 2:]], axis=1)
        close(block(weft.asarray(later)).numpy()[:, :2], expected[:, :2], float64)
        lengths = np.array([3, 2])
        expected = layer(values_of(block), x, None, True, "gelu", causal=True, key_lengths=lengths, **options)
        close(block(weft.asarray(x), key_lengths=lengths).numpy(), expected, float64)
        close(encoder(weft.asarray(x), causal=True, key_lengths=lengths).numpy(), expected, float64)
        decoder = spread(nn.TransformerDecoderLayer(FEATURES, 2))
        both = (decoder(weft.asarray(x), weft.asarray(x), causal=c).numpy() for c in (True, False))
        assert np.abs(next(both) - next(both)).max() > 1e-3
    assert nn.TransformerBlock(4, 2).feed_forward.first.weight.shape == (16, 4)


@pytest.mark.parametrize(
    "options",
    [
        {"key_heads": 1, "rotary": True, "window": 2}, {"alibi": True, "key_lengths": [3, 1]}, {"context_lengths": [5, 2]},
        {"key_heads": 1, "alibi": True, "context_lengths": [1, 4], "norm_first": False},
    ],
    ids=str,
)  # fmt: skip
def test_options_of_decoder_layers(options: dict[str, Any]) -> None:
    """Positions and windows are those of self-attention; key heads are those of both."""
    x, context = randoms(BATCH, TIME, FEATURES), randoms(BATCH, KEYS, FEATURES, seed=2)
    made = {n: v for n, v in options.items() if "lengths" not in n}
    given = {n: v for n, v in options.items() if "lengths" in n}
    with knobs.set(device="reference"):
        decoder = spread(nn.TransformerDecoderLayer(FEATURES, 2, **made))
        norm_first = made.pop("norm_first", True)
        expected = layer(values_of(decoder), x, context, norm_first, "gelu", causal=True, **made, **given)
        close(decoder(weft.asarray(x), weft.asarray(context), **given).numpy(), expected, float64)


def test_dropout_in_training_only() -> None:
    module, x = nn.TransformerDecoderLayer(4, 2, dropout=0.5), weft.asarray(randoms(1, 3, 4), dtype=float32)
    weft.seed(0)
    assert not np.array_equal(module(x, x).numpy(), module(x, x).numpy())
    module.eval()
    assert np.array_equal(module(x, x).numpy(), module(x, x).numpy())
    counted(2)


# --- derivatives, compiled, other dtypes -----------------------------------------------------------------------------------


def with_values(module: Any, names: list[str], values: Any) -> None:
    """Put tensors in the place of parameters, by their paths."""
    parts = module.named_modules()
    for name, value in zip(names, values, strict=True):
        path, _, attribute = name.rpartition(".")
        setattr(parts[path], attribute, value)


def gradients_agree(module: Any, call: Any, inputs: list[np.ndarray]) -> None:
    names, values = list(module.named_tensors()), [t.numpy() for t in module.named_tensors().values()]

    def f(*given: Any) -> Any:
        with_values(module, names, given[len(inputs) :])
        return call(*given[: len(inputs)])

    before = checks_run()
    check_grads(f, [*inputs, *values], rng=np.random.default_rng(3))
    assert checks_run() - before == 4


@pytest.mark.parametrize("name", ["all", "all, own sizes", "added", "mask of lengths", "rotary, causal, context"])
def test_gradients_of_attention(name: str) -> None:
    case = CASES[name]
    with knobs.set(device="reference"):
        module = spread(
            nn.MultiHeadAttention(FEATURES, HEADS, **{n: v for n, v in case.items() if n not in CALLS}),
        )
        mask = weft.asarray(case["mask"]) if "mask" in case else None
        inputs = [randoms(BATCH, TIME, FEATURES)] + [randoms(BATCH, KEYS, FEATURES, seed=1)] * ("context" in case)
        call = {"mask": mask, "causal": case.get("causal", False), "key_lengths": case.get("key_lengths")}
        gradients_agree(module, lambda *xs: module(*xs, **call), inputs)


@pytest.mark.parametrize("name", ["own sizes", "lengths, causal", "lengths, rotary, context", "all, own sizes"])
def test_compiled_attention(name: str) -> None:
    """The kernels, and the product of joined weights, in layers with sizes of their own and lengths that are inputs."""
    case = CASES[name]
    settings = {n: v for n, v in case.items() if n not in CALLS}
    module = nn.MultiHeadAttention(FEATURES, HEADS, **settings)
    values = {n: randoms(*t.shape, seed=i) for i, (n, t) in enumerate(module.named_tensors().items())}
    module.load(values)
    x = randoms(BATCH, TIME, FEATURES).astype(np.float32)
    context = randoms(BATCH, KEYS, FEATURES, seed=2).astype(np.float32) if "context" in case else x
    given = () if context is x else (context,)
    options = {n: four_axes(v) if n == "mask" else v for n, v in case.items() if n not in OWN_SIZES}
    expected = attended(values, "", x, context, **options)
    call = {"mask": weft.asarray(case["mask"]) if "mask" in case else None, "causal": case.get("causal", False)}
    lengths = np.asarray(case.get("key_lengths", [len(context[0])] * BATCH))
    found = weft.jit(lambda lengths, *xs: module(*xs, key_lengths=lengths, **call))(lengths, x, *given)
    close(found.numpy(), expected, float32, slack=8.0)


@pytest.mark.parametrize("norm_first", [True, False])
def test_gradients_of_transformer_layers(norm_first: bool) -> None:
    with knobs.set(device="reference"):
        decoder = spread(nn.TransformerDecoderLayer(4, 2, hidden=3, norm_first=norm_first))
        gradients_agree(decoder, decoder, [randoms(1, 3, 4), randoms(1, 2, 4, seed=1)])
        block = spread(nn.TransformerBlock(4, 2, hidden=3, norm_first=norm_first))
        gradients_agree(block, block, [randoms(1, 3, 4)])


def test_gradients_with_dropped_weights() -> None:
    """The same numbers are drawn each time, so that differences can be taken."""
    with knobs.set(device="reference"):
        module = spread(nn.MultiHeadAttention(4, 2, dropout=0.4))

        def call(x: Any) -> Any:
            weft.seed(5)
            return module(x, causal=True)

        gradients_agree(module, call, [randoms(1, 3, 4)])


class Both(nn.Module):
    """An encoder layer, and a decoder layer that looks at it."""

    def __init__(self) -> None:
        self.positions = nn.LearnedPositions(3, 4)
        self.encoder = nn.TransformerEncoderLayer(4, 2, rotary=True, alibi=True, key_heads=1)
        self.decoder = nn.TransformerDecoderLayer(4, 2, norm_first=False)

    def forward(self, x: Any, y: Any, mask: Any) -> Any:
        return self.decoder(y, self.encoder(self.positions(x), mask=mask), context_mask=mask)


def trained(module: Any, *inputs: Any) -> Any:
    """One step downhill; gives the loss."""
    loss = weft.mean(weft.square(module(*inputs) - 1.0) ** 2)
    parameters = module.parameters()
    for p, g in zip(parameters, weft.gradients(loss, parameters), strict=True):
        p.assign(p - 0.1 * g)
    return loss


@pytest.mark.slow
def test_a_compiled_training_step() -> None:
    """It does what the plain one does, and changes every parameter."""
    weft.seed(0)
    compiled = Both()
    before = {n: t.numpy().copy() for n, t in compiled.named_tensors().items()}
    x, y = randoms(2, 3, 4).astype(np.float32), randoms(2, 3, 4, seed=1).astype(np.float32)
    mask = (np.arange(3) < np.array([[3], [2]]))[:, None]
    with knobs.set(device="reference"):
        plain = Both().load(before)
        expected = trained(plain, *map(weft.asarray, (x, y, mask))).item()
        after = {n: t.numpy() for n, t in plain.named_tensors().items()}
    step = weft.jit(lambda *inputs: trained(compiled, *inputs))
    close(step(x, y, mask).item(), expected, float32)
    for name, tensor in compiled.named_tensors().items():
        close(tensor.numpy(), after[name], float32)
        # The same number on all keys' scores changes no softmax: without rotary positions this bias has no effect.
        if not (name.startswith("decoder") and name.endswith("key.bias")):
            assert np.abs(tensor.numpy() - before[name]).max() > 1e-8, name
    assert step(x, y, mask).item() < expected


@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=lambda d: d.name)
def test_other_dtypes(dtype: Any) -> None:
    """Every part in a small dtype; a row that may look at nothing stays finite, also its derivative."""
    with knobs.set(device="reference"):
        exact = spread(nn.TransformerBlock(FEATURES, HEADS, alibi=True, rotary=True))
        small = nn.TransformerBlock(FEATURES, HEADS, alibi=True, rotary=True)
        small.load(values_of(exact)).astype(dtype)
        x, mask = weft.asarray(randoms(BATCH, TIME, FEATURES)), weft.asarray(SELF)
        found = small(x.astype(dtype), mask=mask)
        assert found.dtype is dtype
        close(found.numpy(), exact(x, mask=mask).numpy(), dtype, slack=4.0)
        slopes = weft.gradients(weft.sum(small(x.astype(dtype), mask=mask)), small.parameters())
        assert all(np.isfinite(g.numpy().astype(np.float32)).all() for g in slopes)
        for part in (nn.PositionalEncoding(), nn.LearnedPositions(3, FEATURES).astype(dtype)):
            assert part(x.astype(dtype)).dtype is dtype


def test_float16_compiled_with_dropout() -> None:
    module = nn.MultiHeadAttention(4, 2, dropout=0.2).astype(float16)
    x = weft.asarray(randoms(2, 3, 4)).astype(float16)
    found = weft.jit(lambda x: module(x, causal=True))(x)
    assert found.dtype is float16
    assert np.isfinite(found.numpy()).all()


def test_the_cost_of_attention_is_known() -> None:
    cost = nn.summary(nn.MultiHeadAttention(8, 2), (2, 3, 8))
    assert cost.macs == 2 * (4 * 3 * 8 * 8 + 2 * 3 * 3 * 8)
    assert cost.parameters == 4 * (64 + 8)
    counted(2)
