"""The GPU kernels of ext_rotate and ext_moments, in Triton."""

from weft import extend
from weft.compiler.gpu.kernel_utils import ceil_div, element, next_power_of_two
from weft.compiler.gpu.source import KernelWriter
from weft.compiler.ir.plan import PlanPhase

from .ops import MOMENTS, ROTATE

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


class Moments:
    """One program a row; `kernel.results` has the results that are read, by their numbers."""

    def phases(self, kernel):
        writes = frozenset(f"y{i}" for i in kernel.results)
        return (PlanPhase("ext_moments", (), frozenset({"x0"}), writes),) if kernel.anchor.inputs[0].shape[0] else ()

    def scratch_tensors(self, kernel):
        return ()

    def write(self, kernel, phase):
        (rows, columns), [view] = kernel.anchor.inputs[0].shape, kernel.views
        writer = KernelWriter("kernel")
        writer.line("row = tl.program_id(0)")
        writer.line(f"column = tl.arange(0, {next_power_of_two(columns)})")
        writer.line(f"inside = column < {columns}")
        place = element(writer, view, (rows, columns), f"row * {columns} + column")
        writer.line(f"x = tl.load({place}, mask=inside, other=0.0)")
        writer.line(f"mean = tl.sum(x, 0) / {columns}")
        values = {0: "mean", 1: f"tl.sum(tl.where(inside, (x - mean) * (x - mean), 0.0), 0) / {columns}"}
        for number, node in kernel.results.items():
            writer.line(f"tl.store({writer.pointer(node)} + row, {values[number]})")
            writer.written.append(node)
        return writer.finished(rows, 4)


extend.lower("gpu", MOMENTS.name)(Moments())
