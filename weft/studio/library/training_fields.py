"""The fields of the form of a training: every setting with its title, unit and help, in groups."""

from __future__ import annotations

from ...jobs.schema import Setting, as_text
from ...jobs.settings import SETTINGS
from ...jobs.sweeps.search_space import SWEPT
from ...records import dataclass


@dataclass(frozen=True)
class Field:
    """A field of the form."""

    name: str
    setting: Setting
    title: str
    unit: str = ""
    about: str = ""  # what the form says of it, where that is not the help of the command line
    empty: str = ""  # what leaving it empty is called

    @property
    def help(self) -> str:
        return self.about or self.setting.help

    @property
    def placeholder(self) -> str:
        return "" if self.setting.default is None else as_text(self.setting.default)

    @property
    def can_sweep(self) -> bool:
        return self.name in SWEPT and not self.setting.choices and self.setting.type != "boolean"


@dataclass(frozen=True)
class FieldGroup:
    """Fields that belong together."""

    title: str
    purpose: str
    fields: tuple[Field, ...]
    more: tuple[Field, ...] = ()  # shown on demand


_TITLES = {
    "rate": "Learning rate", "data": "Dataset", "model": "Network", "batch": "Batch size", "size": "Image size", "clip_norm": "Gradient clipping",
    "final_rate": "Final learning rate", "body_rate": "Rate of pretrained layers", "max_seconds": "Time limit", "eps": "Epsilon", "keep": "Checkpoints kept",
    "freeze": "Frozen epochs", "freeze_layers": "Frozen layers", "validation": "Validation share", "weights": "Start from", "augment": "Augmentation", "flip": "Horizontal flip", "warmup": "Warm-up",
    "patience": "Early stopping", "from": "Source folder", "average": "Weight averaging", "accumulate": "Gradient accumulation", "steps": "Steps per epoch", "bias_rate": "Rate of biases",
    "workers": "Loader threads", "length": "Sequence length", "hidden": "Hidden size", "zero": "ZeRO stage", "micro_batches": "Micro-batches", "recompute": "Activation recomputation", "cuts": "Pipeline cuts", "memory": "Memory limit",
    "fast_dev_run": "Dry run", "overfit": "Overfit batches", "resident": "Data on the device", "heads": "Attention heads", "window": "Attention window", "views": "Test-time views", "mixup": "MixUp", "cutmix": "CutMix", "alternate_flips": "Alternating flips",
}  # fmt: skip
_UNITS = {
    "epochs": "epochs", "warmup": "epochs", "patience": "epochs", "freeze": "epochs", "freeze_layers": "layers", "batch": "examples", "accumulate": "batches", "size": "pixels",
    "max_seconds": "seconds", "length": "tokens", "stride": "tokens", "window": "tokens", "fast_dev_run": "batches", "overfit": "batches", "keep": "epochs", "milestones": "epochs", "workers": "threads", "steps": "steps",
}  # fmt: skip
_EMPTY = {
    "recipe": "None",
    "augment": "None",
    "precision": "float32 (default)",
    "colour": "As in the files",
    "flip": "By the images",
    "positions": "Learned (default)",
}
_ABOUT = {
    "data": "a dataset, a folder of images, or a file (.npz, .csv, .txt)",
    "model": "a network of the zoo, one of yours, or a YAML file",
    "recipe": "fills in settings: published ones, or yours",
    "weights": "a run, pretrained weights, or a file",
    "batch": "“auto” finds the largest that fits",
    "rate": "or “auto”; several values make a sweep",
    "optimizer": "how gradients become updates",
    "schedule": "how the learning rate changes over the training",
    "warmup": "the learning rate rises first",
    "patience": "stop after so many epochs without improvement",
    "augment": "random changes of each training image",
    "flip": "on for colour images unless you choose",
    "weight_decay": "the optimizer's own unless given",
    "label_smoothing": "share of the target spread over all classes",
    "precision": "mixed precision computes most operations in 16 bits",
    "name": "DATA-MODEL-1, -2, … unless given",
    "tags": "separated by commas",
    "group": "runs of a group are listed together",
}


def setting_title(name: str) -> str:
    """The title of a setting in forms and tables."""
    return _TITLES.get(name, name.replace("_", " ").capitalize())


def _fields(*names: str) -> tuple[Field, ...]:
    return tuple(
        Field(
            name, SETTINGS[name], setting_title(name), _UNITS.get(name, ""), _ABOUT.get(name, ""), _EMPTY.get(name, "")
        )
        for name in names
    )


GROUPS = (
    FieldGroup("Data and network", "What to train, on what, and from which weights.", _fields("data", "model", "weights", "recipe"), _fields("validation", "size", "resize", "colour", "labels", "freeze", "freeze_layers", "body_rate", "views", "from")),
    FieldGroup("Optimization", "How long, and in what steps.", _fields("epochs", "batch", "optimizer", "rate", "schedule", "warmup"), _fields("patience", "momentum", "nesterov", "betas", "eps", "clip_norm", "final_rate", "milestones", "gamma", "power", "bias_rate", "accumulate", "steps", "loss", "seed")),
    FieldGroup("Augmentation", "Random changes to each image, and other regularization.", _fields("augment", "flip", "weight_decay", "label_smoothing"), _fields("mixup", "cutmix", "average", "alternate_flips")),
    FieldGroup("Machine and name", "Where it runs, and how you find it again.", _fields("device", "precision", "name", "tags", "group", "notes"), _fields("parallel", "micro_batches", "pipeline_schedule", "recompute", "cuts", "staleness", "zero", "local_steps", "memory", "max_seconds", "keep", "workers", "resident", "fast_dev_run", "overfit")),
    FieldGroup("Text", "Only for networks that learn from text.", (), _fields("tokenizer", "length", "stride", "hidden", "layers", "dropout", "heads", "key_heads", "positions", "window")),
)  # fmt: skip
# Settings that the form leaves out: the studio sets them, or has something better (folds).
NOT_IN_FORM = ("runs", "exist_ok", "json", "fold")
