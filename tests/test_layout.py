"""Checks the pass layout: products become batches of plain ones, convolutions take channels last, and permutations meet and cancel."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import weft
import weft.primitives as P
from test_simplify import assert_same_values, graph, names
from weft.compiler.passes.collective_layout import collective_layout
from weft.compiler.passes.layout import layout
from weft.compiler.passes.simplify import simplify
from weft.compiler.thresholds import thresholds
from weft.graph import OPS, Graph, Type, make
from weft.graph.node import ITEM
from weft.tensor import wrap

F = Callable[..., Any]
MATRIX, OTHER = Type((2, 3), weft.float32), Type((3, 4), weft.float32)
IMAGE, FILTER = Type((2, 3, 5, 6), weft.float32), Type((4, 3, 3, 3), weft.float32)
LAST, FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


def plain(x: Any, y: Any) -> Any:
    """(b, m, k) times (b, k, n)."""
    return P.contract(x, y, a="bmk", b="bkn", out="bmn")


def conv_last(x: Any, w: Any, padding: int = 0) -> Any:
    """The convolution of a channels-last tensor, with all that `weft.conv` says of it."""
    first = weft.conv(to_first(x), w, padding=padding).node
    return wrap(make(OPS["conv_last"], (x.node, w.node), first.params))


def to_last(x: Any) -> Any:
    return P.permute(x, axes=LAST)


def to_first(x: Any) -> Any:
    return P.permute(x, axes=FIRST)


def shaped(x: Any, *shape: int) -> Any:
    return P.reshape(x, shape=shape)


# --- products ---------------------------------------------------------------------------------------------------------------------

PRODUCTS: dict[str, tuple[F, F, tuple[Type, ...]]] = {
    "a product": (
        lambda x, y: x @ y, lambda x, y: shaped(plain(shaped(x, 1, 2, 3), shaped(y, 1, 3, 4)), 2, 4), (MATRIX, OTHER)
    ),
    "a transposed operand": (
        lambda x, y: P.contract(x, y, a="km", b="kn", out="mn"),
        lambda x, y: shaped(plain(shaped(P.permute(x, axes=(1, 0)), 1, 2, 3), shaped(y, 1, 3, 4)), 2, 4),
        (Type((3, 2), weft.float32), OTHER),
    ),
    "a transposed result: the operands change places": (
        lambda x, y: P.contract(x, y, a="mk", b="kn", out="nm"),
        lambda x, y: shaped(
            plain(shaped(P.permute(y, axes=(1, 0)), 1, 4, 3), shaped(P.permute(x, axes=(1, 0)), 1, 3, 2)), 4, 2
        ),
        (MATRIX, OTHER),
    ),
    "a batch": (
        lambda x, y: P.contract(x, y, a="mbk", b="bkn", out="bmn"),
        lambda x, y: plain(P.permute(x, axes=(1, 0, 2)), y),
        (Type((2, 5, 3), weft.float32), Type((5, 3, 4), weft.float32)),
    ),
    "halves are multiplied in float32": (
        lambda x, y: P.contract(x, y, a="bmk", b="bkn", out="bmn"),
        lambda x, y: plain(x.astype("float32"), y.astype("float32")).astype("float16"),
        (Type((1, 2, 3), weft.float16), Type((1, 3, 4), weft.float16)),
    ),
    "without a sum it is a product of elements": (
        lambda x, y: P.contract(x, y, a="bmk", b="bkn", out="bmn"),
        lambda x, y: shaped(
            P.expand(shaped(x, 1, 2, 1, 1), shape=(1, 2, 1, 4)) * P.expand(shaped(y, 1, 1, 1, 4), shape=(1, 2, 1, 4)), 1, 2, 4
        ),
        (Type((1, 2, 1), weft.float32), Type((1, 1, 4), weft.float32)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PRODUCTS)
def test_product(name: str) -> None:
    before, after, types = PRODUCTS[name]
    found, expected = layout(graph(before, *types)), graph(after, *types)
    assert found == expected, f"{found.text()}\nexpected\n{expected.text()}"


def einsums() -> list[tuple[str, str, str]]:
    return [
        ("ij", "jk", "ik"), ("ij", "kj", "ki"), ("ji", "jk", "ki"), ("bij", "bjk", "bik"), ("ibj", "jkb", "kbi"), ("i", "i", ""), ("i", "j", "ij"),
        ("i", "j", "ji"), ("ij", "j", "i"), ("j", "ij", "i"), ("ijk", "jk", "i"), ("ijk", "kjl", "il"), ("ijkl", "lkm", "mij"), ("b", "bi", "bi"),
        ("ab", "ab", "ab"), ("abij", "abkj", "baik"), ("ij", "jkl", "lik"), ("ik", "jk", "ij"), ("aib", "bja", "ji"),
    ]  # fmt: skip


@pytest.mark.sweep("a", "b", "out", share=0.25)
@pytest.mark.parametrize(("a", "b", "out"), einsums())
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "bfloat16"])
def test_every_way_to_multiply_keeps_its_value(a: str, b: str, out: str, dtype: str) -> None:
    sizes = dict(zip("abijklm", (2, 3, 4, 5, 6, 3, 2), strict=True))
    kind = weft.asarray(0).astype(dtype).dtype
    types = [Type(tuple(sizes[c] for c in letters), kind) for letters in (a, b)]
    before = graph(lambda x, y: P.contract(x, y, a=a, b=b, out=out), *types)
    after = layout(before)
    assert all(n.params == ("bmk", "bkn", "bmn") for n in after.nodes if n.op.name == "contract")
    assert ("contract" in names(after)) <= kind.is_float
    assert_same_values(before, after, tolerance={"float64": 1e-12, "bfloat16": 2e-2}.get(dtype, 1e-5))


# --- convolutions -------------------------------------------------------------------------------------------------------------------

CONVOLUTIONS: dict[str, tuple[F, F, tuple[Type, ...]]] = {
    "a convolution": (lambda x, w: weft.conv(x, w), lambda x, w: to_first(conv_last(to_last(x), w)), (IMAGE, FILTER)),
    "an activation behind it": (
        lambda x, w: weft.sin(weft.conv(x, w, padding=1)), lambda x, w: to_first(weft.sin(conv_last(to_last(x), w, padding=1))), (IMAGE, FILTER)
    ),
    "two of them: the permutations between them cancel": (
        lambda x, w: weft.conv(weft.tanh(weft.conv(x, w, padding=1)), w[:3, :, :1, :1][:, :3]),
        None,  # see below
        (IMAGE, Type((3, 3, 3, 3), weft.float32)),
    ),
    "another tensor joins it": (
        lambda x, w, r: weft.conv(x, w) + r,
        lambda x, w, r: to_first(conv_last(to_last(x), w) + to_last(r)),
        (IMAGE, FILTER, Type((2, 4, 3, 4), weft.float32)),
    ),
    "a sum over space": (
        lambda x, w: P.sum(weft.conv(x, w), axes=(2, 3)), lambda x, w: P.sum(conv_last(to_last(x), w), axes=(1, 2)), (IMAGE, FILTER)
    ),
    "a sum over the batch and space, as batch norm takes it": (
        lambda x, w: P.sum(weft.conv(x, w), axes=(0, 2, 3)), lambda x, w: P.sum(conv_last(to_last(x), w), axes=(0, 1, 2)), (IMAGE, FILTER)
    ),
    "a sum over one axis of space": (
        lambda x, w: P.sum(weft.conv(x, w), axes=(2,)),
        lambda x, w: P.permute(P.sum(conv_last(to_last(x), w), axes=(1,)), axes=(0, 2, 1)),
        (IMAGE, FILTER),
    ),
    "a maximum over channels": (
        lambda x, w: P.max(weft.conv(x, w), axes=(1,)), lambda x, w: P.max(conv_last(to_last(x), w), axes=(3,)), (IMAGE, FILTER)
    ),
    "padding": (
        lambda x, w: P.pad(weft.conv(x, w), widths=((0, 0, 0), (1, 2, 0), (3, 0, 0), (0, 4, 1)), value=1.0),
        lambda x, w: to_first(P.pad(conv_last(to_last(x), w), widths=((0, 0, 0), (3, 0, 0), (0, 4, 1), (1, 2, 0)), value=1.0)),
        (IMAGE, FILTER),
    ),
    "a part": (
        lambda x, w: P.slice(weft.conv(x, w), starts=(0, 1, 0, 2), stops=(1, 4, 3, 4), steps=(1, 2, 1, 1)),
        lambda x, w: to_first(P.slice(conv_last(to_last(x), w), starts=(0, 0, 2, 1), stops=(1, 3, 4, 4), steps=(1, 1, 1, 2))),
        (IMAGE, FILTER),
    ),
    "a flip": (
        lambda x, w: P.flip(weft.conv(x, w), axes=(1, 2)), lambda x, w: to_first(P.flip(conv_last(to_last(x), w), axes=(1, 3))), (IMAGE, FILTER)
    ),
    "channels of two side by side": (
        lambda x, w: P.concat(weft.conv(x, w), weft.conv(x * 2.0, w), axis=1),
        lambda x, w: to_first(P.concat(conv_last(to_last(x), w), conv_last(to_last(x * 2.0), w), axis=3)),
        (IMAGE, FILTER),
    ),
    "channels last all the way": (lambda x, w: to_last(weft.conv(to_first(x), w)), lambda x, w: conv_last(x, w), (Type((2, 5, 6, 3), weft.float32), FILTER)),
}  # fmt: skip


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution(name: str) -> None:
    before, after, types = CONVOLUTIONS[name]
    found = simplify(layout(simplify(graph(before, *types))))
    if after is not None:
        expected = graph(after, *types)
        assert found == expected, f"{found.text()}\nexpected\n{expected.text()}"
    assert_same_values(graph(before, *types), found, tolerance=1e-5)


def permutations(g: Graph) -> list[tuple[int, ...]]:
    """What is really moved: a number spread over an image is no image."""
    return [n.shape for n in g.nodes if n.op.name == "permute" and len(n.shape) > 2 and n.inputs[0].op.name != "expand"]


def network(x: Any, w: Any, v: Any, scale: Any) -> Any:
    h = weft.relu(weft.batch_norm(weft.conv(x, w, padding=1), scale, scale).value)
    r = weft.conv(h, v, padding=1)
    h = weft.max_pool(weft.relu(r + h), 2) + weft.avg_pool(h, 2)
    h = weft.concat([h, weft.flip(h, axis=3)], axis=1)
    h = weft.pad(h, ((0, 0), (0, 0), (1, 1), (0, 1)))[:, ::2, 1:]
    return weft.conv(h, v[:, :, 1:, 1:]).mean(axis=(2, 3)).sum()


NETWORK = (
    Type((2, 3, 8, 8), weft.float32),
    Type((4, 3, 3, 3), weft.float32),
    Type((4, 4, 3, 3), weft.float32),
    Type((4,), weft.float32),
)


def test_inside_a_network_nothing_is_moved() -> None:
    """Only the input is turned to channels last, and the filters' gradients come back from it."""
    found = simplify(layout(simplify(graph(network, *NETWORK))))
    assert permutations(found) == [(2, 8, 8, 3)]


