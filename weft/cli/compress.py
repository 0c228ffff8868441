"""The verb `compress`: a trained network made small, and the table of its layers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..compress.layer_sizes import CompressionReport, LayerSize
from ..errors import UserError
from ..jobs.compression import compress as compress_run
from ..jobs.compression_settings import COMPRESSION, method_of
from ..jobs.compression_state import PACKED, is_compression, keep_point, read_state
from ..jobs.find import find_run
from .arguments import read
from .table import as_json
from .training import shown


def compress(words: Sequence[str]) -> None:
    """Make a trained network small: weft compress RUN target=size=20x.

    Weights are pruned in steps with training in between, then shared (each is one of a few values, which are trained), then entropy coded. The
    result is a run of its own, with the small program in packed.weft; the original stays as it is. target=error=+0.1% prunes as long as
    the error rises by no more than that, target=speed=3x removes channels until the program is fast enough. Without a target several densities are tried, and compression.html shows size, error and latency
    of each. weft resume continues a compression that was stopped. --report prints the table of layers of a compressed run; keep=2
    copies its second point into a run of its own.
    """
    given = read("compress", words, COMPRESSION, 1)
    if given.plain and given["run"] is not None:
        raise UserError("weft compress", f"one run is required, got {given.plain[0]} and run={given['run']}.")
    run = given.plain[0] if given.plain else given["run"]
    if given["report"] or given["keep"] is not None:
        if run is None:
            raise UserError("weft compress", "a run is required: weft runs list shows which there are.")
        folder = find_run(run, given["runs"])
        if not is_compression(folder):
            raise UserError(
                "weft compress", f"a compressed run is required, got {folder}. weft compress makes one of it."
            )
        return _print_report(folder, given["json"]) if given["report"] else _keep(folder, given["keep"], given["name"])
    with shown(given["json"]) as listener:
        compress_run({**given.settings, "run": run}, listener)


def _keep(folder: Path, number: int, name: str | None) -> None:
    print(f"point {number} of {folder.name} is the run {keep_point(folder, number, name)}")


def _print_report(folder: Path, in_json: bool) -> None:
    state = read_state(folder)
    points = [point for point in state["points"] if point["number"] == state.get("chosen")]
    if not points:
        raise UserError("weft compress", f"{folder} is not finished. Continue it: weft resume {folder}")
    point, original = points[0], state["original"]
    if in_json:
        print(as_json({"point": point, "original": {k: v for k, v in original.items() if k != "layers"}}))
        return
    layers = tuple(LayerSize(**layer) for layer in point["layers"])
    before = sum(layer.before for layer in layers)
    print(CompressionReport(layers, method_of(state["settings"]).coder, before, point["weights_bytes"]))
    print(
        f"\n{folder / PACKED}: {point['bytes']:,} bytes with the program, {point['ratio']:.1f}x smaller; "
        f"error {100 * point['error']:.2f} %, of the original {100 * original['error']:.2f} %"
    )
