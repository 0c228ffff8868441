"""Plans of convolutions by fast Fourier transforms on GPUs: the phases of our kernels."""

from __future__ import annotations

from ....dtypes import float32
from ....graph.node import Node
from ...ir.conv_shape import described
from ...ir.fft_tiling import FftWindow
from ...ir.kernel import Kernel
from ...ir.plan import Plan, PlanPhase
from ...ir.program import operand_names
from ..anchors import anchor_of, is_convolution
from ..source import KernelSource
from .problem import FftProblem, fastest_problem, fft_problem
from .products import write_product
from .transforms import write_result, write_spectra

IMAGE, FILTER, PRODUCT, RESULT = "fft_image", "fft_filter", "fft_product", "fft_result"
SYMBOLS = frozenset((IMAGE, FILTER, PRODUCT, RESULT))
LEAST_MULTIPLY_ADDS = 1 << 30  # of a convolution that is worth four launches
_WORK, _PACKED = frozenset(("work",)), frozenset(("packed",))


def phases(name: str, kernel: Kernel, tf32: bool, constant: bool) -> tuple[PlanPhase, ...] | str:
    """The launches of an algorithm, or why it cannot do a convolution. If the filter is a constant, its spectra are kept from run to run.

    Arguments: the number of an operand that is transformed, "tf32", "epilogue", and last the window.
    """
    problem = fastest_problem(name, kernel)
    if isinstance(problem, str):
        return problem
    window, (first, second, result) = str(problem.tiling.window), operand_names(kernel)
    kept = _PACKED if constant and not problem.of_filter else _WORK
    return (
        PlanPhase(IMAGE if problem.of_filter else FILTER, (1, window), frozenset((second,)), kept),
        PlanPhase(IMAGE, (0, window), frozenset((first,)), _WORK),
        PlanPhase(PRODUCT, ("tf32", window) if tf32 else (window,), _WORK | kept, _WORK),
        PlanPhase(RESULT, ("epilogue", window), _WORK, frozenset((result,))),
    )


def is_faster(kernel: Kernel) -> bool:
    """Whether a convolution of float32 is estimated to take less time than by our kernel without transforms."""
    anchor = anchor_of(kernel)
    if not is_convolution(anchor) or any(view.base.dtype is not float32 for view in kernel.views[:2]):
        return False
    multiply_adds = described(anchor)[1].flops // 2
    if multiply_adds < LEAST_MULTIPLY_ADDS:
        return False
    problem = fastest_problem("FFT_TILED", kernel)
    return isinstance(problem, FftProblem) and problem.cost < multiply_adds


def write(kernel: Kernel, phase: PlanPhase) -> KernelSource:
    """The kernel of a phase."""
    problem = _problem(kernel, phase)
    if phase.symbol == PRODUCT:
        return write_product("kernel", problem, "tf32" in phase.arguments)
    if phase.symbol == RESULT:
        return write_result("kernel", problem, kernel)
    return write_spectra("kernel", problem, int(phase.arguments[0]))


def spectra(kernel: Kernel, plan: Plan, memory: str) -> list[Node]:
    """The tensors internal to these kernels that are in "work" or in "packed" memory."""
    written = [phase for phase in plan.phases if phase.symbol in SYMBOLS and memory in phase.writes]
    problems = [_problem(kernel, phase) for phase in written]
    return [
        p.spectra(p.result if s.symbol == PRODUCT else p.every[int(s.arguments[0])])
        for p, s in zip(problems, written, strict=True)
    ]


def _problem(kernel: Kernel, phase: PlanPhase) -> FftProblem:
    return fft_problem(kernel, FftWindow.named(str(phase.arguments[-1])))
