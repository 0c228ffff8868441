"""Attention and its gradients in Triton: a program has a block of queries or of keys, and walks along the others.

Scores are powers of two: they are multiplied by log2(e) together with the scale, because GPUs have an instruction for exp2. Blocks
that lie inside of the band of keys that all queries of a program attend to are walked by a loop of their own, without masks.
"""

from __future__ import annotations

import math

from ....dtypes import bool_, float32
from ....graph.node import Node
from ...ir.kernel import View
from .. import scalars as scalar
from ..kernel_utils import ceil_div, scratch_tensor
from ..source import KernelSource, KernelWriter
from .problem import AttentionProblem

ALONE = 1 << 20  # bytes of shared memory, more than a launch of several kernels may have: these use all there is
LOG2_E, LN_2 = math.log2(math.e), math.log(2.0)
ROWS = 64  # of a program that sums products of outputs and gradients


def delta_tensor(problem: AttentionProblem) -> Node:
    """The sum of output times gradient of every row, in scratch."""
    batch, heads, queries, _ = problem.sizes
    return scratch_tensor("delta", problem.anchor, (batch, heads, queries), float32)


class AttentionWriter(KernelWriter):
    """What all kernels of attention share."""

    def __init__(self, problem: AttentionProblem, part: str) -> None:
        super().__init__("kernel")
        self.problem, self.tile = problem, problem.tile(part)
        self.batch, self.heads, self.queries, self.keys = problem.sizes
        self.left, self.right, self.align = problem.anchor.get_params("left", "right", "align")
        self.factor = problem.anchor.param("scale") * LOG2_E

    # --- where things are -----------------------------------------------------------------------------------------------

    def begin(self, blocks: int, heads: int, head: str) -> None:
        """The block, example and head of a program; blocks with much work come first."""
        self.line("program = tl.program_id(0)")
        last_first = self.right >= 0 and head == "h"
        self.line(f"block = {blocks - 1} - program % {blocks}" if last_first else f"block = program % {blocks}")
        self.line(f"b = (program // {blocks * heads}).to(tl.int64)")
        self.line(f"{head} = program // {blocks} % {heads}")
        self.line(f"features = tl.arange(0, {self.problem.width})")
        self.line("values = features")
        self._limits()
        if "key" in self.problem.extra:
            for name in ("key", "offset"):
                self.line(f"stream_{name} = tl.load({self._start(self.problem.extra[name])})")

    def _limits(self) -> None:
        """How many keys count, and the position of the first query."""
        shift = self.keys - self.queries if self.align == "lower_right" else 0
        if "lengths" not in self.problem.extra:
            self.line(f"limit = {self.keys}")
            self.line(f"shift = {shift}")
            return
        self.line(f"length = tl.load({self._start(self.problem.extra['lengths'])} + b).to(tl.int32)")
        self.line(f"limit = tl.maximum(0, tl.minimum({self.keys}, length))")
        self.line(f"shift = length - {self.queries}" if self.align == "lower_right" else "shift = 0")

    def _start(self, view: View) -> str:
        pointer = self.pointer(view.base)
        return f"{pointer} + {view.offset}" if view.offset else pointer

    def rows_of(
        self, view: View, head: str, rows: str, columns: str, counts: tuple[int, int], masked: bool = True
    ) -> str:
        """A tile of an operand: some of its rows, all of its columns."""
        sb, sr, sh, sc = view.strides
        place = f"{self._start(view)} + b * {sb} + {head} * {sh} + {rows}[:, None] * {sr} + {columns}[None, :] * {sc}"
        tests = [
            *([f"({rows}[:, None] < {counts[0]})"] if masked else []),
            *([f"({columns}[None, :] < {counts[1]})"] if self.problem.width != counts[1] else []),
        ]
        return f"tl.load({place}, mask={' & '.join(tests)}, other=0.0)" if tests else f"tl.load({place})"

    def query_rows(self, number: int, columns: str) -> str:
        """A tile of queries, outputs or gradients of outputs, in the rows `rows`."""
        count = self.problem.features if columns == "features" else self.problem.values
        return self.rows_of(self.problem.kernel.views[number], "h", "rows", columns, (self.queries, count))

    def key_rows(self, number: int, columns: str, masked: bool = True) -> str:
        """A tile of keys or values, in the rows `cols`."""
        count = self.problem.features if columns == "features" else self.problem.values
        return self.rows_of(self.problem.kernel.views[number], "kh", "cols", columns, (self.keys, count), masked)

    def of_rows(self, view: View) -> str:
        """One number for each of the rows, of a tensor (batch, heads, queries)."""
        place = f"{self._start(view)} + (b * {self.heads} + h) * {self.queries} + rows"
        return f"tl.load({place}, mask=rows < {self.queries}, other=0.0).to(tl.float32)"

    # --- arithmetic -----------------------------------------------------------------------------------------------------

    def dot(self, a: str, b: str, total: str = "") -> str:
        return f"tl.dot({a}, {b}{f', {total}' if total else ''}, out_dtype=tl.float32)"

    def narrowed(self, value: str) -> str:
        """A tile as an operand of a product."""
        return f"{value}.to(tl.{self.problem.dtype.name})"

    def scores(self, across: bool, masked: bool) -> None:
        """`s`, products of rows and cols, becomes scores; `allowed` says which count, if `masked`. `across`: rows are along the second axis."""
        r, c = ("rows[None, :]", "cols[:, None]") if across else ("rows[:, None]", "cols[None, :]")
        self.line(f"s = s * {self.factor!r}")
        if "bias" in self.problem.extra:
            self.line(f"s = s + {self._given('bias', r, c)} * {LOG2_E!r}")
        if "slopes" in self.problem.extra:
            slope = f"tl.load({self._start(self.problem.extra['slopes'])} + h).to(tl.float32)"
            self.line(f"s = s - {slope} * {LOG2_E!r} * tl.abs({r} + shift - {c}).to(tl.float32)")
        tests = []
        if masked:
            tests += [f"({c} < limit)", f"({r} < {self.queries})"]
            tests += [f"({c} <= {r} + shift + {self.right})"] if self.right >= 0 else []
            tests += [f"({c} >= {r} + shift - {self.left})"] if self.left >= 0 else []
        if "mask" in self.problem.extra:
            tests.append(f"({self._given('mask', r, c)} != 0)")
        self.allowed = " & ".join(tests)
        if self.allowed:
            self.line(f"allowed = {self.allowed}")

    def _given(self, name: str, r: str, c: str) -> str:
        """A tile of a mask or bias that is broadcast."""
        view, node = (
            self.problem.extra[name],
            self.problem.anchor.inputs[self.problem.kernel.views.index(self.problem.extra[name])],
        )
        steps = [0 if n == 1 else s for n, s in zip(node.shape, view.strides, strict=True)]
        place = f"{self._start(view)} + b * {steps[0]} + h * {steps[1]} + {r} * {steps[2]} + {c} * {steps[3]}"
        inside = f"({r} < {self.queries}) & ({c} < {self.keys})"
        value = f"tl.load({place}, mask={inside}, other=0)"
        return value if node.dtype is bool_ else f"{value}.to(tl.float32)"

    def dropped(self, across: bool, *names: str) -> None:
        """Apply dropout to tiles of these names, all with the same bits."""
        rate = self.problem.anchor.param("dropout")
        if not rate:
            return
        self.line(f"kept = {self._bits(across)}.to(tl.int64) < {round((1.0 - rate) * 2**32)}")
        scale = scalar.number(float32, 1.0 / (1.0 - rate))
        for name in names:
            self.line(f"{name} = tl.where(kept, {name} * {scale}, 0.0)")

    def _bits(self, across: bool) -> str:
        """The random bits of a tile. Four neighbouring keys share a block of the generator, where rows begin with one: then it is computed once."""
        line = f"((b * {self.heads} + h) * {self.queries} + rows[:, None]) * {self.keys}"
        if not self.problem.joins_words:
            r, c = ("rows[None, :]", "cols[:, None]") if across else ("rows[:, None]", "cols[None, :]")
            return f"philox({line.replace('rows[:, None]', r)} + {c}, stream_key, stream_offset)"
        start = "first" if across else "start"
        fourths = f"({start} + 4 * tl.arange(0, {self.tile.keys // 4}))[None, :]"
        words = f"philox_words({line} + {fourths}, stream_key, stream_offset, {self.tile.queries}, {self.tile.keys})"
        return f"tl.trans({words})" if across else words

    # --- ranges: none ends before it begins, because a pipelined loop would then read before the tensor ----------------------

    def key_ranges(self) -> list[tuple[str, str, bool]]:
        """The blocks of keys of a program's queries, as ranges (begin, end, whether masks are needed)."""
        size, rows = self.tile.keys, self.tile.queries
        self.line(f"first = block * {rows}")
        self.line(f"last = tl.minimum(first + {rows}, {self.queries}) - 1")
        self.line(f"end = tl.minimum(limit, last + shift + {self.right + 1})" if self.right >= 0 else "end = limit")
        begin = "0"
        if self.left >= 0:
            self.line(f"begin = tl.maximum(0, first + shift - {self.left}) // {size} * {size}")
            self.line(f"inner = (tl.maximum(0, last + shift - {self.left}) + {size - 1}) // {size} * {size}")
            begin = "inner"
        full = f"tl.minimum(limit, first + shift + {self.right + 1})" if self.right >= 0 else "limit"
        self.line(f"whole = tl.maximum({begin}, {full} // {size} * {size})")
        ranges = [(begin, "whole", False), ("whole", "tl.maximum(whole, end)", True)]
        return [("begin", "tl.maximum(begin, tl.minimum(inner, end))", True), *ranges] if self.left >= 0 else ranges

    def query_range(self) -> tuple[str, str]:
        """The queries that attend to a program's keys."""
        size, keys = self.tile.queries, self.tile.keys
        self.line(f"first = block * {keys}")
        self.line(f"last = tl.minimum(first + {keys}, limit) - 1")
        begin, end = "0", str(self.queries)
        if self.right >= 0:
            self.line(f"begin = tl.maximum(0, first - shift - {self.right}) // {size} * {size}")
            begin = "begin"
        if self.left >= 0:
            end = f"tl.minimum({end}, last - shift + {self.left + 1})"
        self.line(f"end = tl.where(first < limit, {end}, 0)")
        return begin, f"tl.maximum({begin}, end)"

    def store(self, result: str, head: str, heads: int, rows: str, count: int, value: str) -> None:
        """A tile of a result, (batch, rows, heads, features) without gaps."""
        node = self.problem.results[result]
        width = node.shape[3]
        columns = (
            "features"
            if width == self.problem.features and result != "y2" and not self._is_output(result)
            else "values"
        )
        self.written.append(node)
        place = f"((b * {count} + {rows}[:, None]) * {heads} + {head}) * {width} + {columns}[None, :]"
        mask = f"({rows}[:, None] < {count}) & ({columns}[None, :] < {width})"
        self.line(f"tl.store({self.pointer(node)} + {place}, {value}.to(tl.{node.dtype.name}), mask={mask})")

    def _is_output(self, result: str) -> bool:
        return result == "y0" and self.problem.anchor.op.name == "attention"


