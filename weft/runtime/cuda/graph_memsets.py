"""Short memsets of a recorded graph become kernels.

Libraries clear counters and flags before some of their kernels. Between two kernels of a graph, a memset node takes 5 to 6 microseconds on
an H200, mostly waiting; a kernel that does the same takes one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

MOST = 1 << 20  # bytes: longer memsets are bound by memory
THREADS = 256
WORD = 4  # bytes that a thread writes
REPEATED = {1: 0x01010101, 2: 0x00010001, 4: 1}  # of a value in a word, by the bytes of the value

FILL = b"""
.version 7.0
.target sm_75
.address_size 64

.visible .entry fill(.param .u64 target, .param .u64 word, .param .u64 words)
{
    .reg .pred %outside;
    .reg .b32 %r<5>;
    .reg .b64 %rd<6>;
    ld.param.u64 %rd1, [target];
    ld.param.u64 %rd2, [word];
    ld.param.u64 %rd3, [words];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.u32 %r4, %r1, %r2, %r3;
    cvt.u64.u32 %rd4, %r4;
    setp.ge.u64 %outside, %rd4, %rd3;
    @%outside bra END;
    cvta.to.global.u64 %rd1, %rd1;
    shl.b64 %rd5, %rd4, 2;
    add.u64 %rd1, %rd1, %rd5;
    cvt.u32.u64 %r1, %rd2;
    st.global.u32 [%rd1], %r1;
END:
    ret;
}
\0"""

Checked = Callable[[str, tuple[Any, ...]], Any]


class MemsetKernels:
    """Replaces memset nodes of recorded graphs on one GPU. `do` checks the status of a driver call."""

    def __init__(self, api: Any, do: Checked) -> None:
        self._api, self._do = api, do
        self._function = do("code", api.cuModuleGetFunction(do("code", api.cuModuleLoadData(FILL)), b"fill"))

    def replace(self, graph: Any) -> int:
        """Replace short memsets of a graph that is not instantiated yet. Returns how many."""
        api, do = self._api, self._do
        kind = api.CUgraphNodeType.CU_GRAPH_NODE_TYPE_MEMSET
        found = [
            n for n in self._nodes(api.cuGraphGetNodes, graph) if do("recording", api.cuGraphNodeGetType(n)) == kind
        ]
        return sum(self._replaced(graph, node) for node in found)

    def _replaced(self, graph: Any, node: Any) -> bool:
        api, do = self._api, self._do
        memset = do("recording", api.cuGraphMemsetNodeGetParams(node))
        nbytes = int(memset.width) * int(memset.elementSize)
        if int(memset.height) != 1 or nbytes > MOST or nbytes % WORD or int(memset.dst) % WORD:
            return False
        before, after = (
            self._nodes(ask, node) for ask in (api.cuGraphNodeGetDependencies, api.cuGraphNodeGetDependentNodes)
        )
        word = (int(memset.value) * REPEATED[int(memset.elementSize)]) % 2**32
        made = self._kernel(graph, before, int(memset.dst), word, nbytes // WORD)
        do("recording", api.cuGraphDestroyNode(node))
        if after:
            count = len(after)
            do(
                "recording",
                api.cuGraphAddDependencies(graph, [made] * count, after, [api.CUgraphEdgeData()] * count, count),
            )
        return True

    def _kernel(self, graph: Any, before: list[Any], target: int, word: int, words: int) -> Any:
        values = (ctypes.c_uint64 * 3)(target, word, words)
        first = ctypes.addressof(values)
        places = (ctypes.c_uint64 * 3)(first, first + 8, first + 16)
        params = self._api.CUDA_KERNEL_NODE_PARAMS()
        params.func = self._function
        params.gridDimX, params.gridDimY, params.gridDimZ = -(-words // THREADS), 1, 1
        params.blockDimX, params.blockDimY, params.blockDimZ = THREADS, 1, 1
        params.sharedMemBytes = 0
        params.kernelParams = ctypes.addressof(places)
        return self._do("recording", self._api.cuGraphAddKernelNode(graph, before, len(before), params))

    def _nodes(self, ask: Callable[..., tuple[Any, ...]], of: Any) -> list[Any]:
        """The nodes that a driver call lists: a first call returns their number. Some lists include edge data."""
        *_, count = self._listed(ask, of, 0)
        return list(self._listed(ask, of, int(count))[0]) if count else []

    def _listed(self, ask: Callable[..., tuple[Any, ...]], of: Any, most: int) -> Any:
        return self._do("recording", ask(of, most))
