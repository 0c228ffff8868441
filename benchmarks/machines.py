"""How good projections to other machines are, against published results and against other machines that were measured.

    python -m benchmarks.machines [batches=1,128] [repeats=3]             # the statements about AlexNet, projected from this machine
    python -m benchmarks.machines save=here.json [device=cuda] [networks=lenet5,alexnet,...] [batch=16]
    python -m benchmarks.machines check=a.json,b.json                     # project each to the other's roof, against its measured times

Published: a Titan X is about 6 times faster and 4 times more efficient than a Xeon E5-2698 v3, a Tegra X1 in float16 is 11.5 times more
efficient than a Core i7 6700K. Both numbers of an efficiency, images/s and watts, are projected: images/s from the kernels that were measured
here, watts from power limits. The table says how far each is off, so it is seen which one a miss comes from.
"""

from __future__ import annotations

import json
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

import weft
from weft.insight import (
    ProgramProfile,
    machine,
    measured_machine,
    profile,
    profile_from_json,
    project,
    published,
)
from weft.insight.profile_text import table
from weft.jobs.device import on
from weft.jobs.profiles.subject import find_subject
from weft.runtime import device as find_device

DEFAULTS = {
    "batches": "1,128",
    "repeats": "3",
    "save": "",
    "check": "",
    "device": "cpu",
    "batch": "16",
    "networks": "lenet5,alexnet,resnet50,mobilenet_v2,char_lstm,gpt",
}
# The faster or more efficient machine with its format, the other one, what is compared, and the number as it is quoted.
STATEMENTS = [
    ("titan-x", "float32", "xeon-e5-2698-v3", "images/s", "about 6x"),
    ("titan-x", "float32", "xeon-e5-2698-v3", "images/s/W", "about 4x"),
    ("tegra-x1", "float16", "core-i7-6700k", "images/s/W", "11.5x"),
]


@dataclass(frozen=True)
class Pair:
    """A machine in one format: what was published about it, and what is projected."""

    published: float
    published_watts: float
    projected: float
    limit: float  # watts
    used: float  # of the machine's peak operations, in the published result


def measured(batch: int, repeats: int) -> ProgramProfile:
    function, args = find_subject("alexnet").step(batch)
    return profile(function, *args, repeats=repeats)


def pairs(found: ProgramProfile, batch: int) -> dict[tuple[str, str], Pair]:
    """All published results of a batch size, beside their projections."""
    rows: dict[tuple[str, str], Pair] = {}
    for row in published():
        if row.batch == batch:
            there = machine(row.machine)
            made = project(found, there, row.format)
            peak = there.peak_for(row.format).value
            assert there.power is not None
            used = found.total.flops / batch * row.images_per_second / peak
            rows[row.machine, row.format] = Pair(
                row.images_per_second, row.watts, batch / made.seconds, there.power.value, used
            )
    return rows


def machines_text(rows: dict[tuple[str, str], Pair], batch: int) -> str:
    lines = [
        [
            "machine",
            "format",
            "batch",
            "images/s published",
            "projected",
            "off by",
            "W published",
            "limit",
            "of peak, published",
        ]
    ]
    for (name, format), row in rows.items():
        lines.append(
            [
                name,
                format,
                str(batch),
                f"{row.published:.0f}",
                f"{row.projected:.0f}",
                off(row.projected, row.published),
            ]
            + [f"{row.published_watts:.0f}", f"{row.limit:.0f}", f"{row.used:.0%}"]
        )
    return table(lines, left=2)


def statements_text(rows: dict[tuple[str, str], Pair], batch: int) -> str:
    """Each statement with both of its causes: a ratio of efficiencies is the ratio of speeds over the ratio of powers."""
    lines = [["statement", "batch", "quoted", "published", "projected", "off by", "from speed", "from power"]]
    for name, format, other, what, quoted in STATEMENTS:
        if (name, format) not in rows or (other, "float32") not in rows:
            continue
        a, b = rows[name, format], rows[other, "float32"]
        speed = a.projected / b.projected, a.published / b.published
        power = (a.limit / b.limit, a.published_watts / b.published_watts) if what == "images/s/W" else (1.0, 1.0)
        ratio = speed[0] / power[0], speed[1] / power[1]
        lines.append(
            [
                f"{name} {format} / {other}, {what}",
                str(batch),
                quoted,
                f"{ratio[1]:.1f}x",
                f"{ratio[0]:.1f}x",
                off(*ratio),
            ]
            + [off(*speed), off(1 / power[0], 1 / power[1])]
        )
    return table(lines, left=1)


def off(projected: float, true: float) -> str:
    return f"{projected / true - 1:+.0%}"


WHY = """Why projections miss: every machine is given the efficiency that this machine's kernels reach. In 2015 the programs differed: the column
"of peak, published" shows what Caffe with cuDNN or MKL made of each machine. Power limits stand for watts; a Tegra X1 took less than half
of its limit, so its projected efficiency is too low by that factor, and that of a processor near its limit is not."""


def statements(batches: list[int], repeats: int) -> None:
    for batch in batches:
        found = measured(batch, repeats)
        rows = pairs(found, batch)
        print(f"AlexNet, batch {batch}, projected from {found.where} ({batch / found.seconds:.1f} images/s here)\n")
        print(f"{machines_text(rows, batch)}\n\n{statements_text(rows, batch)}\n")
    print(WHY)


def save(path: str, device: str, networks: list[str], batch: int) -> None:
    """Profiles of networks on this machine, as JSON."""
    kept: dict[str, object] = {}
    with on(device):
        for name in networks:
            function, args = find_subject(name).step(batch)
            found = profile(function, *args)
            kept[name] = json.loads(found.to_json())
            print(f"{name}: {1e3 * found.seconds:.2f} ms", flush=True)
        about = {
            "weft": weft.__version__,
            "device": find_device().about(),
            "kind": "gpu" if find_device().is_accelerator else "cpu",
        }
    Path(path).write_text(json.dumps({**about, "batch": batch, "profiles": kept}, indent=1))


def check(first: str, second: str) -> None:
    """Project every network of each file to the machine of the other."""
    files = [json.loads(Path(path).read_text()) for path in (first, second)]
    lines = [["network", "from", "to", "measured ms", "projected ms", "off by"]]
    errors = []
    for source, target, names in ((files[0], files[1], (first, second)), (files[1], files[0], (second, first))):
        for network in source["profiles"]:
            if network in target["profiles"]:
                here, there = (profile_from_json(one["profiles"][network]) for one in (source, target))
                made = project(here, measured_machine(names[1], there, target["kind"]))
                errors.append(abs(made.seconds / there.total.seconds - 1))
                lines.append(
                    [
                        network,
                        *names,
                        f"{1e3 * there.total.seconds:.2f}",
                        f"{1e3 * made.seconds:.2f}",
                        off(made.seconds, there.total.seconds),
                    ]
                )
    print(table(lines, left=3))
    print(
        f"within 25 %: {sum(error <= 0.25 for error in errors)} of {len(errors)}; median error {statistics.median(errors):.0%}"
    )


def main() -> None:
    given = DEFAULTS | dict(word.split("=", 1) for word in sys.argv[1:])
    if given["check"]:
        check(*given["check"].split(","))
    elif given["save"]:
        save(given["save"], given["device"], given["networks"].split(","), int(given["batch"]))
    else:
        statements([int(n) for n in given["batches"].split(",")], int(given["repeats"]))


if __name__ == "__main__":
    main()
