"""A training as the command line describes it: from settings to data, network, preparation and rate."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .. import data, nn
from ..data.mixup import MixAugmentation
from ..data.open import created_dataset_folder, data_path, is_image_source, same_name_note
from ..errors import RunError, UserError
from ..io import load
from ..random import seed as set_seed
from ..report.text_format import counted, listed
from ..saved.program import load as load_program
from ..signals import Terminated
from ..tensor import Tensor
from ..tracing.jit import jit
from ..train.forecast import Forecast, forecast, output_types
from ..train.making import TrainingPlan
from ..train.task import prediction_of
from ..zoo.catalogue import default_rate
from ..zoo.whitened import WhitenedCNN
from .datasets.facts import FACTS, example
from .definitions import definition_of, fitted_definition, network_label
from .events import Recorder
from .networks import default_network, fitted_network, full_name, loss_of, side
from .optimizers import mix, optimizer_settings
from .run_weights import weights_path
from .schema import fold_numbers
from .weights import load_initial_weights

MADE_IS_KEPT = "the part of the dataset that was created is kept; the same command continues from there"
TASKS = ("classify", "regress", "text")  # the folders of runs, one for each task
REWRITTEN = "network.weft"  # of a run whose layers a compression has changed: its network, which the settings no longer describe
ENSEMBLE = "ensemble.json"  # of a run made of several: members with their scores (see ensembles/ensemble.py)
LEAST_DEVIATION = 1e-3  # of a channel that is normalized: one that hardly varies would become noise
WHITENED = 5000  # training images that a whitening layer is fitted to
CARVED = 0.1  # fraction of training data held out if there is no validation split
USUAL_BATCH, LEAST_BATCH, LEAST_STEPS = (
    64,
    8,
    16,
)  # few examples get smaller batches, for at least so many steps an epoch


def usual_batch(examples: int) -> int:
    """The default batch size: the largest power of two up to USUAL_BATCH that leaves enough steps in an epoch."""
    most = max(LEAST_BATCH, min(USUAL_BATCH, examples // LEAST_STEPS))
    return 1 << (most.bit_length() - 1)


def _first(value: Any, otherwise: Any) -> Any:
    return otherwise if value is None else value


class Job:
    """Data, network and preparation of a training. The same settings give the same job, in a later process too."""

    def __init__(
        self, settings: Mapping[str, Any], splits: data.Splits | None = None, recorder: Recorder | None = None
    ) -> None:
        self.settings, self.notes, self.recorder = dict(settings), list[str](), recorder or Recorder()
        self.is_ensemble = False  # whose members have their own preprocessing
        self.definition = definition_of(settings)
        named = None
        if settings["model"] is not None:
            named = full_name(settings["model"]) if self.definition is None else str(settings["model"])
        if splits is None:
            own = None if named is None else self._own_size(named)
            self.opened = self._open(own)
            splits = data.held_out(self._folded(self.opened), _first(settings["validation"], CARVED), settings["seed"])
        else:
            self.opened = splits
        self.splits = splits
        self.train = self.splits.train
        self.statistics = self.train.statistics
        self.name = named or default_network(self.train)
        self._note_classes()
        self.settings |= {"model": self.name, "batch": _first(settings["batch"], self.usual_batch())}

    @property
    def label(self) -> str:
        """The name of the network, also if it is a file."""
        return network_label(self.name)

    def _own_size(self, name: str) -> tuple[int, int] | None:
        """The size of the images that a network is made for; None: any."""
        if self.definition is None:
            own = side(name)
            return None if own is None else (own, own)
        shape = self.definition.input
        return (shape[1], shape[2]) if shape is not None and len(shape) == 3 else None

    def _open(self, own_size: tuple[int, int] | None) -> data.Splits:
        what, making = Path(self.settings["data"]).expanduser(), {}
        path = data_path(self.settings["data"])
        images = path is not None and is_image_source(path)
        if note := same_name_note(self.settings["data"]):
            self.notes.append(note)
        if images:
            making = {n: self.settings[n] for n in ("resize", "colour", "labels", "seed", "validation")}
            making["small"] = "keep"  # a class with one image is a warning, not an error
            making["size"] = self.settings["size"] or own_size
            if self.settings["fold"] is not None:
                making["validation"] = 0.0  # all files belong to folds; validation examples come from the other folds
        elif what.suffix.lower() == ".txt":
            making = {name: self.settings[name] for name in ("length", "tokenizer")}
            making |= {} if self.settings["stride"] is None else {"stride": self.settings["stride"]}
        reading = f"reading {what.name}"
        self.recorder.show("activity", text=reading)
        try:
            found = data.open_dataset(
                self.settings["data"],
                from_=self.settings["from"],
                progress=lambda at: self.recorder.show("progress", what=reading, done=at.done, total=at.total),
                **making,
            )
        except Terminated:
            if images:
                self.recorder.log(MADE_IS_KEPT, "warning")
            raise
        if images:
            self._note_failures(created_dataset_folder(what, **making))
        return found

    def _folded(self, splits: data.Splits) -> data.Splits:
        """With a fold of a cross-validation held out, if that is set."""
        if self.settings["fold"] is None:
            return splits
        return data.fold_splits(splits, *fold_numbers(self.settings["fold"]), self.settings["seed"])

    def _note_failures(self, folder: Path) -> None:
        """Add a note about files that could not be read."""
        failed = data.describe(folder)["failed"]
        if failed:
            self.notes.append(f"{counted(failed, 'file')} could not be read: see {folder / 'failed.csv'}")

    def _note_classes(self) -> None:
        """Add warnings about classes without examples, or with one."""
        if not self.train.classes:
            return
        counts = self.train.counts()
        found = [name for name, count in counts.items() if count]
        if len(found) < 2 and self.train.labels.ndim == 1:
            self.notes.append(
                f"warning: there is only one class, {listed(found)}: a network learns to predict it always"
            )
        single = [name for name in found if counts[name] == 1]
        if single and len(found) > 1:
            verb = "has" if len(single) == 1 else "have"
            self.notes.append(f"warning: {listed(single)} {verb} only one training image")
        absent = [name for name in counts if not counts[name]]
        if absent and found:
            self.notes.append(f"warning: there are no training examples of {listed(absent)}")

    def usual_batch(self) -> int:
        """The default batch size; a text sequence holds many examples, so a batch has fewer of them."""
        return usual_batch(len(self.train)) // (2 if isinstance(self.train, data.Text) else 1)

    @property
    def kind(self) -> str:
        """The task, which names the folder of its runs."""
        if isinstance(self.train, data.Text):
            return "text"
        return "classify" if self.train.classes else "regress"

    @property
    def is_image_source(self) -> bool:
        return len(self.train.shape) == 3 and not isinstance(self.train, data.Text)

    def loaders(self) -> tuple[data.Loader, data.Loader | None]:
        """Loaders of training and of validation batches."""
        batch, workers = min(self.settings["batch"], len(self.train)), self.settings["workers"]
        limit = None if self.settings["steps"] is None else self.settings["steps"] * self.settings["accumulate"]
        train = data.Loader(self.train, batch, seed=self.settings["seed"], drop_last=True, workers=workers, limit=limit)
        return train, None if self.splits.validation is None else self.checks(self.splits.validation)

    def checks(self, dataset: data.Dataset) -> data.Loader:
        return data.Loader(dataset, 256, shuffle=False, workers=self.settings["workers"])

    def model(self) -> nn.Module:
        """A new network with initialized parameters."""
        set_seed(self.settings["seed"])
        model = self._built(self._size())
        output_types(model, self.prepare(), self.train.inputs(np.arange(1)))
        return model

    def check_memory(self) -> None:
        """Reject a network that does not fit in memory before anything is allocated, and suggest an image size that does."""
        self._forecast(self._size()).check(self._smaller)

    def _size(self) -> tuple[int, int] | None:
        return self.size() if self.is_image_source else None

    def _built(self, size: tuple[int, int] | None) -> nn.Module:
        if self.definition is not None:
            return fitted_definition(self.definition, self.train, size)
        return fitted_network(self.name, self.train, size, self.settings)

    def _forecast(self, size: tuple[int, int] | None) -> Forecast:
        example = self.train.inputs(np.arange(1))
        prepare = self.prepare() if size is None else self.prepare(size)
        return forecast(
            lambda: self._built(size),
            lambda model: output_types(model, prepare, example),
            self.plan().optimizer_share(),
        )

    def _smaller(self) -> str:
        """A size that fits: half of the size, or half of that."""
        size = self._size()
        while size is not None and min(size) > 8:
            size = size[0] // 2, size[1] // 2
            try:
                fits = self._forecast(size).fits()
            except UserError:  # the network does not take images that small
                break
            if fits:
                shown = str(size[0]) if size[0] == size[1] else f"{size[0]}x{size[1]}"
                return f"size={shown} would fit."
        return "Take a smaller network (weft models lists them)."

    def plan(self) -> TrainingPlan:
        """How the network is trained, except for the learning rate."""
        return TrainingPlan(
            self.settings["optimizer"], 1e-3, self.loss(), (), self.prepare(), self.settings["precision"],
            settings=self.optimizer_settings(), label_smoothing=self.settings["label_smoothing"], mix=self.mix(),
            memory=self.settings["memory"],
        )  # fmt: skip

    def initialize_from_weights(self, model: nn.Module) -> list[str]:
        """Load pretrained weights, if any; the names of the parameters that were loaded. Images are normalized as the weights expect."""
        if self.settings["weights"] is None:
            return []
        loaded = load_initial_weights(model, self.name, self.settings["weights"], self.settings["runs"])
        if loaded.statistics is not None and self.is_image_source:
            self.statistics = data.Statistics(*loaded.statistics)
            self.notes.append(f"images are normalized as {self.settings['weights']} expects")
        if loaded.new_head:
            self.notes.append(
                f"{listed(loaded.new_head)} of {self.settings['weights']} is for other classes: this layer is newly initialized"
            )
        return [name for name in model.named_parameters() if name in set(loaded.names)]

    def initialize_from_data(self, model: nn.Module) -> None:
        """Fit layers that depend on the training data and are not trained: those that whiten patches."""
        if isinstance(model, WhitenedCNN) and self.settings["weights"] is None:
            self.recorder.show("activity", text="whitening patches")
            prepare, some = self.prepare().eval(), np.arange(min(len(self.train), WHITENED))
            model.whiten(jit(prepare)(self.train.inputs(some)))

    def prepare(self, size: tuple[int, int] | None = None) -> nn.Module:
        """Preprocessing and augmentation, from stored inputs to those of the network; part of the compiled step."""
        if not self.is_image_source:
            return nn.Sequential()
        if self.is_ensemble:
            return nn.Sequential(data.ToFloat())
        wanted = size or self.size()
        parts = self._to_size(wanted)
        if self.settings["augment"] is not None:
            flip = _first(self.settings["flip"], self.train.shape[0] == 3) and not self.settings["alternate_flips"]
            parts.append(data.augmentation(self.settings["augment"], wanted, flip=flip))
        if self.statistics is not None:
            parts.append(data.Normalize(self.statistics.mean, [max(s, LEAST_DEVIATION) for s in self.statistics.std]))
        return nn.Sequential(*parts)

    def _to_size(self, wanted: tuple[int, int]) -> list[nn.Module]:
        """From stored images to floats of this size."""
        stored = tuple(self.train.shape[1:])
        return [data.ToFloat()] if wanted == stored else [data.ToFloat(), nn.Resizing(wanted)]

    def resized(self, images: Tensor) -> Tensor:
        """Stored images as floats, in the size of the network's input."""
        resized: Tensor = nn.Sequential(*self._to_size(self.size()))(images)
        return resized

    def size(self) -> tuple[int, int]:
        """The size of the network's input images: as set, as required by the network, or as stored."""
        height, width = self.settings["size"] or self.train.shape[1:]
        own = self._own_size(self.name)
        return own if own is not None and not self.settings["size"] else (height, width)

    def loss(self) -> Any:
        return loss_of(self.name, self.settings["loss"])

    def peak_rate(self, parameters: int) -> float:
        """The learning rate that was set, or the default for the optimizer and the network."""
        usual_rate = default_rate(self.name, self.settings["optimizer"], parameters)
        return float(_first(self.settings["rate"], usual_rate))

    def mix(self) -> MixAugmentation | None:
        """MixUp or CutMix, if set."""
        return mix(self.settings, len(self.train.classes), self.is_image_source)

    def optimizer_settings(self) -> dict[str, Any]:
        """Settings of the optimizer besides the learning rate."""
        found = optimizer_settings(self.settings)
        if isinstance(self.train, data.Text):  # gradients through many time steps may explode
            found.setdefault("clip_norm", 1.0)
        return found

    def trained(self, folder: Path, checkpoint: str = "best") -> tuple[nn.Module, Callable[[Any], Tensor]]:
        """The network with the best weights of a run, or those of another checkpoint, and its predictions for stored inputs, compiled."""
        path = weights_path("weft", folder, checkpoint)
        if (folder / REWRITTEN).exists():
            model: nn.Module = load_program(folder / REWRITTEN).eval()
        else:
            model = self.model().eval().load(load(path))
        prepare = self.prepare().eval()
        return model, jit(lambda x: prediction_of(model(prepare(x))))


