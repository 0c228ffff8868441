"""Finds the channels of a network that belong together, by propagating labels of tensor axes through its graph.

Every index of every axis of a parameter has a label. Where the graph requires two indices to be the same channel (the output of a convolution and the
scale of the batch norm after it, the two operands of an addition, the columns of the next layer), their labels are united (union-find). Labels united with
FIXED cannot be removed: inputs, results, and the channels of ops that have no rule here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from math import prod

import numpy as np

from ..graph.node import Node, toposort

FIXED = 0
Axis = np.ndarray | None  # the labels of an axis; None: all its values are equal, so it matches any labels
Axes = list[Axis]
_KEEP_ZEROS = ("where", "cast", "stop_gradient")  # elementwise ops that keep a weight's zeros


class ChannelLabels:
    """The labels of a traced network. `leaves` are its parameters and state, `resizable` the results of paddings whose width can be changed."""

    def __init__(self, outputs: Sequence[Node], leaves: Mapping[Node, str], resizable: Set[Node]) -> None:
        self._parent = np.zeros(1, np.int64)
        self._reasons: list[tuple[np.ndarray, str]] = []
        self._resizable = resizable
        self._axes: dict[Node, Axes] = {}
        self._weights: set[Node] = set()  # parameters, also transposed or masked
        self._columns: list[np.ndarray] = []  # labels of parameters along the contracted axes of products
        self.leaves: dict[str, list[np.ndarray]] = {}
        for node in toposort(outputs):
            if node in leaves:
                self.leaves[leaves[node]] = own = [self._new(n) for n in node.shape]
                self._axes[node] = list(own)
                self._weights.add(node)
            else:
                self._axes[node] = self._follow(node)
        for node in outputs:
            self._fix_all(node, "it is a result of the network")

    def find(self, labels: np.ndarray) -> np.ndarray:
        """The representative of each label; FIXED if it cannot be removed."""
        found: np.ndarray = self._parent[labels]
        while not np.array_equal(found, above := self._parent[found]):
            found = above
        return found

    def of(self, node: Node) -> list[np.ndarray]:
        """The representatives of the labels of a node's axes."""
        return [
            np.zeros(n, np.int64) if a is None else self.find(a)
            for a, n in zip(self._axes[node], node.shape, strict=True)
        ]

    def columns(self) -> np.ndarray:
        """All labels of parameters along the contracted axes of products."""
        return np.unique(np.concatenate(self._columns)) if self._columns else np.zeros(0, np.int64)

    def reason(self, labels: np.ndarray) -> str:
        """Why some of these labels are FIXED."""
        roots = set(labels.tolist())
        for given, why in self._reasons:
            if not roots.isdisjoint(given.tolist()):
                return why
        return "it is tied to channels that cannot be removed"

    # --- labels ------------------------------------------------------------------------------------------------------------

    def _new(self, count: int) -> np.ndarray:
        first = len(self._parent)
        made = np.arange(first, first + count)
        self._parent = np.concatenate([self._parent, made])
        return made

    def _unite(self, a: Axis, b: Axis) -> Axis:
        """Unite the channels of two axes; returns their common labels."""
        if a is None or b is None:
            return b if a is None else a
        pairs = np.unique(np.stack([self.find(a), self.find(b)], axis=1), axis=0)
        for left, right in pairs[pairs[:, 0] != pairs[:, 1]]:
            one, other = self.find(np.array([left, right]))
            self._parent[max(one, other)] = min(one, other)  # FIXED is the smallest
        return a

    def _fix(self, axis: Axis, why: str) -> Axis:
        if axis is None or not len(axis):
            return axis
        free = self.find(axis)
        if (free != FIXED).any():
            self._reasons.append((np.unique(np.concatenate([axis, free])), why))
            self._unite(axis, np.zeros_like(axis))
        return np.zeros_like(axis)

    def _fix_all(self, node: Node, why: str) -> None:
        for axis in self._axes[node]:
            self._fix(axis, why)

    def _is_fixed(self, axis: Axis) -> bool:
        return axis is not None and not self.find(axis).any()

    # --- rules: from the labels of an op's inputs to those of its result ---------------------------------------------------

    def _follow(self, node: Node) -> Axes:
        if node.op.name == "const":
            return [None] * len(node.shape)
        rule = _RULES.get(node.op.name) or _RULES_OF_KINDS.get(node.op.kind)
        if rule is not None:
            return rule(self, node)
        for given in node.inputs:
            self._fix_all(given, f"there is no rule for {node.op.name}")
        return [np.zeros(n, np.int64) for n in (() if node.outputs else node.shape)]

    def _elementwise(self, node: Node) -> Axes:
        inputs = sorted(
            node.inputs, key=lambda n: n not in self._weights or not n.dtype.is_float
        )  # weights before masks
        found: Axes = [None] * len(node.shape)
        for given in inputs:
            found = [self._unite(a, b) for a, b in zip(found, self._axes[given], strict=True)]
        if node.op.name in _KEEP_ZEROS and all(n in self._weights or _is_zero(n) for n in inputs):
            self._weights.add(node)
        return found

    def _permute(self, node: Node) -> Axes:
        self._pass_weight(node)
        return [self._axes[node.inputs[0]][i] for i in node.params[0]]

    def _expand(self, node: Node) -> Axes:
        self._pass_weight(node)
        (given,) = node.inputs
        found: Axes = [None] * (len(node.shape) - len(given.shape))
        for before, after, axis in zip(given.shape, node.shape[len(found) :], self._axes[given], strict=True):
            found.append(axis if before == after else None)
            if before != after:
                self._fix(axis, "it is broadcast")
        return found

    def _reshape(self, node: Node) -> Axes:
        """Axes that are unchanged, axes that are merged, and merged axes that are split again."""
        self._pass_weight(node)
        (given,) = node.inputs
        found: Axes = []
        place = 0
        for before, after in _matching(given.shape, node.shape):
            merged = self._merged(self._axes[given][place : place + len(before)], before)
            place += len(before)
            found += self._split(merged, after)
        return found

    def _merged(self, axes: Axes, sizes: Sequence[int]) -> Axis:
        """Merge the labels of several axes into one. Only one of them may have channels; otherwise all are fixed."""
        if len(axes) < 2 or all(axis is None for axis in axes):
            return axes[0] if axes else None
        axes = [
            self._fix(axis, "it is one channel, reshaped") if n == 1 else axis
            for axis, n in zip(axes, sizes, strict=True)
        ]
        free = [i for i, axis in enumerate(axes) if axis is not None and not self._is_fixed(axis)]
        if len(free) != 1:
            for axis in axes:
                self._fix(axis, "it is reshaped together with another axis")
            return np.zeros(prod(sizes), np.int64)
        column = np.asarray(axes[free[0]]).reshape([-1 if i == free[0] else 1 for i in range(len(axes))])
        return np.broadcast_to(column, sizes).ravel()

    def _split(self, axis: Axis, sizes: Sequence[int]) -> Axes:
        if axis is None or len(sizes) == 1:
            return [axis] * len(sizes)
        grid = axis.reshape(sizes)
        for i, size in enumerate(sizes):
            lines = np.moveaxis(grid, i, 0).reshape(size, -1)
            if (lines == lines[:, :1]).all():  # it was merged from these axes
                return [lines[:, 0] if j == i else np.zeros(n, np.int64) for j, n in enumerate(sizes)]
        self._fix(axis, "it is split by a reshape")
        return [np.zeros(n, np.int64) for n in sizes]

    def _reduce(self, node: Node) -> Axes:
        gone = {int(a) for a in np.atleast_1d(node.params[0])}
        for i in gone:
            self._fix(self._axes[node.inputs[0]][i], f"{node.op.name} is taken over it")
        return [axis for i, axis in enumerate(self._axes[node.inputs[0]]) if i not in gone]

    def _window(self, node: Node) -> Axes:
        sizes, strides, padding, _ = node.params
        found: Axes = []
        for i, axis in enumerate(self._axes[node.inputs[0]]):
            plain = sizes[i] == 1 and strides[i] == 1 and not any(padding[i])
            if not plain:
                self._fix(axis, "windows are taken over it")
            found.append(axis if plain else np.zeros(node.shape[i], np.int64))
        return found

    def _pad(self, node: Node) -> Axes:
        found: Axes = []
        for axis, (before, behind, gaps) in zip(self._axes[node.inputs[0]], node.params[0], strict=True):
            size = node.shape[len(found)]
            if not (before or behind or gaps):
                found.append(axis)
            elif node in self._resizable and axis is not None and not gaps and not self._is_fixed(axis):
                found.append(np.concatenate([self._new(before), axis, self._new(behind)]))
            else:
                self._fix(axis, "it is padded")
                found.append(np.zeros(size, np.int64))
        return found

    def _slice(self, node: Node) -> Axes:
        found: Axes = []
        for axis, before, after in zip(self._axes[node.inputs[0]], node.inputs[0].shape, node.shape, strict=True):
            if before != after:
                self._fix(axis, "a part of it is sliced out")
            found.append(axis if before == after else np.zeros(after, np.int64))
        return found

    def _concat(self, node: Node) -> Axes:
        along = node.params[0]
        found: Axes = [None] * len(node.shape)
        for given in node.inputs:
            others = [None if i == along else axis for i, axis in enumerate(self._axes[given])]
            found = [self._unite(a, b) for a, b in zip(found, others, strict=True)]
        parts = [(self._axes[given][along], given.shape[along]) for given in node.inputs]
        found[along] = np.concatenate([np.zeros(n, np.int64) if axis is None else axis for axis, n in parts])
        return found

    def _gather(self, node: Node) -> Axes:
        """The axes of the indices come first, then those of the tensor that are not indexed."""
        source, *indices = node.inputs
        indexed = node.params[0]
        for i in indexed:
            self._fix(self._axes[source][i], "it is indexed")
        for given in indices:
            self._fix_all(given, "it is an index")
        rest = [axis for i, axis in enumerate(self._axes[source]) if i not in indexed]
        return [*(np.zeros(n, np.int64) for n in node.shape[: len(node.shape) - len(rest)]), *rest]

    def _contract(self, node: Node) -> Axes:
        *operands, result = node.params
        letters: dict[str, Axis] = {}
        for given, names in zip(node.inputs, operands, strict=True):
            for letter, axis in zip(names, self._axes[given], strict=True):
                letters[letter] = self._unite(letters.get(letter), axis)
        for given, names in zip(node.inputs, operands, strict=True):
            for letter, axis in zip(names, self._axes[given], strict=True):
                if letter not in result and axis is not None and given in self._weights:
                    self._columns.append(axis)
        summed = {letter for names in operands for letter in names if letter not in result}
        weighted = {
            letter
            for given, names in zip(node.inputs, operands, strict=True)
            if given in self._weights
            for letter in names
        }
        for letter in summed - weighted:
            self._fix(letters[letter], "activations are multiplied with activations along it")
        return [letters[letter] for letter in result]

    def _conv(self, node: Node) -> Axes:
        x, w = node.inputs
        groups = node.param("groups")
        for axis in (*self._axes[x][2:], *self._axes[w][2:]):
            self._fix(axis, "it is convolved along")
        rows, channels = self._axes[w][0], self._axes[x][1]
        if groups > 1 and groups == x.shape[1]:  # depthwise: each channel has its own filters
            wide = None if channels is None else np.repeat(channels, w.shape[0] // groups)
            if w.shape[0] != groups:
                self._fix(channels, "a depthwise convolution makes several channels of it")
                self._fix(rows, "a depthwise convolution makes several channels of one")
            rows = self._unite(rows, wide)
        elif groups > 1 or w not in self._weights:
            for axis in (channels, rows, self._axes[w][1]):
                self._fix(axis, "it is part of a grouped convolution")
        else:
            self._unite(channels, self._axes[w][1])
            columns = self._axes[w][1]
            self._columns += [] if columns is None else [columns]
        return [self._axes[x][0], rows, *(np.zeros(n, np.int64) for n in node.shape[2:])]

    def _conv_transpose(self, node: Node) -> Axes:
        """The data gradient of a convolution: it contracts the first axis of the weight and produces the second."""
        x, w = node.inputs
        for axis in (*self._axes[x][2:], *self._axes[w][2:]):
            self._fix(axis, "it is convolved along")
        channels, rows, columns = self._axes[x][1], *self._axes[w][:2]
        if node.param("groups") > 1 or w not in self._weights:
            for axis in (channels, rows, columns):
                self._fix(axis, "it is part of a grouped convolution")
            return [self._axes[x][0], *(np.zeros(n, np.int64) for n in node.shape[1:])]
        self._unite(channels, rows)
        self._columns += [] if rows is None else [rows]
        return [self._axes[x][0], columns, *(np.zeros(n, np.int64) for n in node.shape[2:])]

    def _pass_weight(self, node: Node) -> None:
        if node.inputs[0] in self._weights:
            self._weights.add(node)


def _is_zero(node: Node) -> bool:
    return node.op.name == "const" and node.params[0] == 0


def _matching(before: Sequence[int], after: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """The shortest runs of axes of two shapes whose products are equal.

    >>> _matching((2, 3, 4, 5), (2, 12, 5))
    [([2], [2]), ([3, 4], [12]), ([5], [5])]
    """
    left, right = list(before), list(after)
    runs: list[tuple[list[int], list[int]]] = []
    while left or right:
        a, b = [left.pop(0)] if left else [], [right.pop(0)] if right else []
        while prod(a) != prod(b):
            shorter, rest = (a, left) if prod(a) < prod(b) else (b, right)
            shorter.append(rest.pop(0))
        runs.append((a, b))
    return runs


_Rule = Callable[[ChannelLabels, Node], Axes]
_RULES: dict[str, _Rule] = {
    "permute": ChannelLabels._permute,
    "expand": ChannelLabels._expand,
    "reshape": ChannelLabels._reshape,
    "pad": ChannelLabels._pad,
    "slice": ChannelLabels._slice,
    "concat": ChannelLabels._concat,
    "gather": ChannelLabels._gather,
    "contract": ChannelLabels._contract,
    "conv": ChannelLabels._conv,
    "conv_data": ChannelLabels._conv_transpose,
    "window_max": ChannelLabels._window,
    "window_sum": ChannelLabels._window,
}
_RULES_OF_KINDS: dict[str, _Rule] = {"elementwise": ChannelLabels._elementwise, "reduce": ChannelLabels._reduce}