def write_forward(problem: AttentionProblem) -> KernelSource:
    w = AttentionWriter(problem, "forward")
    tile, blocks = w.tile, ceil_div(w.queries, w.tile.queries)
    w.line(
        f"# attention: {w.batch} x {w.heads} x {w.queries} x {w.keys}, heads of {problem.features} and {problem.values}"
    )
    w.begin(blocks, w.heads, "h")
    w.line(f"kh = h // {problem.groups}")
    w.line(f"rows = block * {tile.queries} + tl.arange(0, {tile.queries})")
    w.line(f"q = {w.query_rows(0, 'features')}")
    w.line(f'm = tl.full(({tile.queries},), float("-inf"), tl.float32)')
    w.line(f"total = tl.zeros(({tile.queries},), tl.float32)")
    w.line(f"y = tl.zeros(({tile.queries}, {problem.width}), tl.float32)")
    for begin, end, masked in w.key_ranges():
        w.line(f"for start in range({begin}, {end}, {tile.keys}):")
        w.depth += 1
        w.line(f"cols = start + tl.arange(0, {tile.keys})")
        w.line(f"k = {w.key_rows(1, 'features', masked)}")
        w.line(f"s = {w.dot('q', 'tl.trans(k)')}")
        w.scores(False, masked)
        if w.allowed:
            w.line('s = tl.where(allowed, s, float("-inf"))')
        w.line("highest = tl.maximum(m, tl.max(s, 1))")
        may_be_empty = bool(w.allowed) or "bias" in problem.extra
        w.line('safe = tl.where(highest == float("-inf"), 0.0, highest)' if may_be_empty else "safe = highest")
        w.line("p = tl.exp2(s - safe[:, None])")
        w.line("change = tl.exp2(m - safe)")
        w.line("total = total * change + tl.sum(p, 1)")
        w.line("y = y * change[:, None]")
        w.line(f"v = {w.key_rows(2, 'values', masked)}")
        w.dropped(False, "p")
        w.line(f"y = {w.dot(w.narrowed('p'), 'v', 'y')}")
        w.line("m = highest")
        w.depth -= 1
    w.line("some = tl.where(total > 0.0, total, 1.0)")
    if "y0" in problem.results:
        w.line("nan = total != total")
        w.line("y = y / tl.where(nan, total, some)[:, None]")
        w.store("y0", "h", w.heads, "rows", w.queries, "y")
    if "y1" in problem.results:
        node = problem.results["y1"]
        found = f"(m + tl.log2(some)) * {LN_2!r}"
        w.line(f'lse = tl.where(total > 0.0, {found}, tl.where(total != total, total, float("-inf")))')
        w.line(f"tl.store({w.pointer(node)} + (b * {w.heads} + h) * {w.queries} + rows, lse, mask=rows < {w.queries})")
        w.written.append(node)
    return w.finished(blocks * w.batch * w.heads, tile.warps, tile.stages, ALONE)


