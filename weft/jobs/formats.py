"""What number formats do to the network of a run, of a file, or of a name: finds it and its data, and measures it (`weft.formats.survey`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from .. import zoo
from ..data import Dataset, Text
from ..errors import UserError
from ..formats.survey import FORMATS, FormatSurvey, survey
from ..nn.containers import Sequential
from ..nn.module import Module
from ..records import dataclass
from ..saved.program import Program
from ..zoo.catalogue import ALIASES
from .definitions import is_definition
from .device import on
from .events import Listener, Recorder, ignore_events
from .find import find_run
from .job import Job, held_out, job_of, job_of_run
from .prediction.find import find_predictor
from .schema import Setting, validated, whole
from .settings import DEVICE, SETTINGS
from .stored import settings_of

EXAMPLES = 512
BATCH, LARGE_BATCH = 64, 8  # of large examples
LARGE = 3 * 64 * 64  # numbers of an example; all activations of a batch are in memory at once


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


SURVEY = {
    "data": Setting(str, None, "data to run on; default: the data of the run"),
    "formats": Setting(_names, FORMATS, "formats to compare, such as float16,int8,q3.12"),
    "examples": Setting(whole, EXAMPLES, "held-out examples that are run"),
    "split": Setting(str, None, "split of the data; default: test, else validation", choices=("train", "validation", "test")),
    "checkpoint": Setting(str, "best", "weights of the run", choices=("best", "last")),
    "weights": Setting(str, None, "weights of a network that is given by name: a run, a file, or a name in the store"),
    "size": Setting(SETTINGS["size"].parse, None, "image size of a network that is given by name"),
    "device": DEVICE,
}  # fmt: skip


@dataclass(frozen=True)
class SurveyedNetwork:
    """A network and held-out examples for it."""

    title: str
    model: Module
    prepare: Module | None
    examples: Dataset
    split: str
    notes: tuple[str, ...] = ()
    takes_pixels: bool = False  # bytes, as image files have them


def survey_formats(
    name: str, settings: Mapping[str, Any], listener: Listener = ignore_events
) -> tuple[SurveyedNetwork, FormatSurvey]:
    """Measure formats on the network of a run, a saved program or ONNX model, or a network by name with `data`."""
    recorder = Recorder(listener)
    if settings["examples"] < 1:
        raise UserError("weft formats", f"1 example or more is required, got examples={settings['examples']}.")
    with on(settings["device"]):
        recorder.show("activity", text="reading the data")
        found = _network(name, settings)
        made = survey(
            found.model,
            _batches(found, settings["examples"]),
            settings["formats"],
            prepare=found.prepare,
            progress=lambda text: recorder.show("activity", text=text),
        )
    return found, replace(made, notes=(*found.notes, *made.notes))


def _network(name: str, settings: Mapping[str, Any]) -> SurveyedNetwork:
    if is_definition(name) or name in (*zoo.names(), *ALIASES):
        return _by_name(name, settings)
    return _of_file(name, settings) if Path(name).is_file() else _of_run(find_run(name), settings)


def _of_run(folder: Path, settings: Mapping[str, Any]) -> SurveyedNetwork:
    told = settings_of("formats", folder)
    learned = job_of_run(told, folder)
    job = job_of("formats", {**told, **_stored_as(settings["data"], tuple(learned.train.shape))})
    split, examples = held_out(job.splits, settings["split"])
    _check_same(examples, tuple(learned.train.shape), list(learned.train.classes), folder.name)
    model, _ = learned.trained(folder, settings["checkpoint"])
    network = Sequential(model) if isinstance(model, Program) else model  # so that its input and result can be rounded
    return SurveyedNetwork(folder.name, network, learned.prepare(), examples, split)


def _of_file(name: str, settings: Mapping[str, Any]) -> SurveyedNetwork:
    predictor = find_predictor("formats", name)
    if predictor.text is not None:
        raise UserError(
            "weft formats", f"a program for images or numbers is required, got {name}, which is for text. Give its run."
        )
    job = _job({**_needed(settings["data"], name), **_stored_as(settings["data"], predictor.shape)})
    split, examples = held_out(job.splits, settings["split"])
    _check_same(examples, predictor.shape, list(predictor.classes), name)
    return SurveyedNetwork(
        Path(name).name,
        Sequential(predictor.model),
        predictor.prepare,
        examples,
        split,
        takes_pixels=predictor.reads_images,
    )


def _by_name(name: str, settings: Mapping[str, Any]) -> SurveyedNetwork:
    given = {key: settings[key] for key in ("weights", "size") if settings[key] is not None}
    job = _job({**_needed(settings["data"], name), "model": name, **given})
    model = job.model()
    loaded = job.initialize_from_weights(model)
    notes = () if loaded else ("The weights are those of a network that was not trained: give weights=, or a run.",)
    split, examples = held_out(job.splits, settings["split"])
    return SurveyedNetwork(f"{name} on {settings['data']}", model, job.prepare(), examples, split, notes)


def _needed(data: str | None, name: str) -> dict[str, Any]:
    if data is None:
        raise UserError("weft formats", f"data is required for {name}, got none: weft formats {name} data=digits.")
    return {"data": data}


def _job(given: Mapping[str, Any]) -> Job:
    return job_of("formats", validated("weft formats", dict(given), SETTINGS))


def _stored_as(data: str | None, shape: tuple[int, ...]) -> dict[str, Any]:
    """Settings that convert other image files as the network takes them."""
    if data is None:
        return {}
    if len(shape) != 3:
        return {"data": data}
    return {"data": data, "size": shape[1:], "colour": "gray" if shape[0] == 1 else "rgb"}


def _check_same(examples: Dataset, shape: tuple[int, ...], classes: list[str], name: str) -> None:
    if isinstance(examples, Text):
        return
    if tuple(examples.shape) != shape:
        wanted, got = (" x ".join(map(str, one)) for one in (shape, examples.shape))
        raise UserError("weft formats", f"{name} takes inputs of {wanted}, and the data has inputs of {got}.")
    if classes and list(examples.classes) != classes:
        raise UserError(
            "weft formats",
            f"{name} has {len(classes)} classes, and the data has others. Give data with the same classes.",
        )


def _batches(network: SurveyedNetwork, count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Batches of examples that lie evenly in a split, so that all classes occur where it is sorted."""
    examples = network.examples
    count, batch = min(count, len(examples)), BATCH if prod(examples.shape) <= LARGE else LARGE_BATCH
    if count > batch:
        count -= count % batch  # batches of one size: the network is compiled once
    chosen = np.linspace(0, len(examples) - 1, count).astype(np.int64)
    return [
        (_inputs(network, part), np.asarray(examples.labels[part])) for part in np.split(chosen, max(1, count // batch))
    ]


def _inputs(network: SurveyedNetwork, indices: np.ndarray) -> np.ndarray:
    found = np.asarray(network.examples.inputs(indices))
    if network.takes_pixels and found.dtype.kind == "f":  # from 0 to 1
        return np.clip(np.rint(255.0 * found), 0, 255).astype(np.uint8)
    return found
