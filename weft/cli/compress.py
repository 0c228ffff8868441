"""The verb `compress`: a trained network made small, and the table of its layers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..compress.layer_sizes import CompressionReport, LayerSize
from ..errors import UserError
from ..insight.profile_text import amount
from ..jobs.compression.compress import compress as compress_run
from ..jobs.compression.settings import COMPRESSION, method_of
from ..jobs.compression.state import PACKED, is_compression, keep_point, read_state
from ..jobs.find import find_run
from .arguments import read
from .table import as_json
from .training import shown


def compress(words: Sequence[str]) -> None:
    """Prune, quantize and pack a trained network: weft compress RUN target=size=20x.

    Weights are pruned in steps with retraining in between, then shared (each becomes one of a few trained values), then entropy coded. The
    result is a new run with the packed program in packed.weft; the original is not changed. Without a target, several densities are swept
    and compression.html shows size, error, latency and modelled energy of each.

      weft compress RUN target=error=+0.1%    prune as far as the error allows
      weft compress RUN target=speed=3x       remove channels until it is fast enough
      weft compress RUN --report              table of layers of a compressed run
      weft compress RUN keep=2                keep the second point as a run
      weft resume RUN                         resume an interrupted compression
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
    if point.get("joules") and original.get("joules"):
        print(
            f"energy of one example, modelled: {amount(point['joules'])}J, of the original {amount(original['joules'])}J"
        )
