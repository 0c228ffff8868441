"""The ops of random programs whose parameters follow from shapes: indexing, windows, convolutions, normalisations."""

from __future__ import annotations

from math import prod

from .table import ALONG, BINARY, COMPARE, PRODUCT, REDUCE, UNARY, Made, Maker, Names, Shape


def _choice(names: Names, options: list[str]) -> str:
    return str(options[int(names.rng.integers(len(options)))])


def _int(names: Names, low: int, high: int) -> int:
    """A whole number, both ends included."""
    return int(names.rng.integers(low, high + 1))


def unary(names: Names, x: str) -> Made:
    return Made(_choice(names, UNARY), (x,))


def binary(names: Names, x: str) -> Made:
    pair = (x, names.like(x))
    return Made(_choice(names, BINARY), pair if names.rng.random() < 0.5 else pair[::-1])


def compare(names: Names, x: str) -> Made:
    return Made(_choice(names, COMPARE), (x, names.like(x)))


def reduce(names: Names, x: str) -> Made:
    code = _choice(names, REDUCE)
    axes = tuple(a for a in range(len(names.shape(x))) if names.rng.random() < 0.6)
    how = _choice(names, ["", f", axis={axes}", f", axis={axes}, keepdims=True"]) if axes else ""
    return Made(code.replace("{how}", how), (x,))


def along(names: Names, x: str) -> Made | None:
    shape = names.shape(x)
    if not shape:
        return None
    code = _choice(names, ALONG)
    return Made(code.replace("{axis}", str(_int(names, 0, len(shape) - 1))), (x,))


def reshape(names: Names, x: str) -> Made:
    rest = prod(names.shape(x))
    shape: list[int] = []
    while rest > 1 and len(shape) < 3:
        divisors = [d for d in range(2, min(rest, 64) + 1) if rest % d == 0] or [rest]
        shape.append(divisors[_int(names, 0, len(divisors) - 1)])
        rest //= shape[-1]
    axes = names.rng.permutation(len(names.shape(x))).tolist()
    moved = _choice(names, ["{0}", f"weft.permute_dims({{0}}, {tuple(axes)})"]) if len(axes) > 1 else "{0}"
    return Made(f"weft.reshape({moved}, {(*shape, rest)})", (x,))


def pad(names: Names, x: str) -> Made | None:
    shape = names.shape(x)
    if not shape or min(shape) < 3:
        return None
    widths = tuple((_int(names, 0, 2), _int(names, 0, 2)) for _ in shape)
    mode = _choice(names, ["constant", "constant", "reflect", "edge", "wrap"])
    value = ", value=-0.5" if mode == "constant" and names.rng.random() < 0.5 else ""
    return Made(f"weft.pad({{0}}, {widths}, {mode!r}{value})", (x,))


def product(names: Names, x: str) -> Made | None:
    shape = names.shape(x)
    if len(shape) != 2:
        return None
    other = names.fresh((_int(names, 1, 9), shape[1]))
    return Made(_choice(names, PRODUCT), (x, other))


def indexed(names: Names, x: str) -> Made | None:
    shape = names.shape(x)
    index = names.indices(5, shape[0]) if shape and shape[0] else None
    if index is None:
        return None
    code = _choice(names, [
        "weft.take({0}, {1}, axis=0)", "{0}[{1}]", "{0}[{1} - {0}.shape[0]]", "{0}.at[{1}].add(0.25)", "{0}.at[{1}].set(0.5)",
        "{0}.at[{1}].add({0}[{1}])", "{0}.at[{1}, ...].set(weft.sin({0}[:1]))", "weft.embedding({0}, {1})", "weft.one_hot({1}, 7, dtype=D)",
        "{0}[{1}[0]]", "weft.concat([{0}[{1}], {0}])",
    ])  # fmt: skip
    return Made(code, (x, index))


def masked(names: Names, x: str) -> Made | None:
    mask = names.mask(x)
    code = _choice(
        names, ["weft.where({1}, {0}, 0.25)", "weft.where({1}, 0.5, {0})", "weft.where({1}, {0}, weft.sin({0}))"]
    )
    return None if mask is None else Made(code, (x, mask))


