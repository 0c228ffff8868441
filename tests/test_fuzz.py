"""The fuzzer: a fixed slice of its programs, and the test of the fuzzer itself, on faults that are put in on purpose."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft.runtime import native
from weft.testing import checks_run, poison
from weft.testing.fuzz import (
    KINDS,
    Finding,
    Session,
    Unfit,
    check,
    makers,
    random_network,
    random_program,
    script,
    shrink,
    table,
)
from weft.testing.fuzz.__main__ import main
from weft.testing.fuzz.check import Checker
from weft.testing.fuzz.evaluate import Mode, evaluate
from weft.testing.fuzz.program import Block, FuzzProgram, Input, Statement, walk
from weft.testing.fuzz.session import ended

JIT = Mode("jit", "cpu", jit=True)
PROGRAM_SEEDS = [9001, 9002, 9003, 9004, 9005, 9007]
NETWORK_SEEDS = [9001]


def program(code: str, *inputs: Input, **facts: Any) -> FuzzProgram:
    """A program of one statement."""
    names = tuple(i.name for i in inputs)
    arguments = tuple(i.name for i in inputs if i.role == "argument")
    return FuzzProgram(7, inputs, Block(arguments, (Statement("v", code, names),), ("v",)), **facts)


def argument(shape: tuple[int, ...], role: Any = "argument") -> Input:
    return Input(f"{role[0]}0", f"rng.normal(size={shape})", role)


# --- the fixed slice ------------------------------------------------------------------------------------------------------------------


def assert_nothing(found: Finding | None) -> None:
    assert found is None, f"{found.mode}: {found.what}: {found.detail}\n{found.text()}"


@pytest.mark.sweep(share=0.5)
@pytest.mark.parametrize("seed", PROGRAM_SEEDS)
def test_programs_agree_with_float64(seed: int) -> None:
    assert_nothing(check(random_program(seed), "cpu"))


@pytest.mark.parametrize("seed", NETWORK_SEEDS)
def test_networks_agree_with_float64(seed: int) -> None:
    assert_nothing(check(random_network(seed), "cpu"))


def updated(code: str, role: Any) -> FuzzProgram:
    """A program that changes an input in place."""
    given = argument((3,), role)
    body = Block(("a0",) if role == "argument" else (), (Statement("", code, (given.name,)),), (given.name,))
    return FuzzProgram(7, (given,), body)


SPECIAL_VALUES = Input("a0", "np.where(rng.random(9) < 0.5, np.nan, 1.0)", "argument")
ONCE_FAILED = {
    "captured only": program("weft.sort({0})", argument((3,), "captured")),
    "captured only, in a loop": program(
        "weft.scan(lambda s, x: (s + x, weft.softmax({0})), weft.sum({0}) * 0.0, weft.ones(3, dtype=D))[1]", argument((3,), "captured")
    ),
    "many taps": program("weft.grad(lambda x: weft.sum(weft.max_pool(x, 6, stride=2) ** 2))({0})", argument((1, 1, 9, 9))),
    "many taps in 3-D": program("weft.grad(lambda x: weft.sum(weft.max_pool(x, 3, stride=1) ** 2))({0})", argument((1, 1, 4, 4, 4))),
    "long sums": program("weft.mean(0.0 * {0} + 0.9)", argument((99_991,))),
    "kept maximum": program(
        "weft.grad(lambda x: weft.sum(weft.tanh(weft.max(x, axis=2) @ weft.ones((4, 2), dtype=D))))({0})", argument((3, 4, 5)), precision="bfloat16"
    ),
    "nan": program("weft.sum({0} - weft.mean({0}))", SPECIAL_VALUES, finite=False),
    "argument changed in place": updated("{0} += 1", "argument"),
    "Python number": program("{0} * {1}", Input("a0", "rng.integers(0, 9, 4)", "argument", "int8"), Input("a1", "2", "argument", "python")),
}  # fmt: skip


@pytest.mark.parametrize("name", ONCE_FAILED)
def test_programs_that_once_failed(name: str) -> None:
    assert_nothing(check(ONCE_FAILED[name], "cpu"))


# --- programs ----------------------------------------------------------------------------------------------------------------------------


def test_the_same_seed_makes_the_same_program() -> None:
    assert random_program(5) == random_program(5)
    assert random_network(5) == random_network(5)
    assert random_program(5) != random_program(6)


def test_programs_hold_everything_that_they_should() -> None:
    """Control flow, derivatives, captured tensors, state, changes in place, dtypes, mixed precision, Python numbers."""
    made = [random_program(seed) for seed in range(80)]
    text = "\n".join(p.text() for p in made)
    calls = [
        "scan",
        "cond",
        "while_loop",
        "fori_loop",
        "checkpoint",
        "grad",
        "vjp",
        "jvp",
        "vmap",
        "jacobian",
        "conv",
        "max_pool",
        "sort",
    ]
    for call in calls:
        assert f"weft.{call}(" in text, call
    assert {i.role for p in made for i in p.inputs} == {"argument", "captured", "state"}
    assert {p.dtype for p in made} == {"float16", "bfloat16", "float32", "float64"}
    assert {p.precision for p in made} == {"", "bfloat16", "float16"}
    assert any("+= 1" in s.code for p in made for s in p.body.statements)
    assert {"python", "bool", "int8"} <= {i.dtype for p in made for i in p.inputs}
    assert any(not p.finite for p in made)


# Not functions of tensors, or without a shape or a value that is known before: a program cannot hold them.
LEFT_OUT = {
    "Program", "TensorSpec", "export_c", "load", "save",  # files
    "DType", "Device", "Graph", "InternalError", "LossScale", "RunError", "Tensor", "UserError", "UserIndexError", "WORKSPACE_LIMIT", "WeftError",
    "algorithms", "allclose", "arange", "array_namespace", "asarray", "bitwise_not", "broadcast_arrays",
    "can_cast", "cast", "cross", "cumprod", "cumsum", "custom_vjp", "device", "devices", "empty", "empty_like", "eye", "find_algorithms",
    "finfo", "from_dlpack", "full", "gradients", "iinfo", "imag", "sparse_matmul", "float8_matmul", "from_float8", "to_float8", "profile",
    "isdtype", "jit", "layer_normalization", "linspace", "lshift", "make_graph", "nextafter", "nonzero", "ones", "parameter", "permute",
    "result_type", "rshift", "scan_steps", "seed", "swapaxes", "unique_all", "unique_counts", "unique_inverse",
    "unique_values", "view", "zeros",
}  # fmt: skip


def test_every_public_function_can_be_met() -> None:
    rows = [*table.UNARY, *table.BINARY, *table.COMPARE, *table.INTEGER, *table.REDUCE, *table.ALONG, *table.PRODUCT]
    source = (
        "\n".join(rows) + Path(makers.__file__).read_text() + Path(makers.__file__).with_name("blocks.py").read_text()
    )
    public = {n for n in weft.__all__ if not n.startswith("_") and callable(getattr(weft, n))}
    missing = {n for n in public - LEFT_OUT if f"weft.{n}(" not in source}
    assert not missing, "add rows to weft/testing/fuzz/table.py"
    assert public >= LEFT_OUT, "a name that is left out does not exist any more"


def test_scripts_run_alone(tmp_path: Path) -> None:
    """What a finding prints needs nothing but weft, and computes what was compared."""
    made = replace(program("weft.sum({0} * {0})", argument((3,), "captured")), precision="bfloat16")
    path = tmp_path / "script.py"
    path.write_text(script(made, "jit"))
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"{float(evaluate(made, JIT)[0]['result 0']):.4f}"[:5] in done.stdout


# --- faults that are put in on purpose ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_a_result_that_is_a_few_roundings_off_is_found(dtype: str) -> None:
    checker = Checker(program("weft.sin({0}) * weft.softmax({0})", argument((4, 9)), dtype=dtype))
    right = evaluate(checker.program, JIT)
    assert checker.difference(right) is None
    unit = weft.finfo(dtype).eps
    for call in range(4):
        wrong = [dict(r) for r in right]
        wrong[call]["result 0"] = (right[call]["result 0"] * (1 + 60 * unit)).astype(right[call]["result 0"].dtype)
        assert checker.difference(wrong) is not None


@pytest.mark.parametrize("n", [5, 99_991])
def test_one_wrong_term_of_a_sum_is_found(n: int) -> None:
    checker = Checker(program("weft.sum(weft.abs({0}) + 1.0)", argument((n,))))
    right = evaluate(checker.program, JIT)
    wrong = [{**r, "result 0": r["result 0"] - np.float32(3.0 * max(1.0, n * 1e-4))} for r in right]
    assert checker.difference(wrong) is not None


def test_nan_dtype_shape_and_integers_are_compared() -> None:
    checker = Checker(program("weft.argsort({0})", argument((9,))))
    right = evaluate(checker.program, JIT)

    def changed(value: np.ndarray) -> str:
        found = checker.difference([*right[:3], {**right[3], "result 0": value}])
        return "" if found is None else found[0]

    good = right[3]["result 0"]
    assert changed(good) == ""
    assert changed(good[::-1]) == "value"
    assert changed(good.astype("int32")) == "dtype"
    assert changed(good[:-1]) == "shape"
    floats = Checker(program("weft.log({0} * {0})", argument((3,))))
    found = evaluate(floats.program, JIT)
    found[2]["result 0"][1] = np.nan
    wrong = floats.difference(found)
    assert wrong is not None
    assert wrong[0] == "nan"


def test_choices_that_hang_on_the_last_bit_are_not_findings() -> None:
    """Rounding, argmax and ties of values that differ by one rounding."""
    for code in (
        "weft.round(({0} + 0.5) - {0})",
        "weft.argmax(weft.stack([{0} * 3.0 / 3.0, {0}]), axis=0)",
        "weft.sin(1e4 * {0})",
    ):
        assert check(program(code, argument((200,))), "cpu") is None, code


@pytest.fixture
def sum_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled programs lose what they should write to their first result, from the second call on."""
    run = native.NativeExecutable.run
    calls: dict[int, int] = {}

    def forgetful(self: native.NativeExecutable, addresses: Any, again: bool = True) -> None:
        calls[id(self)] = calls.get(id(self), 0) + 1
        kept = list(addresses)
        if calls[id(self)] > 1 and any(n.op.name == "sum" for n in self.graph.nodes):
            spare = np.empty(1 << 16, np.uint8)
            kept[-1] = spare.ctypes.data
        run(self, kept, again)

    monkeypatch.setattr(native.NativeExecutable, "run", forgetful)


