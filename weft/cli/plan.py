"""The verb plan: how a training scales over many ranks, here and on described clusters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import nn
from ..errors import UserError
from ..insight.profile_text import duration, table
from ..jobs.profiles.subject import ProfileSubject, find_subject
from ..jobs.schema import Setting, count, flag, positive, sizes
from ..knobs import knobs
from ..nn.module import without_values
from ..plan.calibration import MeasuredCluster, default_ranks, here, measure
from ..plan.clusters import HERE, clusters
from ..plan.plan_text import checks_text
from ..plan.published import published_checks
from ..plan.scaling_plan import ScalingPlan, scaling_plan
from ..plan.scaling_plot import scaling_svg
from ..plan.step_time import BUCKET, Cluster
from ..plan.step_work import StepWork, measured_work
from ..plan.summary_work import summary_work
from .arguments import Words, read
from .table import as_json

RANKS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


def _counts(text: str) -> tuple[int, ...]:
    return tuple(map(count, text.split(",")))


KNOWN = {
    "batch": Setting(count, 32, "examples per rank (the local batch)"),
    "total": Setting(count, None, "examples of all ranks together (the global batch), instead of batch: strong scaling"),
    "machines": Setting(str, HERE, "here, or described clusters such as dgx-h100, separated by commas"),
    "ranks": Setting(_counts, None, "world sizes: 1,8,64; default: powers of two up to the cores of this machine, or up to 4,096"),
    "format": Setting(str, None, "number format on a described cluster, such as float16"),
    "rate": Setting(positive, None, "examples per second of one rank, measured elsewhere; then nothing is profiled"),
    "bucket": Setting(positive, BUCKET, "bucket size: bytes of gradients per all-reduce"),
    "size": Setting(sizes, None, "image size, 28 or 28x32; default: the network's own, or 28"),
    "channels": Setting(count, None, "image channels; default: the network's own"),
    "classes": Setting(count, None, "number of classes; default: the network's own"),
    "length": Setting(count, None, "sequence length in tokens; default: 128"),
    "clusters": Setting(str, None, "YAML file with further clusters"),
    "calibration": Setting(str, None, "file with the measurements of this machine; default: in the cache folder"),
    "measure": Setting(flag, False, "measure all-reduces, and how ranks slow each other down, on this machine; the results are kept"),
    "published": Setting(flag, False, "compare predictions with published scaling efficiencies"),
    "plot": Setting(str, None, "plot efficiency against the number of ranks: plot=FILE.svg"),
    "json": Setting(flag, False, "print JSON, for programs"),
}  # fmt: skip


def plan(words: Sequence[str]) -> None:
    """Predict how a training scales over many ranks: weft plan resnet18 machines=here,dgx-h100, after weft plan --measure.

    Step time, efficiency and memory of each split (data parallel, ZeRO 1 and 2, tensor parallel, pipeline) for each number of ranks,
    which split is best and why. Compute comes from a profile of one rank, here or projected; communication from measured all-reduces here,
    and from the links of described clusters. Everything is predicted. weft plan --measure measures this machine first.
    """
    given = read("plan", words, KNOWN, 1)
    if given["plot"] and not Path(given["plot"]).parent.is_dir():
        raise UserError("weft plan", f"plot={given['plot']} needs a folder that exists, got {Path(given['plot']).parent}.")  # fmt: skip
    measured = _measure(given) if given["measure"] else None
    if given["published"]:
        _published(given)
    if given.plain:
        _plan(given)
    elif measured is None and not given["published"]:
        raise UserError("weft plan", "a network is required, got none: weft plan lenet5, or weft plan --measure.")


def _measure(given: Words) -> MeasuredCluster:
    found = measure(given["ranks"])
    path = found.save(given["calibration"])
    if given["json"]:
        print(as_json(found.to_dict()))
        return found
    rows = [["ranks", "all-reduce latency", "bandwidth", "products", "convolutions", "64 MB of memory"]]
    for n, one in found.measures.items():
        line = one.line if one.all_reduce else None
        rows.append(
            [str(n), "-" if line is None else duration(line.latency), "-" if line is None else f"{line.bandwidth / 1e9:.2f} GB/s"]
            + [f"{found.compute_factor(n):.2f}x", f"{found.convolution_factor(n):.2f}x", f"{found.memory_factor(n, 64e6):.2f}x"]
        )  # fmt: skip
    print(f"{found.title}\n{table(rows, left=0)}\nproducts, convolutions and memory: how much longer they take than in one rank alone\nwritten: {path}")  # fmt: skip
    return found


def _published(given: Words) -> None:
    checks = published_checks()
    if given["json"]:
        facts = [vars(c.published) | {"predicted": c.predicted.efficiency, "reason": c.reason} for c in checks]
        print(as_json([fact | {"images_per_second": fact["images_per_second"].value} for fact in facts]))
        return
    print(checks_text(checks))


def _plan(given: Words) -> None:
    _check(given)
    shape = {key: given[key] for key in ("size", "channels", "classes", "length")}
    subject = find_subject(given.plain[0], **shape)
    wanted = [_cluster(given, name.strip()) for name in given["machines"].split(",")]
    work = _work(given, subject)
    plans = [_scaled(given, subject, work, one) for one in wanted]
    print(as_json([one.to_dict() for one in plans]) if given["json"] else "\n\n\n".join(map(str, plans)))
    for number, one in enumerate(plans if given["plot"] else []):
        path = Path(given["plot"])
        path = path if number == 0 else path.with_name(f"{path.stem}-{one.cluster}{path.suffix}")
        path.write_text(scaling_svg(one), encoding="utf-8")
        if not given["json"]:
            print(f"written: {path}")


def _check(given: Words) -> None:
    """Reject settings that would have no effect."""
    if {"batch", "total"} <= given.given:
        raise UserError("weft plan", f"one of batch= (per rank) and total= (of all ranks) is required, got batch={given['batch']} total={given['total']}. Leave one out.")  # fmt: skip
    if given["format"] and given["rate"]:
        raise UserError("weft plan", f"format={given['format']} needs a profile, which rate= replaces. Leave format= out, and give the rate in this format.")  # fmt: skip
    if given["format"] and given["machines"] == HERE:
        raise UserError("weft plan", f"format={given['format']} needs a described cluster, got machines={HERE}. For example: machines=dgx-h100.")  # fmt: skip


def _cluster(given: Words, name: str) -> Cluster:
    if name == HERE:
        return here(given["calibration"])
    found = clusters(given["clusters"])
    return found[name] if name in found else _unknown(name, found)


def _unknown(name: str, found: dict[str, Any]) -> Cluster:
    raise UserError("weft plan", f"a cluster is one of {HERE}, {', '.join(found)}, got {name!r}. clusters=FILE.yaml adds others.")  # fmt: skip


def _work(given: Words, subject: ProfileSubject) -> StepWork:
    """Profiled on one thread, as a rank has it; or by its layers' multiply-adds if the rate is known."""
    if given["rate"]:
        with without_values():
            return summary_work(nn.summary(subject.make(), *subject.inputs(1)), given["rate"])
    with knobs.set(threads=1):
        return measured_work(lambda batch: subject.step(batch, "train"), given["batch"])


def _scaled(given: Words, subject: ProfileSubject, work: StepWork, cluster: Cluster) -> ScalingPlan:
    most = cluster.most_ranks()
    ranks = given["ranks"] or (RANKS if most is None else default_ranks(most))
    format = None if cluster.name == HERE else given["format"]
    return scaling_plan(
        work, cluster, given["batch"], ranks, total=given["total"], format=format, bucket=given["bucket"], subject=subject.title
    )  # fmt: skip