def test_backwards_through_a_network_too() -> None:
    f = weft.grad(network, argnums=(1, 2, 3))
    before = graph(f, *NETWORK)
    found = simplify(layout(simplify(before)))
    filters = [s for s in permutations(found) if s in ((4, 3, 3, 3), (4, 4, 3, 3), (4, 4, 2, 2))]
    assert len(permutations(found)) - len(filters) <= 1
    assert_same_values(before, found, tolerance=2e-5)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("op", ["conv", "conv_data", "conv_filter"])
def test_convolutions_of_all_ranks_keep_their_value(rank: int, op: str) -> None:
    x, w = Type((2, 4, *(5, 6, 4)[:rank]), weft.float32), Type((6, 2, *(2, 3, 2)[:rank]), weft.float32)

    def f(x: Any, w: Any) -> Any:
        y = lambda x, w: (weft.conv(x, w, stride=2, padding=1, groups=2) ** 2).sum()  # noqa: E731
        return {
            "conv": lambda: y(x, w),
            "conv_data": lambda: weft.grad(y)(x, w),
            "conv_filter": lambda: weft.grad(y, argnums=1)(x, w),
        }[op]()

    before = graph(f, x, w)
    after = layout(simplify(before))
    assert op in names(before)
    assert f"{op}_last" in names(after)
    assert not {"conv", "conv_data", "conv_filter"} & set(names(after))
    assert_same_values(before, after, tolerance=1e-5)


