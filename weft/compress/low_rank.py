"""Low-rank factorization: a linear layer or a convolution becomes two smaller ones, by the singular value decomposition (SVD) of its weight.

    low_rank(model, energy=0.9)                 # ranks that keep 90 % of the squared norm of each weight
    low_rank(model, parameters=0.5)             # half of the parameters: the same energy in all layers
    low_rank(model, rank={"fc1": 32})

A layer is only replaced if that makes it smaller: one that shares its weight with others is not. The two layers are trained further like any others.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Literal

import numpy as np

from ..errors import UserError
from ..nn.containers import Sequential
from ..nn.conv import Conv2d
from ..nn.linear import Linear
from ..nn.module import Module
from ..nn.replace import replace_layers
from ..records import dataclass
from .layers import Number, Weight, by_weight, weights_of

ConvSplit = Literal["channel", "spatial"]
_LAYERS = "Linear or Conv2d layers without groups, whose weights no other layer shares,"


@dataclass(frozen=True)
class LowRank:
    """The factorization of a layer: its rank (and the full one), its parameters before and after, and |W - W'| / |W|."""

    rank: int
    full: int
    before: int
    after: int
    error: float


def low_rank(
    model: Module,
    *,
    rank: int | dict[str, int] | None = None,
    energy: float | dict[str, float] | None = None,
    parameters: float | None = None,
    conv: ConvSplit = "channel",
) -> dict[str, LowRank]:
    """Replace layers by two of low rank; returns the factorizations by path. Give one of rank, energy and parameters.

    rank: of each layer; energy: the fraction of the squared norm that is kept; parameters: the fraction of the parameters of all these weights that is kept.
    A convolution is split into k x k of few channels and 1 x 1 ("channel"), or into k x 1 and 1 x k ("spatial", Jaderberg et al. 2014).
    """
    if sum(given is not None for given in (rank, energy, parameters)) != 1:
        raise UserError("low_rank", "one of rank, energy and parameters is required.")
    if conv not in ("channel", "spatial"):
        raise UserError("low_rank", f"conv must be 'channel' or 'spatial', got {conv!r}.")
    known = {one.path: _Factors(one, conv) for one in weights_of(model).values() if _can(one)}
    if not known:
        raise UserError("low_rank", f"a network with {_LAYERS} is required.")
    ranks = _ranks(model, known, rank, energy, parameters)
    found: dict[str, LowRank] = {}
    new: dict[Module, Module] = {}
    for path, chosen in ranks.items():
        factors = known[path]
        if factors.parameters(chosen) < factors.weight.value.size:
            new[factors.weight.layer] = factors.layers(chosen)
            found[path.removesuffix(".weight")] = factors.report(chosen)
    if model in new:
        raise UserError(
            "low_rank", f"a network of layers is required, got a {type(model).__name__}. Put it in nn.Sequential."
        )
    replace_layers(model, new)
    return found


def _can(one: Weight) -> bool:
    plain = isinstance(one.layer, Linear) or (isinstance(one.layer, Conv2d) and one.layer.groups == 1)
    if one.others:  # the other layers would keep the whole weight: larger than before
        return False
    if plain and one.parametrization is not None:
        raise UserError(
            "low_rank",
            f"plain weights are required, got {one.path}, a {type(one.parametrization).__name__}. Bake it first.",
        )
    return plain


def _ranks(
    model: Module,
    known: dict[str, _Factors],
    rank: int | dict[str, int] | None,
    energy: float | dict[str, float] | None,
    parameters: float | None,
) -> dict[str, int]:
    """The rank of each weight."""
    if rank is not None:
        ranks = _only(known, by_weight("low_rank", "a rank", rank, model), isinstance(rank, dict))
        for path, wanted in ranks.items():
            if not isinstance(wanted, int) or wanted < 1:
                raise UserError("low_rank", f"a rank of 1 or more is required, got {wanted} for {path}.")
        return {path: min(wanted, known[path].full) for path, wanted in ranks.items()}
    if energy is not None:
        shares = _only(known, by_weight("low_rank", "an energy", energy, model), isinstance(energy, dict))
        for path, share in shares.items():
            if not 0.0 < share <= 1.0:
                raise UserError("low_rank", f"an energy above 0 and up to 1 is required, got {share} for {path}.")
        return {path: known[path].rank_of(share) for path, share in shares.items()}
    assert parameters is not None
    return _ranks_of_target(known, parameters)


def _only(known: dict[str, _Factors], given: dict[str, Number], named: bool) -> dict[str, Number]:
    """The weights that can be factorized; one that is named and cannot is an error."""
    for path in given:
        if named and path not in known:
            raise UserError("low_rank", f"{_LAYERS} are required, got {path}.")
    return {path: value for path, value in given.items() if path in known}


