"""Long sums of floats keep their digits, whatever the factors of their length: the error is bounded by 4 ulp x log2(n)."""

import numpy as np
import pytest

import weft
from weft.testing import counted

# Powers of two, primes, a prime times a few, both sides of a block (32 terms a lane), of a group, and of the cut for threads.
LENGTHS = [31, 32, 33, 255, 256, 257, 1023, 1025, 4095, 4099, 8209, 32771, 65536, 99991, 3 * 33331, 300_007]
LONG = [3_000_017, 3 * 1_000_003]


def error_in_ulp(got, want):
    """The distance in units in the last place of what is right."""
    return np.max(np.abs(np.float64(got) - want) / np.spacing(np.float32(np.abs(want))))


def values(n, name):
    """Positive numbers that are hard to add up: rounding errors of equal terms all go one way, a large first term makes each as large as can be."""
    if name == "equal":
        return np.full(n, 0.9, np.float32)
    if name == "large first":
        return np.concatenate([[np.float32(n)], np.full(n - 1, 0.7, np.float32)]).astype(np.float32)
    return np.random.default_rng(n).uniform(0, 1, n).astype(np.float32)


@pytest.mark.parametrize("name", ["equal", "large first", "random"])
def test_sums_of_any_length(name):
    total = weft.jit(weft.sum)
    for n in LENGTHS + (LONG if name == "equal" else []):
        x = values(n, name)
        counted()
        assert error_in_ulp(total(weft.asarray(x)).numpy(), x.sum(dtype=np.float64)) <= 4 * np.log2(n), n


@pytest.mark.parametrize("n", [*LENGTHS[:14:3], LONG[0]])
def test_means_are_the_same_with_and_without_a_compiler(n):
    """Without `jit`, code that runs repeatedly is compiled: its result must not jump."""
    x = weft.asarray(values(n, "equal"))
    for _ in range(4):
        counted()
        assert error_in_ulp(weft.mean(x).numpy(), np.float64(np.float32(0.9))) <= 4 * np.log2(n)


# Along rows, columns, several axes; where vectors run along the sum and where they run across it.
SHAPES = [
    ((100_003, 7), 0), ((7, 100_003), 1), ((33, 3001), 0), ((3001, 33), 0), ((3001, 33), 1), ((5, 7001, 3), (0, 1)),
    ((3, 100_003), None), ((13, 57, 63), None), ((4, 3, 61, 67), (0, 2, 3)), ((2, 3, 4, 5003), (0, 1, 3)), ((40_009, 1), 0),
    ((1030, 37), (0, 1)), ((67, 1031), (0, 1)),
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_sums_over_axes(shape, axis, dtype):
    x = np.full(shape, 0.9, dtype)
    got = weft.jit(lambda x: x.sum(axis=axis))(weft.asarray(x)).numpy()
    length = x.size // max(1, got.size)
    with np.errstate(all="ignore"):
        want = np.full(got.shape, np.longdouble(x.flat[0]) * length)
    ulp = np.max(np.abs(got - want) / np.spacing(want.astype(dtype)))
    counted()
    assert ulp <= 4 * np.log2(length)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_means_of_16_bits(dtype):
    x = weft.asarray(np.full(100_003, 0.9, np.float32)).astype(dtype)
    assert weft.jit(weft.mean)(x).item() == x[0].item()


def test_bias_gradients():
    x, w = weft.asarray(np.full((30_011, 3), 0.9, np.float32)), weft.asarray(np.ones((3, 5), np.float32))
    got = weft.jit(weft.grad(lambda b: ((x @ w + b) * 0.9).sum()))(weft.zeros((5,)))
    assert error_in_ulp(got.numpy(), np.float64(np.float32(0.9)) * 30_011) <= 4 * np.log2(30_011)


@pytest.mark.parametrize(("where", "what", "want"), [
    ([5], [np.inf], np.inf), ([99_000], [-np.inf], -np.inf), ([3, 70_000], [np.inf, -np.inf], np.nan), ([50_000], [np.nan], np.nan),
])  # fmt: skip
@pytest.mark.parametrize("shape", [(99_991,), (99_991, 4), (3, 33_331)])
def test_infinities_and_nans_go_through(shape, where, what, want):
    x = np.ones(shape, np.float32)
    flat = x.reshape(-1)
    flat[np.array(where)] = what
    got = weft.jit(weft.sum)(weft.asarray(x)).numpy()
    np.testing.assert_array_equal(got, np.float32(want))


def test_a_sum_that_overflows_is_infinite():
    x = np.full(100_003, 1e34, np.float32)
    assert weft.jit(weft.sum)(weft.asarray(x)).item() == np.inf
    assert weft.jit(weft.sum)(weft.asarray(-x)).item() == -np.inf


@pytest.mark.parametrize("op", ["sum", "prod", "max", "min", "all", "any"])
@pytest.mark.parametrize("shape", [(99_991,), (3, 33_331), (8209, 5)])
def test_uneven_cuts_keep_every_element(op, shape):
    """The element that decides stands last, first, and on both sides of the cut between even pieces and the rest."""
    n = int(np.prod(shape))
    f = weft.jit(getattr(weft, op))
    for place in (0, n - 1, n - n % 64, n - n % 64 - 1, n // 2):
        x = np.zeros(n, bool if op in ("all", "any") else np.int64)
        x[:] = op in ("all", "prod")
        x[place] = {"sum": 5, "prod": 5, "max": 5, "min": -5, "all": False, "any": True}[op]
        counted()
        assert f(weft.asarray(x.reshape(shape))).item() == getattr(np, op)(x)


@pytest.mark.parametrize("shape", [(300_007,), (50_021, 3), (3, 50_021)])
def test_bits_do_not_depend_on_threads(shape):
    x = weft.asarray(np.random.default_rng(0).normal(size=shape).astype(np.float32))
    found = []
    for threads in (1, 2, 3, 7):
        with weft.knobs.set(threads=threads):
            found.append(weft.jit(lambda x: (x.sum(), x.sum(axis=0), (x * x).mean(axis=-1)))(x))
    for others in found[1:]:
        for a, b in zip(found[0], others, strict=True):
            np.testing.assert_array_equal(a.numpy(), b.numpy())
