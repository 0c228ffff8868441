"""Operations and bytes of profiles against counts by hand."""

from collections.abc import Callable
from typing import NamedTuple

import pytest

import weft
from weft import nn
from weft.insight import profile

N, C, K, SIDE = 2, 16, 32, 20  # batch, channels, filters, height and width
PIXELS = N * SIDE * SIDE
B, S, D, HEADS = 2, 24, 64, 4  # batch, length, width
T, IN, H = 7, 24, 32  # steps, inputs and units of an LSTM


class Count(NamedTuple):
    """A layer, its input, its operations, and the floats that it must at least read and write."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    flops: int
    floats: int


def normed() -> nn.Module:
    return nn.BatchNorm2d(C).eval()


COUNTS = {
    "conv": Count(
        lambda: nn.Conv2d(C, K, 3, padding=1), (N, C, SIDE, SIDE),
        2 * PIXELS * K * C * 9 + PIXELS * K, PIXELS * (C + K) + K * C * 9 + K,
    ),
    "grouped": Count(
        lambda: nn.Conv2d(C, K, 3, padding=1, groups=4), (N, C, SIDE, SIDE),
        2 * PIXELS * K * (C // 4) * 9 + PIXELS * K, PIXELS * (C + K) + K * (C // 4) * 9 + K,
    ),
    "depthwise": Count(
        lambda: nn.Conv2d(C, C, 3, padding=1, groups=C), (N, C, SIDE, SIDE),
        2 * PIXELS * C * 9 + PIXELS * C, 2 * PIXELS * C + C * 9 + C,
    ),
    "batch norm": Count(normed, (N, C, SIDE, SIDE), 3 * PIXELS * C, 2 * PIXELS * C + 3 * C),
    "attention": Count(
        lambda: nn.MultiHeadAttention(D, HEADS), (B, S, D),
        4 * (2 * B * S * D * D + B * S * D) + 2 * 2 * B * S * S * D, 4 * (2 * B * S * D + D * D + D) + 4 * B * S * D,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", COUNTS)
def test_operations_and_bytes(name: str) -> None:
    count = COUNTS[name]
    found = profile(count.make(), weft.ones(count.shape), repeats=1).total
    assert found.flops == pytest.approx(count.flops, rel=1e-9)
    # A result in another layout is stored twice, and packed weights are padded.
    assert 4 * count.floats <= found.nbytes <= 2.5 * 4 * count.floats


def test_causal_attention_counts_the_pairs_that_it_computes() -> None:
    shape = (B, HEADS, S, D // HEADS)
    found = profile(lambda x: weft.dot_product_attention(x, x, x, causal=True), weft.ones(shape), repeats=1)
    assert found.total.flops == pytest.approx(4 * B * S * (S + 1) // 2 * D)


def test_an_lstm_counts_all_of_its_steps() -> None:
    layer = nn.LSTM(IN, H)
    found = profile(lambda x: layer(x), weft.ones((3, T, IN)), repeats=1)
    products = 2 * T * 3 * (IN + H) * 4 * H
    assert products < found.total.flops < products + 80 * T * 3 * H, "gates are a few operations for each unit"
    [scan] = [kernel for kernel in found.kernels if kernel.name.startswith("scan")]
    # The recurrent weights count once: they stay in the cache.
    floats = H * 4 * H + T * 3 * 4 * H + T * 3 * H + 4 * 3 * H
    assert 4 * floats <= scan.nbytes <= 1.5 * 4 * floats
