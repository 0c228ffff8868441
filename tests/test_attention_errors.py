"""Errors of attention, positions and transformer layers say what is required, and what they got."""

from __future__ import annotations

from typing import Any

import pytest

import weft
from weft import nn
from weft.errors import UserError
from weft.testing import counted

ERRORS = [
    (
        lambda: nn.MultiHeadAttention(8, 3),
        "[MultiHeadAttention] features that are a multiple of the 3 heads are required, got 8. Give head_size",
    ),
    (
        lambda: nn.MultiHeadAttention(8, 2, head_size=0),
        "[MultiHeadAttention] the number of features of a head must be an int of 1 or more, got 0.",
    ),
    (
        lambda: nn.MultiHeadAttention(8, 2, value_size=1.5),
        "[MultiHeadAttention] the number of values of a head must be an int of 1 or more, got 1.5.",
    ),
    (
        lambda: nn.MultiHeadAttention(8, 2, head_size=5, rotary=True),
        "[MultiHeadAttention] rotary positions turn pairs: heads of even width are required, got 5.",
    ),
    (
        lambda: nn.MultiHeadAttention(8, 2)(weft.ones((4, 3, 8)), key_lengths=[3, 2]),
        "[MultiHeadAttention] key_lengths of shape (4,) and a signed integer dtype are required, got int64 (2,).",
    ),
    (
        lambda: nn.MultiHeadAttention(8, 2)(weft.ones((2, 3, 8)), key_lengths=[3.0, 2.0]),
        "[MultiHeadAttention] key_lengths of shape (2,) and a signed integer dtype are required, got float32 (2,).",
    ),
    (
        lambda: nn.MultiHeadAttention(8, 2)(weft.ones((2, 3, 8)), causal="left"),
        "[MultiHeadAttention] causal must be a bool, 'upper_left' or 'lower_right', got 'left'.",
    ),
    (
        lambda: nn.MultiHeadAttention(8, 4, key_heads=3),
        "[MultiHeadAttention] heads that are a multiple of the 3 key heads are required, got 4.",
    ),
    (
        lambda: nn.MultiHeadAttention(6, 2, rotary=True),
        "[MultiHeadAttention] rotary positions turn pairs: heads of even width are required, got 3.",
    ),
    (
        lambda: nn.MultiHeadAttention(0, 2),
        "[MultiHeadAttention] the number of features must be an int of 1 or more, got 0.",
    ),
    (lambda: nn.MultiHeadAttention(8, 2, dropout=1.0), "[MultiHeadAttention] a rate in [0, 1) is required, got 1.0."),
    (
        lambda: nn.MultiHeadAttention(8, 2)(weft.ones((3, 8))),
        "[MultiHeadAttention] an input (batch, time, features) is required, got shape (3, 8).",
    ),
    (
        lambda: nn.MultiHeadAttention(8, 2)(weft.ones((1, 3, 4))),
        "[MultiHeadAttention] an input with 8 features in the last dimension is required, got shape (1, 3, 4).",
    ),
    (
        lambda: nn.MultiHeadAttention(8, 2)(weft.ones((1, 3, 8)), weft.ones((2, 3, 8))),
        "[MultiHeadAttention] one batch is required, got (1, 3, 8) and (2, 3, 8).",
    ),
    (
        lambda: nn.MultiHeadAttention(8, 2)(weft.ones((4, 3, 8)), mask=weft.ones((4, 3), dtype=weft.bool)),
        "[MultiHeadAttention] a bool or float mask that fits (batch, heads, queries, keys) = (4, 2, 3, 3) is required, "
        "with 2 axes (queries, keys) or 3 (batch, queries, keys), got bool (4, 3).",
    ),
    (
        lambda: nn.MultiHeadAttention(8, 2)(weft.ones((4, 3, 8)), mask=weft.ones((3, 3), dtype=weft.int32)),
        "got int32 (3, 3).",
    ),
    (lambda: nn.rotary(weft.ones((2, 3))), "[rotary] an even number of features is required, got (2, 3)."),
    (lambda: nn.rotary(weft.ones((2,))), "[rotary] an input (..., time, features) is required, got shape (2,)."),
    (lambda: nn.PositionalEncoding(base=1.0), "[PositionalEncoding] the base must be above 1, got 1.0."),
    (lambda: nn.sinusoidal(0, 4), "[sinusoidal] the number of positions must be an int of 1 or more, got 0."),
    (lambda: nn.alibi(0, 1, 1), "[alibi] the number of heads must be an int of 1 or more, got 0."),
    (lambda: nn.LearnedPositions(0, 4), "[LearnedPositions] the number of positions must be an int of 1 or more"),
    (
        lambda: nn.LearnedPositions(2, 4)(weft.ones((1, 3, 4))),
        "[LearnedPositions] at most 2 positions are supported, got 3.",
    ),
    (
        lambda: nn.TransformerBlock(4, 2, activation="gelo"),
        "[activation] there is no activation 'gelo'. Known: relu, ",
    ),
    (
        lambda: weft.dot_product_attention(*[weft.ones((2, 3, 4))] * 3, key_lengths=weft.ones(2, dtype="uint8")),
        "lengths of shape (2,) and a signed integer dtype are required, got uint8[2].",
    ),
    (
        lambda: weft.dot_product_attention(*[weft.ones((2, 3, 4))] * 3, window=(1, 2, 3)),
        "window must be a number of keys, or (left, right), got (1, 2, 3).",
    ),
    (lambda: nn.TransformerEncoderLayer(4, 2, dropout=-0.1), "[TransformerEncoderLayer] a rate in [0, 1) is required"),
    (
        lambda: nn.TransformerDecoderLayer(4, 2)(weft.ones((1, 3, 4))),
        "[TransformerDecoderLayer] a context (batch, keys, features) is required, got None.",
    ),
    (
        lambda: nn.TransformerDecoderLayer(4, 2, hidden=0),
        "[FeedForward] the number of hidden features must be an int of 1 or more, got 0.",
    ),
]


@pytest.mark.parametrize(("call", "text"), ERRORS, ids=[text[:24] for _, text in ERRORS])
def test_wrong_settings_and_inputs(call: Any, text: str) -> None:
    with pytest.raises(UserError) as caught:
        call()
    assert text in str(caught.value)
    counted()
