"""The GPU kernel of ext_rotate, in Triton."""

from weft import extend
from weft.compiler.gpu.kernel_utils import ceil_div, element
from weft.compiler.gpu.source import KernelWriter
from weft.compiler.ir.plan import PlanPhase

from .ops import ROTATE

BLOCK = 256  # elements of a program


class Rotate:
    """What a GPU rule for an op with kernels of its own has: phases, tensors in scratch memory, and the source of a phase."""

    def phases(self, kernel):
        return (
            (PlanPhase("ext_rotate", (), frozenset({"x0"}), frozenset({"y"})),) if 0 not in kernel.anchor.shape else ()
        )

    def scratch_tensors(self, kernel):
        return ()

    def write(self, kernel, phase):
        (rows, columns), [view] = kernel.anchor.shape, kernel.views
        writer = KernelWriter("kernel")
        writer.line(f"place = tl.program_id(0) * {BLOCK} + tl.arange(0, {BLOCK})")
        writer.line(f"inside = place < {rows * columns}")
        writer.line(f"source = place // {columns} * {columns} + (place % {columns} + {columns - 1}) % {columns}")
        writer.line(f"x = tl.load({element(writer, view, kernel.anchor.shape, 'source')}, mask=inside)")
        writer.line(f"tl.store({writer.pointer(kernel.anchor)} + place, x, mask=inside)")
        writer.written.append(kernel.anchor)
        return writer.finished(ceil_div(rows * columns, BLOCK), 4)


extend.lower("gpu", ROTATE.name)(Rotate())
