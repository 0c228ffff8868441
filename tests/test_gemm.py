"""Matrix products of the native library: right for all shapes, strides and types, inside their operands, same bits always.

Operands lie at the very end, or the very beginning, of memory that is followed and preceded by pages nobody may touch: code
that reads or writes a byte too far dies here.
"""

import itertools
from dataclasses import dataclass, replace

import llvmlite.binding as llvm
import ml_dtypes
import numpy as np
import pytest
from llvmlite import ir

from guarded import guarded_array
from weft.compiler.cpu import library
from weft.compiler.cpu.engine import assembly, load
from weft.compiler.cpu.gemm import plans as gemm
from weft.compiler.cpu.gemm import product, tiling
from weft.compiler.cpu.gemm.packing import ELEMENTS
from weft.compiler.cpu.gemm.register_tile import RegisterTile
from weft.compiler.cpu.ir_builder import I64, PTR, Code, new_module
from weft.compiler.cpu.target import CpuTarget, host
from weft.compiler.thresholds import thresholds

DTYPES = {"f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
POISON = 12345.0
BOTH = list(itertools.product((False, True), repeat=2))


@dataclass
class Case:
    """A product and how its operands lie in memory."""

    m: int
    n: int
    k: int
    a_turned: bool = False
    b_turned: bool = False
    pads: tuple[int, int, int] = (0, 0, 0)  # gaps at the end of the lines of a, b, c
    batch: int = 1
    a_repeats: bool = False
    b_repeats: bool = False
    dtype: str = "f32"
    a_type: str = ""
    b_type: str = ""
    accumulate: bool = False
    threads: int = 2
    at_end: bool = True
    steps: tuple[int, int] = (1, 1)  # between the elements of a line of a, b

    def room(self, count: int, dtype: type) -> np.ndarray:
        return guarded_array(count, dtype, at_end=self.at_end)

    def side(self, rows: int, columns: int, turned: bool, pad: int, step: int, kind: str, repeats: bool) -> tuple:
        """An operand's values, memory, strides and batch stride."""
        lines, length = (columns, rows) if turned else (rows, columns)
        line = length * step + pad
        size = max(0, (lines - 1) * line + (length - 1) * step + 1) if lines and length else 0
        count = 1 if repeats else self.batch
        memory = self.room(size * count, DTYPES[kind])
        memory[:] = RNG.standard_normal(memory.shape).astype(DTYPES[kind])
        strides = (step, line) if turned else (line, step)
        bytes_ = np.array([0 if repeats else size, *strides]) * memory.itemsize
        shown = np.lib.stride_tricks.as_strided(memory, (self.batch, rows, columns), bytes_)
        return shown, memory, strides, 0 if repeats else size

    def operands(self) -> None:
        kinds = self.a_type or self.dtype, self.b_type or self.dtype
        self.a = self.side(self.m, self.k, self.a_turned, self.pads[0], self.steps[0], kinds[0], self.a_repeats)
        self.b = self.side(self.k, self.n, self.b_turned, self.pads[1], self.steps[1], kinds[1], self.b_repeats)
        self.ldc = self.n + self.pads[2]
        size = self.m * self.ldc
        self.c = self.room(size * self.batch, DTYPES[self.dtype])
        self.c[:] = POISON
        self.shown = self.c.reshape(self.batch, self.m, self.ldc)[:, :, : self.n]
        if self.accumulate:
            self.shown[:] = RNG.standard_normal(self.shown.shape)
        self.old = self.shown.astype(np.float64) if self.accumulate else np.zeros(self.shown.shape)

    def plan(self, threads: int = 0, **more: object) -> library.Plan:
        return gemm.plan(
            self.m, self.n, self.k, self.a[2], self.b[2], ldc=self.ldc, batch=self.batch, a_batch=self.a[3],
            b_batch=self.b[3], c_batch=self.m * self.ldc, dtype=self.dtype, a_type=self.a_type, b_type=self.b_type,
            threads=threads or self.threads, accumulate=self.accumulate, **more,
        )  # fmt: skip

    def run(self, plan: library.Plan, **pointers: int) -> None:
        work = self.room(plan.workspace, np.uint8)
        found = {"a": self.a[1], "b": self.b[1], "c": self.c, "work": work}
        library.run(plan, {n: x.ctypes.data for n, x in found.items()} | pointers, self.threads)

    def check(self) -> None:
        """The values are right, and nothing is written between the lines."""
        a, b = (x[0].astype(np.float64) for x in (self.a, self.b))
        expected = self.old + a @ b
        exact = np.finfo(DTYPES[self.dtype]).eps * (abs(self.old) + abs(a) @ abs(b)) * (4 + self.k**0.5)
        assert np.all(abs(self.shown - expected) <= exact)
        gaps = self.c.reshape(self.batch, self.m, self.ldc)[:, :, self.n :]
        assert np.all(gaps == POISON)


RNG = np.random.default_rng(0)


def solve(case: Case) -> np.ndarray:
    case.operands()
    case.run(case.plan())
    case.check()
    return case.shown.copy()


SIZES = (1, 2, 3, 4, 5, 7, 8, 12, 13, 16, 17, 31, 48, 61, 100, 130)


@pytest.mark.sweep(share=0.25)
@pytest.mark.parametrize("seed", range(60))
def test_shapes_and_strides(seed: int) -> None:
    pick = np.random.default_rng(seed)
    m, n, k = (int(s) for s in pick.choice(SIZES, 3))
    a_turned, b_turned, accumulate, at_end = (bool(x) for x in pick.integers(0, 2, 4))
    pads = tuple(int(x) for x in pick.choice((0, 0, 1, 5), 3))
    solve(Case(m, n, k, a_turned, b_turned, pads, accumulate=accumulate, at_end=at_end))


@pytest.mark.sweep("shape", share=0.3)
@pytest.mark.parametrize("turned", BOTH)
@pytest.mark.parametrize(
    "shape", [(300, 200, 700), (5, 700, 900), (16, 900, 800), (700, 9, 530), (90, 40, 5000), (64, 10, 100)]
)
def test_larger_than_a_block(shape: tuple[int, int, int], turned: tuple[bool, bool]) -> None:
    solve(Case(*shape, *turned, accumulate=turned[0]))


@pytest.mark.parametrize("steps", [(2, 1), (1, 3), (2, 2)])
@pytest.mark.parametrize("shape", [(9, 20, 30), (1, 20, 30), (20, 1, 30), (1, 1, 7)])
def test_no_line_without_gaps(shape: tuple[int, int, int], steps: tuple[int, int]) -> None:
    solve(Case(*shape, steps=steps))
    solve(Case(*shape, True, True, steps=steps, at_end=False))


@pytest.mark.parametrize("shape", [(0, 3, 4), (3, 0, 4), (0, 0, 0), (1, 0, 1)])
def test_nothing_to_do(shape: tuple[int, int, int]) -> None:
    case = Case(*shape)
    case.operands()
    assert case.plan().phases == ()


@pytest.mark.parametrize("shape", [(3, 5, 0), (1, 5, 0), (40, 1, 0), (1, 1, 0)])
@pytest.mark.parametrize("accumulate", [False, True])
def test_an_empty_sum_is_zero(shape: tuple[int, int, int], accumulate: bool) -> None:
    solve(Case(*shape, pads=(0, 0, 2), accumulate=accumulate))


@pytest.mark.sweep("shape", share=0.3)
@pytest.mark.parametrize("repeats", BOTH)
@pytest.mark.parametrize("shape", [(32, 32, 32), (6, 10, 5), (1, 9, 20), (9, 1, 20), (64, 40, 64)])
def test_batches(shape: tuple[int, int, int], repeats: tuple[bool, bool]) -> None:
    for turned in BOTH:
        solve(Case(*shape, *turned, batch=5, a_repeats=repeats[0], b_repeats=repeats[1]))


@pytest.mark.parametrize(("a_type", "b_type"), [("f16", "f32"), ("f32", "bf16"), ("bf16", "f16")])
def test_half_precision_inputs(a_type: str, b_type: str) -> None:
    for shape in [(20, 32, 40), (1, 30, 40), (30, 1, 41)]:
        for turned in BOTH:
            solve(Case(*shape, *turned, a_type=a_type, b_type=b_type))


@pytest.mark.parametrize("shape", [(20, 30, 40), (1, 30, 41), (30, 1, 40), (7, 5, 3000), (100, 90, 600)])
def test_double_precision(shape: tuple[int, int, int]) -> None:
    solve(Case(*shape, dtype="f64"))
    solve(Case(*shape, True, True, dtype="f64", accumulate=True))


@pytest.mark.parametrize("outputs", [1, 5, 20, 100])
@pytest.mark.parametrize("turned", [False, True])
def test_vectors_with_a_long_k(outputs: int, turned: bool) -> None:
    solve(Case(1, outputs, 20_001, b_turned=turned))
    solve(Case(outputs, 1, 20_001, a_turned=turned, accumulate=True))


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("kind", DTYPES)
def test_vectors_with_a_matrix_beyond_the_caches(turned: bool, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read in few streams and asked for ahead, as if these matrices were large; in pieces, where results lie side by side in them."""
    monkeypatch.setattr(thresholds, "matvec_far", 0)
    monkeypatch.setattr(thresholds, "matvec_long", 1 << 12)
    for outputs, k in ((70, 300), (131, 77), (5, 64), (700, 259)):
        for accumulate in (False, True):
            case = Case(1, outputs, k, b_turned=turned, accumulate=accumulate)
            case.dtype, case.b_type = ("f64", "") if kind == "f64" else ("f32", kind)
            solve(case)
            symbols = [phase.symbol for phase in case.plan().phases]
            assert any(s.startswith("matvec.") and s.endswith(".far") for s in symbols)
            assert any(s.startswith("addup") for s in symbols) is (not turned and outputs >= 64)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("k", "crowded"), [(1000, False), (1024, True), (2048, True)])
def test_rows_that_share_a_set_of_the_cache_are_not_read_in_place_by_tall_tiles(
    k: int, crowded: bool, threads: int
) -> None:
    """A way of the L1 cache has 4 KiB: rows of 4 KiB fall on one another, and 8 ways hold no tile of 9 rows."""
    target = CpuTarget("x86_64", "cascadelake", "", 512, 32, l1=32 << 10, l2=1 << 20)
    p = tiling.Problem(1024, 1024, k, (k, 1), (1024, 1), (1024, 1), 1, 0, 0, 0, "f32", "f32", "f32", threads, False)
    chosen = tiling.choose(p, target).kernel
    assert not crowded or chosen.tile.rows <= 8

    def cost(l1: int) -> float:
        found = tiling.candidates(p, replace(target, l1=l1))
        return min(c.cost for c in found if (c.kernel.reading, c.kernel.tile.rows) == ("rows", 9))

    assert (cost(32 << 10) > 1.1 * cost(48 << 10)) is crowded  # 8 ways, 12 ways


@pytest.mark.parametrize(("k", "n", "short"), [(64, 1024, True), (65, 1024, False), (64, 1000, False)])
@pytest.mark.parametrize("threads", [1, 2])
def test_tasks_of_short_products_store_to_few_rows(k: int, n: int, short: bool, threads: int) -> None:
    """Where rows of the result are a page apart and k is short, a task with many rows would miss the TLB at every one."""
    target = CpuTarget("x86_64", "cascadelake", "", 512, 32, l1=32 << 10, l2=1 << 20)
    p = tiling.Problem(1024, n, k, (1, 1024), (n, 1), (n, 1), 1, 0, 0, 0, "f32", "f32", "f32", threads, False)
    chosen = tiling.choose(p, target)
    assert (chosen.row_blocks >= 1024 // 32) is short
    with thresholds.set(product_short=0):
        assert tiling.choose(p, target).row_blocks < 1024 // 32


@pytest.mark.parametrize("k", [1, 16, 64, 65])
def test_bits_do_not_depend_on_the_tasks_of_short_products(k: int) -> None:
    case = Case(100, 1030, k, a_turned=True)
    few = solve(case).copy()
    with thresholds.set(product_short=0):
        case.shown[:] = POISON
        case.run(case.plan())
    case.check()
    assert np.array_equal(few, case.shown)


def test_all_ways_of_all_problems() -> None:
    """Whatever the estimate would choose elsewhere works too."""
    tried, shape = set(), (37, 61, 70)
    for turned in BOTH:
        case = Case(*shape, *turned, accumulate=True)
        case.operands()
        p = tiling.Problem(*shape, case.a[2], case.b[2], (case.ldc, 1), 1, 0, 0, 0, "f32", "f32", "f32", 2, True)
        for way in (p, tiling.transpose_problem(p)):
            for choice in tiling.candidates(way, host()):
                case.shown[:] = case.old
                chosen = replace(choice, row_blocks=2, column_blocks=2, k_block=28)
                case.run(gemm.plan_as(way, chosen, host()))
                case.check()
                tried.add((choice.kernel, choice.pack_a, choice.pack_b))
    assert len(tried) >= 9


@pytest.mark.parametrize("shape", [(64, 300, 784), (5, 7, 9), (30, 40, 3000)])
def test_packed_beforehand(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    for turned in (False, True):
        case = Case(m, n, k, b_turned=turned, batch=1)
        case.operands()
        width = gemm.panel_width(m, n, k, case.a[2], threads=2)
        packed = case.room(gemm.packed_size(n, k, width), np.float32)
        case.run(gemm.pack_plan(n, k, case.b[2], width), packed=packed.ctypes.data)
        case.run(case.plan(b_packed=width), b=packed.ctypes.data)
        case.check()
        other = Case(3, n, k, a_turned=True)  # the same packed matrix with an A of another make
        other.operands()
        other.b = case.b
        other.run(other.plan(b_packed=width), b=packed.ctypes.data)
        other.check()


@pytest.mark.parametrize(
    "case",
    [
        Case(64, 300, 784), Case(49, 512, 700, b_turned=True), Case(30, 40, 5000, a_turned=True), Case(1, 700, 300),
        Case(1, 700, 300, b_turned=True), Case(3, 1, 30_000), Case(17, 19, 23, batch=7), Case(1, 2100, 2101),
    ],
    ids=lambda case: f"{case.m}x{case.n}x{case.k}",
)  # fmt: skip
def test_same_bits_for_any_number_of_threads(case: Case) -> None:
    case.operands()
    results = []
    for threads in (1, 2, 3, 16):
        case.threads = threads
        case.c[:] = POISON
        case.run(case.plan())
        results.append(case.shown.copy())
    for other in results[1:]:
        assert np.array_equal(results[0], other)


@pytest.fixture(scope="module")
def epilogue() -> int:
    """c = 2 c + 1 in place. The context: addresses of c and of a count for each element, then the strides of both."""
    module = new_module("epilogue")
    code = Code.begin(module, "epilogue", [PTR] + [I64] * 5)
    context, z, top, bottom, left, right = code.arguments
    c, counts = (code.inttoptr(code.read(context, i, I64), PTR) for i in (0, 1))
    batch, row = (code.read(context, i, I64) for i in (2, 3))
    with code.loop(top, bottom) as i, code.loop(left, right) as j:
        at = code.plus(code.mul(z, batch), code.mul(i, row), j)
        one = ir.Constant(ELEMENTS["f32"], 1.0)
        value = code.read(c, at, ELEMENTS["f32"])
        code.write(code.fadd(code.fadd(value, value), one), c, at)
        code.write(code.plus(code.read(counts, at, I64), 1), counts, at)
    code.done()
    KEPT.append(load(module))
    return KEPT[-1].address("epilogue")


KEPT: list = []


@pytest.mark.parametrize(
    "case",
    [
        Case(64, 300, 784), Case(49, 512, 700, b_turned=True, pads=(0, 0, 3)), Case(30, 40, 5000), Case(1, 700, 300),
        Case(1, 700, 30, b_turned=True), Case(3, 1, 30_000), Case(17, 19, 23, batch=7), Case(5, 6, 0), Case(200, 1, 3000),
        Case(9, 9, 5000, accumulate=True), Case(130, 70, 20, accumulate=True), Case(16, 900, 800, b_turned=True, pads=(0, 0, 3)),
    ],
    ids=lambda case: f"{case.m}x{case.n}x{case.k}",
)  # fmt: skip
@pytest.mark.parametrize("strip", [0, thresholds.product_strip], ids=["narrow strips", "wide strips"])
def test_the_epilogue_sees_every_result_once(case: Case, strip: int, epilogue: int) -> None:
    case.operands()
    counts = np.zeros(case.c.size, np.int64)
    context = np.array([case.c.ctypes.data, counts.ctypes.data, case.m * case.ldc, case.ldc], np.int64)
    with thresholds.set(product_strip=strip):
        plan = case.plan()
    case.run(plan, epilogue=epilogue, context=context.ctypes.data)
    seen = counts.reshape(case.batch, case.m, case.ldc)
    assert np.all(seen[:, :, : case.n] == 1)
    assert not seen[:, :, case.n :].any()
    case.shown[:] = (case.shown - 1) / 2
    case.check()


@pytest.fixture(scope="module")
def copying_epilogue() -> int:
    """result = c. The context: addresses of c and of the result, then the strides of both."""
    module = new_module("copying")
    code = Code.begin(module, "copying", [PTR] + [I64] * 5)
    context, z, top, bottom, left, right = code.arguments
    c, result = (code.inttoptr(code.read(context, i, I64), PTR) for i in (0, 1))
    batch, row = (code.read(context, i, I64) for i in (2, 3))
    with code.loop(top, bottom) as i, code.loop(left, right) as j:
        at = code.plus(code.mul(z, batch), code.mul(i, row), j)
        code.write(code.read(c, at, ELEMENTS["f32"]), result, at)
    code.done()
    KEPT.append(load(module))
    return KEPT[-1].address("copying")


@pytest.mark.parametrize(
    "case",
    [
        Case(300, 784, 64), Case(64, 300, 100, pads=(0, 0, 3)), Case(130, 17, 20, batch=3), Case(5, 6, 0), Case(9, 200, 31),
        Case(16, 900, 64, b_turned=True), Case(100, 10, 64, a_turned=True), Case(1000, 33, 8, at_end=False),
    ],
    ids=lambda case: f"{case.m}x{case.n}x{case.k}",
)  # fmt: skip
@pytest.mark.parametrize("strip", [0, thresholds.product_strip], ids=["narrow strips", "wide strips"])
def test_streamed_results_are_seen_by_the_epilogue_alone(case: Case, strip: int, copying_epilogue: int) -> None:
    case.threads = 1  # a context is a thread's own
    case.operands()
    result = case.room(case.c.size, np.float32)
    result[:] = POISON
    context = np.array([0, result.ctypes.data, case.m * case.ldc, case.ldc], np.int64)
    with thresholds.set(product_strip=strip):
        plan = case.plan(streamed=True)
    assert plan.hidden
    case.run(plan, epilogue=copying_epilogue, context=context.ctypes.data)
    assert np.all(case.c == POISON)
    case.c[:] = result
    case.check()


@pytest.mark.parametrize(("m", "n", "l2", "panels"), [
    (64, 1024, 1 << 20, 16),  # 64 rows of 1024 results fit in a quarter of the cache
    (64, 1024, 1 << 19, 8),
    (64, 1024, 1 << 16, 2),  # never fewer than are packed together
    (64, 100, 1 << 20, 2),
])  # fmt: skip
def test_the_epilogue_is_called_for_results_that_fit_in_the_cache(m: int, n: int, l2: int, panels: int) -> None:
    target = CpuTarget("x86_64", "cascadelake", "", 512, 32, l1=32 << 10, l2=l2)
    p = tiling.Problem(m, n, 64, (64, 1), (1, 64), (n, 1), 1, 0, 0, 0, "f32", "f32", "f32", 1, False)
    kernel = product.ProductKernel("f32", "f32", "f32", RegisterTile(4, 4), "rows")
    multiply = gemm.plan_as(p, tiling.Tiling(kernel, False, "first", 1, 1, 64, 0.0), target).phases[-1]
    assert multiply.arguments[product.PRODUCT.index("strip")] == panels


def test_results_that_cannot_be_streamed_are_stored() -> None:
    """A long k is done in parts, and results are added to: they must be somewhere meanwhile."""
    for case in (Case(300, 300, 5000), Case(130, 70, 20, accumulate=True), Case(30, 40, 5000), Case(1, 700, 30)):
        case.operands()
        assert not case.plan(streamed=True).hidden
        case.run(case.plan(streamed=True))
        case.check()


def test_a_workspace_of_threads_that_do_not_run() -> None:
    """A plan for many threads runs on fewer."""
    case = Case(100, 200, 300, threads=2)
    case.operands()
    case.run(case.plan(threads=64))
    case.check()


X86 = {"haswell": (256, 16, ""), "skylake-avx512": (512, 32, "-prefer-256-bit")}


def x86_target(cpu: str) -> CpuTarget:
    """A CPU that this machine need not be."""
    bits, registers, features = X86[cpu]
    target = CpuTarget("x86_64", cpu, features, bits, registers)
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    triple = llvm.Target.from_triple("x86_64-unknown-linux-gnu")
    vars(target)["machine"] = triple.create_target_machine(cpu=cpu, features=features, opt=3, reloc="pic")
    return target


@pytest.mark.sweep(share=1.0)
@pytest.mark.parametrize("cpu", X86)
@pytest.mark.parametrize("reading", ["columns", "rows"])
def test_the_sums_of_a_tile_stay_in_registers(cpu: str, reading: str) -> None:
    """In the innermost loop nothing but the operands is read, and nothing is written."""
    target = x86_target(cpu)
    for height, vectors in tiling.tiles(target)[reading]:
        kernel = product.ProductKernel("f32", "f32", "f32", RegisterTile(height, vectors), reading)
        blocks = assembly(product.write(kernel, target), target).split("\n.LBB")
        loop = max(blocks, key=lambda block: block.count("vfmadd")).splitlines()
        steps = 2 if reading == "rows" and target.registers == 32 else 4
        assert sum("vfmadd" in line for line in loop) == steps * height * vectors
        vector_lines = [line for line in loop if line.startswith("\tv")]
        assert not [line for line in vector_lines if "(%rsp" in line or line.endswith(")")], kernel


def test_names_of_kernels_can_be_read_back() -> None:
    kernel = product.ProductKernel("f32", "f16", "bf16", RegisterTile(8, 3), "columns")
    assert product.ProductKernel.named(kernel.symbol) == kernel