# --- windows and convolutions: (batch, channels, places...) -------------------------------------------------------------------------------

MOST_TAPS = {1: 30, 2: 7, 3: 3}  # in each direction


def pool(names: Names, x: str) -> Made | None:
    shape = names.shape(x)
    rank = len(shape) - 2
    if rank not in MOST_TAPS or min(shape) < 1:
        return None
    size = tuple(_int(names, 1, min(n, MOST_TAPS[rank])) for n in shape[2:])
    stride = tuple(_int(names, 1, 3) for _ in size)
    padding = tuple(_int(names, 0, n // 2) for n in size)
    ceil = f", ceil_mode={names.rng.random() < 0.3}"
    return Made(_choice(names, [
        f"weft.max_pool({{0}}, {size}, stride={stride}, padding={padding}{ceil})",
        f"weft.max_pool({{0}}, {size}, stride=1)",
        f"weft.max_pool({{0}}, {size}, stride={stride}, padding={padding}, dilation={_int(names, 1, 2)})",
        f"weft.avg_pool({{0}}, {size}, stride={stride}, padding={padding}{ceil}, count_include_pad={names.rng.random() < 0.5})",
        f"weft.adaptive_avg_pool({{0}}, {tuple(_int(names, 1, n) for n in shape[2:])})",
        f"weft.adaptive_max_pool({{0}}, {tuple(_int(names, 1, n) for n in shape[2:])})",
        "weft.global_avg_pool({0})", "weft.global_max_pool({0})",
    ]), (x,))  # fmt: skip


def conv(names: Names, x: str) -> Made | None:
    shape = names.shape(x)
    rank = len(shape) - 2
    if rank not in MOST_TAPS:
        return None
    channels = shape[1]
    groups = int(names.rng.choice([g for g in range(1, channels + 1) if channels % g == 0]))
    kernel = tuple(_int(names, 1, min(n, 5)) for n in shape[2:])
    if names.rng.random() < 0.4 and min(shape[2:]) >= 3:
        kernel = (3,) * rank  # that has algorithms of its own
    outputs = groups * _int(names, 1, 4)
    stride, padding = (_choice(names, ["1", "1", "2", "3"]) for _ in range(2))
    dilation = _choice(names, ["1", "1", "2"])
    if names.rng.random() < 0.7:
        filters = names.fresh((outputs, channels // groups, *kernel))
        how = f"stride={stride}, padding={int(padding) - 1}, dilation={dilation}, groups={groups}"
        return Made(f"weft.conv({{0}}, 0.3 * {{1}}, {how})", (x, filters))
    filters = names.fresh((channels, outputs // groups, *kernel))
    how = f"stride={stride}, padding={min(int(padding) - 1, min(kernel) - 1)}, dilation={dilation}, groups={groups}"
    return Made(f"weft.conv_transpose({{0}}, 0.3 * {{1}}, {how})", (x, filters))


def normalize(names: Names, x: str) -> Made | None:
    shape = names.shape(x)
    if len(shape) < 2:
        return None
    channels: Shape = (shape[1],)
    groups = int(names.rng.choice([g for g in range(1, shape[1] + 1) if shape[1] % g == 0]))
    scale = names.fresh(channels)
    return Made(_choice(names, [
        "weft.batch_norm({0}, {1})[0]", "weft.batch_norm({0}, {1}, -{1}, mean_=0.1 * {1}, var_={1} * {1} + 0.5)[0]", "weft.instance_norm({0}, {1})",
        f"weft.group_norm({{0}}, {groups}, {{1}}, 0.5 * {{1}})", "weft.local_response_norm({0}, 3, alpha=0.1)", "weft.prelu({0}, {1})",
        "weft.local_contrast_norm({0}, 3)",
    ]), (x, scale))  # fmt: skip


# Each is as likely as it stands here.
MAKERS: list[Maker] = [
    unary, unary, unary, binary, binary, binary, compare, reduce, reduce, along, along, along, reshape, pad, product, product, indexed,
    masked, pool, pool, conv, conv, normalize,
]  # fmt: skip
