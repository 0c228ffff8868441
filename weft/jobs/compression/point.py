"""A point of a compression: the network written as a run of its own and as a packed program, which is measured."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ... import nn
from ...compress.int8_network import to_int8
from ...compress.layer_sizes import LayerSize, against_original
from ...compress.layer_sizes import report as layer_report
from ...compress.pack import pack, packed_weights
from ...io import save
from ...ops.convert import asarray
from ...packing.packed_tensors import Coder
from ...records import dataclass
from ...saved.program import load as load_program
from ...saved.trace import TensorSpec
from ...tensor import Tensor
from ...train import RunFolder
from ...train.results import evaluated, write_results
from ..datasets.facts import FACTS, facts
from ..definitions import keep_definition
from ..export import export_run
from ..job import REWRITTEN, Job, held_out
from .latency import latencies, modelled_energy
from .settings import CompressionMethod
from .state import PACKED

EXAMPLES = 256  # that quantization is calibrated with


@dataclass(frozen=True)
class PointWriter:
    """Writes and measures points below the folder of a compression."""

    folder: Path  # points/
    job: Job
    settings: Mapping[str, Any]  # of the original run
    method: CompressionMethod
    half: bool
    device: str | None  # on which latencies are measured

    def describe(self, run: RunFolder) -> None:
        """What a run keeps of its data and its network, so that it needs neither data nor the original."""
        run.write_json(FACTS, facts(self.job.train, self.job.statistics))
        if self.job.definition is not None:
            keep_definition(run.path, self.job.label, self.job.definition)

    def inputs(self, count: int) -> Tensor:
        """Training examples as the network is given them, from the whole set: files may be sorted by class."""
        examples = len(self.job.train)
        chosen = min(count, examples)
        stored = self.job.train.inputs(np.arange(chosen) * examples // chosen)
        found: Tensor = self.job.prepare().eval()(asarray(stored)).realize()
        return found

    def original(self, model: nn.Module) -> dict[str, Any]:
        """The original, packed without rounding."""
        return self._written(model, 0, 1.0, half=False, rewritten=False, original=None)

    def point(self, model: nn.Module, number: int, density: float, original: Mapping[str, Any]) -> dict[str, Any]:
        """A network as the point of this number."""
        # Rounding biases to float16 would move values off the grids of quantized networks.
        half = self.half and self.method.values not in ("int8", "fixed")
        return self._written(model, number, density, half, self.method.changes_layers, original)

    def speed(self, model: nn.Module, path: Path) -> float | None:
        """How many times as fast as the original a network is, before it is trained; `path` is a file for its program."""
        self._write_program(model, path, half=False)
        plain = self.folder / "0" / "plain.weft"
        self._write_program_of_run(self.folder / "0", plain)
        found = latencies(load_program(plain), load_program(path), device=self.device)
        plain.unlink()
        return None if found is None else found[0] / found[1]

    def _written(
        self, model: nn.Module, number: int, density: float, half: bool, rewritten: bool, original: Mapping[str, Any] | None
    ) -> dict[str, Any]:  # fmt: skip
        run, coder = RunFolder(self.folder / str(number)), self.method.coder
        self.describe(run)
        stored = program = model
        if number and self.method.values == "int8":  # what is kept are the integers, and the program computes with them
            program = to_int8(model)
            stored = program.body
        # Without a name: the bytes of a point, and with them the densities that reach a size, do not depend on it.
        run.settings({**self.settings, "name": None})
        save(run.path / "weights" / "best.safetensors", packed_weights(stored, half))
        if rewritten:
            self._write_program(program, run.path / REWRITTEN, half)
        export_run("compress", run.path, run.path / "plain.weft", train=False)
        size = pack(run.path / "plain.weft", run.path / PACKED, coder=coder)  # weights are rounded already
        (run.path / "plain.weft").unlink()
        layers = layer_report(stored, half=half, coder=coder)
        rows = [LayerSize(**row) for row in layers.as_json()["layers"]]
        before = [LayerSize(**row) for row in original["layers"]] if original is not None else rows
        return {
            "number": number, "density": density, "bits": self.method.bits if number else None, "bytes": size, "weights_bytes": layers.after,
            "ratio": sum(row.before for row in before) / size, **self._evaluated(run.path, number), **self._latencies(run.path),
            "time": round(time.time(), 1), "layers": [vars(row) for row in against_original(rows, before)],
        }  # fmt: skip

    def _evaluated(self, folder: Path, number: int) -> dict[str, Any]:
        """Error and metrics. Points are chosen by this error: the test split decides nothing, so that the result's accuracy on it is fair."""
        _, network = self.job.trained(folder)
        split, examples = held_out(self.job.splits, "validation" if self.job.splits.validation else None)
        found = evaluated(network, self.job.checks(examples), self.job.loss())
        if number:
            write_results(folder, found, split=split)
        numbers = found.numbers
        return {
            "error": 1.0 - numbers["accuracy"] if "accuracy" in numbers else numbers["loss"],
            "split": split,
            **numbers,
        }

    def _latencies(self, folder: Path) -> dict[str, Any]:
        """The latency of the packed program, how many times as fast as the original that is (both are measured together), and its modelled energy."""
        programs = [load_program(path / PACKED) for path in dict.fromkeys((self.folder / "0", folder))]
        found = latencies(*programs, device=self.device)
        return {
            "latency_ms": found[-1] if found else None,
            "speed": round(found[0] / found[-1], 3) if found else None,
            "joules": modelled_energy(programs[-1], self.device),
            "device": self.device,
        }

    def _write_program(self, model: nn.Module, path: Path, half: bool) -> None:
        """The network without preprocessing as a packed program: its layers are not those that the settings of the run describe."""
        x = self.inputs(1)
        coder: Coder = self.method.coder
        pack(model.eval(), path, (TensorSpec(("batch", *x.shape[1:]), x.dtype),), half=half, coder=coder)

    def _write_program_of_run(self, folder: Path, path: Path) -> None:
        model, _ = self.job.trained(folder)
        self._write_program(model, path, half=False)