@pytest.mark.parametrize("batch", [(1,), (2,), (1, 1), (2, 1)])
def test_gradients_of_weights_lie_as_the_weights(batch: tuple[int, ...]) -> None:
    """Also those of one example: an update that is fused into the product walks weight and moments in order."""

    def gradient(x: Any, w: Any) -> Any:
        return weft.grad(lambda w: (weft.matmul(x, w.T) ** 2).sum())(w)

    graph = layout(simplify(weft.make_graph(gradient, weft.zeros((*batch, 5, 8)), weft.zeros((6, 8)))))
    [result] = graph.outputs
    while result.op.name in ("reshape", "mul", "add"):
        result = result.inputs[0]
    assert result.op.name == "contract"
    assert result.shape[-2:] == (6, 8)


def test_what_has_nothing_to_do_with_layout_is_left_alone() -> None:
    before = graph(lambda x: (weft.softmax(x.mT), weft.permute_dims(x[None, None], (0, 3, 1, 2))), MATRIX)
    assert layout(before) == before


def test_shapes_and_dtypes_of_results_stay() -> None:
    before = graph(lambda x, w: (weft.conv(x, w), x @ w[0, 0, :, :1].reshape(3, 1)[[0] * 6], x), IMAGE, FILTER)
    after = layout(before)
    assert [o.type for o in after.outputs] == [o.type for o in before.outputs]
    assert after.inputs == before.inputs


