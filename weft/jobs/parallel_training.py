"""Training in several processes of this machine: a job starts them, shows the events of rank 0, and ends when all have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from ..device_names import read_device_name
from ..errors import UserError
from ..locks import one_writer
from ..mesh.world import world
from ..parallel.forms import AUTO, processes_of
from ..parallel.ranks import RankPool, tell
from ..parallel.sizes import read_sizes
from ..report.text_format import counted
from ..train.auto_split import ParallelChoice, agreed_choice, choose_parallel
from ..train.ranks import check_batch, check_micro_batches, micro_batches_of, refused_axes
from ..train.state import saved_micro_batches
from .checks import check_settings
from .events import Listener, Recorder, ignore_events
from .job import Job, job_of
from .parallel_checks import NO_VALUES, PIPELINE_SETTINGS
from .weights import settings_for_weights


def with_ranks(settings: Mapping[str, Any], size: int | None = None) -> dict[str, Any]:
    """The settings of a training that processes of `weft launch` or mpiexec do together, whatever they were told; by default, those of this world."""
    size = world().size if size is None else size
    told = {**settings, "parallel": f"data:{size}"} if size > 1 and settings["parallel"] is None else dict(settings)
    device = str(told["device"] or "")
    if processes_of(told["parallel"]) > 1 and read_device_name(device).is_one_gpu:
        raise UserError(
            "weft train",
            f"device={device} is one GPU, and each process needs its own. With device=cuda, each has that of its number.",
        )
    return told


def check_launch(verb: str, settings: Mapping[str, Any], ranks: int, run: Path | None = None) -> None:
    """Reject a training that `weft launch` is about to start in this many processes. All of them would reject it, each for itself."""
    told = with_ranks(settings, ranks)
    if told["parallel"] == AUTO:
        check_settings(verb, told)
        return
    sizes = read_sizes(told["parallel"], ranks)
    if sizes.processes != ranks:
        raise UserError(f"weft {verb}", f"parallel={told['parallel']} is for {counted(sizes.processes, 'rank')}, got {ranks}. Use -n {sizes.processes}, or parallel=data:{ranks}.")  # fmt: skip
    told["parallel"] = str(sizes)  # an axis without a number has one now
    check_settings(verb, told)
    check_processes(verb, told, run)


def check_processes(
    verb: str, settings: Mapping[str, Any], run: Path | None = None, recorder: Recorder | None = None
) -> None:
    """Reject what processes cannot share evenly, before any of them is started. A batch may be clipped to the examples that there are."""
    sizes = read_sizes(settings["parallel"], world().size)
    if sizes.server:
        return
    given = settings["micro_batches"]
    if given is None and run is not None and (checkpoint := run / "state" / "last.safetensors").exists():
        given = saved_micro_batches(checkpoint)
    check_micro_batches(sizes, given)
    if (given or sizes.data) == 1 or settings["batch"] == "auto" or _is_slow_to_open(settings):
        return
    job = job_of(verb, settings_for_weights(settings), recorder)
    examples = len(job.train)
    batch = min(job.settings["batch"], examples)
    check_batch(sizes, micro_batches_of(sizes, given, batch), batch, examples)


def _is_slow_to_open(settings: Mapping[str, Any]) -> bool:
    """Whether a tokenizer is learned whenever the data is opened: processes then check their batches themselves."""
    return str(settings["data"]).lower().endswith(".txt") and str(settings["tokenizer"]).startswith("bpe:")


def needs_processes(settings: Mapping[str, Any]) -> bool:
    """Whether a training needs processes that are not there yet."""
    return world().size == 1 and _processes(settings) > 1


def _processes(settings: Mapping[str, Any]) -> int:
    return read_sizes(settings["parallel"], world().size).processes


class ChosenSplit(NamedTuple):
    """The settings that parallel=auto stands for, and why, as a note."""

    settings: dict[str, Any]
    note: str


def chosen_split(job_of: Callable[[], Job], recorder: Recorder) -> ChosenSplit:
    """Choose how a training is split. A process that was started alone chooses how many there should be, too."""
    recorder.show("activity", text="choosing a split")
    choice = agreed_choice(lambda: _choose(job_of(), recorder))
    own = {"zero": choice.zero_stage, "staleness": None} | (
        {} if choice.sizes.pipeline > 1 else {n: NO_VALUES[n] for n in PIPELINE_SETTINGS}
    )
    return ChosenSplit({"parallel": choice.parallel, **own}, f"parallel={choice.parallel} was chosen: {choice.why}")


def _choose(job: Job, recorder: Recorder) -> ParallelChoice:
    if job.settings["batch"] == "auto":
        raise UserError("weft train", "a batch size is required with parallel=auto, got batch=auto.")
    return choose_parallel(
        job.model(), job.loaders()[0], job.plan(), world().size if world().size > 1 else None, refused=[*refused_axes(job.settings)],
        tell=lambda text: recorder.show("activity", text=text),
    )  # fmt: skip


def in_processes(
    settings: Mapping[str, Any],
    function: Callable[..., Path | None],
    *args: Any,
    listener: Listener,
    notes: Sequence[str] = (),
) -> Path | None:
    """Call a function of the arguments, a listener and notes in as many new processes as the settings say; what rank 0 returned."""
    with RankPool(_processes(settings)) as pool:
        found: list[Path | None] = pool.run(_call, function, args, notes, listener=listener)
    return found[0]


def _call(function: Callable[..., Path | None], args: tuple[Any, ...], notes: Sequence[str]) -> Path | None:
    return function(*args, tell if leads() else ignore_events, notes)


def leads() -> bool:
    """Whether this process writes files and sends events; the others only compute."""
    return world().rank == 0


def writing(folder: Path) -> AbstractContextManager[object]:
    """The lock of a run, which the leading process holds for all."""
    return one_writer(folder) if leads() else nullcontext()
