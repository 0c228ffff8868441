"""The form of a new dataset: from its fields to the settings of the job, what was found in the source, and a forecast of size and time."""

from __future__ import annotations

import os
import re
import shlex
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from ...data.catalogue import known_names
from ...data.convert import ConversionOptions, Encoding, Store
from ...data.images import Colour
from ...data.label_kinds import LabelKind
from ...data.open import CREATE_SETTINGS
from ...data.resize import Resize
from ...data.scan import SourceScan, scan_source
from ...data.worker_pool import ImageWorker
from ...errors import UserError, WeftError
from ...jobs.datasets.create import CONVERSION, check_dataset_name, checked_dataset_settings
from ...jobs.schema import validated
from ...records import dataclass
from ..paths import AllowedPaths
from ..uploads import UploadStore

SOURCES = {"folder": "Server folder", "upload": "Upload", "list": "List or CSV", "npz": "npz", "known": "Known set"}
DEFAULTS = {
    "kind": "folder", "source": "", "upload": "", "known": "digits", "name": "", "labels": "class", "split": "shares",
    "validation": "25", "test": "0", "validation_path": "", "test_path": "", "size": "128", "resize": "crop", "colour": "rgb",
    "store": "lmdb", "encoding": "jpeg", "minimum": "2", "maximum": "", "small": "drop", "seed": "0",
}  # fmt: skip
_TIMED = 4  # images that are converted for the forecast
_SCANS = 32  # that are remembered
_SCAN_SECONDS = 60.0  # for which a scan holds
_IMBALANCE = 3.0  # times as many images of the largest class as of the smallest


@dataclass(frozen=True)
class DatasetForecast:
    """What a dataset will take: bytes on disk as chosen and with the other encodings, and seconds."""

    nbytes: int
    others: Mapping[str, int]
    seconds: float


@dataclass(frozen=True)
class DatasetFormCheck:
    """What is known of a form: errors by field, the settings of the job, what the source holds, a forecast."""

    errors: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] | None = None
    scan: SourceScan | None = None
    forecast: DatasetForecast | None = None
    warning: str = ""
    command: str = ""
    sample: str = ""  # path of the image of the preview

    @property
    def is_ready(self) -> bool:
        return self.settings is not None and not self.errors