def test_a_network_of_other_dtypes() -> None:
    for dtype in ("float16", "float64"):
        kind = weft.asarray(0).astype(dtype).dtype
        before = graph(lambda x, w: weft.relu(weft.conv(x, w)), Type(IMAGE.shape, kind), Type(FILTER.shape, kind))
        after = layout(before)
        [conv] = [n for n in after.nodes if n.op.name == "conv_last"]
        assert conv.dtype is (weft.float64 if dtype == "float64" else weft.float32)
        assert_same_values(before, after, tolerance=2e-3 if dtype == "float16" else 1e-12)


def test_integers_are_convolved_as_integers() -> None:
    kind = weft.int32
    before = graph(lambda x, w: weft.conv(x, w), Type(IMAGE.shape, kind), Type(FILTER.shape, kind))
    assert_same_values(
        before,
        layout(before),
        [np.arange(180).reshape(IMAGE.shape).astype("int32"), np.arange(108).reshape(FILTER.shape).astype("int32")],
    )


def test_transposed_matrices_are_no_images() -> None:
    """The patches of a vision transformer become tokens by a transpose: what follows has the layout of tokens."""

    def f(x: Any, w: Any) -> Any:
        tokens = weft.transpose(weft.flatten(weft.conv(x, w, stride=2), 2), 1, 2)
        return weft.exp(tokens + 1.0)

    after = simplify(layout(graph(f, Type((2, 3, 4, 4), weft.float32), Type((5, 3, 2, 2), weft.float32))))
    assert after.outputs[0].op.name == "exp"
    assert after.outputs[0].shape == (2, 4, 5)


def test_images_of_one_dimension_are_channels_last() -> None:
    after = simplify(
        layout(
            graph(
                lambda x, w: weft.exp(weft.conv(x, w)) + 1.0,
                Type((2, 3, 8), weft.float32),
                Type((5, 3, 3), weft.float32),
            )
        )
    )
    assert after.outputs[0].op.name == "permute"
    assert [n.shape for n in after.nodes if n.op.name == "exp"] == [(2, 6, 5)]


# --- whole words --------------------------------------------------------------------------------------------------------------------


def with_words(f: F, *types: Type) -> Graph:
    return simplify(layout(simplify(graph(f, *types)), pad_to_words=True))


