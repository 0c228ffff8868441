"""Checks random numbers: the bits against the published generator, everything else against its distribution.

All seeds are fixed, so a test that passes once passes always; the limits are set so wide (five standard errors, or one
chance in ten thousand) that an honest generator stays inside them with almost every seed.
"""

import hashlib
import itertools
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import special, stats

import weft
from weft import nn
from weft.graph import node as nodes
from weft.random import Generator, _inverse_normal
from weft.runtime.cpu import CpuDevice
from weft.testing import counted

MASK = 0xFFFFFFFF
FLOATS = ["float64", "float32", "float16", "bfloat16"]
LEAST_CHANCE = 1e-4


def wide(tensor):
    return tensor.numpy().astype(np.float64)


def assert_mean(values, expected, deviation):
    """The mean of independent values of this deviation, within five standard errors."""
    counted()
    assert abs(np.mean(values) - expected) < 5 * deviation / math.sqrt(np.size(values))


def assert_evenly(counts):
    counted()
    assert stats.chisquare(counts).pvalue > LEAST_CHANCE, counts


# --- the bits -----------------------------------------------------------------------------------------------------------


def philox(counter, key):
    """Philox 4x32 with 10 rounds (Salmon et al., 2011) on plain ints."""
    for _ in range(10):
        left, right = counter[0] * 0xD2511F53, counter[2] * 0xCD9E8D57
        counter = [
            (right >> 32) ^ counter[1] ^ key[0],
            right & MASK,
            (left >> 32) ^ counter[3] ^ key[1],
            left & MASK,
        ]
        key = [(key[0] + 0x9E3779B9) & MASK, (key[1] + 0xBB67AE85) & MASK]
    return counter


PUBLISHED = [  # counter, key and result, from the known answers of Random123
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text):
    return [int(word, 16) for word in text.split()]


@pytest.mark.parametrize(("counter", "key", "expected"), PUBLISHED)
def test_plain_philox_gives_the_published_answers(counter, key, expected):
    assert philox(words(counter), words(key)) == words(expected)


def test_first_published_answer():
    assert Generator(0).bits(4).tolist() == words(PUBLISHED[0][2])


@pytest.mark.parametrize("seed", [0, 1, 0xFFFFFFFF, 0x1_0000_0000, 0x0123_4567_89AB_CDEF, 2**64 - 1])
@pytest.mark.parametrize("offset", [0, 7, 2**32 - 1, 2**32, 2**63, 2**64 - 2])
def test_bits_are_philox(seed, offset):
    """The key is the seed, the counter is the position; both have 64 bits, and the counter starts again at its end."""
    generator = Generator(seed)
    generator.state = (seed, offset)
    key = [seed & MASK, seed >> 32]
    places = [(offset + i) % 2**64 for i in range(3)]
    blocks = [philox([place & MASK, place >> 32, 0, 0], key) for place in places]
    assert generator.bits(10).tolist() == list(itertools.chain(*blocks))[:10]
    assert [int(s) for s in generator.state] == [seed, (offset + 3) % 2**64]


def test_shapes_and_cuts_do_not_matter():
    """A draw is the next numbers of the stream in order; it takes whole blocks of four."""
    for draw in (Generator.bits, Generator.uniform, Generator.normal):
        whole = draw(Generator(5), 24).numpy()
        assert np.array_equal(draw(Generator(5), (2, 3, 4)).numpy().ravel(), whole)
        generator = Generator(5)
        parts = [draw(generator, n).numpy() for n in (4, 8, 0, 10)]
        assert np.array_equal(np.concatenate(parts), whole[:22])
        assert np.array_equal(draw(Generator(5), ()).numpy(), whole[0])
    generator = Generator(5)
    generator.bits(5)
    assert generator.bits(4).tolist() == Generator(5).bits(12).tolist()[8:]


# --- streams ------------------------------------------------------------------------------------------------------------


def test_seeds_and_states():
    a, b = Generator(3), Generator(3)
    assert a.normal(9).tolist() == b.normal(9).tolist()
    state = a.state
    first = a.uniform(5).tolist()
    b.state = [int(s) for s in state]
    a.state = state
    assert a.uniform(5).tolist() == first == b.uniform(5).tolist()
    assert Generator(4).bits(4).tolist() != Generator(3).bits(4).tolist()
    assert Generator(np.int64(3)).bits(4).tolist() == Generator(weft.asarray(3)).bits(4).tolist()


