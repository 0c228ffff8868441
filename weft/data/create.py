"""Makes a dataset from image files: split, decode, resize and pack them, all or nothing, in a folder of its own."""

from __future__ import annotations

import csv
import io
import itertools
import json
import os
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import lmdb
import numpy as np

from ..errors import RunError, UserError
from .checksums import INDEX, write_checksums
from .convert import Converted, Encoding, Recipe, Store
from .dataset import Splits
from .folders import from_folders, split_folders
from .images import Colour, Unreadable, image_size
from .index import Index
from .lists import from_list
from .made import VERSION, open_made
from .plan import Entry, Plan, Small, make_plan
from .resize import WAYS, Resize
from .statistics import Statistics
from .store import WRITERS, Writer
from .team import Team
from .work import DESCRIPTION, Work, check_target, lock, recover

_CHUNK_BYTES, _CHUNK_FILES = 1 << 24, 64
Source = Index | str | os.PathLike[str]


class Progress(NamedTuple):
    """How far a creation has come: files looked at, of how many, and how many of them failed."""

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
    """Make a dataset in `folder` and open it.

    `source` is a folder of class folders, a list of files, or an `Index`. `validation` and `test` are shares of every
    class, or sources of their own; a folder that has folders train, validation and test is divided already. `size` is (height, width); None takes images that all have one size. Classes with
    fewer than `minimum` files are refused, dropped or kept, as `small` says; of larger classes `maximum` files are
    taken. `workers` counts processes; 0 works in this one.

    The folder appears when it is complete. A creation that was stopped goes on where it was when it is started again
    with the same settings. Files that fail are listed in failed.csv; when more than half do, so does the creation.
    """
    _check(size, resize, colour, store, encoding, minimum, maximum, small, seed, workers)
    source, validation, test = _divided_already(source, validation, test)
    index = _as_index(source, None)
    shares = {"validation": _share("validation", validation, index), "test": _share("test", test, index)}
    _check_shares(shares)
    plan = make_plan(index, shares, minimum=minimum, maximum=maximum, small=small, seed=seed)
    recipe = Recipe(size or _common_size(plan), size is None, resize, colour, store, encoding)
    settings = {**recipe.as_json(), "seed": seed, "minimum": minimum, "maximum": maximum, "small": small}
    settings |= {split: share if isinstance(share, float) else share.name for split, share in shares.items()}
    target, digest = Path(os.path.abspath(folder)), plan.digest({"version": VERSION, **settings})
    with lock(target):
        _make(target, digest, plan, recipe, settings, workers, replace, progress)
    return open_made(target)