def _ranks_of_target(known: dict[str, _Factors], target: float) -> dict[str, int]:
    """The ranks at the highest energy, equal in all layers, that keep at most this fraction of the parameters."""
    total = sum(factors.weight.value.size for factors in known.values())

    def size(energy: float) -> int:
        return sum(min(f.weight.value.size, f.parameters(f.rank_of(energy))) for f in known.values())

    if not size(0.0) <= target * total <= total:
        raise UserError(
            "low_rank",
            f"a share of parameters from {size(0.0) / total:.4g} (all ranks are 1) to 1 is required, got {target}.",
        )
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if size(middle) <= target * total else (low, middle)
    return {path: factors.rank_of(low) for path, factors in known.items()}


class _Factors:
    """The singular value decomposition of a weight, as a matrix whose rows are the outputs of the second layer."""

    def __init__(self, weight: Weight, conv: ConvSplit) -> None:
        self.weight, self.spatial = weight, conv == "spatial" and isinstance(weight.layer, Conv2d)

    @cached_property
    def svd(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        value = self.weight.finite_value("low_rank").astype(np.float64)
        if self.spatial:  # (outputs, width) x (inputs, height)
            o, c, h, w = value.shape
            value = value.transpose(0, 3, 1, 2).reshape(o * w, c * h)
        u, s, vt = np.linalg.svd(value.reshape(value.shape[0], -1), full_matrices=False)
        return u, s, vt

    @property
    def full(self) -> int:
        return len(self.svd[1])

    def parameters(self, rank: int) -> int:
        u, _, vt = self.svd
        return rank * int(u.shape[0] + vt.shape[1])

    def rank_of(self, energy: float) -> int:
        """The smallest rank with this fraction of the sum of squared singular values."""
        squares = np.cumsum(self.svd[1] ** 2)
        return min(self.full, int(np.searchsorted(squares, energy * squares[-1] * (1.0 - 1e-12))) + 1)

    def report(self, rank: int) -> LowRank:
        s = self.svd[1]
        error = float(np.sqrt((s[rank:] ** 2).sum() / max((s**2).sum(), np.finfo(np.float64).tiny)))
        return LowRank(rank, self.full, self.weight.value.size, self.parameters(rank), error)

    def layers(self, rank: int) -> Sequential:
        """The two layers; the bias and the activation belong to the second."""
        u, s, vt = self.svd
        second, first = u[:, :rank] * np.sqrt(s[:rank]), np.sqrt(s[:rank])[:, None] * vt[:rank]
        made = _linear(self.weight.layer, rank) if isinstance(self.weight.layer, Linear) else self._conv(rank)
        made.astype(self.weight.value.dtype)
        parts: list[Any] = list(made)
        if self.spatial:
            o, r, _, w = parts[1].weight.shape
            second = second.reshape(o, w, r).transpose(0, 2, 1)
        for part, value in zip(parts, (first, second), strict=True):
            part.weight.assign(value.reshape(part.weight.shape).astype(self.weight.value.dtype))
        if parts[1].bias is not None:
            parts[1].bias.assign(vars(self.weight.layer)["bias"])
        return made.train(self.weight.layer.training)

    def _conv(self, rank: int) -> Sequential:
        layer = self.weight.layer
        assert isinstance(layer, Conv2d)
        o, c, h, w = layer.weight.shape
        end: dict[str, Any] = {"bias": layer.bias is not None, "activation": layer.activation}
        if not self.spatial:
            first = Conv2d(
                c, rank, (h, w), stride=layer.stride, padding=layer.padding, dilation=layer.dilation, bias=False
            )
            return Sequential(first, Conv2d(rank, o, 1, **end))
        (sh, sw), (dh, dw) = _pair(layer.stride), _pair(layer.dilation)
        ph, pw = _sides(layer.padding)
        first = Conv2d(c, rank, (h, 1), stride=(sh, 1), padding=ph, dilation=(dh, 1), bias=False)
        return Sequential(first, Conv2d(rank, o, (1, w), stride=(1, sw), padding=pw, dilation=(1, dw), **end))


def _linear(layer: Linear, rank: int) -> Sequential:
    outputs, inputs = layer.weight.shape
    end = Linear(rank, outputs, bias=layer.bias is not None, activation=layer.activation)
    return Sequential(Linear(inputs, rank, bias=False), end)


def _pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def _sides(padding: Any) -> tuple[Any, Any]:
    """The padding of the two layers: above and below for the first, left and right for the second."""
    if isinstance(padding, str):
        return padding, padding  # along an axis with kernel size 1 there is none
    (above, below), (left, right) = ((padding, padding),) * 2 if isinstance(padding, int) else padding
    return ((above, below), (0, 0)), ((0, 0), (left, right))
