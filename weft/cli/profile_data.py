"""Two parts of `weft profile`: the memory timeline of a network's step, and whether data is the bottleneck of a training."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..errors import RunError, UserError
from ..insight.memory_measure import MeasuredMemory, measured_memory
from ..insight.memory_options import batch_memory, batches_text, checkpoint_savings, savings_text
from ..insight.memory_text import size_text
from ..insight.memory_timeline import MemoryTimeline, memory_timeline
from ..jobs.device import on
from ..jobs.profiles.data_profile import training_bottleneck
from ..jobs.profiles.subject import ProfileSubject, find_subject
from ..jobs.recipes import with_recipe
from ..jobs.schema import Setting, count, flag, positive, sizes
from ..jobs.settings import COMMON, DEVICE, SETTINGS
from .arguments import Words, read
from .table import as_json


def profile_data(words: Sequence[str]) -> None:
    """Is data the bottleneck of a training? weft profile data=photos batch=64 workers=2 augment=standard.

    The settings are those of weft train. The loader alone, the step alone and both together are measured; the stage that limits is
    named, and the number of workers that would fix it. No run is made.
    """
    known = {
        **SETTINGS,
        "seconds": Setting(positive, 1.0, "seconds for each measurement", "output"),
        "cold": Setting(flag, False, "read files from the disk, not from the system's page cache", "data"),
        "json": Setting(flag, False, "print JSON, for programs", "output"),
    }
    given = read(
        "profile", words, known, 0, profile_data.__doc__, common=("seconds", "cold", "workers", "flip", *COMMON)
    )
    named = {name: given[name] for name in given.given if name not in ("seconds", "cold")}
    settings = with_recipe("weft profile", named)
    found = training_bottleneck(settings, given["seconds"], given["cold"])
    print(found.to_json() if given["json"] else found)


def _counts(text: str) -> tuple[int, ...]:
    """16,64,256"""
    return tuple(count(part) for part in text.split(","))


_MEMORY_SETTINGS = {
    "batch": Setting(count, 64, "examples a step"),
    "what": Setting(str, "train", "train or infer", choices=("train", "infer")),
    "batches": Setting(_counts, None, "other batch sizes to plan, such as 16,64,256; default: a quarter to four times the batch"),
    "checkpoints": Setting(flag, True, "plan what checkpointing repeated blocks would save"),
    "measure": Setting(flag, False, "run the step, and compare the plan with what is allocated"),
    "svg": Setting(str, None, "file to draw the timeline to"),
    "size": Setting(sizes, None, "image size, 28 or 28x32; default: the network's own"),
    "channels": Setting(count, None, "image channels"),
    "classes": Setting(count, None, "number of classes"),
    "length": Setting(count, None, "sequence length of text"),
    "precision": Setting(str, None, "mixed precision", choices=("float16", "bfloat16")),
    "device": DEVICE,
    "json": Setting(flag, False, "print JSON, for programs"),
}  # fmt: skip


def profile_memory(words: Sequence[str]) -> None:
    """The memory timeline of a step: weft profile memory lenet5 batch=64 svg=memory.svg.

    The step is planned, not run: what is in memory at each kernel, the peak, the largest values with their layers and lines, what
    other batch sizes need, and what checkpointing would save.
    """
    given = read("profile memory", words, _MEMORY_SETTINGS, 1, profile_memory.__doc__)
    if not given.plain:
        raise UserError("weft profile", "a network, a file or a run is required, got none: weft profile memory lenet5.")
    named = {name: given[name] for name in ("size", "channels", "classes", "length", "precision")}
    with on(given["device"]):
        _report(lambda: find_subject(given.plain[0], **named), given)


def _report(find: Callable[[], ProfileSubject], given: Words) -> None:
    subject, batch, what = find(), given["batch"], given["what"]
    step, args = subject.step(batch, what)
    found = memory_timeline(step, *args)
    batches = () if subject.only_batch is not None else batch_memory(step, *args, sizes=given["batches"])
    savings = checkpoint_savings(step, *args) if given["checkpoints"] and what == "train" else ()
    measured = measured_memory(lambda: find().step(batch, what)) if given["measure"] else None
    if given["svg"] is not None:
        _write(Path(given["svg"]), found.svg())
    if given["json"]:
        parts: dict[str, Any] = {"subject": subject.title, "batch": batch, "what": what, **json.loads(found.to_json())}
        parts["batches"] = [{"batch": one.batch, "total": one.total, **one.memory._asdict()} for one in batches]
        parts["checkpoints"] = [{**vars(one), "saved": one.saved} for one in savings]
        parts["measured"] = None if measured is None else vars(measured)
        print(as_json(parts))
        return
    texts = [f"{subject.title}, {what}, batch {batch}", str(found)]
    texts += [f"Other batch sizes, planned:\n{batches_text(batches)}"] if batches else []
    texts += [f"Checkpointing, planned:\n{savings_text(savings)}"] if given["checkpoints"] and what == "train" else []
    texts += [_comparison(found, measured)] if measured is not None else []
    print("\n\n".join(texts))


def _comparison(found: MemoryTimeline, measured: MeasuredMemory) -> str:
    error = found.allocated / max(1, measured.allocated) - 1.0
    return (
        f"planned {size_text(found.allocated)}, measured {size_text(measured.allocated)} ({measured.how}): {error:+.2%}"
    )


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RunError("weft profile", f"{path} cannot be written: {error.strerror or error}.") from error
