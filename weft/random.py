"""Random numbers: counter-based, part of the graph, the same bits for the same seed on every device.

The n-th number of a stream is a pure function of (seed, n), Philox 4x32 with 10 rounds (Salmon et al., 2011), so neither
the number of threads nor the order of work matters. All distributions are computed from those bits with operations that
IEEE 754 defines exactly: integers, + - * / and sqrt, without library functions such as log or cos.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

import numpy as np

from .dtypes import (
    DEFAULT_FLOAT,
    DType,
    DTypeLike,
    as_dtype,
    bfloat16,
    finfo,
    float16,
    float32,
    float64,
    int32,
    int64,
    uint32,
    uint64,
)
from .errors import UserError
from .graph.node import CONST, Node, Op, Shape, Type
from .knobs import knobs
from .ops.creation import zeros
from .ops.declare import Sample, Wrong, normal_shape, whole
from .ops.elementwise import nextafter, sqrt, view, where
from .ops.indexing import take
from .ops.math import clip
from .ops.sorting import argsort
from .runtime import STATE_LOCK
from .runtime import device as find_device
from .tensor import FUNCTIONS, TRACING, ArrayLike, Tensor, as_tensor, emit, function, number

# --- the bits ------------------------------------------------------------------------------------------------------------


def _bits_infer(key: Node, offset: Node, shape: Shape) -> Type:
    scalar = Type((), uint64)
    if key.type != scalar or offset.type != scalar:
        raise UserError("random_bits", f"key and offset must be {scalar}, got {key.type} and {offset.type}.")
    return Type(shape, uint32)


def _philox(key: np.ndarray, offset: np.ndarray, shape: Shape) -> np.ndarray:
    """Element i is word i % 4 of the block with the counter offset + i // 4."""
    count = math.prod(shape)
    low = np.uint64(0xFFFFFFFF)
    shift = np.uint64(32)
    counter = np.arange(-(-count // 4), dtype=np.uint64) + offset.astype(np.uint64)
    words = [counter & low, counter >> shift, np.zeros_like(counter), np.zeros_like(counter)]
    keys = [key & low, key >> shift]
    for _ in range(10):
        left, right = words[0] * np.uint64(0xD2511F53), words[2] * np.uint64(0xCD9E8D57)
        words = [(right >> shift) ^ words[1] ^ keys[0], right & low, (left >> shift) ^ words[3] ^ keys[1], left & low]
        keys = [(keys[0] + np.uint64(0x9E3779B9)) & low, (keys[1] + np.uint64(0xBB67AE85)) & low]
    return np.stack(words, axis=-1).astype(np.uint32).reshape(-1)[:count].reshape(shape)


BITS: Op = Op(
    "random_bits", "random", _bits_infer, _philox, None, ("shape",), 2,
    samples=lambda rng: (
        Sample([np.uint64(rng.integers(1 << 62)), np.uint64(rng.integers(1 << 62))], (s,)) for s in ((), (0,), (7,), (2, 3, 4))
    ),
    errors=(Wrong(lambda: emit(BITS, (as_tensor(1), as_tensor(2)), ((3,),)), "[random_bits] key and offset must be uint64[]"),), cost=20, kernel="loop",
)  # fmt: skip


# --- streams of numbers --------------------------------------------------------------------------------------------------

SUBSTREAM = 1 << 40  # blocks of a stream between the numbers of two batches of one step
GENERATORS: WeakSet[Generator] = WeakSet()  # traced functions look here for streams that they drew from


class Generator:
    """A stream of random numbers. Its state is two tensors: the key (from the seed) and the offset.

    >>> g = Generator(7)
    >>> g.uniform((2,)).tolist() == Generator(7).uniform((2,)).tolist()
    True
    """

    def __init__(self, seed: int | Tensor = 0) -> None:
        self.key = _seed_key(seed)
        self._offset = number(0, uint64)
        with STATE_LOCK:  # tracing iterates over all of them
            GENERATORS.add(self)

    def __copy__(self) -> Generator:
        """An independent generator that continues from the current position."""
        twin = Generator()
        twin.state = self.state
        return twin

    def __deepcopy__(self, memo: dict[int, Any]) -> Generator:
        return self.__copy__()

    @property
    def offset(self) -> Tensor:
        """The position of the stream; while a function is traced, the position inside the trace."""
        inside = TRACING.offsets
        return self._offset if inside is None else inside.get(self, self._offset)

    @offset.setter
    def offset(self, offset: Tensor) -> None:
        if TRACING.offsets is not None and self in TRACING.offsets:
            TRACING.offsets[self] = offset
        else:
            self._offset = offset

    @property
    def state(self) -> tuple[Tensor, Tensor]:
        """The key and offset; assign them to restore a position."""
        with STATE_LOCK:
            return self.key, self.offset

    @state.setter
    def state(self, state: tuple[Any, Any]) -> None:
        key, offset = (s if isinstance(s, Tensor) else number(int(s), uint64) for s in state)
        if key._node.type != Type((), uint64) or offset._node.type != Type((), uint64):
            raise UserError("Generator", "a state must be two uint64 scalars: the key and the offset.")
        with STATE_LOCK:
            self.key, self.offset = key, offset

    def fork(self, number_: Any = None) -> Generator:
        """An independent stream: the next one, or the one of a number (such as a loop index)."""
        child = Generator()
        source = self._words(2) if number_ is None else _words_at(self.key, as_tensor(number_).astype(uint64))
        child.key = _join(source[0], source[1])
        return child

    def _words(self, *shape: int) -> Tensor:
        return emit(BITS, self.reserve(math.prod(shape)), (shape,))

    def reserve(self, count: int) -> tuple[Tensor, Tensor]:
        """The key and the position of the next `count` words: for ops that draw them inside of their kernels."""
        with STATE_LOCK:  # threads and programs must not draw the same numbers
            self.key, start = _on_default_device(self.key), _on_default_device(self.offset)
            self.offset = _advance(start, -(-count // 4))
        return self.key, start

    @contextmanager
    def substream(self, number_: Tensor, last: Tensor) -> Iterator[None]:
        """Inside, numbers come from another part of the stream, far behind its position; after the last one the stream has moved on.

        The batches of one training step draw so: the numbers of a batch depend on its number in the step, not on who computes it.
        """
        start = self.offset
        begin = start + number_.astype(uint64) * SUBSTREAM
        self.offset = begin
        yield
        end = self.offset
        self.offset = start if end is begin else where(last, start + (end - begin), start)

    def bits(self, shape: int | Sequence[int] = ()) -> Tensor:
        """Random uint32 numbers: 32 random bits each."""
        return self._words(*normal_shape("random.bits", shape))

    def _bits64(self, shape: Shape) -> Tensor:
        words = self._words(2, *shape)
        return _join(words[0], words[1])

    def uniform(
        self, shape: int | Sequence[int] = (), low: float = 0.0, high: float = 1.0, *, dtype: DTypeLike | None = None
    ) -> Tensor:
        """Uniform numbers in [low, high)."""
        sizes, target = normal_shape("random.uniform", shape), _float_dtype("uniform", dtype)
        if not low <= high or not max(high - low, abs(low), abs(high)) <= finfo(target).max:
            raise UserError(
                "random.uniform", f"finite low <= high are required, got {low} and {high} for {target.name}."
            )
        digits = _DIGITS[target]
        drawn = (self._bits64(sizes) >> (64 - digits)) if digits > 32 else self._words(*sizes) >> (32 - digits)
        unit = drawn.astype(target) * 2.0**-digits
        if (low, high) == (0.0, 1.0):
            return unit
        value = unit * (high - low) + low
        below = nextafter(number(high, target), number(low, target))
        return where(value < high, value, below)

    def normal(
        self, shape: int | Sequence[int] = (), mean: float = 0.0, std: float = 1.0, *, dtype: DTypeLike | None = None
    ) -> Tensor:
        """Normal numbers, by the inverse cumulative distribution function of uniform numbers."""
        sizes, target = normal_shape("random.normal", shape), _float_dtype("normal", dtype)
        if target is float64:
            unit = ((self._bits64(sizes) >> 12).astype(float64) + 0.5) * 2.0**-52
        else:
            unit = ((self._words(*sizes) >> 9).astype(float32) + 0.5) * 2.0**-23
        return (_inverse_normal(unit) * _spread("normal", std) + mean).astype(target)

    def truncated_normal(
        self, shape: int | Sequence[int] = (), mean: float = 0.0, std: float = 1.0, *, dtype: DTypeLike | None = None
    ) -> Tensor:
        """Normal numbers truncated at two standard deviations from the mean."""
        target = _float_dtype("truncated_normal", dtype)
        tail = 0.022750131948179195  # the probability below -2
        inner = float64 if target is float64 else float32
        unit = self.uniform(shape, tail, 1.0 - tail, dtype=inner)
        return (clip(_inverse_normal(unit), -2.0, 2.0) * _spread("truncated_normal", std) + mean).astype(target)

    def integers(
        self, low: int, high: int, shape: int | Sequence[int] = (), *, dtype: DTypeLike | None = None
    ) -> Tensor:
        """Integers from low (inclusive) to high (exclusive)."""
        target = as_dtype(int64 if dtype is None else dtype, "random.integers")
        if not all(isinstance(v, int | np.integer) for v in (low, high)) or not target.is_integer or high <= low:
            raise UserError("random.integers", f"an integer dtype and low < high are required, got {low} and {high}.")
        number(int(low), target), number(int(high) - 1, target)  # both ends must fit
        sizes, count = normal_shape("random.integers", shape), int(high) - int(low)
        drawn = self._bits64(sizes) if count == 1 << 64 else _scaled(self._bits64(sizes), self._bits64(sizes), count)
        return (drawn + int(low) % 2**64).astype(target)

    def bernoulli(self, p: float, shape: int | Sequence[int] = ()) -> Tensor:
        """True with probability p."""
        if not 0.0 <= p <= 1.0:
            raise UserError("random.bernoulli", f"a probability in [0, 1] is required, got {p}.")
        return self.bits(shape).astype(uint64) < number(round(p * 2**32), uint64)

    def permutation(self, x: int | Tensor) -> Tensor:
        """The numbers 0..x-1, or the rows of a tensor, in random order."""
        count = len(x) if isinstance(x, Tensor) else whole("random.permutation", "number", x)
        order = argsort(self._bits64((count,)))
        return take(x, order, axis=0) if isinstance(x, Tensor) else order


def _seed_key(seed: int | Tensor) -> Tensor:
    if isinstance(seed, Tensor):
        return seed.astype(uint64)
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 1 << 64:
        raise UserError("random", f"the seed must be an int from 0 to 2**64 - 1, got {seed!r}.")
    return number(int(seed), uint64)


def _on_default_device(state: Tensor) -> Tensor:
    """A stream's state on the default device: it may have been used on another. Traces have no devices."""
    return state if TRACING.offsets is not None or state._node.device is None else state.to_device(find_device())


def _on_device_of(x: Tensor, drawn: Tensor) -> Tensor:
    """Random numbers on the device of x."""
    apart = x._node.device is not None and drawn._node.device not in (None, x._node.device)
    return drawn.to_device(x.device) if apart else drawn


def _advance(offset: Tensor, blocks: int) -> Tensor:
    """Advance a position; a known one by plain arithmetic, so that drawing does not grow the graph."""
    node = offset.node
    return number((node.params[0] + blocks) % 2**64, uint64) if node.op is CONST else offset + blocks


def _words_at(key: Tensor, place: Tensor) -> Tensor:
    """Two words from the half of the counter range that no stream uses."""
    return emit(BITS, (key, place + (1 << 63)), ((2,),))


def _join(low: Tensor, high: Tensor) -> Tensor:
    return low.astype(uint64) | (high.astype(uint64) << 32)


def _scaled(high: Tensor, low: Tensor, count: int) -> Tensor:
    """128 random bits as a fraction, times a count, rounded down: results are equally likely up to 2**-64."""
    lower = high * number(count, uint64)
    carried = lower + _upper_product(low, count)
    return _upper_product(high, count) + (carried < lower).astype(uint64)


def _upper_product(x: Tensor, y: int) -> Tensor:
    """The upper 64 of the 128 bits of a product, by halves of 32."""
    mask = (1 << 32) - 1
    x0, x1, y0, y1 = x & mask, x >> 32, y & mask, y >> 32
    middle = x1 * y0 + ((x0 * y0) >> 32)
    return x1 * y1 + (middle >> 32) + ((x0 * y1 + (middle & mask)) >> 32)


def _float_dtype(name: str, dtype: DTypeLike | None) -> DType:
    target = as_dtype(DEFAULT_FLOAT if dtype is None else dtype, f"random.{name}")
    if not target.is_float:
        raise UserError(f"random.{name}", f"a floating dtype is required, got {target.name}.")
    return target


def _spread(name: str, std: float) -> float:
    if not std >= 0.0:
        raise UserError(f"random.{name}", f"a standard deviation of 0 or more is required, got {std}.")
    return std


_DIGITS = {float64: 53, float32: 24, float16: 11, bfloat16: 8}  # the bits a uniform number can hold exactly

# --- from uniform to normal ------------------------------------------------------------------------------------------------

# Rational approximations by M. Wichura (algorithm AS 241, 1988): centre, tail and far tail, numerator and denominator.
_SINGLE = (
    ((3.3871327179, 50.434271938, 159.29113202, 59.109374720), (1.0, 17.895169469, 78.757757664, 67.187563600)),
    ((1.4234372777, 2.7568153900, 1.3067284816, 0.17023821103), (1.0, 0.73700164250, 0.12021132975)),
    ((6.6579051150, 3.0812263860, 0.42868294337, 0.017337203997), (1.0, 0.24197894225, 0.012258202635)),
)
_DOUBLE = (
    (
        (3.3871328727963666080, 133.14166789178437745, 1971.5909503065514427, 13731.693765509461125,
         45921.953931549871457, 67265.770927008700853, 33430.575583588128105, 2509.0809287301226727),
        (1.0, 42.313330701600911252, 687.18700749205790830, 5394.1960214247511077, 21213.794301586595867,
         39307.895800092710610, 28729.085735721942674, 5226.4952788528545610),
    ),
    (
        (1.42343711074968357734, 4.63033784615654529590, 5.76949722146069140550, 3.64784832476320460504,
         1.27045825245236838258, 0.241780725177450611770, 0.0227238449892691845833, 7.74545014278341407640e-4),
        (1.0, 2.05319162663775882187, 1.67638483018380384940, 0.689767334985100004550, 0.148103976427480074590,
         0.0151986665636164571966, 5.47593808499534494600e-4, 1.05075007164441684324e-9),
    ),
    (
        (6.65790464350110377720, 5.46378491116411436990, 1.78482653991729133580, 0.296560571828504891230,
         0.0265321895265761230930, 1.24266094738807843860e-3, 2.71155556874348757815e-5, 2.01033439929228813265e-7),
        (1.0, 0.599832206555887937690, 0.136929880922735805310, 0.0148753612908506148525, 7.86869131145613259100e-4,
         1.84631831751005468180e-5, 1.42151175831644588870e-7, 2.04426310338993978564e-15),
    ),
)  # fmt: skip


def _inverse_normal(p: Tensor) -> Tensor:
    """The quantile function of the standard normal distribution."""
    centre, tail, far = _DOUBLE if p.dtype is float64 else _SINGLE
    q = p - 0.5
    inner = q * _ratio(0.180625 - q * q, centre)
    smaller = where(q < 0.0, p, 1.0 - p)
    r = sqrt(-_exact_log(smaller))
    outer = where(r <= 5.0, _ratio(r - 1.6, tail), _ratio(r - 5.0, far))
    return where(where(q < 0.0, -q, q) <= 0.425, inner, where(q < 0.0, -outer, outer))


def _ratio(x: Tensor, coefficients: Sequence[Sequence[float]]) -> Tensor:
    top, bottom = (_polynomial(x, c) for c in coefficients)
    return top / bottom


def _polynomial(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    value: Any = coefficients[-1]
    for c in coefficients[-2::-1]:
        value = x * value + c
    return as_tensor(value)


def _exact_log(x: Tensor) -> Tensor:
    """The logarithm of positive normal numbers, bit-identical on every device.

    x = 2**e * m with m near 1, and log m = 2 * (s + s**3/3 + s**5/5 + ...) with s = (m - 1) / (m + 1).
    """
    word, fraction, bias, terms = (int64, 52, 1023, 11) if x.dtype is float64 else (int32, 23, 127, 6)
    bits = view(x, word)
    one = bias << fraction
    shifted = bits - (one - (1 << fraction) // 2 - (1 << fraction) // 8)  # so that m is in about [0.69, 1.38)
    exponent = shifted >> fraction
    m = view(bits - (exponent << fraction), x.dtype)
    s = (m - 1.0) / (m + 1.0)
    series = _polynomial(s * s, [1.0 / (2 * i + 1) for i in range(terms)])
    return exponent.astype(x.dtype) * math.log(2.0) + s * series * 2.0


# --- the global stream -----------------------------------------------------------------------------------------------------

default_generator = Generator(knobs.seed)


def seed(value: int) -> None:
    """Seed the global stream."""
    default_generator.state = (_seed_key(value), 0)


# The global stream's own methods; `seed` keeps the object.
bits, uniform, normal = default_generator.bits, default_generator.uniform, default_generator.normal
truncated_normal, integers = default_generator.truncated_normal, default_generator.integers
bernoulli, permutation = default_generator.bernoulli, default_generator.permutation


def _reserve_words(count: int, beside: Tensor, generator: Generator | None) -> tuple[Tensor, Tensor]:
    """As `Generator.reserve`, on the device of a tensor."""
    key, offset = (generator or default_generator).reserve(count)
    return _on_device_of(beside, key), _on_device_of(beside, offset)


FUNCTIONS["reserve_words"] = _reserve_words  # looked up by ops that draw inside of their kernels


@function
def dropout(x: ArrayLike, rate: float = 0.5, *, training: bool = True, generator: Generator | None = None) -> Tensor:
    """Set elements of x to 0 with probability `rate` and scale the others by 1 / (1 - rate); the identity if not training."""
    x = as_tensor(x)
    if not 0.0 <= rate <= 1.0:
        raise UserError("dropout", f"a rate in [0, 1] is required, got {rate}.")
    if not x.dtype.is_float:
        raise UserError("dropout", f"a floating dtype is required, got {x.dtype.name}.")
    if not training or rate == 0.0:
        return x
    if rate == 1.0:
        return zeros(x.shape, dtype=x.dtype)
    keep = _on_device_of(x, (generator or default_generator).bernoulli(1.0 - rate, x.shape))
    return where(keep, x * (1.0 / (1.0 - rate)), 0.0)
