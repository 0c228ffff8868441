"""Tries an installed weft: imports it, compiles a function, trains a step and asks the command line for its version.

Run by `make wheel` with the Python of an empty environment into which the wheel was installed.
"""

import subprocess
import sys
from pathlib import Path

import weft
from weft import nn, optim


def main() -> None:
    package = Path(weft.__file__).resolve().parent
    assert package.is_relative_to(Path(sys.prefix).resolve()), f"imported {package}, which was not installed here"
    assert (package / "py.typed").exists(), "the wheel has no py.typed"
    assert (package / "web" / "page" / "index.html").exists(), "the wheel has no files of web pages"

    double = weft.jit(lambda x: x * 2.0 + 1.0)
    assert double(weft.asarray([1.0, 2.0])).tolist() == [3.0, 5.0]

    images, labels = weft.data.digits()
    model = nn.Linear(64, 10)
    optimizer = optim.adam(model, rate=1e-2)

    @weft.jit
    def step(x: weft.Tensor, y: weft.Tensor) -> weft.Tensor:
        loss = weft.cross_entropy(model(x), y)
        optimizer.minimize(loss)
        return loss

    losses = [step(images.reshape(-1, 64)[:200], labels[:200]).item() for _ in range(5)]
    assert losses[-1] < losses[0], f"the loss did not fall: {losses}"

    command = Path(sys.executable).parent / "weft"
    version = subprocess.run([command, "--version"], capture_output=True, text=True, check=True).stdout
    assert weft.__version__ in version, f"weft --version printed {version!r}"
    print(f"weft {weft.__version__} works in {sys.prefix}")


if __name__ == "__main__":
    main()
