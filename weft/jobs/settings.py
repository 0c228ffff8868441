"""Every setting of a training in one table."""

from __future__ import annotations

from typing import Any

from ..errors import UserError
from ..knobs import KNOBS, memory_size
from ..lazy import load_registrations
from ..parallel.forms import AUTO, COUNTED, CUTS, FORMS, MEASURED, UNBOUNDED, read_form
from ..text.tokenizer import LEAST_BYTE_PAIRS, is_tokenizer_name
from .annotations import group_name, notes_text, tag_names
from .schema import (
    Setting,
    as_text,
    count,
    count_or_auto,
    flag,
    fold,
    fraction,
    not_negative,
    number,
    number_or_auto,
    numbers,
    positive,
    seed,
    sizes,
    two_fractions,
    whole,
    zero_stage,
)


def device_name(text: str) -> str:
    """The name of a device. Whether this machine has it is checked when it is used: a run of another machine may name one."""
    load_registrations()  # help does without
    known = KNOBS["device"].choices
    if text.partition(":")[0] not in known:
        raise ValueError(f"it must be one of {', '.join(sorted(known))}")
    return text


def parallel_sizes(text: str) -> str:
    """How processes share a training."""
    if text != AUTO:
        try:
            read_form(text)
        except UserError:
            raise ValueError(f"it must be {FORMS}") from None
    return text


def staleness_bound(text: str) -> int | str:
    """The bound of a parameter server."""
    return text if text == UNBOUNDED else whole(text)


def stage_cuts(text: str) -> str | tuple[str, ...]:
    """Where stages of a pipeline end: measured, counted, or the names of layers."""
    if text in (MEASURED, COUNTED):
        return text
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise ValueError(f"it must be {CUTS}")
    return names


def tokenizer_name(text: str) -> str:
    """What the tokens of a text are. Whether a file is there is checked when it is read."""
    if not is_tokenizer_name(text) and not text.endswith(".json"):
        raise ValueError(
            f"it must be characters, bpe:SIZE with a size of {LEAST_BYTE_PAIRS} or more, or a tokenizer.json"
        )
    return text


DEVICE = Setting(
    device_name, None, "cpu, cuda, cuda:1, ...; default: WEFT_DEVICE or cpu", "hardware", nothing=("none",)
)  # null is a device
JSON = Setting(flag, False, "print JSON, for programs", "output")


GROUPS = ("data", "network", "training", "optimizer", "schedule", "regularization", "hardware", "stopping", "output")

POSITIONS = ("learned", "rotary", "alibi")

# Settings of most trainings: the short help shows these.
COMMON = (
    "data", "recipe", "size", "augment", "model", "weights", "epochs", "batch", "optimizer", "rate", "schedule", "weight_decay",
    "precision", "device", "patience", "name",
)  # fmt: skip

# Settings that differ between any two runs: a copy of a run does not take them over, a comparison leaves them out.
OF_ONE_RUN = ("name", "runs", "json", "exist_ok", "tags", "group", "notes")

# Of a command, not of a run: a cross-validation trains one run for each fold.
FOLDS_SETTING = Setting(count, None, "cross-validation with this number of folds, a network for each; the same command continues a stopped one", "cross-validation")  # fmt: skip

