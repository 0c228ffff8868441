"""Creates a dataset from image files: splits, decodes, resizes and packs them into a folder that appears when complete."""

from __future__ import annotations

import csv
import io
import itertools
import json
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import lmdb
import numpy as np

from ..errors import RunError, UserError
from .checksums import INDEX, write_checksums
from .convert import ConversionOptions, ConvertedChunk, Encoding, Store
from .dataset import Splits
from .dataset_folder import VERSION, open_dataset_folder
from .file_index import Index
from .file_lists import from_list
from .folders import from_folders, split_folders
from .image_names import write_names
from .image_writers import SplitWriters
from .images import Colour, Unreadable, image_size
from .label_kinds import LABELS, LabelKind, label_array, label_counts
from .resize import WAYS, Resize
from .split_plan import Entry, Small, SplitPlan, make_plan
from .staging import DESCRIPTION, StagingFolder, check_target, lock, recover
from .statistics import Statistics
from .worker_pool import WorkerPool

_CHUNK_BYTES, _CHUNK_FILES = 1 << 24, 64
Source = Index | str | os.PathLike[str]


class Progress(NamedTuple):
    """Progress of a creation: files processed, files in total, and files that failed."""

    done: int
    total: int
    failed: int


def create(
    source: Source,
    folder: str | os.PathLike[str],
    *,
    size: tuple[int, int] | None = None,
    resize: Resize = "squash",
    colour: Colour = "rgb",
    labels: LabelKind = "class",
    validation: float | Source = 0.25,
    test: float | Source = 0.0,
    minimum: int = 2,
    maximum: int | None = None,
    small: Small = "refuse",
    seed: int = 0,
    store: Store = "arrays",
    encoding: Encoding = "png",
    workers: int | None = None,
    replace: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> Splits:
    """Create a dataset in `folder` and open it.

    `source` is a folder of class folders, a list of files, or an `Index`. `validation` and `test` are fractions of every
    class, or sources of their own; a folder with subfolders train, validation and test keeps these splits. `size` is
    (height, width); None requires images of one common size. `labels` of a list are one class a file, several classes, or
    numbers; see `from_list`. `small` says whether classes with fewer than `minimum`
    files are rejected, dropped or kept; of larger classes at most `maximum` files are used. `workers` is the number of
    processes; 0 uses only the calling process.

    The folder appears when it is complete. An interrupted creation resumes when it is started again with the same
    settings. Files that fail are listed in failed.csv; if more than half of them fail, the creation fails.
    """
    check_create_settings(
        {
            "size": size, "resize": resize, "colour": colour, "labels": labels, "validation": validation, "test": test,
            "minimum": minimum, "maximum": maximum, "small": small, "seed": seed, "store": store, "encoding": encoding,
            "workers": workers,
        }
    )  # fmt: skip
    plan, shares = plan_source(
        source, validation, test, labels=labels, minimum=minimum, maximum=maximum, small=small, seed=seed
    )
    options = ConversionOptions(size or _common_size(plan), size is None, resize, colour, store, encoding)
    settings = {**options.as_json(), "seed": seed, "minimum": minimum, "maximum": maximum, "small": small}
    settings |= shares
    target, digest = Path(os.path.abspath(folder)), plan.digest({"version": VERSION, **settings})
    with lock(target):
        _make(target, digest, plan, options, settings, workers, replace, progress)
    return open_dataset_folder(target)


def plan_source(
    source: Source, validation: float | Source, test: float | Source, *, labels: LabelKind = "class", minimum: int,
    maximum: int | None, small: Small, seed: int,
) -> tuple[SplitPlan, dict[str, float | str]]:  # fmt: skip
    """The files of each split, and the fractions of validation and test, or the names of their own sources."""
    source, validation, test = _existing_splits(source, validation, test)
    index = _as_index(source, None, labels)
    shares = {
        "validation": _fraction_or_index("validation", validation, index),
        "test": _fraction_or_index("test", test, index),
    }
    _check_fractions(shares)
    plan = make_plan(index, shares, minimum=minimum, maximum=maximum, small=small, seed=seed)
    return plan, {split: share if isinstance(share, float) else share.name for split, share in shares.items()}


def _make(
    target: Path,
    digest: str,
    plan: SplitPlan,
    options: ConversionOptions,
    settings: dict[str, Any],
    workers: int | None,
    replace: bool,
    progress: Callable[[Progress], None] | None,
) -> None:
    """Fill the staging folder, write its description and publish it, unless the dataset exists already."""
    with writing(target):
        recover(target)
        if check_target(target, digest, replace):
            return
        staging = StagingFolder(target, digest)
        _convert_all(staging, plan, options, workers, progress)
        _describe(staging, plan, options, {"digest": digest, "settings": settings})
        staging.publish(replace)


@contextmanager
def writing(target: Path) -> Iterator[None]:
    """Inside, a full disk and its like are runtime errors that say that completed work is kept."""
    try:
        yield
    except (OSError, lmdb.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise RunError(
            "create",
            f"{target} cannot be written: {reason}. Completed work is kept: fix this and start again with the same settings.",
        ) from error


class _Chunk(NamedTuple):
    split: str
    entries: list[Entry]


def _chunks(plan: SplitPlan, options: ConversionOptions) -> list[_Chunk]:
    step = max(1, min(_CHUNK_FILES, _CHUNK_BYTES // int(np.prod(options.shape))))
    return [
        _Chunk(split, entries[start : start + step])
        for split, entries in plan.splits.items()
        for start in range(0, len(entries), step)
    ]


def _convert_all(
    staging: StagingFolder,
    plan: SplitPlan,
    options: ConversionOptions,
    workers: int | None,
    progress: Callable[[Progress], None] | None,
) -> None:
    """Convert the remaining chunks. Data is written before its journal record."""
    chunks = _chunks(plan, options)
    pending = chunks[len(staging.done) :]
    total = sum(len(chunk.entries) for chunk in chunks)
    writers = SplitWriters(staging.split_folder, options, _written(chunks, staging.done))
    with WorkerPool(worker_count(workers, pending), options) as team:
        try:
            results = team.convert([[entry.path for entry in chunk.entries] for chunk in pending])
            for chunk, result in zip(pending, results, strict=True):
                writers.of(chunk.split).append(result.images)
                staging.append_done(_record(result))
                if progress is not None:
                    done = sum(len(c.entries) for c in chunks[: len(staging.done)])
                    progress(Progress(done, total, sum(len(r["failed"]) for r in staging.done)))
            writers.finish(_checksums(plan, chunks, staging.done))
        finally:
            writers.close()


def _record(result: ConvertedChunk) -> dict[str, Any]:
    failed = {str(place): reason for place, reason in enumerate(result.reasons) if reason is not None}
    return {"failed": failed, "counts": result.counts.tolist(), "checksums": [zlib.crc32(i) for i in result.images]}


def _written(chunks: list[_Chunk], done: list[dict[str, Any]]) -> Counter[str]:
    """The images of each split that the journal records."""
    found: Counter[str] = Counter()
    for chunk, record in zip(chunks, done, strict=False):  # chunks without a record are not done
        found[chunk.split] += len(chunk.entries) - len(record["failed"])
    return found


def _checksums(plan: SplitPlan, chunks: list[_Chunk], done: list[dict[str, Any]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {split: [] for split in plan.splits}
    for chunk, record in zip(chunks, done, strict=True):
        found[chunk.split] += record["checksums"]
    return found


def _describe(staging: StagingFolder, plan: SplitPlan, options: ConversionOptions, known: dict[str, Any]) -> None:
    """Write labels, file names, failures, and the description of the dataset."""
    good, failed, counts = _results(staging, plan, options)
    write_failures(staging.folder / "failed.csv", failed, plan.passed_over)
    _check_results(staging, plan, good, failed)
    for split, entries in good.items():
        np.save(staging.split_folder(split) / "labels.npy", _labels(plan, entries))
        write_names(staging.split_folder(split), [entry.name for entry in entries])
    statistics = Statistics.of(counts)
    description: dict[str, Any] = {
        "format": "weft dataset",
        "version": VERSION,
        "name": plan.name,
        "classes": plan.classes,
        "shape": options.shape,
        "store": options.store,
        "labels": plan.kind,
        "counts": {split: _counts(plan, entries) for split, entries in good.items()},
        "mean": statistics.mean,
        "std": statistics.std,
        "failed": len(failed),
        "passed_over": len(plan.passed_over),
        **known,
    }
    if plan.kind != "class":  # else the counts of the classes add up to it
        description["examples"] = {split: len(entries) for split, entries in good.items()}
    (staging.folder / DESCRIPTION).write_text(json.dumps(description, indent=1) + "\n")
    files = [f"{split}/{name}" for split in good for name in ("labels.npy", INDEX)]
    write_checksums(staging.folder, [DESCRIPTION, *files])


def _results(
    staging: StagingFolder, plan: SplitPlan, options: ConversionOptions
) -> tuple[dict[str, list[Entry]], list[tuple[str, str]], np.ndarray]:
    good: dict[str, list[Entry]] = {split: [] for split in plan.splits}
    failed: list[tuple[str, str]] = []
    counts = np.zeros((options.shape[0], 256), np.int64)
    for chunk, record in zip(_chunks(plan, options), staging.done, strict=True):
        for place, entry in enumerate(chunk.entries):
            reason = record["failed"].get(str(place))
            if reason is None:
                good[chunk.split].append(entry)
            else:
                failed.append((entry.name, reason))
        if chunk.split == "train":
            counts += np.array(record["counts"], np.int64)
    return good, failed, counts


def _counts(plan: SplitPlan, entries: list[Entry]) -> dict[str, int]:
    return label_counts(_labels(plan, entries), plan.classes)


def _labels(plan: SplitPlan, entries: list[Entry]) -> np.ndarray:
    return label_array([entry.label for entry in entries], plan.kind, len(plan.classes))


def _check_results(
    staging: StagingFolder, plan: SplitPlan, good: dict[str, list[Entry]], failed: list[tuple[str, str]]
) -> None:
    total = sum(len(entries) for entries in plan.splits.values())
    report = f"{staging.folder / 'failed.csv'} lists them all"
    if 2 * len(failed) > total:
        some = "; ".join(f"{name} {reason}" for name, reason in failed[:3])
        raise RunError("create", f"{len(failed)} of {total} files failed, more than half: {some}. {report}.")
    planned = _counts(plan, plan.splits.get("train", []))
    lost = [name for name, count in _counts(plan, good.get("train", [])).items() if planned[name] and not count]
    if lost:
        raise RunError("create", f"all training files of {', '.join(lost)} failed. {report}.")


def write_failures(path: Path, failed: Sequence[tuple[str, str]], passed_over: Sequence[tuple[str, str]]) -> None:
    """Write failed.csv: the files that failed and those that were passed over, with the reasons."""
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["path", "reason"])
    writer.writerows(failed)
    writer.writerows((name, f"passed over: {reason}") for name, reason in passed_over)
    path.write_bytes(buffer.getvalue().encode("utf-8", "surrogateescape"))


def read_failures(path: Path) -> list[tuple[str, str]]:
    """The rows of failed.csv: names and reasons; none if somebody has removed it."""
    if not path.exists():
        return []
    text = path.read_bytes().decode("utf-8", "surrogateescape")
    return [(row[0], row[1]) for row in list(csv.reader(io.StringIO(text, newline="")))[1:] if len(row) == 2]


def _existing_splits(
    source: Source, validation: float | Source, test: float | Source
) -> tuple[Source, float | Source, float | Source]:
    """The existing splits of a folder with subfolders train and validation or test."""
    parts = split_folders(source) if not isinstance(source, Index) and os.path.isdir(source) else {}
    if not parts:
        return source, validation, test
    return parts["train"], parts.get("validation", validation), parts.get("test", test)


def _as_index(source: Any, classes: tuple[str, ...] | None, labels: LabelKind) -> Index:
    if isinstance(source, Index):
        return source
    if not isinstance(source, (str, os.PathLike)):
        raise UserError(
            "create", f"a source must be a folder, a list of files or an Index, got {type(source).__name__}."
        )
    if os.path.isdir(source):
        if labels != "class":
            raise UserError(
                "create", f'labels="{labels}" requires a .csv or .txt list of files, got the folder {source}.'
            )
        return from_folders(source, classes)
    return from_list(source, classes=classes, labels=labels)


def _fraction_or_index(name: str, value: Any, index: Index) -> float | Index:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return _as_index(value, index.classes or None, index.kind)
    return float(value)


def _check_fractions(shares: Mapping[str, Any]) -> None:
    total = sum(share for share in shares.values() if isinstance(share, (int, float)))
    if total >= 1:
        raise UserError(
            "create", f"validation and test must leave files for training, got fractions that add up to {total:g}."
        )


def _common_size(plan: SplitPlan) -> tuple[int, int]:
    """The most common size of the first 100 images; images that differ fail later, with a reason."""
    sizes: Counter[tuple[int, int]] = Counter()
    for entry in itertools.chain.from_iterable(plan.splits.values()):
        try:
            sizes[image_size(entry.path)] += 1
        except Unreadable:
            continue
        if sizes.total() == 100:
            break
    if not sizes:
        raise RunError("create", f"none of the files of {plan.name} is an image.")
    return sizes.most_common(1)[0][0]


def worker_count(workers: int | None, pending: Sequence[Any]) -> int:
    """The number of processes for these chunks; None leaves it to the machine."""
    if workers is not None:
        return min(workers, len(pending))
    # Starting a process takes longer than converting a few files.
    return 0 if len(pending) < 3 else min(len(os.sched_getaffinity(0)), len(pending))


_SETTING_CHOICES: dict[str, tuple[str, ...]] = {
    "resize": WAYS, "colour": ("rgb", "gray"), "store": ("arrays", "lmdb"), "encoding": ("png", "jpeg"),
    "small": ("refuse", "drop", "keep"), "labels": LABELS,
}  # fmt: skip


def check_create_settings(settings: Mapping[str, Any]) -> None:
    """Reject settings that `create` cannot use, before any file is opened."""
    for name, known in _SETTING_CHOICES.items():
        if settings[name] not in known:
            raise UserError("create", f"{name} must be one of {', '.join(known)}, got {settings[name]!r}.")
    size = settings["size"]
    if size is not None and not (len(size) == 2 and all(isinstance(n, int) and 1 <= n <= 16384 for n in size)):
        raise UserError("create", f"size must be (height, width), each from 1 to 16384, got {size}.")
    for name, least in {"minimum": 0, "maximum": 1, "seed": 0, "workers": 0}.items():
        if settings[name] is not None and settings[name] < least:
            raise UserError("create", f"{name} must be {least} or more, got {settings[name]}.")
    for name in ("validation", "test"):
        share = settings[name]
        if isinstance(share, (int, float)) and not isinstance(share, bool) and not 0 <= share < 1:
            raise UserError("create", f"{name} must be a fraction in [0, 1) or a source of its own, got {share}.")
    _check_fractions({name: settings[name] for name in ("validation", "test")})