def job_of_run(settings: Mapping[str, Any], folder: Path) -> Job:
    """The job of a run for inference: its data may be gone."""
    try:
        known = json.loads((folder / FACTS).read_text(encoding="utf-8"))
        job = Job(settings, data.Splits(example(known)))
        job.is_ensemble = (folder / ENSEMBLE).exists() and (folder / REWRITTEN).exists()
        return job
    except FileNotFoundError:
        return Job(settings)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError("weft", f"{folder / FACTS} is damaged: {type(error).__name__}: {error}.") from None


def held_out(splits: data.Splits, name: str | None) -> tuple[str, data.Dataset]:
    """The split to evaluate on: the test split if there is one, since it decided nothing."""
    found = {n: s for n, s in (("test", splits.test), ("validation", splits.validation), ("train", splits.train)) if s}
    if name is not None and name not in found:
        raise UserError("weft eval", f"there is no {name} split; there are {', '.join(found)}.")
    return (name, found[name]) if name is not None else next(iter(found.items()))


def job_of(verb: str, settings: Mapping[str, Any], recorder: Recorder | None = None) -> Job:
    """The job of these settings, which must name data."""
    if settings["data"] is None:
        raise UserError(f"weft {verb}", "data is required, got none: weft train digits, or data=FOLDER.")
    return Job(settings, recorder=recorder)