@pytest.mark.usefixtures("sum_forgets")
def test_a_fault_is_found_and_shrunk_to_one_statement() -> None:
    """Memory is poisoned: a result that is not written is nan, not what the call before left there."""
    body = [
        Statement("v1", "weft.sin({0})", ("a0",)), Statement("v2", "weft.tanh({0} + {1})", ("v1", "a1")),
        Statement("v3", "weft.sum({0}, axis=1)", ("v2",)), Statement("v4", "weft.cos({0})", ("v3",)),
    ]  # fmt: skip
    inputs = (argument((3, 6)), Input("a1", "rng.normal(size=(6,))", "argument"))
    long = FuzzProgram(7, inputs, Block(("a0", "a1"), tuple(body), ("v4",)), "float64", settings=(("threads", "1"),))
    found = check(long, "cpu")
    assert found is not None
    assert found.kind == ("jit", "nan")

    def fails(candidate: FuzzProgram) -> bool:
        try:
            again = check(candidate, "cpu", only="jit")
        except Unfit:
            return False
        return again is not None and again.kind == found.kind

    small = shrink(long, fails)
    assert [s.code for s in walk(small.body)] == ["weft.sum({0}, axis=1)"]
    assert (small.dtype, small.settings, [i.code for i in small.inputs]) == ("float32", (), ["rng.normal(size=(1, 1))"])


