"""weft beside torch, where both have the same thing: recurrent layers, attention and optimizers, forward and gradients.

    python benchmarks/agreement.py

Everything is given the same numbers; what is printed is the largest difference, relative to the largest value. It fails if one is
above what float32 explains.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

import weft
from weft import nn, optim

ALLOWED = 2e-5
RNG = np.random.default_rng(0)


def main() -> None:
    failed = 0
    for name, ours, theirs in (*recurrent(), *attention(), *optimizers()):
        far = max(difference(a, b) for a, b in zip(ours, theirs, strict=True))
        print(f"{name:58} {far:.1e}{'' if far <= ALLOWED else '   TOO FAR'}")
        failed += not far <= ALLOWED
    sys.exit(1 if failed else 0)


def difference(ours: weft.Tensor, theirs: torch.Tensor) -> float:
    a, b = ours.numpy().astype(np.float64), theirs.detach().numpy().astype(np.float64)
    assert a.shape == b.shape, f"{a.shape} and {b.shape}"
    return float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-12))


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


Row = tuple[str, list[weft.Tensor], list[torch.Tensor]]


# --- layers -----------------------------------------------------------------------------------------------------------------


def compared(
    name: str, forward: Callable[..., Any], parameters: Sequence[weft.Tensor], peer: Callable[..., Any], peer_parameters: Sequence[Any], *arrays: np.ndarray
) -> Row:  # fmt: skip
    """The results, and the gradients of a random sum of them by inputs and parameters; ours as one compiled function."""
    given = [torch.tensor(a, requires_grad=True) for a in arrays]
    theirs = peer(*given)
    weights = [normal(*t.shape) for t in theirs]
    total = sum((t * torch.tensor(w)).sum() for t, w in zip(theirs, weights, strict=True))
    slopes = torch.autograd.grad(total, [*given, *peer_parameters])

    @weft.jit
    def ours(*arrays: weft.Tensor) -> Any:
        inputs = [weft.parameter(a) for a in arrays]
        results = forward(*inputs)
        total = sum((r * w).sum() for r, w in zip(results, weights, strict=True))
        return results, weft.gradients(total, [*inputs, *parameters])

    results, found = ours(*arrays)
    return name, [*results, *found], [*theirs, *slopes]


def recurrent() -> Iterator[Row]:
    for kind in ("RNN", "LSTM", "GRU"):
        for layers, both in ((1, False), (2, True)):
            peer = getattr(torch.nn, kind)(5, 7, num_layers=layers, bidirectional=both, batch_first=True)
            ours = getattr(nn, kind)(5, 7, layers=layers, bidirectional=both)
            pairs = _carry_over(ours, peer, layers, both)

            def forward(x: Any, ours: Any = ours) -> Any:
                outputs, state = ours(x)
                return [outputs, *(state if isinstance(state, tuple) else (state,))]

            def theirs(x: Any, peer: Any = peer) -> Any:
                outputs, state = peer(x)
                return [outputs, *(state if isinstance(state, tuple) else (state,))]

            name = f"{kind}, {layers} layers{', both directions' if both else ''}"
            yield compared(name, forward, [p for p, _ in pairs], theirs, [q for _, q in pairs], normal(3, 6, 5))


def _carry_over(ours: Any, peer: Any, layers: int, both: bool) -> list[tuple[weft.Tensor, Any]]:
    words = {"weight_in": "weight_ih", "weight_hidden": "weight_hh", "bias_in": "bias_ih", "bias_hidden": "bias_hh"}
    pairs = []
    for layer in range(layers):
        sides = [(ours.forward_layers[layer], "")]
        sides += [(ours.backward_layers[layer], "_reverse")] if both else []
        for side, ending in sides:
            for word, their in words.items():
                tensor, value = getattr(side, word), getattr(peer, f"{their}_l{layer}{ending}")
                tensor.assign(weft.asarray(value.detach().numpy()))
                pairs.append((tensor, value))
    return pairs


def attention() -> Iterator[Row]:
    """Self-attention of 4 heads: free, causal, and with places that may not be looked at."""
    hidden = RNG.random((3, 6)) < 0.3
    hidden[:, 0] = False
    for name, causal, mask in (("free", False, None), ("causal", True, None), ("masked", False, hidden)):
        peer, ours = torch.nn.MultiheadAttention(16, 4, batch_first=True), nn.MultiHeadAttention(16, 4)
        for i, part in enumerate((ours.query, ours.key, ours.value)):
            rows = slice(16 * i, 16 * i + 16)
            assert part.bias is not None
            part.weight.assign(weft.asarray(peer.in_proj_weight.detach().numpy()[rows]))
            part.bias.assign(weft.asarray(peer.in_proj_bias.detach().numpy()[rows]))
        assert ours.output.bias is not None
        ours.output.weight.assign(weft.asarray(peer.out_proj.weight.detach().numpy()))
        ours.output.bias.assign(weft.asarray(peer.out_proj.bias.detach().numpy()))
        pairs = [(ours.output.weight, peer.out_proj.weight), (ours.output.bias, peer.out_proj.bias)]
        allowed = None if mask is None else weft.asarray(~mask[:, None, None, :])
        above = torch.triu(torch.ones(6, 6, dtype=torch.bool), 1) if causal else None
        padded = None if mask is None else torch.tensor(mask)

        def forward(x: Any, ours: Any = ours, allowed: Any = allowed, causal: bool = causal) -> Any:
            return [ours(x, mask=allowed, causal=causal)]

        def theirs(x: Any, peer: Any = peer, above: Any = above, padded: Any = padded) -> Any:
            return [peer(x, x, x, attn_mask=above, key_padding_mask=padded, need_weights=False)[0]]

        yield compared(
            f"attention, {name}", forward, [p for p, _ in pairs], theirs, [q for _, q in pairs], normal(3, 6, 16)
        )


# --- optimizers -------------------------------------------------------------------------------------------------------------

OPTIMIZERS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "sgd": (lambda p: optim.sgd(p, 0.1), lambda p: torch.optim.SGD(p, 0.1)),
    "sgd, nesterov, weight decay": (
        lambda p: optim.sgd(p, 0.01, momentum=0.9, nesterov=True, weight_decay=0.01),
        lambda p: torch.optim.SGD(p, 0.01, momentum=0.9, nesterov=True, weight_decay=0.01),
    ),
    "adam": (lambda p: optim.adam(p, 0.01), lambda p: torch.optim.Adam(p, 0.01)),
    "adam, amsgrad": (lambda p: optim.adam(p, 0.01, amsgrad=True), lambda p: torch.optim.Adam(p, 0.01, amsgrad=True)),
    "adamw": (lambda p: optim.adamw(p, 0.01), lambda p: torch.optim.AdamW(p, 0.01)),
    "rmsprop, centered, momentum": (
        lambda p: optim.rmsprop(p, 0.01, momentum=0.9, centered=True),
        lambda p: torch.optim.RMSprop(p, 0.01, momentum=0.9, centered=True),
    ),
    "adagrad": (lambda p: optim.adagrad(p, 0.1), lambda p: torch.optim.Adagrad(p, 0.1)),
    "adadelta": (lambda p: optim.adadelta(p, 1.0), lambda p: torch.optim.Adadelta(p, 1.0)),
    "adamax": (lambda p: optim.adamax(p, 0.01), lambda p: torch.optim.Adamax(p, 0.01)),
    "nadam": (lambda p: optim.nadam(p, 0.01), lambda p: torch.optim.NAdam(p, 0.01)),
    "radam": (lambda p: optim.radam(p, 0.01), lambda p: torch.optim.RAdam(p, 0.01)),
    "rprop": (lambda p: optim.rprop(p, 0.01), lambda p: torch.optim.Rprop(p, 0.01, step_sizes=(1e-6, 50.0))),
}


def optimizers() -> Iterator[Row]:
    """Ten steps on a valley that is not straight."""
    for name, (make, make_peer) in OPTIMIZERS.items():
        start = normal(4, 3)
        p, q = weft.parameter(start), torch.nn.Parameter(torch.tensor(start.copy()))
        ours, theirs = make([p]), make_peer([q])

        @weft.jit
        def step(p: Any = p, ours: Any = ours) -> None:
            ours.minimize(((p[1:] - p[:-1] ** 2) ** 2).sum() + ((1.0 - p) ** 2).sum())

        for _ in range(10):
            step()
            theirs.zero_grad()
            (((q[1:] - q[:-1] ** 2) ** 2).sum() + ((1.0 - q) ** 2).sum()).backward()
            theirs.step()
        yield f"{name}, 10 steps", [p.detach()], [q]


if __name__ == "__main__":
    main()
