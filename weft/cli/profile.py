"""The verb profile: time, bytes, joules and dollars of every layer of a network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..insight.energy_forms import DENSITY, FORMS
from ..insight.energy_plot import energy_svg
from ..insight.graph_picture import COSTS
from ..insight.machines import machine, machines
from ..insight.machines_text import machine_sources_text, machines_text
from ..insight.projection import parse_machines
from ..insight.regression import FEWEST, ROUNDS
from ..insight.throughput import MOST_BATCH
from ..jobs.profiles.report import (
    BATCH,
    ProfileOptions,
    compare_energy,
    compare_subjects,
    profile_report,
    save_timeline,
)
from ..jobs.profiles.subject import ProfileSubject, find_subject
from ..jobs.schema import Setting, count, flag, fraction, not_negative, positive, sizes
from ..jobs.settings import device_name
from ..knobs import knobs
from .arguments import Words, read
from .profile_data import profile_data, profile_memory
from .table import as_json

AUTO = "auto"


def _batches(text: str) -> tuple[int, ...] | None:
    return None if text == AUTO else tuple(map(count, text.split(",")))


def _device(text: str) -> str:
    return text if text == "both" else device_name(text)


def _rounds(text: str) -> int:
    if count(text) < FEWEST:
        raise ValueError(f"it must be {FEWEST} or more")
    return count(text)


KNOWN = {
    "batch": Setting(_batches, (BATCH,), "batch size, several such as 1,2,4, or auto (1, 2, 4, ... until memory ends); layers are profiled at the largest", "workload"),
    "limit": Setting(count, MOST_BATCH, "largest batch size of batch=auto", "workload"),
    "what": Setting(str, "infer", "infer, or train: forward, backward and SGD with momentum", "workload", ("infer", "train")),
    "size": Setting(sizes, None, "image size, 28 or 28x32; default: the network's own, or 28", "workload"),
    "channels": Setting(count, None, "image channels; default: the network's own", "workload"),
    "classes": Setting(count, None, "number of classes; default: the network's own", "workload"),
    "length": Setting(count, None, "sequence length in tokens; default: 128", "workload"),
    "seconds": Setting(not_negative, 1.0, "time to measure each batch size for", "workload"),
    "data": Setting(str, None, "dataset: report whether loading it is the bottleneck of training, instead", "workload"),
    "device": Setting(_device, None, "cpu, cuda, cuda:1, ... or both; default: WEFT_DEVICE or cpu", "hardware", nothing=("none",)),
    "threads": Setting(count, None, "number of threads; default: all cores", "hardware"),
    "precision": Setting(str, None, "mixed precision: float32, float16 or bfloat16", "hardware", ("float32", "float16", "bfloat16")),
    "machine": Setting(str, None, "machines to project to, such as titan-x,tegra-x1:float16,here (number format after the colon; here is measured)", "cost and energy"),
    "machines": Setting(str, None, "YAML file with more machines, prices and power limits", "cost and energy"),
    "examples": Setting(count, None, "examples in an epoch, to report its time, energy and cost", "cost and energy"),
    "idle": Setting(str, "include", "idle power in measured energy: include or subtract", "cost and energy", ("include", "subtract")),
    "node": Setting(positive, 45.0, "process node in nanometres for modelled energy", "cost and energy"),
    "energy": Setting(flag, False, "compare the modelled energy of number formats and compressed weights, instead", "cost and energy"),
    "forms": Setting(str, ",".join(FORMS), "with energy=true: number formats (float16, q7.8, ...), int8, sparse, shared, int4 weights", "cost and energy"),
    "density": Setting(fraction, DENSITY, "with energy=true: fraction of weights that sparse layers keep", "cost and energy"),
    "against": Setting(str, None, "another network, file or run: report the layers that changed beyond noise; with energy=true its energy", "comparison"),
    "rounds": Setting(_rounds, ROUNDS, "interleaved rounds of a comparison", "comparison"),
    "rows": Setting(count, 40, "number of layers to show", "output"),
    "json": Setting(flag, False, "print JSON", "output"),
    "trace": Setting(str, None, "write a timeline for Perfetto or chrome://tracing: trace=FILE.json", "output"),
    "graph": Setting(str, None, "draw the layers in data-flow order, coloured by cost: graph=FILE.svg", "output"),
    "by": Setting(str, "time", "cost that colours the graph", "output", tuple(COSTS)),
    "plot": Setting(str, None, "draw the roofline and throughput, both rooflines of a comparison, or bars of energy: plot=FILE.svg", "output"),
}  # fmt: skip


def profile(words: Sequence[str]) -> None:
    """Measure time, bytes, energy and cost of every layer: weft profile resnet50 batch=1,16 machine=titan-x,here.

    The network is one of the zoo, a run, a saved program (.weft) or an ONNX model. Reports each layer's time inside the real program,
    FLOPs, bytes, distance from the roofline and energy, then throughput, latency, energy and cost for each batch size.

      weft profile A --against B             which layers changed beyond noise
      weft profile NETWORK energy=true       modelled energy in other number formats
      weft profile memory NETWORK            memory timeline of a step
      weft profile data=DATA                 whether data loading is the bottleneck
      weft profile machines [NAMES]          described machines, with sources
    """
    if list(words[:1]) == ["machines"]:
        _machines(words[1:])
        return
    if list(words[:1]) == ["memory"]:
        profile_memory(words[1:])
        return
    if any(word == "--data" or word.startswith(("data=", "--data=")) for word in words):
        profile_data(words)
        return
    given = read("profile", words, KNOWN, 1)
    if not given.plain:
        raise UserError(
            "weft profile", "a network, a file or a run is required, got none: weft profile lenet, or weft profile RUN."
        )
    _check_folders(given)
    _check_pictures(given)
    with knobs.set(machines=given["machines"] or knobs.machines):
        if given["energy"]:
            _energy(given)
        elif given["against"]:
            _compare(given)
        else:
            _report(given)


def _machines(words: Sequence[str]) -> None:
    given = read("profile", words, {"machines": KNOWN["machines"], "json": KNOWN["json"]}, 1)
    names = given.plain[0].split(",") if given.plain else list(machines(given["machines"]))
    found = [machine(name, given["machines"]) for name in names]
    if given["json"]:
        print(as_json({one.name: asdict(one) for one in found}))
    else:
        print("\n\n".join(map(machine_sources_text, found)) if given.plain else machines_text(found))


def _check_folders(given: Words) -> None:
    """Reject files that cannot be written before anything is measured."""
    for name in ("trace", "plot", "graph"):
        if given[name] and Path(given[name]).is_dir():
            raise UserError("weft profile", f"{name}={given[name]} must be a file, got a folder. Add a name.")
        if given[name] and not Path(given[name]).parent.is_dir():
            raise UserError(
                "weft profile", f"{name}={given[name]} needs a folder that exists, got {Path(given[name]).parent}."
            )


def _check_pictures(given: Words) -> None:
    """A comparison has a plot, and nothing else that is written or projected."""
    which = "energy=true" if given["energy"] else "--against" if given["against"] else ""
    odd = [name for name in ("trace", "graph", "machine") if given[name]]
    if which and odd:
        raise UserError("weft profile", f"{odd[0]}= does not go with {which}: profile one network without it.")


def _report(given: Words) -> None:
    subject, options = _subject(given, given.plain[0]), _options(given)
    found = profile_report(subject, options)
    print(as_json(found.to_dict()) if given["json"] else found.text(given["rows"]))
    if given["trace"]:
        save_timeline(given["trace"], subject, options, found)
        _written(given, given["trace"])
    if given["graph"]:
        _written(given, *found.save_graphs(given["graph"], given["by"]))
    if given["plot"]:
        _written(given, *found.save_plots(given["plot"]))


def _energy(given: Words) -> None:
    names = [given.plain[0], *([given["against"]] if given["against"] else [])]
    forms = tuple(form.strip() for form in given["forms"].split(","))
    found = compare_energy([_subject(given, name) for name in names], _options(given), forms, given["density"])
    print(as_json(found.to_dict()) if given["json"] else found.text(given["rows"]))
    if given["plot"]:
        Path(given["plot"]).write_text(energy_svg(found), encoding="utf-8")
        _written(given, given["plot"])


def _written(given: Words, *paths: Any) -> None:
    if not given["json"]:
        print(f"written: {', '.join(map(str, paths))}")


def _compare(given: Words) -> None:
    subjects = [_subject(given, name) for name in (given.plain[0], given["against"])]
    found = compare_subjects(subjects[0], subjects[1], _options(given), given["rounds"])
    print(as_json(found.report.to_dict()) if given["json"] else found.report)
    if given["plot"]:
        _written(given, found.save_plot(given["plot"]))


def _subject(given: Words, name: str) -> ProfileSubject:
    shape = {key: given[key] for key in ("size", "channels", "classes", "length", "precision")}
    return find_subject(name, **shape)


def _options(given: Words) -> ProfileOptions:
    machines = tuple(parse_machines(given["machine"])) if given["machine"] else ()
    own = {key: given[key] for key in ("what", "device", "threads", "seconds", "examples")}
    return ProfileOptions(
        given["batch"],
        most=given["limit"],
        machines=machines,
        node_nm=given["node"],
        subtract_idle=given["idle"] == "subtract",
        **own,
    )
