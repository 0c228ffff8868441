"""A trained network of a run as a file: a saved program, an ONNX model, or a C library."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .. import data
from ..io.file_kind import file_kind
from ..io.json_values import json_value
from ..nn.module import Module
from ..onnx.export.save import save as save_onnx
from ..onnx.module import OnnxModule
from ..onnx.module import load as load_onnx
from ..ops.convert import asarray
from ..saved.program import Program, load
from ..saved.save import save
from ..saved.trace import TensorSpec
from ..tensor import Tensor
from ..train.folder import RunFolder
from ..tree import map_tree
from .convert import convert
from .datasets.facts import facts
from .find import find_run
from .job import LEAST_DEVIATION, Job, job_of_run
from .prediction.run_predictor import Deployed, deployed_of, resize_of, task_of
from .stored import settings_of


def export_run(
    verb: str,
    folder: Path,
    path: Path,
    compiled: str | Sequence[str] = (),
    *,
    train: bool = True,
    licence: str | None = None,
) -> Program:
    """Save the network of a run as a program, with its preprocessing, labels, metrics and origin; it is loaded again as a check."""
    job, deployed, known = _exported(verb, folder, licence)
    specs = _input_specs(job, deployed)
    save(path, deployed, specs, labels=job.train.classes or None, compiled=compiled, train=train, **known)
    return load(path)


def exported_program(verb: str, name: str) -> Program:
    """The program of a saved file or an ONNX model, or of a run as `export_run` saves it."""
    if Path(name).is_file() and file_kind(name, verb) == "program":
        return load(name)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "program.weft")
        if not Path(name).is_file():
            return export_run(verb, find_run(name), path)
        convert(name, str(path))
        return load(path)


def export_onnx(
    verb: str, folder: Path, path: Path, licence: str | None = None, *, preprocessing: bool = True
) -> OnnxModule:
    """Write the network of a run as an ONNX model, with the same facts as metadata: from pixels to probabilities, or without
    preprocessing from what the network was trained on to its logits."""
    job, deployed, known = _exported(verb, folder, licence)
    network: Module = deployed
    if not preprocessing:
        network = deployed.network
        known |= {"preprocessing": None, "preprocessing_before": known["preprocessing"], "meaning": _bare_meaning(job)}
        known["images"] = _images(job)
    metadata = {key: value for key, value in known.items() if value is not None}
    specs = _input_specs(job, deployed) if preprocessing else _bare_specs(job, deployed)
    save_onnx(path, network, specs, labels=job.train.classes or None, metadata=metadata)
    return load_onnx(path)


def _exported(verb: str, folder: Path, licence: str | None) -> tuple[Job, Deployed, dict[str, Any]]:
    """The job of a run, its network with preprocessing, and what a file states about them."""
    settings = settings_of(verb, folder)
    job = job_of_run(settings, folder)
    deployed = deployed_of(job, folder)
    context = getattr(deployed.network, "context", None)
    data_facts = json_value(facts(job.train, job.statistics))
    known = {
        "task": task_of(job), "network": job.label, "meaning": _meaning(job), "licence": licence,
        "preprocessing": {"resize": resize_of(job), "data": data_facts, "context": context},
        "metrics": _metrics(folder), "origin": f"weft train, run {folder.name}", "settings": _without_folders(json_value(settings)),
    }  # fmt: skip
    return job, deployed, known


def _without_folders(value: Any) -> Any:
    """Settings for a file that is given away: of absolute paths, which tell about this machine and its users, the names alone."""
    if isinstance(value, dict):
        return {key: _without_folders(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_without_folders(one) for one in value]
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value


def _bare_specs(job: Job, deployed: Deployed) -> tuple[Any, ...]:
    """What the network alone takes: images are floats in the size that it was trained on."""
    if not job.is_image_source:
        return _input_specs(job, deployed)
    prepared = deployed.prepare(asarray(job.train.inputs(np.arange(1))))  # looked at, not computed
    return (TensorSpec(("batch", *prepared.shape[1:]), prepared.dtype),)


def _images(job: Job) -> dict[str, Any] | None:
    """How image files become the input of the network alone, for `weft predict`."""
    if not job.is_image_source:
        return None
    found: dict[str, Any] = {"resize": resize_of(job)}
    if job.size() != tuple(job.train.shape[1:]):
        found["stored"] = list(job.train.shape[1:])
    if job.statistics is not None:
        found |= {"mean": list(job.statistics.mean), "std": [max(s, LEAST_DEVIATION) for s in job.statistics.std]}
    return found


def _input_specs(job: Job, deployed: Deployed) -> tuple[Any, ...]:
    """Pixels, as image files have them; numbers; or tokens of a text of any length and the state of a recurrent network."""
    network, sample = deployed.network, job.train.inputs(np.arange(1))
    if not isinstance(job.train, data.Text):
        return (TensorSpec(("batch", *sample.shape[1:]), "uint8" if job.is_image_source else sample.dtype),)
    context = getattr(network, "context", None)
    tokens = TensorSpec(("batch", "length" if context is None else f"length<={context}"), sample.dtype)
    found = [network(asarray(np.zeros((batch, 1), sample.dtype))) for batch in (3, 5)]  # looked at, not computed
    if not isinstance(found[0], tuple):
        return (tokens,)
    return tokens, map_tree(_state_spec, found[0][1], found[1][1])


def _state_spec(at_three: Tensor, at_five: Tensor) -> TensorSpec:
    """The axis whose size is that of the batch is free."""
    sizes = zip(at_three.shape, at_five.shape, strict=True)
    return TensorSpec(tuple(a if a == b else "batch" for a, b in sizes), at_three.dtype)


def _meaning(job: Job) -> dict[str, str]:
    """What the inputs and outputs are, in words."""
    pixels = "images: 8 bits a channel, channels before lines before columns; they are normalized inside"
    inputs = {"text": "numbers of tokens"}.get(task_of(job), pixels if job.is_image_source else "numbers")
    outputs = {
        "text": "logits of the token that follows each",
        "classify": "probability of each label",
        "regress": "numbers",
    }
    return {"inputs": inputs, "outputs": outputs[task_of(job)]}


def _bare_meaning(job: Job) -> dict[str, str]:
    """The same for a network without its preprocessing and without the softmax."""
    if task_of(job) == "text":
        return _meaning(job)
    outputs = {"classify": "logit of each label", "regress": "numbers"}[task_of(job)]
    return {"inputs": "images or numbers, normalized as preprocessing_before says", "outputs": outputs}


def _metrics(folder: Path) -> Any:
    """The best epoch of the run."""
    return json_value(RunFolder(folder).known_summary().get("best"))