def test_global_stream():
    names = ["bits", "uniform", "normal", "truncated_normal", "permutation"]
    weft.seed(11)
    drawn = [getattr(weft.random, name)(6).tolist() for name in names]
    drawn += [weft.random.integers(0, 9, 6).tolist(), weft.random.bernoulli(0.5, 6).tolist()]
    own = Generator(11)
    assert drawn[:5] == [getattr(own, name)(6).tolist() for name in names]
    assert drawn[5:] == [own.integers(0, 9, 6).tolist(), own.bernoulli(0.5, 6).tolist()]


def test_forks():
    parent = Generator(8)
    children = [parent.fork() for _ in range(20)] + [parent.fork(i) for i in range(20)]
    drawn = np.stack([wide(child.uniform(4000)) for child in [parent, *children]])
    between = np.corrcoef(drawn)[np.triu_indices(len(drawn), 1)]
    assert np.abs(between).max() < 5 / math.sqrt(4000)
    again = Generator(8)
    assert again.fork(7).bits(8).tolist() == Generator(8).fork(7).bits(8).tolist() == parent.fork(7).bits(8).tolist()
    assert [int(s) for s in again.state] == [8, 0]  # a numbered fork does not move the stream
    assert again.fork().bits(8).tolist() == Generator(8).fork().bits(8).tolist()
    assert len({int(Generator(8).fork(i).key) for i in range(500)}) == 500
    by_scan = weft.scan(lambda s, i: (s, parent.fork(i).bits(2)), 0.0, weft.arange(4))[1]
    assert by_scan.tolist() == [parent.fork(i).bits(2).tolist() for i in range(4)]


def test_a_stream_goes_on_where_the_device_is():
    """Drawn from on one device, then on another: the same numbers as if it had stayed."""
    x = np.ones((4, 6), np.float32)

    def four(*devices):
        generator, drawn = Generator(3), []
        step = weft.jit(lambda x: weft.dropout(x, 0.5, generator=generator))
        for name in devices:
            with weft.knobs.set(device=name):
                drawn += [weft.dropout(x, 0.5, generator=generator).tolist(), step(x).tolist()]
        return drawn

    assert four("cpu", "reference", "cpu") == four("cpu", "cpu", "cpu") == four("reference", "cpu", "reference")


def test_dropout_is_where_its_tensor_is():
    there = weft.ones((4, 6)).to_device("reference")
    generator = Generator(3)
    generator.bits(3).numpy()
    weft.dropout(weft.ones(3), 0.5, generator=generator).numpy()
    assert weft.dropout(there, 0.5, generator=generator).device.name == "reference"


def test_drawing_does_not_grow_the_graph():
    """Whether a thousand or a million draws: the position is a plain number, and what is dropped is gone."""
    generator = Generator(1)
    generator.bits(3)
    before = len(nodes._interned)
    for _ in range(5000):
        generator.bits(3)
    assert len(nodes._interned) < before + 50
    assert generator.offset.node.op is nodes.CONST


@pytest.mark.parametrize("where", ["scan", "checkpoint", "cond"])
def test_drawing_inside_control_flow_does_not_grow_the_graph(where):
    """Once a step was looked at, later steps need not compute it again to know where the stream stands."""
    generator = Generator(1)
    draw = lambda x: weft.dropout(x, 0.5, generator=generator)  # noqa: E731
    step = {
        "scan": lambda: weft.scan(lambda s, x: (s, draw(x)), 0.0, weft.ones((2, 8)))[1],
        "checkpoint": lambda: weft.checkpoint(draw)(weft.ones(8)),
        "cond": lambda: weft.cond(True, draw, lambda x: x, weft.ones(8)),
    }[where]
    sizes = []
    for _ in range(6):
        step().numpy()
        sizes.append(len(nodes.toposort([generator.offset.node])))
    assert sizes[-1] <= sizes[1], sizes