@pytest.mark.usefixtures("sum_forgets")
def test_a_session_writes_a_script_and_says_what_it_did(tmp_path: Path) -> None:
    said: list[str] = []
    session = Session("programs", "cpu", tmp_path, report=said.append)
    found = check(program("weft.sum({0})", argument((3,))), "cpu")
    assert found is not None
    path = session.note(7, found)
    assert "--seed 7" in path.read_text()
    compile(path.read_text(), str(path), "exec")
    assert said[0].startswith("seed 7: jit: nan")
    assert "1 findings" in session.figures()
    assert "1 x jit: nan" in session.figures()


def test_memory_is_poisoned_only_inside_the_block() -> None:
    seen: list[bool] = []

    def look(memory: np.ndarray) -> None:
        seen.append(bool((memory.reshape(-1).view(np.uint8) == poison.PATTERN).all()))

    with poison.poisoned():
        native.BEFORE_USE.append(look)
        try:
            weft.jit(lambda x: weft.sort(x) + x.sum())(weft.ones(300))
        finally:
            native.BEFORE_USE.remove(look)
    assert seen
    assert all(seen)
    assert not native.BEFORE_USE


# --- the command line ------------------------------------------------------------------------------------------------------------------------


def test_a_process_that_ends_is_a_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kinds come from other files, and one that kills its process does not end the fuzzer."""
    monkeypatch.setitem(KINDS, "mine", KINDS["programs"])  # the file's own, until the end of this test
    kind = tmp_path / "kind.py"
    kind.write_text(
        "import os\n"
        "from weft.testing.fuzz import KINDS, Finding\n"
        "def look(seed, device):\n"
        "    if seed == 1:\n"
        "        os.abort()\n"
        "    return Finding(None, 'read', 'error', 'wrong', 'print(1)\\n') if seed == 2 else None\n"
        "KINDS['mine'] = look\n"
    )
    words = [
        "--kind",
        "mine",
        "--load",
        str(kind),
        "--seed",
        "0",
        "--count",
        "4",
        "--seconds",
        "60",
        "--folder",
        str(tmp_path),
    ]
    assert main(words) == 1
    said = capsys.readouterr().out
    assert "seed 1: process: ended: exit code -6" in said
    assert "seed 2: read: error: wrong" in said
    assert "1 x read: error" in said
    assert (tmp_path / "mine-2.py").read_text().endswith("print(1)\n")


def test_an_unknown_kind_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--kind", "nothing"]) == 2
    assert (
        "[fuzz] a kind out of programs, networks is required, got 'nothing'. Name its file with --load."
        in capsys.readouterr().err
    )


def test_a_number_that_is_returned_as_it_came_is_no_finding() -> None:
    number = Input("a0", "float(rng.normal())", "argument", "python")
    assert check(FuzzProgram(7, (number,), Block(("a0",), (), ("a0",)), "float16"), "cpu") is None


def test_checks_are_counted() -> None:
    before = checks_run()
    assert check(program("weft.sin({0})", argument((3,))), "cpu") is None
    assert checks_run() - before > 50


def test_programs_that_are_not_valid_are_left_out() -> None:
    with pytest.raises(Unfit):
        check(program("weft.reshape({0}, (5,))", argument((3,))), "cpu")
    found = check(program("{0}.no_such_method()", argument((3,))), "cpu")
    assert isinstance(found, Finding)
    assert found.kind == ("reference", "error")
    assert replace(found, mode="jit").kind == ("jit", "error")


def test_a_crash_leaves_its_program_behind(tmp_path: Path) -> None:
    path = Session("programs", "cpu", tmp_path, report=lambda text: None).note(5, ended("programs", 5, "exit code -11"))
    assert path.read_text().endswith(script(random_program(5), "jit"))
    assert "exit code -11" in path.read_text()