def write_delta(problem: AttentionProblem) -> KernelSource:
    """The sum of output times gradient, less the gradient of the log-sum-exp."""
    w, node = AttentionWriter(problem, "queries"), delta_tensor(problem)
    blocks = ceil_div(w.queries, ROWS)
    w.begin(blocks, w.heads, "h")
    w.line(f"rows = block * {ROWS} + tl.arange(0, {ROWS})")
    w.line(f"y = {w.query_rows(3, 'values')}.to(tl.float32)")
    w.line(f"g = {w.query_rows(5, 'values')}.to(tl.float32)")
    w.line("delta = tl.sum(y * g, 1)")
    if "lse_gradient" in problem.extra:
        w.line(f"delta = delta - {w.of_rows(problem.extra['lse_gradient'])}")
    w.line(f"tl.store({w.pointer(node)} + (b * {w.heads} + h) * {w.queries} + rows, delta, mask=rows < {w.queries})")
    w.written.append(node)
    return w.finished(blocks * w.batch * w.heads, 4)


def _row_numbers(w: AttentionWriter) -> None:
    """The log-sum-exp (0 of a row that attends to nothing) and delta of the rows."""
    delta = delta_tensor(w.problem)
    w.line(f"lse = {w.of_rows(w.problem.kernel.views[4])}")
    w.line(f'lse = tl.where(lse == float("-inf"), 0.0, lse) * {LOG2_E!r}')
    place = f"(b * {w.heads} + h) * {w.queries} + rows"
    w.line(f"delta = tl.load({w.pointer(delta)} + {place}, mask=rows < {w.queries}, other=0.0)")