def _make(
    target: Path,
    digest: str,
    plan: Plan,
    recipe: Recipe,
    settings: dict[str, Any],
    workers: int | None,
    replace: bool,
    progress: Callable[[Progress], None] | None,
) -> None:
    """Fill the hidden folder, describe it, and show it, unless the dataset is there."""
    try:
        recover(target)
        if check_target(target, digest, replace):
            return
        work = Work(target, digest)
        _convert_all(work, plan, recipe, workers, progress)
        _describe(work, plan, recipe, {"digest": digest, "settings": settings})
        work.publish(replace)
    except (OSError, lmdb.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise RunError(
            "create",
            f"{target} cannot be written: {reason}. What is done is kept: mend this and start again with the same settings.",
        ) from error


class _Chunk(NamedTuple):
    split: str
    entries: list[Entry]


def _chunks(plan: Plan, recipe: Recipe) -> list[_Chunk]:
    step = max(1, min(_CHUNK_FILES, _CHUNK_BYTES // int(np.prod(recipe.shape))))
    return [
        _Chunk(split, entries[start : start + step])
        for split, entries in plan.splits.items()
        for start in range(0, len(entries), step)
    ]


def _convert_all(
    work: Work, plan: Plan, recipe: Recipe, workers: int | None, progress: Callable[[Progress], None] | None
) -> None:
    """Convert the chunks that are not done yet. Data first, then its line in the journal."""
    chunks = _chunks(plan, recipe)
    waiting = chunks[len(work.done) :]
    total = sum(len(chunk.entries) for chunk in chunks)
    writers = _Writers(work, chunks, recipe)
    with Team(_how_many(workers, waiting), recipe) as team:
        try:
            results = team.convert([[entry.path for entry in chunk.entries] for chunk in waiting])
            for chunk, result in zip(waiting, results, strict=True):
                writers.of(chunk.split).append(result.images)
                work.note(_record(result))
                if progress is not None:
                    done = sum(len(c.entries) for c in chunks[: len(work.done)])
                    progress(Progress(done, total, sum(len(r["failed"]) for r in work.done)))
            writers.finish(plan, chunks)
        finally:
            writers.close()


def _record(result: Converted) -> dict[str, Any]:
    failed = {str(place): reason for place, reason in enumerate(result.reasons) if reason is not None}
    return {"failed": failed, "counts": result.counts.tolist(), "checksums": [zlib.crc32(i) for i in result.images]}


class _Writers:
    """A writer for each split, opened behind what the journal says is there."""

    def __init__(self, work: Work, chunks: list[_Chunk], recipe: Recipe) -> None:
        self._work, self._recipe = work, recipe
        self._counts: dict[str, int] = {}
        for chunk, record in zip(chunks, work.done, strict=False):  # those without a record are not done
            good = len(chunk.entries) - len(record["failed"])
            self._counts[chunk.split] = self._counts.get(chunk.split, 0) + good
        self._open: dict[str, Writer] = {}

    def of(self, split: str) -> Writer:
        if split not in self._open:
            writer = WRITERS[self._recipe.store]
            self._open[split] = writer(self._work.part(split), self._recipe, self._counts.get(split, 0))
        return self._open[split]

    def finish(self, plan: Plan, chunks: list[_Chunk]) -> None:
        for split in plan.splits:
            records = [record for chunk, record in zip(chunks, self._work.done, strict=True) if chunk.split == split]
            self.of(split).finish([checksum for record in records for checksum in record["checksums"]])

    def close(self) -> None:
        for writer in self._open.values():
            writer.close()


def _describe(work: Work, plan: Plan, recipe: Recipe, known: dict[str, Any]) -> None:
    """Write what belongs to the images: labels, names, failures, and the description of it all."""
    good, failed, counts = _outcome(work, plan, recipe)
    _write_failures(work.folder / "failed.csv", failed, plan.passed_over)
    _check_outcome(work, plan, good, failed)
    for split, entries in good.items():
        np.save(work.part(split) / "labels.npy", np.array([entry.label for entry in entries], np.int64))
        lines = "".join(_escaped(entry.name) + "\n" for entry in entries)
        (work.part(split) / "names.txt").write_bytes(lines.encode("utf-8", "surrogateescape"))
    statistics = Statistics.of(counts)
    description = {
        "format": "weft dataset",
        "version": VERSION,
        "name": plan.name,
        "classes": plan.classes,
        "shape": recipe.shape,
        "store": recipe.store,
        "counts": {split: _counts(plan, entries) for split, entries in good.items()},
        "mean": statistics.mean,
        "std": statistics.std,
        "failed": len(failed),
        "passed_over": len(plan.passed_over),
        **known,
    }
    (work.folder / DESCRIPTION).write_text(json.dumps(description, indent=1) + "\n")
    files = [f"{split}/{name}" for split in good for name in ("labels.npy", INDEX)]
    write_checksums(work.folder, [DESCRIPTION, *files])


def _outcome(
    work: Work, plan: Plan, recipe: Recipe
) -> tuple[dict[str, list[Entry]], list[tuple[str, str]], np.ndarray]:
    good: dict[str, list[Entry]] = {split: [] for split in plan.splits}
    failed: list[tuple[str, str]] = []
    counts = np.zeros((recipe.shape[0], 256), np.int64)
    for chunk, record in zip(_chunks(plan, recipe), work.done, strict=True):
        for place, entry in enumerate(chunk.entries):
            reason = record["failed"].get(str(place))
            if reason is None:
                good[chunk.split].append(entry)
            else:
                failed.append((entry.name, reason))
        if chunk.split == "train":
            counts += np.array(record["counts"], np.int64)
    return good, failed, counts


def _counts(plan: Plan, entries: list[Entry]) -> dict[str, int]:
    labels = np.array([entry.label for entry in entries], np.int64)
    return dict(zip(plan.classes, np.bincount(labels, minlength=len(plan.classes)).tolist(), strict=True))


def _check_outcome(work: Work, plan: Plan, good: dict[str, list[Entry]], failed: list[tuple[str, str]]) -> None:
    total = sum(len(entries) for entries in plan.splits.values())
    report = f"{work.folder / 'failed.csv'} lists them all"
    if 2 * len(failed) > total:
        some = "; ".join(f"{name} {reason}" for name, reason in failed[:3])
        raise RunError("create", f"{len(failed)} of {total} files failed, more than half: {some}. {report}.")
    planned = _counts(plan, plan.splits.get("train", []))
    lost = [name for name, count in _counts(plan, good.get("train", [])).items() if planned[name] and not count]
    if lost:
        raise RunError("create", f"all training files of {', '.join(lost)} failed. {report}.")


def _write_failures(path: Path, failed: Sequence[tuple[str, str]], passed_over: Sequence[tuple[str, str]]) -> None:
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["path", "reason"])
    writer.writerows(failed)
    writer.writerows((name, f"passed over: {reason}") for name, reason in passed_over)
    path.write_bytes(buffer.getvalue().encode("utf-8", "surrogateescape"))


def _escaped(name: str) -> str:
    """A name in one line, whatever it holds."""
    return name.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")


def _divided_already(
    source: Source, validation: float | Source, test: float | Source
) -> tuple[Source, float | Source, float | Source]:
    """A folder with folders train and validation or test keeps its division."""
    parts = split_folders(source) if not isinstance(source, Index) and os.path.isdir(source) else {}
    if not parts:
        return source, validation, test
    return parts["train"], parts.get("validation", validation), parts.get("test", test)


def _as_index(source: Any, classes: tuple[str, ...] | None) -> Index:
    if isinstance(source, Index):
        return source
    if not isinstance(source, (str, os.PathLike)):
        raise UserError("create", f"a source is a folder, a list of files or an Index, got {type(source).__name__}.")
    return from_folders(source, classes) if os.path.isdir(source) else from_list(source, classes=classes)


def _share(name: str, value: Any, index: Index) -> float | Index:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return _as_index(value, index.classes)
    if not 0 <= value < 1:
        raise UserError("create", f"{name} is a share from 0 to below 1, or files of its own, got {value}.")
    return float(value)


def _check_shares(shares: dict[str, float | Index]) -> None:
    total = sum(share for share in shares.values() if not isinstance(share, Index))
    if total >= 1:
        raise UserError("create", f"validation and test take {total:g} of all files: nothing is left to learn from.")


def _common_size(plan: Plan) -> tuple[int, int]:
    """The size of most of the first images; those that differ will be reported when their turn comes."""
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


def _how_many(workers: int | None, waiting: list[_Chunk]) -> int:
    if workers is not None:
        return min(workers, len(waiting))
    # A process takes longer to start than a few files take to convert.
    return 0 if len(waiting) < 3 else min(len(os.sched_getaffinity(0)), len(waiting))


def _check(
    size: Any, resize: Any, colour: Any, store: Any, encoding: Any, minimum: int, maximum: int | None, small: Any,
    seed: int, workers: int | None,
) -> None:  # fmt: skip
    choices = {
        "resize": (resize, WAYS), "colour": (colour, ("rgb", "gray")), "store": (store, ("arrays", "lmdb")),
        "encoding": (encoding, ("png", "jpeg")), "small": (small, ("refuse", "drop", "keep")),
    }  # fmt: skip
    for name, (value, known) in choices.items():
        if value not in known:
            raise UserError("create", f"{name} is one of {', '.join(known)}, got {value!r}.")
    if size is not None and not (len(size) == 2 and all(isinstance(n, int) and 1 <= n <= 16384 for n in size)):
        raise UserError("create", f"size is (height, width), each from 1 to 16384, got {size}.")
    bounds = {"minimum": (minimum, 0), "maximum": (maximum, 1), "seed": (seed, 0), "workers": (workers, 0)}
    for name, (number, least) in bounds.items():
        if number is not None and number < least:
            raise UserError("create", f"{name} must be {least} or more, got {number}.")
