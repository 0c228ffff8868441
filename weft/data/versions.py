"""Writes the next version of a dataset: the parent with some images removed, relabelled, moved or added, or classes renamed.

The parent is only read. Images are copied as they are stored; only added files are converted. Like a created dataset, a
version appears when it is complete, and an interrupted one resumes when the same changes are made again.
"""

from __future__ import annotations

import json
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import RunError
from .changes import WHERE
from .changes import DatasetChanges as DatasetChanges
from .checksums import INDEX, write_checksums
from .convert import ConversionOptions, decode
from .create import Progress, read_failures, worker_count, write_failures, writing
from .dataset_folder import describe
from .image_names import write_names
from .image_writers import SplitWriters
from .label_kinds import label_array, label_counts, numbered
from .split_plan import SPLITS
from .staging import DESCRIPTION, StagingFolder, check_target, lock, recover
from .statistics import Statistics, histogram
from .version_folders import DatasetVersion as DatasetVersion
from .version_folders import folder_of_version
from .version_folders import history as history
from .version_folders import version_of as version_of
from .version_folders import versions as versions
from .version_plan import Copies, Files, ImageRow, Parent, VersionPlan, check_training_labels, image_rows, plan_version
from .worker_pool import WorkerPool


def new_version(
    folder: str | os.PathLike[str],
    changes: DatasetChanges,
    progress: Callable[[Progress], None] | None = None,
    workers: int | None = None,
) -> Path:
    """Write the next version of the dataset in `folder`, and return its folder: v3 after v2, or photos-v2 after photos.

    The number is one above the highest. Changes that were made to this parent before are not made again.
    """
    parent = Parent.open(Path(os.path.abspath(folder)))
    plan = plan_version(parent, changes)
    target = _target(parent.folder, plan.digest)
    with lock(target), writing(target):
        recover(target)
        if check_target(target, plan.digest, replace=False):
            return target
        staging = StagingFolder(target, plan.digest)
        _copy_and_convert(staging, parent, plan, workers, progress)
        _describe(staging, parent, plan, changes)
        staging.publish(replace=False)
    return target


def _target(folder: Path, digest: str) -> Path:
    """The folder of the next version, or that of an earlier one with the same content."""
    existing = versions(folder)
    for path in existing.values():
        if describe(path)["digest"] == digest:
            return path
    return folder_of_version(folder, 1 + max(existing))


# --- writing -----------------------------------------------------------------------------------------------------------


def _copy_and_convert(
    staging: StagingFolder,
    parent: Parent,
    plan: VersionPlan,
    workers: int | None,
    progress: Callable[[Progress], None] | None,
) -> None:
    """Write the remaining chunks. Data is written before its journal record."""
    chunks: list[Copies | Files] = [*plan.copies, *plan.files]
    sizes = [len(chunk.rows) if isinstance(chunk, Copies) else len(chunk.entries) for chunk in chunks]
    written: Counter[str] = Counter()
    for chunk, record in zip(chunks, staging.done, strict=False):  # chunks without a record are not done
        written[chunk.split] += len(record["checksums"])
    writers = SplitWriters(staging.split_folder, parent.options, written)
    try:
        for images, chunk, record in _results(chunks[len(staging.done) :], parent, plan, workers):
            writers.of(chunk.split).append(images)
            staging.append_done(record)
            if progress is not None:
                done = sum(sizes[: len(staging.done)])
                progress(Progress(done, sum(sizes), sum(len(r["failed"]) for r in staging.done)))
        checksums: dict[str, list[int]] = {split: [] for split in SPLITS if any(c.split == split for c in chunks)}
        for chunk, record in zip(chunks, staging.done, strict=True):
            checksums[chunk.split] += record["checksums"]
        writers.finish(checksums)
    finally:
        writers.close()


def _results(
    chunks: Sequence[Copies | Files], parent: Parent, plan: VersionPlan, workers: int | None
) -> Iterator[tuple[list[bytes], Copies | Files, dict[str, Any]]]:
    """The images of each chunk, and its record for the journal."""
    options, keeps = parent.options, plan.train_is_unchanged
    for chunk in chunks:
        if isinstance(chunk, Copies):
            images = [parent.images[chunk.source].read(row) for row in chunk.rows]
            counts = _histogram(images, options) if chunk.split == "train" and not keeps else None
            yield images, chunk, _record(images, counts, {})
    files = [chunk for chunk in chunks if isinstance(chunk, Files)]
    with WorkerPool(worker_count(workers, files), options) as team:
        results = team.convert([[entry.path for entry in chunk.entries] for chunk in files])
        for file_chunk, result in zip(files, results, strict=True):
            failed = {str(place): reason for place, reason in enumerate(result.reasons) if reason is not None}
            counts = result.counts if file_chunk.split == "train" else None
            yield result.images, file_chunk, _record(result.images, counts, failed)