class DatasetForms:
    """Checks forms. Sources are looked at once a minute; images are decoded in a process of their own."""

    def __init__(self, root: Path, paths: AllowedPaths, uploads: UploadStore) -> None:
        self.root, self.paths, self.uploads = root, paths, uploads
        self.worker = ImageWorker()
        self._scans: OrderedDict[tuple[str, str], tuple[float, SourceScan]] = OrderedDict()
        self._forecasts: OrderedDict[tuple[Any, ...], DatasetForecast] = OrderedDict()
        self._lock = threading.Lock()

    # --- settings -----------------------------------------------------------------------------------------------------------

    def settings(self, given: Mapping[str, str]) -> dict[str, Any]:
        """The settings of the job that creates the dataset; the first thing that is wrong is an error that begins with its field."""
        values = {**DEFAULTS, **{name: str(text).strip() for name, text in given.items()}}
        source = self.source(values)
        if source in known_names() or Path(source).suffix.lower() == ".npz":
            usual = usual_conversion(self.scan(source, values["labels"]))
            values |= {name: text for name, text in usual.items() if not given.get(name)}
        name = check_dataset_name(values["name"])
        settings = {
            "source": str(source), "folder": str(self.root / name / "v1"), "name": name,
            **{n: values[n] for n in ("size", "resize", "colour", "labels", "minimum", "small", "seed", "store", "encoding")},
            "maximum": values["maximum"] or None, **self._splits(values),
        }  # fmt: skip
        if values["kind"] == "upload":
            settings["discard"] = str(self.uploads.folder(values["upload"]))
        if (self.root / name).exists() and any((self.root / name).iterdir()):
            raise UserError("studio", f"name {name} exists. Choose another, or add images to {name} on its page.")
        return checked_dataset_settings({n: v for n, v in settings.items() if v != "" and v is not None})

    def source(self, values: Mapping[str, str]) -> str | Path:
        """Where the images are: an allowed path, an upload, or the name of a known dataset."""
        kind = values["kind"]
        if kind not in SOURCES:
            raise UserError("studio", f"kind must be one of {', '.join(SOURCES)}, got {kind!r}.")
        if kind == "known":
            if values["known"] not in known_names():
                raise UserError("studio", f"known must be one of {', '.join(known_names())}, got {values['known']!r}.")
            return values["known"]
        if kind == "upload":
            if not values["upload"]:
                raise UserError("studio", "upload is required: drop a zip file, files or folders.")
            return self.uploads.source(values["upload"])
        if not values["source"]:
            raise UserError("studio", "source is required.")
        try:
            found = self.paths.path(values["source"], "path")
        except UserError as error:
            raise UserError("studio", f"source: {error.message}") from None
        wanted = {
            "folder": found.is_dir(),
            "list": found.suffix.lower() in (".csv", ".txt"),
            "npz": found.suffix.lower() == ".npz",
        }
        if not wanted[kind]:
            what = {"folder": "a folder", "list": "a .csv or .txt file", "npz": "an .npz file"}[kind]
            raise UserError("studio", f"source must be {what}, got {found.name}.")
        return found

    def suggested_name(self, values: Mapping[str, str]) -> str:
        """A name for the dataset that follows from its source."""
        try:
            source = Path(self.source(values))
        except WeftError:
            return ""
        if values["kind"] == "known":
            return f"my-{source}"
        name = re.sub(r"[^A-Za-z0-9_.-]+", "-", source.stem).strip("-.")[:60]
        return "" if name == values["upload"] else name

    def _splits(self, values: Mapping[str, str]) -> dict[str, Any]:
        if values["split"] == "folders":
            return {
                split: str(self.paths.path(values[f"{split}_path"], f"{split} folder or list"))
                for split in ("validation", "test")
                if values[f"{split}_path"]
            } or {"validation": 0.0}
        found = {}
        for split in ("validation", "test"):
            try:
                found[split] = float(values[split] or 0) / 100
            except ValueError:
                raise UserError("studio", f"{split} must be a percentage, got {values[split]!r}.") from None
        return found

    # --- checks -------------------------------------------------------------------------------------------------------------

    def check(self, given: Mapping[str, str]) -> DatasetFormCheck:
        """Everything that is known of a form. Nothing is created."""
        values = {**DEFAULTS, **{name: str(text).strip() for name, text in given.items()}}
        errors: dict[str, str] = {}
        scan = settings = None
        try:
            scan = self.scan(self.source(values), values["labels"])
        except WeftError as error:
            typing = values["kind"] in ("folder", "list", "npz") and self._is_begun(values["source"])
            if (values["source"] or values["upload"] or values["kind"] == "known") and not typing:
                errors |= _by_field(error.message, "upload" if values["kind"] == "upload" else "source")
        try:
            settings = self.settings(values)
        except WeftError as error:
            if not errors and (values["name"] or not error.message.startswith("name")) and scan is not None:
                errors |= _by_field(error.message, "name")
        sample = "" if scan is None else _sample(scan)
        forecast = self.forecast(scan, values) if scan is not None and not errors.keys() & {"size", "colour"} else None
        return DatasetFormCheck(
            errors, settings, scan, forecast, _warning(scan), "" if values["kind"] == "upload" else _command(settings), sample
        )  # fmt: skip

    def _is_begun(self, typed: str) -> bool:
        """Whether paths begin with what was typed: it is no error yet."""
        return not typed.endswith("/") and any(path.rstrip("/") != typed for path in self.paths.complete(typed))

    def scan(self, source: str | Path, labels: str) -> SourceScan:
        """Look at a source, or remember what the last look found."""
        key = str(source), labels
        with self._lock:
            known = self._scans.get(key)
        if known is None or time.monotonic() - known[0] > _SCAN_SECONDS:
            kind: LabelKind = labels if labels in ("classes", "numbers") and not Path(source).is_dir() else "class"  # type: ignore[assignment]
            known = time.monotonic(), scan_source(source, kind)
            with self._lock:
                self._scans[key] = known
                while len(self._scans) > _SCANS:
                    self._scans.popitem(last=False)
        return known[1]

    def forget(self, source: str | Path) -> None:
        """Look again: the source has changed."""
        with self._lock:
            for key in [key for key in self._scans if key[0] == str(source)]:
                del self._scans[key]

    # --- images -------------------------------------------------------------------------------------------------------------

    def preview(self, path: Path, size: str, way: str, colour: str) -> tuple[bytes, str]:
        """An image file under a resize mode, encoded; in the way that `create` converts it."""
        options = _options({"size": size, "resize": way, "colour": colour, "store": "lmdb", "encoding": "png"})
        result = self.worker.convert([str(path)], options)
        if not result.images:
            raise UserError("studio", f"{path.name} {result.reasons[0]}.")
        return result.images[0], "image/png"

    def forecast(self, scan: SourceScan, values: Mapping[str, str]) -> DatasetForecast | None:
        """Measured on a few images of the source."""
        try:
            options = {
                encoding: _options({**values, "store": "lmdb", "encoding": encoding}) for encoding in ("jpeg", "png")
            }
        except WeftError:
            return None
        chosen = list(scan.samples[:: max(1, len(scan.samples) // _TIMED)][:_TIMED])
        key = (tuple(chosen), scan.images, str(options["png"]), values["store"], values["encoding"])
        if key not in self._forecasts:
            self._forecasts[key] = self._measured(scan, chosen, options, values)
            while len(self._forecasts) > _SCANS:
                self._forecasts.popitem(last=False)
        return self._forecasts[key]

    def _measured(
        self, scan: SourceScan, chosen: list[str], options: Mapping[str, ConversionOptions], values: Mapping[str, str]
    ) -> DatasetForecast:
        channels, height, width = options["png"].shape
        sizes = {"arrays": scan.images * channels * height * width}
        seconds = 0.0
        for encoding, way in options.items():
            start = time.perf_counter()
            images = self.worker.convert(chosen, way).images
            seconds = time.perf_counter() - start
            share = sum(map(len, images)) / max(1, len(images)) if images else 0.6 * channels * height * width
            sizes[encoding] = int(scan.images * (share + 64))
        chosen_store = "arrays" if values["store"] == "arrays" else values["encoding"]
        each = seconds / max(1, len(chosen)) / max(1, len(os.sched_getaffinity(0)))
        others = {name: size for name, size in sizes.items() if name != chosen_store}
        return DatasetForecast(sizes[chosen_store], others, scan.images * each + 1.0)


def usual_conversion(scan: SourceScan | None) -> dict[str, str]:
    """Size and colour where nobody has chosen them: arrays stay as they are, image files become squares of the default."""
    if scan is None or scan.channels is None or not scan.sizes:
        return {name: DEFAULTS[name] for name in ("size", "colour")}
    return {"size": "x".join(map(str, scan.sizes[0])), "colour": "gray" if scan.channels == 1 else "rgb"}


def _sample(scan: SourceScan) -> str:
    """The image whose shape differs most from a square: there the resize modes differ most."""
    shapes = zip(scan.samples, scan.sizes, strict=False)
    return max(shapes, key=lambda one: max(one[1]) / max(1, min(one[1])), default=("", (1, 1)))[0]


def _options(values: Mapping[str, Any]) -> ConversionOptions:
    known = validated(
        "dataset",
        {n: values[n] for n in ("size", "resize", "colour", "store", "encoding") if values.get(n)},
        CONVERSION,
    )
    size: tuple[int, int] = known["size"] or (128, 128)
    way: Resize = known["resize"]
    colour: Colour = known["colour"]
    store: Store = known["store"]
    encoding: Encoding = known["encoding"]
    if max(size) > 4096:
        raise UserError("studio", f"size must be at most 4096 here, got {max(size)}.")
    return ConversionOptions(size, False, way, colour, store, encoding)


def _by_field(message: str, otherwise: str) -> dict[str, str]:
    """An error by the field that it begins with."""
    first = message.split(" ", 1)[0].split("=")[0].rstrip(":")
    place = first if first in DEFAULTS else "name" if first == "folder" else otherwise
    shown = message.removeprefix("source: ") if place == "source" else message
    return {place: shown[:1].upper() + shown[1:]}


def _warning(scan: SourceScan | None) -> str:
    """What is worth knowing before the dataset is made."""
    if scan is None or len(scan.classes) < 2 or scan.labels == "numbers":
        return ""
    largest, smallest = (
        max(scan.classes, key=lambda n: scan.classes[n]),
        min(scan.classes, key=lambda n: scan.classes[n]),
    )
    times = scan.classes[largest] / max(1, scan.classes[smallest])
    if times < _IMBALANCE:
        return ""
    return f"{smallest} has {times:.1f} times fewer images than {largest}. A network may neglect it: add images, or set a maximum per class."


def _command(settings: Mapping[str, Any] | None) -> str:
    """The same on the command line."""
    if settings is None:
        return ""
    words = ["weft dataset create", shlex.quote(settings["source"]), shlex.quote(settings["folder"])]
    for name in CREATE_SETTINGS:
        value = settings[name]
        if value != CREATE_SETTINGS[name] and value is not None:
            shown = "x".join(map(str, value)) if isinstance(value, tuple | list) else value
            words.append(shlex.quote(f"{name}={shown}"))
    return " ".join(words)