def image_of(channels: int, dtype: Any = weft.float32) -> tuple[Type, Type]:
    """An image, and filters for it."""
    return Type((2, channels, 5, 6), dtype), Type((4, channels, 3, 3), dtype)


def filled(x: Any, more: int) -> Any:
    """More channels, of zeros, where they come last."""
    return P.pad(x, widths=((0, 0, 0),) * 3 + ((0, more, 0),), value=0.0)


def conv_filter_last(x: Any, g: Any, channels: int) -> Any:
    """The filter's gradient of a channels-last image, for so many channels of it."""
    params = ((1, 1), ((0, 0), (0, 0)), (1, 1), 1, "", (3, 3))
    made = make(OPS["conv_filter_last"], (x.node, g.node), params)
    rank, stop = len(made.shape), (*made.shape[:-2], channels, made.shape[-1])
    return P.slice(wrap(made), starts=(0,) * rank, stops=stop, steps=(1,) * rank)


def halves(*shape: int) -> Type:
    return Type(shape, weft.bfloat16)


def products_of(found: Graph) -> list[tuple[int, ...]]:
    """(rows, terms, columns) of all products."""
    products = [n for n in found.nodes if n.op.name == "contract"]
    return [(*n.inputs[0].shape[1:], n.inputs[1].shape[2]) for n in products]


@pytest.mark.parametrize(
    ("f", "shapes", "expected"),
    [
        (lambda x, w: x @ w.mT, ((6, 16), (21, 16)), (6, 16, 24)),  # logits: lines of the result
        (lambda g, w: g @ w, ((6, 21), (21, 16)), (6, 24, 16)),  # lines of the left operand, with zeros in the other
        (lambda g, x: g.mT @ x, ((6, 21), (6, 16)), (24, 6, 16)),  # lines of an operand that is read across
        (lambda x, w: x @ w.mT, ((7, 16), (24, 16)), (7, 16, 24)),  # an odd number of lines is no matter
        (lambda x, w: x.reshape((2, 3, 16)) @ w.mT, ((6, 16), (21, 16)), (6, 16, 24)),
    ],
)
def test_large_products_of_16_bits_have_lines_of_whole_words(f: F, shapes: Any, expected: tuple[int, ...]) -> None:
    types = [halves(*shape) for shape in shapes]
    assert products_of(with_words(f, *types)) == products_of(layout(graph(f, *types)))  # small ones stay as they are
    with thresholds.set(gpu_padded_product=8):
        found = with_words(f, *types)
        assert products_of(with_words(f, *(Type(t.shape, weft.float32) for t in types))) == products_of(
            layout(graph(f, *types))
        )
    assert products_of(found) == [expected]
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-4, 5, shape).astype(ml_dtypes.bfloat16) for shape in shapes]
    assert_same_values(graph(f, *types), found, arrays)


def test_a_padded_operand_is_padded_once_for_all_products() -> None:
    """The gradient of logits is read by two products, and across by one of them."""

    def f(g: Any, w: Any, x: Any) -> Any:
        g = g * 2.0
        return g @ w, g.mT @ x

    with thresholds.set(gpu_padded_product=8):
        found = with_words(f, halves(6, 21), halves(21, 16), halves(6, 16))
    assert products_of(found) == [(6, 24, 16), (24, 6, 16)]
    assert sum(n.op.name == "pad" and n.inputs[0].op.name == "mul" for n in found.nodes) == 1


@pytest.mark.parametrize("channels", [2, 3])
def test_few_channels_are_filled_up(channels: int) -> None:
    """Until a pixel is 16 bytes: four numbers of float32."""
    found = with_words(weft.conv, *image_of(channels))
    more = 4 - channels

    def expected(x: Any, w: Any) -> Any:
        return to_first(conv_last(filled(to_last(x), more), to_first(filled(to_last(w), more))))

    assert found == graph(expected, *image_of(channels)), found.text()
    assert_same_values(graph(weft.conv, *image_of(channels)), found, tolerance=1e-6)