def _record(images: Sequence[bytes], counts: np.ndarray | None, failed: dict[str, str]) -> dict[str, Any]:
    checksums = [zlib.crc32(image) for image in images]
    return {"failed": failed, "counts": None if counts is None else counts.tolist(), "checksums": checksums}


def _histogram(images: Sequence[bytes], options: ConversionOptions) -> np.ndarray:
    """Of the pixels that training reads: encoded images are decoded for that, but copied as they are."""
    if options.store == "lmdb":
        return sum((histogram(decode(image)[None]) for image in images), np.zeros((options.shape[0], 256), np.int64))
    return histogram(np.frombuffer(b"".join(images), np.uint8).reshape(-1, *options.shape))


# --- describing --------------------------------------------------------------------------------------------------------


def _describe(staging: StagingFolder, parent: Parent, plan: VersionPlan, changes: DatasetChanges) -> None:
    """Write labels, names, failures and the description of the new version."""
    rows = image_rows(parent, plan, staging.done)
    failed = _failed(plan, staging.done)
    _check_failed(failed, plan)
    check_training_labels(rows, parent.kind)
    classes = _classes(parent, plan, rows)
    splits = [split for split in SPLITS if any(row.split == split for row in rows)]
    counts, examples = {}, {}
    for split in splits:
        found = numbered([row.label for row in rows if row.split == split], parent.kind, classes)
        labels = label_array(found, parent.kind, len(classes))
        np.save(staging.split_folder(split) / "labels.npy", labels)
        write_names(staging.split_folder(split), [row.name for row in rows if row.split == split])
        counts[split], examples[split] = label_counts(labels, classes), len(labels)
    passed_over = plan.added.passed_over if plan.added else []
    _write_failures(staging.folder / "failed.csv", parent, changes, failed, passed_over)
    statistics = _statistics(parent, plan, staging.done)
    name, number = version_of(parent.folder)
    description = {
        **parent.about,
        "classes": classes,
        "counts": counts,
        "mean": statistics.mean,
        "std": statistics.std,
        "failed": parent.about.get("failed", 0) + len(failed),
        "passed_over": parent.about.get("passed_over", 0) + _removed_count(changes) + len(passed_over),
        "digest": plan.digest,
        "parent": {"name": name, "version": number, "digest": parent.about["digest"]},
        "changes": changes.with_merges(parent.about["classes"]).as_json(),
        **({} if parent.kind == "class" else {"examples": examples}),
    }
    (staging.folder / DESCRIPTION).write_text(json.dumps(description, indent=1) + "\n")
    write_checksums(
        staging.folder, [DESCRIPTION, *(f"{split}/{file}" for split in splits for file in ("labels.npy", INDEX))]
    )


def _classes(parent: Parent, plan: VersionPlan, rows: Sequence[ImageRow]) -> list[str]:
    """The classes that have images: those of the parent in their order, under their new names, then new ones; none of numbers."""
    used = {name for row in rows for name in row.label if isinstance(name, str)}
    known = dict.fromkeys(plan.rename.get(name, name) for name in parent.about["classes"])
    return [name for name in (*known, *sorted(used - known.keys())) if name in used]


def _statistics(parent: Parent, plan: VersionPlan, done: list[dict[str, Any]]) -> Statistics:
    if plan.train_is_unchanged:
        return Statistics(tuple(parent.about["mean"]), tuple(parent.about["std"]))
    return Statistics.of(np.sum([np.array(r["counts"], np.int64) for r in done if r["counts"] is not None], axis=0))


def _failed(plan: VersionPlan, done: list[dict[str, Any]]) -> list[tuple[str, str]]:
    records = done[len(plan.copies) :]
    return [
        (chunk.entries[int(place)].name, reason)
        for chunk, record in zip(plan.files, records, strict=True)
        for place, reason in record["failed"].items()
    ]


def _check_failed(failed: Sequence[tuple[str, str]], plan: VersionPlan) -> None:
    total = sum(len(chunk.entries) for chunk in plan.files)
    if 2 * len(failed) > total:
        some = "; ".join(f"{name} {reason}" for name, reason in failed[:3])
        raise RunError(WHERE, f"{len(failed)} of {total} added files failed, more than half: {some}.")


def _removed_count(changes: DatasetChanges) -> int:
    return sum(len(set(rows)) for rows in changes.remove.values())


def _write_failures(
    path: Path,
    parent: Parent,
    changes: DatasetChanges,
    failed: list[tuple[str, str]],
    passed_over: list[tuple[str, str]],
) -> None:
    """Every file of the parent and every added one is in a split or in this list."""
    old = read_failures(parent.folder / "failed.csv")
    _, number = version_of(parent.folder)
    removed = [
        (parent.names[split][row], f"removed from {split} of v{number}")
        for split, rows in changes.remove.items()
        for row in sorted(set(rows))
    ]
    write_failures(path, [*old, *failed], [*removed, *passed_over])
