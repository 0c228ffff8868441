"""The verb tpu: a simulated machine for int8 networks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from ..errors import UserError
from ..hints import nearest
from ..jobs.schema import Setting, count, flag, number
from ..loading import load
from ..saved.program import Program
from ..tpu.machine import TpuMachine
from ..tpu.published import PUBLISHED
from ..tpu.report import TpuReport
from ..tpu.simulate import changes_table, simulate_program, what_changes
from .arguments import Words, read
from .table import as_json

MACHINE = {
    "rows": "rows of the array: inputs of a tile of weights",
    "columns": "columns of the array: outputs of a tile",
    "clock": "cycles a second",
    "accumulator_bytes": "bytes of sums below the array",
    "unified_buffer_bytes": "bytes of activations",
    "weight_bandwidth": "bytes a second from the weight memory",
    "weight_fifo_tiles": "tiles of weights that are read ahead",
    "host_bandwidth": "bytes a second to and from the host",
}


def tpu(words: Sequence[str]) -> None:
    """Simulate an int8 network on the TPU of 2015, cycle by cycle: weft tpu mlp0, or weft tpu batch=64 net.weft.

    The network is a program that weft.save wrote of a network by compress.to_int8, or one of the six that Jouppi et al. 2017 published: mlp0, mlp1, lstm0, lstm1, cnn0, cnn1.
    Times are modelled. The machine has other sizes and rates if they are given.
    """
    given = read("tpu", words, _settings(), 1)
    report = _report(given)
    if given["json"]:
        facts = {
            "seconds": report.seconds,
            "tops": report.tops,
            "utilisation": report.utilisation,
            "cycles": report.cycles,
        }
        print(as_json({**facts, "host": report.host_parts, "spilled": report.program.spilled}))
        return
    print(report)
    if given["changes"]:
        print(f"\n{changes_table(what_changes(report))}")
    if given["listing"]:
        print(f"\n{report.program}")


def _settings() -> dict[str, Setting]:
    machine = {
        field.name: Setting(count if isinstance(field.default, int) else number, field.default, MACHINE[field.name])
        for field in fields(TpuMachine)
    }
    return {
        "batch": Setting(count, 1, "examples at a time, for a saved network"),
        "changes": Setting(flag, False, "print what other machines would change"),
        "listing": Setting(flag, False, "print the instructions"),
        "json": Setting(flag, False, "print JSON, for programs"),
        **machine,
    }


def _report(given: Words) -> TpuReport:
    machine = TpuMachine(**{name: given[name] for name in MACHINE})
    published = {network.name.lower(): network for network in PUBLISHED}
    if not given.plain:
        raise UserError(
            "weft tpu", f"a saved int8 network, or one of {', '.join(published)}, is required: weft tpu net.weft."
        )
    name = given.plain[0]
    if name.lower() in published:
        return published[name.lower()].simulate(machine)
    if "." not in name:
        raise UserError(
            "weft tpu",
            f"there is no published network {name!r}. {nearest(name.lower(), list(published))}",
        )
    found = load(name)
    if not isinstance(found, Program):
        raise UserError("weft tpu", f"a program written by weft.save is required, got {name}.")
    return simulate_program(found, given["batch"], machine)