def write_keys(problem: AttentionProblem) -> KernelSource:
    """The gradients of keys and values: a program has a block of keys and all queries of the heads that share it."""
    w = AttentionWriter(problem, "keys")
    tile, blocks, width = w.tile, ceil_div(w.keys, w.tile.keys), problem.width
    w.line(
        f"# attention gradients of {w.batch} x {problem.key_heads} x {w.keys} keys, from {problem.groups} x {w.queries} queries"
    )
    w.begin(blocks, problem.key_heads, "kh")
    w.line(f"cols = block * {tile.keys} + tl.arange(0, {tile.keys})")
    w.line(f"k = {w.key_rows(1, 'features')}")
    w.line(f"v = {w.key_rows(2, 'values')}")
    w.line(f"of_k = tl.zeros(({tile.keys}, {width}), tl.float32)")
    w.line(f"of_v = tl.zeros(({tile.keys}, {width}), tl.float32)")
    begin, end = w.query_range()
    if problem.groups > 1:
        w.line(f"for group in range({problem.groups}):")
        w.depth += 1
        w.line(f"h = kh * {problem.groups} + group")
    else:
        w.line("h = kh")
    w.line(f"for start in range({begin}, {end}, {tile.queries}):")
    w.depth += 1
    w.line(f"rows = start + tl.arange(0, {tile.queries})")
    w.line(f"q = {w.query_rows(0, 'features')}")
    w.line(f"g = {w.query_rows(5, 'values')}")
    _row_numbers(w)
    w.line(f"s = {w.dot('k', 'tl.trans(q)')}")
    w.scores(True, True)
    w.line("p = tl.where(allowed, tl.exp2(s - lse[None, :]), 0.0)")
    w.line(f"of_p = {w.dot('v', 'tl.trans(g)')}")
    w.line("kept_p = p")
    w.dropped(True, "kept_p", "of_p")
    w.line(f"of_v = {w.dot(w.narrowed('kept_p'), 'g', 'of_v')}")
    w.line("of_s = p * (of_p - delta[None, :])")
    w.line(f"of_k = {w.dot(w.narrowed('of_s'), 'q', 'of_k')}")
    w.depth = 1
    for result, value in (("y1", f"(of_k * {problem.anchor.param('scale')!r})"), ("y2", "of_v")):
        if result in problem.results:
            w.store(result, "kh", problem.key_heads, "cols", w.keys, value)
    return w.finished(blocks * w.batch * problem.key_heads, tile.warps, tile.stages, ALONE)


