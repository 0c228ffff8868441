"""Short memsets of recorded graphs become kernels: what is replaced, by what, and in which order, with a driver that only keeps books."""

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from weft.runtime.cuda.graph_memsets import FILL, MOST, MemsetKernels


class Driver:
    """A graph as the driver's interface shows it: nodes, what each is, and the edges between them."""

    CUgraphNodeType = SimpleNamespace(CU_GRAPH_NODE_TYPE_MEMSET="memset")

    def __init__(self) -> None:
        self.nodes: dict[str, Any] = {}
        self.edges: list[tuple[str, str]] = []

    def add(self, name: str, content: Any, *before: str) -> None:
        self.nodes[name] = content
        self.edges += [(b, name) for b in before]

    def cuModuleLoadData(self, code: bytes) -> tuple[int, str]:
        assert code == FILL
        return 0, "module"

    def cuModuleGetFunction(self, module: str, name: bytes) -> tuple[int, str]:
        return 0, name.decode()

    def _listed(self, found: list[str], most: int, *more: Any) -> tuple[Any, ...]:
        return 0, found[:most], *more, len(found)

    def cuGraphGetNodes(self, graph: Any, most: int = 0) -> tuple[Any, ...]:
        return self._listed(list(self.nodes), most)

    def cuGraphNodeGetDependencies(self, node: str, most: int = 0) -> tuple[Any, ...]:
        return self._listed([a for a, b in self.edges if b == node], most, ["edge data"])

    def cuGraphNodeGetDependentNodes(self, node: str, most: int = 0) -> tuple[Any, ...]:
        return self._listed([b for a, b in self.edges if a == node], most, ["edge data"])

    def cuGraphNodeGetType(self, node: str) -> tuple[int, str]:
        return 0, "memset" if isinstance(self.nodes[node], SimpleNamespace) else "other"

    def cuGraphMemsetNodeGetParams(self, node: str) -> tuple[int, Any]:
        return 0, self.nodes[node]

    def cuGraphDestroyNode(self, node: str) -> tuple[int]:
        del self.nodes[node]
        self.edges = [edge for edge in self.edges if node not in edge]
        return (0,)

    CUDA_KERNEL_NODE_PARAMS = CUgraphEdgeData = SimpleNamespace

    def cuGraphAddKernelNode(self, graph: Any, before: list[str], count: int, params: Any) -> tuple[int, str]:
        assert count == len(before)
        places = (ctypes.c_uint64 * 3).from_address(params.kernelParams)
        values = [ctypes.c_uint64.from_address(place).value for place in places]
        name = f"kernel {len(self.nodes)}"
        self.add(name, (params.func, params.gridDimX * params.blockDimX, *values), *before)
        return 0, name

    def cuGraphAddDependencies(self, graph: Any, a: list[str], b: list[str], data: Any, count: int) -> tuple[int]:
        assert count == len(a) == len(b) == len(data)
        self.edges += zip(a, b, strict=True)
        return (0,)


def memset(dst: int, width: int, value: int = 0, size: int = 1, height: int = 1) -> Any:
    return SimpleNamespace(dst=dst, width=width, value=value, elementSize=size, height=height, pitch=0)


def checked(what: str, answer: tuple[Any, ...]) -> Any:
    assert not answer[0], what
    return answer[1] if len(answer) == 2 else answer[1:]


def replaced(driver: Driver) -> int:
    return MemsetKernels(driver, checked).replace("graph")


def test_a_memset_between_kernels() -> None:
    driver = Driver()
    driver.add("first", "kernel")
    driver.add("second", "kernel")
    driver.add("clear", memset(4096, 1028), "first", "second")
    driver.add("third", "kernel", "clear")
    driver.add("fourth", "kernel", "clear", "first")
    assert replaced(driver) == 1
    [made] = set(driver.nodes) - {"first", "second", "third", "fourth"}
    function, threads, target, word, words = driver.nodes[made]
    assert (function, target, word, words) == ("fill", 4096, 0, 257)
    assert words <= threads < words + 256
    expected = {("first", made), ("second", made), (made, "third"), (made, "fourth"), ("first", "fourth")}
    assert set(driver.edges) == expected
    assert len(driver.edges) == len(expected)


@pytest.mark.parametrize(
    ("value", "size", "word"), [(0xAB, 1, 0xABABABAB), (0x1234, 2, 0x12341234), (0xDEADBEEF, 4, 0xDEADBEEF)]
)
def test_values_of_one_two_and_four_bytes(value: int, size: int, word: int) -> None:
    driver = Driver()
    driver.add("clear", memset(8, 16, value, size))
    assert replaced(driver) == 1
    [(_, _, target, found, words)] = driver.nodes.values()
    assert (target, found, words) == (8, word, 16 * size // 4)


@pytest.mark.parametrize(
    "kept",
    [memset(8, 6), memset(6, 8), memset(8, 4, height=2), memset(0, MOST + 4)],
    ids=["no whole words", "not aligned", "several rows", "long"],
)
def test_others_stay(kept: Any) -> None:
    driver = Driver()
    driver.add("clear", kept)
    driver.add("next", "kernel", "clear")
    assert replaced(driver) == 0
    assert driver.edges == [("clear", "next")]
