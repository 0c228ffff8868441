"""Manifest and graphs of a packed program as one deflated text.

A small network has more bytes of text than one would think: field names and ops that every program has. So the text is deflated with a preset
dictionary (RFC 1950): what is in it costs two or three bytes. It has the words of the format and of common layers, of no network in particular.
DICTIONARY is a part of the format: a change needs a new version of packed programs.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence

# What is near the end costs least: the usual forms of what every program has.
DICTIONARY = b"""
gelu erf tanh exp log sigmoid softmax mean max power item index gather one_hot slice pad concat window_sum attention
"origin": "licence": "metrics": "preprocessing": "labels":["stream" "argument" "grad" "train":{"graph":"train.py", "frozen":[" float16 int8 int32 int64 bool
    v9 = lookup(v8, x9)  # @ layers.0 Embedding
    v9 = quantize(v8, x9, dtype=int8)  # @ layers.0 Conv2d
    v9 = attention(v7, v8, v9, left=-1, right=-1, align='lower_right', scale=0.125, dropout=0.0, given=())  # @ attention MultiHeadAttention
    v9 = contract(v8, x9, a='Amk', b='kn', out='Amn')  # @ feed_forward.first Linear
    v9 = sum(v8, axes=(2,))  # @ attention_norm LayerNorm
    v9 = or_(v7, v8)  # @ layers.0.layers.2 ReLU6
    v9 = const(value=6.0, dtype=float32, shape=(batch, 64, 56, 56))
    v9 = const(value=1e-05, dtype=float32, shape=(64,))  # @ layers.1.body.layers.0.layers.1 BatchNorm2d
    v9 = sub(v7, v8)
    v9 = sqrt(v8)
    v9 = div(v7, v8)
    v9 = mul(v7, v8)  # @ layers.0.layers.1 BatchNorm2d
    v9 = window_sum(v8, size=(1, 1, 7, 7)  # @ layers.9 GlobalAvgPool2d
    v9 = window_max(v8, size=(1, 1, 2, 2), stride=(1, 1, 2, 2), padding=((0, 0), (0, 0), (0, 0), (0, 0)), dilation=(1, 1, 1, 1))  # @ layers.3 MaxPool2d
    v9 = conv(v8, x9, stride=(2, 2), padding=((1, 1), (1, 1)), dilation=(1, 1), groups=1, prefer='')  # @ layers.4 Conv2d
    v9 = const(value=1.0, dtype=float32, shape=(batch, 64, 28, 28))  # @ layers.2 ReLU
{"format":"weft-program","version":3,"weft":"0.1.0","dimensions":{"batch":null},"functions":{"eval":{"graph":"eval.py","arguments":{"tuple":[{"tuple":["*"]},{"dict":{}}]},\
"inputs":[{"kind":"argument","name":"0","type":"float32[batch, 3, 224, 224]"},{"kind":"state","name":"layers.0.layers.0.weight"},{"kind":"state","name":"layers.0.layers.1.mean"},\
{"kind":"state","name":"layers.0.layers.1.var"},{"kind":"state","name":"layers.0.layers.1.scale"},{"kind":"state","name":"layers.0.layers.1.shift"},\
{"kind":"state","name":"layers.0.weight"},{"kind":"state","name":"layers.0.bias"},{"kind":"state","name":"layers.1.weight"},{"kind":"state","name":"layers.1.bias"}],\
"outputs":[{"kind":"result","name":"0"}],"result":"*","results":[["computed",0]],"cleared":[],"differentiable":true}},"trainable":["layers.0.bias","layers.0.weight","layers.1.bias","layers.1.weight"],\
"frozen":[],"ops":{"add":1,"const":1,"contract":1,"conv":1,"div":1,"expand":1,"le":1,"mul":1,"permute":1,"reshape":1,"sqrt":1,"sub":1,"sum":1,"where":1,"window_max":1}}
\0from weft.primitives import *

def graph(x0: "float32[batch, 1, 28, 28]", x1: "float32[16, 3, 3, 3]", x2: "float32[16]", x3: "float32[32, 16, 5, 5]", x4: "float32[100, 10]", x5: "float32[10]", x6: "float32[10]", x7: "float32[10]", x8: "float32[10]", x9: "float32[10]"):
    v0 = conv(x0, x1, stride=(1, 1), padding=((0, 0), (0, 0)), dilation=(1, 1), groups=1, prefer='')  # @ layers.0 Conv2d
    v1 = reshape(x2, shape=(16, 1, 1))  # @ layers.0 Conv2d
    v2 = expand(v1, shape=(batch, 16, 28, 28))  # @ layers.0 Conv2d
    v3 = add(v0, v2)  # @ layers.0 Conv2d
    v4 = const(value=0.0, dtype=float32, shape=(batch, 100))  # @ layers.5 Linear
    v5 = le(v3, v4)  # @ layers.5 Linear
    v6 = where(v5, v4, v3)  # @ layers.5 Linear
    v7 = reshape(v6, shape=(batch, 784))  # @ layers.4 Flatten
    v8 = permute(x5, axes=(1, 0))  # @ layers.6 Linear
    v9 = contract(v7, v8, a='mk', b='kn', out='mn')  # @ layers.6 Linear
    v10 = expand(x6, shape=(batch, 10))  # @ layers.6 Linear
    v11 = add(v9, v10)  # @ layers.6 Linear
    return (v11,)
"""
_TYPES = re.compile(r"  # [^#\n]*?( @ [^#\n]*)?$", re.MULTILINE)


def pack_text(manifest: str, graphs: Sequence[str]) -> bytes:
    """The manifest and the texts of graphs, deflated. Types in comments, which follow from the graph, are left out; names of layers stay."""
    whole = "\0".join([manifest, *(_TYPES.sub(_layer_only, graph) for graph in graphs)])
    deflate = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS, 9, zlib.Z_DEFAULT_STRATEGY, DICTIONARY)
    return deflate.compress(whole.encode()) + deflate.flush()


def unpack_text(content: bytes, longest: int) -> list[str]:
    """The manifest and the texts of graphs; a ValueError says what is wrong."""
    inflate = zlib.decompressobj(-zlib.MAX_WBITS, zdict=DICTIONARY)
    try:
        found = inflate.decompress(content, longest)
    except zlib.error as error:
        raise ValueError(f"it cannot be inflated ({error})") from None
    if not inflate.eof or inflate.unused_data:
        raise ValueError(f"it is cut off, or longer than {longest:,} bytes")
    return found.decode().split("\0")


def _layer_only(comment: re.Match[str]) -> str:
    return f"  #{comment[1]}" if comment[1] else ""
