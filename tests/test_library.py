"""Functions of the library are made when they are wanted, several at once, and each only once."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import weft
import weft.compiler.cpu.backend  # registers the generators of all functions
from weft.compiler.cpu import library
from weft.compiler.cpu.engine import object_code
from weft.compiler.cpu.gemm import product
from weft.compiler.cpu.gemm.register_tile import RegisterTile
from weft.compiler.cpu.target import host

SYMBOLS = ["conv_sum", "conv_pad", "product.f32.f32.f32.4x3.columns", "conv_pack.8"]


@pytest.fixture(autouse=True)
def _empty(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No function is there, neither in memory nor on disk."""
    monkeypatch.setattr(library, "_loaded", {})
    monkeypatch.setattr(weft.knobs, "cache", str(tmp_path))


def test_what_is_missing_is_made_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    for family, maker in list(library._makers.items()):
        monkeypatch.setitem(library._makers, family, lambda s, maker=maker: (made.append(s), maker(s))[1])
    library.address("conv_sum")
    with library.preparing([*SYMBOLS, *SYMBOLS]):
        assert library.address("conv_pad")
    assert sorted(made) == sorted(SYMBOLS)
    assert {symbol for symbol, *_ in library._loaded} == set(SYMBOLS)
    with library.preparing(SYMBOLS):
        pass
    assert len(made) == len(SYMBOLS)


def test_what_goes_wrong_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def maker(symbol: str) -> None:
        raise ValueError(symbol)

    monkeypatch.setitem(library._makers, "broken", maker)
    with pytest.raises(ValueError, match=r"broken\.7"), library.preparing(["conv_sum", "broken.7"]):
        pass
    assert library.address("conv_sum")


def test_threads_make_the_same_code_as_one() -> None:
    modules = [
        str(product.write(product.ProductKernel("f32", "f32", "f32", RegisterTile(*shape), "columns"), host()))
        for shape in ((4, 3), (8, 2))
    ]
    alone = [object_code(m) for m in modules]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(object_code, modules * 3)) == alone * 3


def test_the_table_of_escaped_characters_is_whole_before_threads_read_it() -> None:
    """llvmlite fills it at its first use, and threads that write modules at the same time have seen half of it."""
    code = """
import weft.compiler.cpu.ir_builder
from llvmlite.ir.values import _escape_string
(table,) = _escape_string.__defaults__
assert len(table) == 256, len(table)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
