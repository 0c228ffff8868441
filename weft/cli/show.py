"""Verbs that only show something: summary, devices."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from .. import nn
from ..compiler.cpu.target import host
from ..errors import UserError
from ..graph.node import Type
from ..jobs.definitions import is_definition, read_definition
from ..jobs.networks import VECTORS, WRITERS, build_network, build_vector_network, full_name, side
from ..jobs.schema import Setting, flag, sizes, whole
from ..nn.module import without_values
from ..report.text_format import counted
from ..runtime.device import devices as all_devices
from ..runtime.device import missing_devices
from ..runtime.native import thread_count
from ..zoo.definition import plan_network
from .arguments import Words, read

SIDE = 28  # of images, if the network has no size of its own
_JSON = Setting(flag, False, "print JSON, for programs")


def summary(words: Sequence[str]) -> None:
    """List the layers of a network with parameters and multiply-adds: weft summary resnet18 size=224."""
    known = {
        "model": Setting(str, None, "name of a network (weft models)"),
        "size": Setting(sizes, None, "image size, 28 or 28x32; default: the network's own, or 28"),
        "channels": Setting(whole, 3, "image channels"),
        "classes": Setting(whole, 10, "number of classes"),
        "json": _JSON,
    }
    given = read("summary", words, known, 1)
    name = given["model"] or (given.plain[0] if given.plain else None)
    if name is None:
        raise UserError(
            "weft summary", "a network is required, got none: weft summary resnet18, or weft summary net.yaml."
        )
    if is_definition(name):
        _definition_summary(name, given)
        return
    own = side(name) or SIDE
    size = given["size"] or (own, own)
    with without_values():
        model = _network(full_name(name), given["classes"], given["channels"], size)
        found = nn.summary(model, (1, given["channels"], *size))
    facts = {"parameters": found.parameters, "macs": found.macs, "bytes": found.nbytes}
    print(json.dumps(facts) if given["json"] else found)


def _definition_summary(name: str, given: Words) -> None:
    """A network that is written as text: shapes are those that the text names, unless others are given."""
    definition = read_definition(Path(name).expanduser())
    shape = definition.input
    if given["size"] is not None or "channels" in given.given:
        own = shape if shape is not None and len(shape) == 3 else (given["channels"], SIDE, SIDE)
        channels = given["channels"] if "channels" in given.given else own[0]
        shape = (channels, *(given["size"] or own[1:]))
    plan = plan_network(definition, shape, given["classes"] if "classes" in given.given else None)
    with without_values():
        found = nn.summary(plan.build(), Type((1, *plan.input), plan.dtype))
    facts = {"parameters": found.parameters, "macs": found.macs, "bytes": found.nbytes}
    print(json.dumps(facts) if given["json"] else found)


def _network(name: str, classes: int, channels: int, size: tuple[int, int]) -> nn.Module:
    if name in WRITERS:
        raise UserError("weft summary", f"{name} is a network for text, and summary takes networks for images.")
    if name in VECTORS and name != "lenet_300_100":
        return build_vector_network(name, channels * size[0] * size[1], classes)
    return build_network(name, classes, channels, size)


def devices(words: Sequence[str]) -> None:
    """List the devices of this machine."""
    given = read("devices", words, {"json": _JSON}, 0)
    facts = {"cpu": host().cpu, "threads": thread_count(), "vector_bits": host().vector_bits}
    found = all_devices()
    gpus = {d.name: (d.about(), d.health()) for d in found if d.is_accelerator}
    if given["json"]:
        about = {name: what for name, (what, _) in gpus.items()}
        healths = {name: asdict(how) for name, (_, how) in gpus.items() if how is not None}
        print(json.dumps({"devices": [d.name for d in found], **facts, "gpus": about, "health": healths}))
        return
    print(f"cpu: {facts['cpu']}, {counted(thread_count(), 'thread')}, vectors of {facts['vector_bits']} bits")
    for device in found:
        if not device.is_host_processor:
            described = device.about()
            what, how = gpus.get(device.name, ("for checks" if described == device.name else described, None))
            now = "" if how is None else f"; now {how}"
            print(f"{device.name}: {what}{now}")
    for kind, why in missing_devices().items():
        print(f"{kind}: none here; {why}")
