"""The job `profile`: measures a run or a network on a device, in a process of its own, and keeps the result beside it.

settings: see settings.py
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import UserError
from ...hints import nearest
from ...insight.call_times import call_times, measured_joules, recorded_calls
from ...insight.profile import profile
from ...insight.profile_record import profile_record
from ...runtime import device as find_device
from ...zoo.catalogue import ALIASES, FACTS
from ...zoo.definition import plan_network
from ..compression.state import PACKED, is_compression
from ..definitions import read_definition
from ..device import profiled_on
from ..events import Listener, Recorder, ignore_events
from ..find import find_run, run_folders
from ..network_store import NetworkStore
from ..prediction.run_predictor import Deployed
from ..queue.job_queue import JobQueue
from ..queue.kinds import PROFILE
from ..queue.record import JobRecord
from ..schema import validated
from .settings import PROFILE_SETTINGS
from .store import StoredProfile, keep_profile, network_profiles, run_profiles
from .subject import ProfileSubject, find_subject


def submit_profile(queue: JobQueue, of: Mapping[str, str], given: Mapping[str, Any], owner: str = "") -> JobRecord:
    """Check the settings of a profile and add it to the queue. `of` is {"run": folder} or {"network": name}."""
    settings = validated("profile", {**given, **of, "runs": str(queue.root)}, PROFILE_SETTINGS)
    _check(settings)
    return queue.add({**settings, "name": f"Profile of {subject_title(settings)}"}, PROFILE, owner=owner)


def named_subject(name: str, runs: str | Path) -> dict[str, str]:
    """What a name means: a run below `runs`, else a network of the zoo or one that is kept beside the runs."""
    store = NetworkStore(runs)
    networks = [*FACTS, *ALIASES, *store.names(), *(one.name for one in store.imported())]
    if name in networks:
        return {"network": ALIASES.get(name, name)}
    try:
        return {"run": str(find_run(name, runs))}
    except UserError:
        known = [*networks, *(one.name for one in run_folders(runs))]
        raise UserError("profile", f"{name!r} is neither a run nor a network. {nearest(name, known)}") from None


def profile_job(settings: Mapping[str, Any], earlier: Path | None, listener: Listener = ignore_events) -> None:
    """The work of the job: see `measure`."""
    told = validated(
        "profile", {name: value for name, value in settings.items() if name in PROFILE_SETTINGS}, PROFILE_SETTINGS
    )
    measure(told, listener)


def measure(settings: Mapping[str, Any], listener: Listener = ignore_events) -> StoredProfile:
    """Measure calls and kernels of a run or a network, and keep the profile."""
    _check(settings)
    recorder, batch, what = Recorder(listener), settings["batch"], settings["what"]
    with profiled_on(settings["device"]) as device:
        recorder.show("activity", text="compiling")
        subject = subject_of(settings)
        step, args = subject.step(batch, what)
        times = None
        if not find_device().is_modelled:
            times = call_times(step, args, settings["repeats"], partial(_tell, recorder))
        recorder.show("activity", text="measuring kernels")
        found = profile(step, *args)
        joules, _ = measured_joules(step, args, find_device(), found.seconds if times is None else times.p50)
        calls = recorded_calls({str(device): (step, args)})
    arguments = sum(int(np.prod(one.shape)) * one.dtype.itemsize for one in args)
    record = profile_record(
        found, subject_title(settings), what=what, batch=batch, device=str(device), times=times, arguments=arguments, joules=joules, rename=plain_label
    )  # fmt: skip
    stored = keep_profile(profile_folder(settings), record, calls)
    recorder.show("result", profile=stored.id, file=str(stored.path))
    return stored


def subject_title(settings: Mapping[str, Any]) -> str:
    """The name of a run or a network."""
    return Path(settings["run"]).name if settings["run"] else str(settings["network"])


def plain_label(label: str) -> str:
    """Layers are called as in the network alone, and what stands around it by what it does: so runs and their compressions compare.

    >>> plain_label("network.layers.0"), plain_label("Deployed/prepare.layers.0"), plain_label("Deployed")
    ('layers.0', 'prepare.layers.0', 'output')
    >>> plain_label("network.body.layers.0")  # in int8
    'layers.0'
    """
    name = label.rpartition("/")[2]
    return "output" if name in (Deployed.__name__, "network") else name.removeprefix("network.").removeprefix("body.")


def _tell(recorder: Recorder, done: int, total: int) -> None:
    recorder.show("progress", what="timing calls", done=done, total=total)


def has_weights(run: Path) -> bool:
    """Whether there is a network to measure."""
    return (run / "weights" / "best.safetensors").exists() or (run / PACKED).exists()


def _check(settings: Mapping[str, Any]) -> None:
    """What can be known to fail before it is measured."""
    run = settings["run"]
    if run is not None and is_compression(Path(run)) and settings["what"] == "train":
        raise UserError("profile", f"{Path(run).name} is compressed and has no training step. Use what=infer.")
    check_subject(settings)


def check_subject(settings: Mapping[str, Any]) -> None:
    """A network of the zoo or a run with weights is required."""
    run, network = settings["run"], settings["network"]
    if (run is None) == (network is None):
        raise UserError("profile", "a run or a network is required, got both or none.")
    if run is None:
        return
    if not has_weights(Path(run)):
        raise UserError(
            "profile", f"a run with weights is required, got {Path(run).name}, which has finished no epoch yet."
        )


def profile_folder(settings: Mapping[str, Any]) -> Path:
    """Where its profiles are kept."""
    return run_profiles(Path(settings["run"])) if settings["run"] else network_profiles(settings["runs"], settings["network"])  # fmt: skip


def subject_of(settings: Mapping[str, Any]) -> ProfileSubject:
    """The run or the network that settings name; a compression as it is used."""
    if settings["run"] is not None:
        packed = Path(settings["run"]) / PACKED
        return find_subject(str(packed if packed.exists() else settings["run"]))
    name, store = settings["network"], NetworkStore(settings["runs"])
    if name in store.names():
        return _of_text(name, store)
    if any(one.name == name for one in store.imported()):
        return find_subject(str(store.import_path(name)))
    return find_subject(name)


def _of_text(name: str, store: NetworkStore) -> ProfileSubject:
    """A network written as text, for the input that it names."""
    plan = plan_network(read_definition(store.path(name)))
    values = np.random.default_rng(0)

    def inputs(batch: int) -> tuple[np.ndarray, ...]:
        shape = (batch, *plan.input)
        if plan.dtype.is_float:
            return (values.random(shape, np.float32),)
        return (values.integers(0, plan.classes or 2, shape).astype(plan.dtype.numpy),)

    def labels(batch: int) -> np.ndarray:
        rest = plan.output[1:] if len(plan.output) > 1 else ()
        return values.integers(0, plan.classes or plan.output[0], (batch, *rest))

    return ProfileSubject(name, plan.build, inputs, labels)
