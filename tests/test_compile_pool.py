"""Kernels are compiled by worker processes, which several calls can share and which are gone afterwards."""

import pytest

import weft
from triton_build import X, kernels
from weft.compiler.gpu import compile_pool
from weft.compiler.gpu.compile import check_products
from weft.errors import InternalError
from weft.knobs import knobs

FUNCTIONS = [weft.sin, weft.cos, weft.exp, weft.relu, weft.sqrt, weft.abs]


@pytest.fixture
def sources():
    return [kernels(function, X)[0] for function in FUNCTIONS]


@pytest.fixture(autouse=True)
def cold(monkeypatch):
    """Nothing comes from the disk, and two workers start wherever the tests run."""
    monkeypatch.setattr(compile_pool, "usable_cores", lambda: 2)
    with knobs.set(cache="off"):
        yield


def test_several_calls_share_workers_that_are_gone_afterwards(sources, monkeypatch):
    started = []
    real = compile_pool._Worker.__init__

    def start(self):
        real(self)
        started.append(self._process)

    monkeypatch.setattr(compile_pool._Worker, "__init__", start)
    with compile_pool.workers_ready():
        first, second = compile_pool.compile_kernels(sources[:3], 90), compile_pool.compile_kernels(sources[3:], 90)
    assert len(started) == 2
    assert all(process.poll() is not None for process in started)
    assert len({binary.code for binary in first + second}) == len(sources)
    assert all(binary.code.startswith(b"\x7fELF") for binary in first + second)


def test_a_kernel_that_does_not_compile_says_why(sources):
    from dataclasses import replace

    broken = replace(sources[0], body=sources[0].body.replace("tl.load", "tl.lode"))
    with pytest.raises(InternalError, match="a kernel does not compile"):
        compile_pool.compile_kernels([broken, *sources[1:]], 90)


def test_a_product_whose_lanes_overlap_is_rejected():
    """As Triton writes it for a sum over 16 keys, of weights with a mask and dropout: on a GPU it was twice as large as it should be."""

    def product(terms, width):
        parent = f"parent = #mma, kWidth = {width}"
        return f"%y = tt.dot %p, %v, %x : tensor<16x{terms}xf16, #ttg.dot_op<{{opIdx = 0, {parent}}}>> * tensor<{terms}x16xf16, #ttg.dot_op<{{opIdx = 1, {parent}}}>>"

    for terms, width in ((16, 2), (16, 4), (32, 8), (64, 8)):
        check_products(product(terms, width))
    with pytest.raises(RuntimeError, match="4 x 8 terms of a product that sums 16"):
        check_products("\n".join([product(64, 8), product(16, 8)]))