def test_a_stream_does_not_keep_the_history_of_parameters():
    """Where it stands is a result of the loop, beside others that have a derivative by the parameter."""
    generator, w = Generator(1), weft.parameter(2.0)
    total, _ = weft.scan(lambda s, x: (s + generator.normal() * w * x, None), weft.asarray(0.0), weft.ones(3))
    assert total.requires_grad
    assert not generator.offset.requires_grad


# --- distributions ------------------------------------------------------------------------------------------------------


class Extreme(Generator):
    """A stream whose bits are all 0, or all 1: the ends of every distribution."""

    def __init__(self, word):
        super().__init__(0)
        self.word = word

    def _words(self, *shape):
        return weft.full(shape, self.word, dtype="uint32")


@pytest.mark.parametrize("dtype", FLOATS)
def test_uniform(dtype):
    x = wide(Generator(2).uniform(200_000, dtype=dtype))
    step = 2.0 ** -{"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}[dtype]
    assert Generator(2).uniform(2, dtype=dtype).dtype.name == dtype
    assert np.all((x >= 0) & (x < 1))
    assert np.array_equal(x, np.round(x / step) * step)  # all numbers of one grid
    assert_mean(x, 0.5 - step / 2, math.sqrt(1 / 12))
    assert_mean((x - 0.5) ** 2, 1 / 12, math.sqrt(1 / 180) + step)
    assert_evenly(np.bincount((x * 64).astype(int), minlength=64))
    for low, high in ((-3.0, 5.0), (1000.0, 1001.0), (-0.1, 0.1), (2.0, 2.0)):
        for generator in (Generator(2), Extreme(0), Extreme(MASK)):
            y = generator.uniform(1000, low, high, dtype=dtype)
            ends = wide(weft.asarray([low, high], dtype=dtype))
            assert np.all((wide(y) >= ends[0]) & ((wide(y) < ends[1]) | (ends[0] == ends[1])))
    assert_mean(wide(Generator(2).uniform(100_000, -3.0, 5.0, dtype=dtype)) < 1.0, 0.5, 0.5)


@pytest.mark.parametrize(("dtype", "finest"), [("float64", 2.0**-53), ("float32", 2.0**-24)])
def test_inverse_of_the_normal_distribution(dtype, finest):
    """Within 8 roundings of scipy, in the centre and in both tails."""
    tail = np.geomspace(finest, 0.5, 5000)
    p = np.concatenate([tail, 1 - tail, np.linspace(0.001, 0.999, 9999)]).astype(dtype)
    p = p[(p > 0) & (p < 1)]
    limit = 8 * float(np.finfo(dtype).eps)
    np.testing.assert_allclose(wide(_inverse_normal(weft.asarray(p))), special.ndtri(p.astype(float)), limit, limit)
    if dtype == "float64":
        far = np.geomspace(1e-300, 1e-16, 500)
        np.testing.assert_allclose(_inverse_normal(weft.asarray(far)).numpy(), special.ndtri(far), 1e-14)


@pytest.mark.parametrize("dtype", FLOATS)
def test_normal(dtype):
    x = Generator(6).normal(200_000, dtype=dtype)
    assert x.dtype.name == dtype
    x = wide(x)
    assert_mean(x, 0, 1)
    assert_mean(x**2, 1, math.sqrt(2))
    assert_mean(x**3, 0, math.sqrt(15))
    assert_mean(x**4, 3, math.sqrt(96))
    if dtype in ("float64", "float32"):
        assert stats.kstest(x, "norm").pvalue > LEAST_CHANCE
        assert np.unique(x).size > 0.98 * x.size
    y = wide(Generator(6).normal(200_000, 10.0, 3.0, dtype=dtype))
    assert_mean(y, 10, 3)
    ends = [wide(Extreme(word).normal((), dtype=dtype)) for word in (0, MASK)]
    assert ends[0] == -ends[1]
    assert 5 < ends[1] < 9


@pytest.mark.parametrize("dtype", FLOATS)
def test_truncated_normal(dtype):
    x = wide(Generator(6).truncated_normal(100_000, dtype=dtype))
    assert np.abs(x).max() <= 2
    variance = 1 - 4 * stats.norm.pdf(2) / (2 * stats.norm.cdf(2) - 1)
    assert_mean(x, 0, math.sqrt(variance))
    assert_mean(x**2, variance, 1.0)
    if dtype in ("float64", "float32"):
        assert stats.kstest(x, stats.truncnorm(-2, 2).cdf).pvalue > LEAST_CHANCE
    assert_mean(wide(Generator(6).truncated_normal(100_000, 5.0, 0.5, dtype=dtype)), 5, 0.5)


@pytest.mark.parametrize("dtype", FLOATS)
def test_truncated_normal_at_the_ends_of_the_stream(dtype):
    for word in (0, MASK):
        assert abs(Extreme(word).truncated_normal((), dtype=dtype).item()) <= 2.0


INTEGERS = [  # low, high, dtype
    (0, 10, None),
    (-7, 6, "int8"),
    (0, 256, "uint8"),
    (-128, 128, "int8"),
    (-(2**31), 2**31, "int32"),
    (0, 2**32, "uint32"),
    (-(2**62), 2**62, "int64"),
    (0, 3 << 62, "uint64"),
    (-(2**63), 2**63, "int64"),
    (0, 2**64, "uint64"),
]


@pytest.mark.parametrize(("low", "high", "dtype"), INTEGERS)
def test_integers(low, high, dtype):
    x = Generator(9).integers(low, high, 60_000, dtype=dtype)
    assert x.dtype.name == dtype or (dtype is None and x.dtype is weft.int64)
    values = x.numpy().astype(object)
    assert low <= values.min() <= values.max() < high
    bins = min(high - low, 12)
    bounds = [low + (high - low) * i // bins for i in range(bins + 1)]
    counts = np.histogram(values, np.array(bounds, object))[0]
    shares = np.diff(np.array(bounds, object)).astype(float) / (high - low)
    assert stats.chisquare(counts, shares * 60_000).pvalue > LEAST_CHANCE, counts


@pytest.mark.parametrize("p", [0.0, 1e-3, 0.25, 0.5, 0.9, 1.0])
def test_bernoulli(p):
    x = Generator(4).bernoulli(p, (500, 400))
    assert x.dtype is weft.bool_
    assert abs(x.numpy().mean() - p) <= 5 * math.sqrt(p * (1 - p) / 200_000)


def test_permutation():
    generator = Generator(12)
    assert sorted(generator.permutation(1000).tolist()) == list(range(1000))
    assert generator.permutation(0).shape == (0,)
    orders = [tuple(generator.permutation(4).tolist()) for _ in range(2400)]
    found = {order: orders.count(order) for order in itertools.permutations(range(4))}
    assert sum(found.values()) == 2400
    assert_evenly(list(found.values()))
    table = weft.reshape(weft.arange(12), (6, 2))
    mixed = Generator(1).permutation(table)
    assert np.array_equal(mixed.numpy(), table.numpy()[Generator(1).permutation(6).numpy()])


ERRORS = {
    "[random] the seed must be an int from 0 to 2**64 - 1, got -1": lambda g: Generator(-1),
    "[random] the seed must be an int from 0 to 2**64 - 1, got True": lambda g: Generator(True),
    "[random] the seed must be an int from 0 to 2**64 - 1, got 0.5": lambda g: weft.seed(0.5),
    "[random] the seed must be an int from 0 to 2**64 - 1, got 18446744073709551616": lambda g: weft.seed(2**64),
    "[Generator] a state must be two uint64 scalars": lambda g: setattr(g, "state", (weft.asarray(1), weft.asarray(2))),
    "[random.uniform] finite low <= high are required, got 1 and 0": lambda g: g.uniform(2, 1, 0),
    "[random.uniform] finite low <= high are required, got 0.0 and inf": lambda g: g.uniform(2, 0.0, math.inf),
    "[random.uniform] a floating dtype is required, got int32": lambda g: g.uniform(2, dtype="int32"),
    "[random.normal] a floating dtype is required, got bool": lambda g: g.normal(2, dtype="bool"),
    "[random.truncated_normal] a floating dtype is required": lambda g: g.truncated_normal(2, dtype="int8"),
    "[random.integers] an integer dtype and low < high are required, got 3 and 3": lambda g: g.integers(3, 3),
    "[random.integers] an integer dtype and low < high": lambda g: g.integers(0, 3, dtype="float32"),
    "[random.integers]": lambda g: g.integers(0.5, 3),
    "299 does not fit into uint8": lambda g: g.integers(0, 300, dtype="uint8"),
    "-1 does not fit into uint8": lambda g: g.integers(-1, 3, dtype="uint8"),
    "[random.bernoulli] a probability in [0, 1] is required, got 1.5": lambda g: g.bernoulli(1.5),
    "[random.bernoulli] a probability in [0, 1] is required, got nan": lambda g: g.bernoulli(math.nan),
    "[random.bits] a shape is made of ints that are 0 or more": lambda g: g.bits((2, -1)),
    "[random.permutation]": lambda g: g.permutation(-1),
    "[dropout] a rate in [0, 1] is required, got 1.5": lambda g: weft.dropout(1.0, 1.5),
    "[dropout] a floating dtype is required, got int64": lambda g: weft.dropout(1, 0.5),
}


@pytest.mark.parametrize("text", ERRORS)
def test_texts_of_errors(text):
    with pytest.raises(weft.UserError) as caught:
        ERRORS[text](Generator(1))
    assert text in str(caught.value).splitlines()[-1]  # the line before quotes this file, text and all


# Written down once, on aarch64; x86-64 gives the same.
KNOWN_DIGESTS = [
    ("uniform", "float64", "f4fe1e22f68566e6"),
    ("uniform", "float32", "bf2c10e5d2c1c4a9"),
    ("uniform", "float16", "fa77715c7bc29fed"),
    ("uniform", "bfloat16", "ea9dc49254ac52ec"),
    ("normal", "float64", "de94f5ffa2ab0e77"),
    ("normal", "float32", "c5678ee8d4505ecc"),
    ("normal", "float16", "59486c0cd9881596"),
    ("normal", "bfloat16", "9fc1a1d43e110793"),
    ("truncated_normal", "float64", "6324c81465236fc4"),
    ("truncated_normal", "float32", "47d9c751d4f2bb97"),
    ("truncated_normal", "float16", "bb81fb0cd47a44bd"),
    ("truncated_normal", "bfloat16", "a5d07a8fd28509eb"),
]


@pytest.mark.parametrize(("name", "dtype", "expected"), KNOWN_DIGESTS)
def test_the_same_bits_on_every_machine(name: str, dtype: str, expected: str) -> None:
    drawn = getattr(weft.random.Generator(42), name)((10007,), dtype=dtype).numpy()
    assert hashlib.sha256(np.ascontiguousarray(drawn).tobytes()).hexdigest()[:16] == expected


# --- compiled once --------------------------------------------------------------------------------------------------------


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the CPU compiled a graph, and how often it interpreted one."""
    found: Counter[str] = Counter()

    def counting(name: str) -> Callable[..., Any]:
        do = getattr(CpuDevice, name)

        def counted(*arguments: Any) -> Any:
            found[name] += 1
            return do(*arguments)

        return counted

    for name in ("executable", "interpret"):
        monkeypatch.setattr(CpuDevice, name, counting(name))
    return found


def test_draws_that_recur_run_one_program(calls: Counter[str]) -> None:
    """Whatever the seed and the position in the stream, and whoever else uses the same constants."""
    with weft.knobs.set(device="reference"):
        expected = [Generator(seed).normal((3, 171)).numpy() for seed in (1, 2)]
    calls.clear()
    with weft.knobs.set(device="cpu", compile_after=3):
        other = weft.random.normal((3, 171)) * 2.0  # has the constants of all others, and is alive
        drawn = [Generator(seed).normal((3, 171)).numpy() for seed in (1, 2) * 4]
        generator = Generator(5)
        for _ in range(4):
            generator.normal((3, 171)).numpy()
    assert calls == {"interpret": 2, "executable": 1}
    assert all((drawn[i] == expected[i % 2]).all() for i in range(8))
    assert other.shape == (3, 171)


def test_small_parameters_are_drawn_without_compiling(calls: Counter[str]) -> None:
    with weft.knobs.set(device="cpu"):
        layers = [nn.Linear(31, 17) for _ in range(6)]
    assert not calls["executable"]
    assert len({float(layer.weight.numpy()[0, 0]) for layer in layers}) == 6