def write_queries(problem: AttentionProblem) -> KernelSource:
    """The gradients of queries: a program has a block of them and walks along the keys."""
    w = AttentionWriter(problem, "queries")
    tile, blocks, width = w.tile, ceil_div(w.queries, w.tile.queries), problem.width
    w.line(f"# attention gradients of {w.batch} x {w.heads} x {w.queries} queries, from {w.keys} keys")
    w.begin(blocks, w.heads, "h")
    w.line(f"kh = h // {problem.groups}")
    w.line(f"rows = block * {tile.queries} + tl.arange(0, {tile.queries})")
    w.line(f"q = {w.query_rows(0, 'features')}")
    w.line(f"g = {w.query_rows(5, 'values')}")
    _row_numbers(w)
    w.line(f"of_q = tl.zeros(({tile.queries}, {width}), tl.float32)")
    for begin, end, masked in w.key_ranges():
        w.line(f"for start in range({begin}, {end}, {tile.keys}):")
        w.depth += 1
        w.line(f"cols = start + tl.arange(0, {tile.keys})")
        w.line(f"k = {w.key_rows(1, 'features', masked)}")
        w.line(f"v = {w.key_rows(2, 'values', masked)}")
        w.line(f"s = {w.dot('q', 'tl.trans(k)')}")
        w.scores(False, masked)
        w.line("p = tl.exp2(s - lse[:, None])")
        if w.allowed:
            w.line("p = tl.where(allowed, p, 0.0)")
        w.line(f"of_p = {w.dot('g', 'tl.trans(v)')}")
        w.dropped(False, "of_p")
        w.line("of_s = p * (of_p - delta[:, None])")
        w.line(f"of_q = {w.dot(w.narrowed('of_s'), 'k', 'of_q')}")
        w.depth -= 1
    w.store("y0", "h", w.heads, "rows", w.queries, f"(of_q * {problem.anchor.param('scale')!r})")
    return w.finished(blocks * w.batch * w.heads, tile.warps, tile.stages, ALONE)
