"""The machine that runs compiled kernels on the host: threads that take different branches, products of warps, and what must be an error."""

import numpy as np
import pytest

from ptx_machine import Kernel
from ptx_threads import Fault, Memory

HEAD = ".visible .entry kernel(\n)\n.reqntid {threads}\n{{\n"
START = """
    ld.param.b64 %rd1, [kernel_param_0];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd2, %r1, 4;
    add.s64 %rd3, %rd1, %rd2;
"""


def run(body: str, array: np.ndarray, threads: int = 64, shared: int = 1024, size: int | None = None) -> None:
    """Run instructions; %rd3 is the address of an element of 4 bytes for each thread, %r1 its number."""
    kernel = Kernel(HEAD.format(threads=threads) + START + body + "\n}")
    memory = Memory([(array.ctypes.data, array.nbytes if size is None else size)])
    kernel.run(1, [array.ctypes.data], memory, shared)


def words(count: int = 64) -> np.ndarray:
    return np.arange(count, dtype=np.int32)


def test_threads_that_take_different_branches_meet_again() -> None:
    x = words()
    run(
        """
        ld.global.b32 %r2, [%rd3];
        setp.lt.s32 %p1, %r2, 10;
        @%p1 bra $small;
        mov.b32 %r4, 0;
    $loop:
        add.s32 %r4, %r4, 1;
        setp.lt.s32 %p2, %r4, %r2;
        @%p2 bra $loop;
        mul.lo.s32 %r3, %r4, 2;
        bra.uni $join;
    $small:
        neg.s32 %r3, %r2;
    $join:
        bar.sync 0;
        st.global.b32 [%rd3], %r3;
        ret;
        """,
        x,
    )
    np.testing.assert_array_equal(x, [-i if i < 10 else 2 * i for i in range(64)])


def test_a_product_of_a_warp_is_that_of_its_matrices() -> None:
    """Fragments are those of the PTX manual: `ldmatrix` gives them, the product reads them."""
    draw = np.random.default_rng(0)
    a, b = draw.standard_normal((16, 16)).astype(np.float16), draw.standard_normal((8, 16)).astype(np.float16)
    x = np.concatenate([a.ravel().view(np.int32), b.ravel().view(np.int32), np.zeros(128, np.int32)])
    copies = "".join(
        f"ld.global.b32 %r2, [%rd3+{128 * i}]; shl.b32 %r3, %r1, 2; add.s32 %r3, %r3, {128 * i}; st.shared.b32 [%r3], %r2;\n" for i in range(6)
    )  # fmt: skip
    run(
        copies
        + """
        bar.sync 0;
        shl.b32 %r4, %r1, 5;
        and.b32 %r5, %r4, 480;
        and.b32 %r6, %r1, 16;
        add.s32 %r7, %r5, %r6;
        ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r10, %r11, %r12, %r13}, [%r7];
        and.b32 %r8, %r4, 224;
        and.b32 %r9, %r1, 8;
        shl.b32 %r9, %r9, 1;
        add.s32 %r8, %r8, %r9;
        ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r14, %r15}, [%r8+512];
        mov.b32 %r20, 0f00000000;
        mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%r16, %r17, %r18, %r19}, {%r10, %r11, %r12, %r13}, {%r14, %r15}, {%r20, %r20, %r20, %r20};
        st.global.b32 [%rd3+768], %r16;
        st.global.b32 [%rd3+896], %r17;
        st.global.b32 [%rd3+1024], %r18;
        st.global.b32 [%rd3+1152], %r19;
        ret;
        """,
        x,
        threads=32,
    )
    found, lane = x[192:].view(np.float32).reshape(4, 32), np.arange(32)
    wanted = a.astype(np.float64) @ b.astype(np.float64).T
    for i in range(4):
        np.testing.assert_allclose(found[i], wanted[lane // 4 + 8 * (i // 2), lane % 4 * 2 + i % 2], rtol=1e-6)


def test_instructions_with_a_guard_change_the_threads_that_it_names() -> None:
    x = words()
    run("setp.gt.s32 %p1, %r1, 60; mov.b32 %r2, 7; @%p1 mov.b32 %r2, 9; @!%p1 st.global.b32 [%rd3], %r2; ret;", x)
    np.testing.assert_array_equal(x, [7] * 61 + [61, 62, 63])


EXCHANGE = """
    shl.b32 %r2, %r1, 2;
    st.shared.b32 [%r2], %r1;
    {between}
    xor.b32 %r3, %r2, {other};
    ld.shared.b32 %r4, [%r3];
    st.global.b32 [%rd3], %r4;
    ret;
"""


@pytest.mark.parametrize("other", [32, 1])
def test_threads_exchange_values_in_shared_memory(other: int) -> None:
    x = words()
    run(EXCHANGE.format(between="bar.sync 0;", other=4 * other), x)
    np.testing.assert_array_equal(x, np.arange(64) ^ other)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (EXCHANGE.format(between="", other=128), "another one has written since the last barrier"),
        (EXCHANGE.format(between="", other=2), "not aligned"),
        ("shl.b32 %r2, %r1, 5; st.shared.b32 [%r2], %r1; ret;", "outside of shared memory"),
        ("mov.b32 %r2, 0; st.shared.b32 [%r2], %r1; ret;", "different values"),
        ("mov.b32 %r2, 0; ld.shared.b32 %r3, [%r2]; st.shared.b32 [%r2], %r1; ret;", "read or written since"),
        ("setp.lt.s32 %p1, %r1, 5; @%p1 bra $end; bar.sync 0; $end: ret;".replace("$end:", "\n$end:\n"), "do not reach"),
        ("ld.global.b32 %r2, [%rd3+256]; ret;", "outside of known memory"),
        ("ld.global.b32 %r2, [%rd3+2]; ret;", "not a multiple of 4"),
        ("ld.global.v2.b32 {%r2, %r3}, [%rd3]; ret;", "not a multiple of 8"),
    ],
)  # fmt: skip
def test_what_a_gpu_would_not_tell_is_an_error(body: str, told: str) -> None:
    with pytest.raises(Fault, match=told):
        run(body, words())


def test_a_warp_may_read_what_it_has_written_itself() -> None:
    x = words()
    run(EXCHANGE.format(between="", other=4), x)
    np.testing.assert_array_equal(x, np.arange(64) ^ 1)