SETTINGS: dict[str, Setting] = {
    "data": Setting(str, None, "dataset name, image folder, .npz, .csv or .txt", "data"),
    "recipe": Setting(str, None, "named settings (weft recipes)", "data"),
    "from": Setting(str, None, "folder with the files of a known dataset, for machines without network access", "data"),
    "validation": Setting(fraction, None, "fraction held out for validation if the data has no such split; default: 0.25 of image files, else 0.1", "data"),
    "fold": Setting(fold, None, "fold that is held out as the test split, such as 2/5; weft train folds=5 trains all of them", "data"),
    "size": Setting(sizes, None, "image size, 28 or 28x32; default: as required", "data"),
    "resize": Setting(str, None, "how image files are resized", "data", ("squash", "crop", "fill", "half_crop_half_fill")),
    "colour": Setting(str, None, "colour of image files; default: as they are", "data", ("rgb", "gray")),
    "labels": Setting(str, None, "labels of a list of image files: one class a file, several classes, or numbers; default: class", "data", ("class", "classes", "numbers")),
    "length": Setting(count, 128, "sequence length of text, in tokens", "data"),
    "stride": Setting(count, None, "tokens from the start of a training window of text to that of the next; default: the length, without overlap", "data"),
    "tokenizer": Setting(tokenizer_name, "characters", "tokens of text: characters, bpe:1000 (1,000 byte pairs, learned from it), or a tokenizer.json", "data"),
    "augment": Setting(str, None, "augmentation", "data", ("light", "shift", "standard", "strong")),
    "flip": Setting(flag, None, "flip images left to right; default: colour images yes, gray ones no", "data"),
    "alternate_flips": Setting(flag, False, "mirror each image in every other epoch instead of at random; requires resident", "data"),
    "resident": Setting(flag, False, "keep the training examples on the device, and run each epoch as one program", "data"),
    "workers": Setting(whole, 1, "threads that load data", "data"),

    "model": Setting(str, None, "network (weft models), or a file net.yaml; default: by the data", "network"),
    "hidden": Setting(count, 256, "hidden size of a network for text", "network"),
    "layers": Setting(count, 1, "number of layers of a network for text", "network"),
    "dropout": Setting(fraction, 0.0, "dropout of a network for text", "network"),
    "heads": Setting(count, None, "attention heads of gpt; default: hidden / 64", "network"),
    "key_heads": Setting(count, None, "heads of keys and values of gpt, each shared by some attention heads; default: heads", "network"),
    "positions": Setting(str, None, "positions of gpt, learned by default", "network", POSITIONS),
    "window": Setting(count, None, "tokens up to its own that a token of gpt attends to; default: all", "network"),
    "views": Setting(count, None, "test-time augmentation of whitened_cnn: 2 views of an image, with its mirror image, or 6, with shifts", "network"),
    "weights": Setting(str, None, "run, file of weights, or name in the store (weft weights list) to start from", "network"),
    "freeze": Setting(whole, 0, "epochs with pretrained parameters frozen", "network"),
    "freeze_layers": Setting(whole, 0, "pretrained layers, from the input on, that stay frozen; the rest then keeps its batch norm statistics", "network"),
    "body_rate": Setting(number, 0.1, "factor of the learning rate of pretrained parameters", "network"),

    "epochs": Setting(count, 10, "passes over the training data", "training"),
    "steps": Setting(count, None, "steps of an epoch, if it should end before all examples were seen; each epoch then sees other ones", "training"),
    "batch": Setting(count_or_auto, None, "batch size or auto; default: 64 or less", "training"),
    "accumulate": Setting(count, 1, "gradient accumulation: batches per optimizer step", "training"),
    "parallel": Setting(parallel_sizes, None, "what ranks share: batches (data:4), layers (model:2), pipeline stages (pipeline:2), a combination (data:2,model:2), a parameter server (server:4), or auto", "training"),
    "micro_batches": Setting(count, None, "micro-batches of a batch; default: one per rank, four per pipeline stage", "training"),
    "pipeline_schedule": Setting(str, None, "schedule of a pipeline; default: 1f1b", "training", ("1f1b", "gpipe")),
    "recompute": Setting(flag, False, "activation recomputation: a pipeline stores the inputs of its stages only", "training"),
    "cuts": Setting(stage_cuts, None, "where stages of a pipeline end: measured (default) balances times of layers, counted multiply-adds, or layers such as layers.2,layers.5", "training"),
    "staleness": Setting(staleness_bound, None, "steps by which a worker of a parameter server may be ahead of the slowest, or unbounded; default: 4", "training"),
    "zero": Setting(zero_stage, 0, "ZeRO stage: 1 shards the optimizer's state over ranks, 2 gradients too", "training"),
    "local_steps": Setting(count, 1, "local SGD: steps between two averages of the ranks' parameters", "training"),
    "loss": Setting(str, None, "loss function by name; default: chosen by the labels", "training"),
    "seed": Setting(seed, 0, "seed of all random numbers", "training"),

    "optimizer": Setting(str, "adam", "optimizer by name: adam, adamw, sgd, ...", "optimizer"),
    "rate": Setting(number_or_auto, None, "learning rate or auto; default: by optimizer, network", "optimizer"),
    "bias_rate": Setting(positive, 1.0, "factor of the learning rate of biases, and of scales and shifts of norms", "optimizer"),
    "momentum": Setting(fraction, None, "momentum; default: 0.9 for sgd, else the optimizer's own", "optimizer"),
    "nesterov": Setting(flag, None, "Nesterov momentum, for sgd and muon", "optimizer"),
    "betas": Setting(two_fractions, None, "decay of the two moving averages of adam and its relatives: 0.9,0.999", "optimizer"),
    "eps": Setting(positive, None, "epsilon in the denominator of adaptive optimizers", "optimizer"),
    "clip_norm": Setting(number, None, "gradient clipping by global norm; default: 1 for text, else off", "optimizer"),

    "schedule": Setting(str, "one_cycle", "schedule", "schedule", ("one_cycle", "cosine", "linear", "constant", "step", "exponential", "polynomial", "inverse", "sigmoid", "restarts")),
    "warmup": Setting(not_negative, None, "warmup epochs; default: 0.3 of all for one_cycle, else 0", "schedule"),
    "final_rate": Setting(not_negative, None, "learning rate at the end of the schedule; default: nearly 0", "schedule"),
    "milestones": Setting(numbers, None, "epochs where step lowers the learning rate, or restarts begins again, such as 30,60", "schedule"),
    "gamma": Setting(positive, None, "factor at each milestone of step (default: 0.1), or of each epoch of exponential; steepness of inverse and sigmoid", "schedule"),
    "power": Setting(positive, None, "exponent of the schedules polynomial (default: 2) and inverse (0.5)", "schedule"),

    "weight_decay": Setting(number, None, "weight decay; default: the optimizer's own", "regularization"),
    "label_smoothing": Setting(fraction, 0.0, "label smoothing of the training loss, such as 0.1", "regularization"),
    "mixup": Setting(positive, None, "alpha of MixUp, such as 0.2", "regularization"),
    "cutmix": Setting(positive, None, "alpha of CutMix, such as 1", "regularization"),
    "average": Setting(fraction, None, "weight averaging: decay of the moving average that is validated and saved, such as 0.999", "regularization"),

    "precision": Setting(str, None, "mixed precision", "hardware", ("float16", "bfloat16")),
    "memory": Setting(memory_size, None, "memory limit of a training step, such as 8GiB: what does not fit is computed again", "hardware"),
    "device": DEVICE,

    "patience": Setting(count, None, "early stopping: epochs without improvement", "stopping"),
    "max_seconds": Setting(not_negative, None, "time limit in seconds", "stopping"),
    "fast_dev_run": Setting(whole, 0, "number of batches of a dry run that keeps nothing", "stopping"),
    "overfit": Setting(whole, 0, "number of batches to overfit, to check that the network can learn", "stopping"),

    "keep": Setting(whole, 0, "number of best epochs whose weights are kept", "output"),
    "name": Setting(str, None, "name of the run; default: DATA-MODEL-1, -2, ...", "output"),
    "tags": Setting(tag_names, None, "tags of the run, such as baseline,small", "output"),
    "group": Setting(group_name, None, "group that the run is listed in", "output"),
    "notes": Setting(notes_text, None, "notes about the run", "output"),
    "exist_ok": Setting(flag, False, "replace the run of that name, if there is one", "output"),
    "runs": Setting(str, "runs", "folder that runs are kept in", "output"),
    "json": Setting(flag, False, "print events as JSON, one object a line, for programs", "output"),
}  # fmt: skip


def setting_as_text(name: str, value: Any) -> str:
    """A value of a setting of a training as a command writes it. A size has an x: a comma would make it two values.

    >>> setting_as_text("size", (64, 48)), setting_as_text("betas", (0.9, 0.99))
    ('64x48', '0.9,0.99')
    """
    if SETTINGS[name].read is sizes and isinstance(value, tuple | list):
        return "x".join(map(str, value))
    return as_text(value)