@pytest.mark.parametrize("channels", [2, 3])
def test_for_the_gradient_of_the_filter_too(channels: int) -> None:
    x, w = image_of(channels)
    output = Type((2, 4, 3, 4), weft.float32)

    def f(x: Any, g: Any) -> Any:
        return weft.vjp(lambda w: weft.conv(x, w), weft.zeros(w.shape))[1](g)[0]

    def expected(x: Any, g: Any) -> Any:
        made = conv_filter_last(filled(to_last(x), 4 - channels), to_last(g), channels)
        return P.permute(made, axes=(3, 2, 0, 1))

    found = with_words(f, x, output)
    assert found == graph(expected, x, output), found.text()
    assert_same_values(graph(f, x, output), found, tolerance=1e-6)


@pytest.mark.parametrize(
    ("image", "kernel", "stride", "padding", "taps", "channels"),
    [
        ((9, 8), (7, 7), (2, 2), 3, (4, 4), 12),
        ((23, 21), (11, 11), (4, 4), 2, (3, 3), 48),
        ((6, 7), (3, 3), (2, 2), 1, (2, 2), 12),
        ((7, 6), (2, 5), (2, 1), ((0, 0), (3, 1)), (1, 5), 8),  # 6 channels of a block, filled up
        ((9, 9), (3, 3), (3, 3), 0, (1, 1), 28),  # 27
        (
            (10, 11),
            (3, 3),
            (3, 2),
            ((4, 0), (0, 5)),
            (1, 2),
            20,
        ),  # 18; windows of nothing but zeros, pixels that none sees
    ],
)
def test_windows_that_move_by_more_than_a_pixel_see_blocks(
    image: Any, kernel: Any, stride: Any, padding: Any, taps: Any, channels: int
) -> None:
    """The forward pass and the gradient of the filter read the same blocks, and give what they gave."""
    x, w = Type((2, 3, *image), weft.float32), Type((5, 3, *kernel), weft.float32)

    def f(x: Any, w: Any) -> Any:
        y, back = weft.vjp(lambda w: weft.conv(x, w, stride=stride, padding=padding), w)
        return y, back(weft.sin(y))[0]

    found = with_words(f, x, w)
    forward, back = (next(n for n in found.nodes if n.op.name == name) for name in ("conv_last", "conv_filter_last"))
    assert forward.inputs[0] is back.inputs[0]
    assert forward.inputs[0].shape[-1] == channels
    assert forward.inputs[1].shape[1:] == (channels, *taps)
    assert back.shape == (*taps, channels, 5)
    assert forward.params[:2] == back.params[:2] == ((1, 1), ((0, 0), (0, 0)))
    assert_same_values(graph(f, x, w), found, tolerance=1e-5)


@pytest.mark.parametrize(
    "how",
    [
        {"dilation": 2, "stride": 2},
        {"stride": (4, 1)},  # more than a filter has taps
        {"stride": 2, "algorithm": "DIRECT"},
        {"stride": 1},
    ],
)
def test_other_windows_are_only_filled_up(how: Any) -> None:
    x, w = Type((2, 3, 9, 9), weft.float32), Type((4, 3, 3, 3), weft.float32)
    found = with_words(lambda x, w: weft.conv(x, w, **how), x, w)
    [made] = [n for n in found.nodes if n.op.name == "conv_last"]
    assert (made.inputs[0].shape, made.inputs[1].shape) == ((2, 9, 9, 4), (4, 4, 3, 3))
    assert_same_values(graph(lambda x, w: weft.conv(x, w, **how), x, w), found, tolerance=1e-5)


def channels_of(found: Graph) -> list[int]:
    return [n.inputs[0].shape[-1] for n in found.nodes if n.op.name in ("conv_last", "conv_filter_last")]


@pytest.mark.parametrize(("channels", "after"), [(1, 1), (2, 8), (3, 8), (5, 8), (7, 8), (8, 8), (9, 9)])
def test_of_16_bits_eight_are_a_word(channels: int, after: int) -> None:
    types = image_of(channels)

    def f(x: Any, w: Any) -> Any:
        y, back = weft.vjp(lambda w: weft.conv(x.astype("bfloat16"), w.astype("bfloat16")), w)
        return y, back(y)[0]

    found = with_words(f, *types)
    assert channels_of(found) == [after, after]
    pads = [n for n in found.nodes if n.op.name == "pad"]
    assert all(n.dtype is weft.bfloat16 for n in pads)  # it is the narrow image that is filled up, and kept
    assert bool(pads) == (after != channels)
    assert_same_values(graph(f, *types), found, tolerance=1e-2)


