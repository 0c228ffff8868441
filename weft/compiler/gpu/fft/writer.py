"""What the kernels of convolutions by FFT share."""

from __future__ import annotations

from ..source import KernelWriter
from .problem import FftProblem, WindowedTensor


class FftWriter(KernelWriter):
    """Writes one of the kernels."""

    def __init__(self, name: str, problem: FftProblem) -> None:
        super().__init__(name)
        self.problem = problem

    def memory(self, of: WindowedTensor) -> dict[str, str]:
        """Pointers to the real and the imaginary parts of the spectra of a tensor."""
        pointer = self.pointer(self.problem.spectra(of))
        return {"real": pointer, "imaginary": f"{pointer} + {self.problem.size(of) // 2}"}


def dot(left: str, right: str, total: str = "None", precision: str = "tf32x3") -> str:
    """A product of blocks, added to a total. Three TF32 products are as accurate as one in float32."""
    return f'tl.dot({left}, {right}, {total}, input_precision="{precision}")'