def test_what_was_narrow_is_filled_up_before_it_is_widened() -> None:
    """As mixed precision leaves the last convolution: narrow operands, and sums in float32."""

    def f(x: Any, w: Any) -> Any:
        return weft.conv(x.astype("bfloat16").astype("float32"), w.astype("bfloat16").astype("float32"))

    found = with_words(f, *image_of(3))
    assert [n.dtype for n in found.nodes if n.op.name == "pad"] == [weft.bfloat16] * 2
    assert channels_of(found) == [8]
    assert_same_values(graph(f, *image_of(3)), found, tolerance=1e-5)


def test_what_is_not_filled_up() -> None:
    """One channel alone, whole words already, groups, whole numbers; and nothing where nobody asks for it."""
    for channels in (1, 4, 5, 8):
        assert channels_of(with_words(weft.conv, *image_of(channels))) == [channels]
    grouped = with_words(
        lambda x, w: weft.conv(x, w, groups=2), Type((2, 2, 5, 6), weft.float32), Type((4, 1, 3, 3), weft.float32)
    )
    assert channels_of(grouped) == [2]
    assert channels_of(with_words(weft.conv, *image_of(3, weft.int32))) == [3]
    assert channels_of(with_words(weft.conv, *image_of(3, weft.float64))) == [3]
    assert channels_of(layout(graph(weft.conv, *image_of(3)))) == [3]


def test_the_gradient_of_the_image_has_its_own_channels() -> None:
    """It is summed over filters; it would be computed for channels that do not exist."""
    x, w = Type((2, 3, 5, 6), weft.float32), Type((2, 3, 3, 3), weft.float32)
    f = weft.grad(lambda x, w: (weft.conv(x, w) ** 2).sum())
    found = with_words(f, x, w)
    [data] = [n for n in found.nodes if n.op.name == "conv_data_last"]
    assert (data.shape[-1], data.inputs[0].shape[-1]) == (3, 2)
    assert_same_values(graph(f, x, w), found, tolerance=1e-5)


def over_two(name: str, *xs: Any) -> Any:
    """A collective of two processes, as a node: it need not run."""
    params = ("data", (("data", 2),)) + (("sum", "summed") if name == "all_reduce" else ())
    made = make(OPS[name], tuple(x.node for x in xs), params)
    return [wrap(make(ITEM, (made,), (i,))) for i in range(len(xs))] if made.outputs else wrap(made)


def test_sums_over_processes_take_the_layout_of_their_operands() -> None:
    weft.parallel.all_reduce  # noqa: B018 - declares the ops
    axes = (3, 2, 0, 1)

    def permuted_before(x: Any, w: Any) -> Any:
        several = over_two("all_reduce_bucket", P.permute(x, axes=axes), w)
        return over_two("all_reduce", P.permute(x, axes=axes)) + several[0], several[1]

    def permuted_behind(x: Any, w: Any) -> Any:
        several = over_two("all_reduce_bucket", x, w)
        return P.permute(over_two("all_reduce", x), axes=axes) + P.permute(several[0], axes=axes), several[1]

    assert collective_layout(graph(permuted_before, IMAGE, FILTER)) == graph(permuted_behind, IMAGE, FILTER)

    def twice(x: Any) -> Any:
        first, second = (over_two("all_reduce_bucket", y, x) for y in (P.permute(x, axes=(1, 0)), x))
        return [first[1], second[0], first[0]]

    def once(x: Any) -> Any:
        one = over_two("all_reduce_bucket", x, x)
        return [one[1], one[0], P.permute(one[0], axes=(1, 0))]

    square = Type((3, 3), weft.float32)
    assert collective_layout(graph(twice, square)) == graph(once, square)
    unchanged = graph(permuted_behind, IMAGE, FILTER)
    assert collective_layout(unchanged) == unchanged
