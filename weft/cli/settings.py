"""The settings of a training, and where to compute."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..knobs import KNOBS, knobs
from ..runtime import Device
from ..runtime import device as find_device
from .words import Setting, count, flag, not_negative, number, one_of, positive, seed, sizes, whole


def number_or_auto(text: str) -> float | str:
    return "auto" if text == "auto" else number(text)


def whole_or_auto(text: str) -> int | str:
    if text == "auto":
        return text
    if whole(text) == 0:
        raise ValueError("it must be 1 or more, or auto")
    return whole(text)


def share(text: str) -> float:
    value = number(text)
    if not 0.0 <= value < 1.0:
        raise ValueError("it must be a share from 0 to below 1")
    return value


def two_shares(text: str) -> tuple[float, float]:
    values = tuple(map(share, text.split(",")))
    if len(values) != 2:
        raise ValueError("it must be two numbers such as 0.9,0.999")
    return values[0], values[1]


def device_name(text: str) -> str:
    """The name of a device. Whether this machine has it is seen when it is used: a run of another machine may name one."""
    known = KNOBS["device"].choices
    if text.partition(":")[0] not in known:
        raise ValueError(f"it must be one of {', '.join(sorted(known))}")
    return text


DEVICE = Setting(device_name, None, "cpu, cuda, cuda:1, ...; if not given, what WEFT_DEVICE says, else cpu")


@contextmanager
def on(name: str | None) -> Iterator[Device]:
    """Inside, everything is computed on this device, or on the default one; if there is no such device that is an error."""
    with knobs.set(device=name or knobs.device):
        yield find_device()


SETTINGS: dict[str, Setting] = {
    # data
    "data": Setting(str, None, "a known name, a folder of class folders, a dataset, .npz, .csv or .txt"),
    "from": Setting(str, None, "a folder that has the files of a known set, where there is no network"),
    "validation": Setting(share, None, "the share that decides between epochs, if the data has no validation split; if not given, 0.25 of image files, else 0.1"),
    "size": Setting(sizes, None, "of images: what the network sees, and what image files are made to"),
    "resize": Setting(one_of("squash", "crop", "fill", "half_crop_half_fill"), None, "how image files get that size"),
    "colour": Setting(one_of("rgb", "gray"), None, "of image files"),
    "length": Setting(count, 128, "of a piece of text, in characters"),
    "augment": Setting(one_of("light", "standard", "strong"), None, "light, standard or strong"),
    "flip": Setting(flag, None, "may left and right be exchanged? If not given: yes for colour images, no for gray ones"),
    "workers": Setting(whole, 1, "threads that read data"),
    # network
    "model": Setting(str, None, "a network of the zoo (weft models); if not given, one that suits the data"),
    "hidden": Setting(count, 256, "the size of the layers of a network for text"),
    "layers": Setting(count, 1, "how many it has"),
    "dropout": Setting(share, 0.0, "in a network for text"),
    "weights": Setting(str, None, "a run or a file of weights to begin from; what does not fit stays fresh"),
    "freeze": Setting(whole, 0, "for so many epochs only what is fresh learns"),
    "body_rate": Setting(number, 0.1, "the part of the rate for what came from the weights, after that"),
    # learning
    "epochs": Setting(count, 10, "how often all examples are seen"),
    "batch": Setting(whole_or_auto, None, "examples a step, or auto; if not given, 64, or less where there are few examples"),
    "accumulate": Setting(count, 1, "steps whose gradients are added before the weights move"),
    "optimizer": Setting(str, "adam", "by its name"),
    "rate": Setting(number_or_auto, None, "of learning, or auto; if not given, one that suits most networks"),
    "schedule": Setting(one_of("one_cycle", "cosine", "linear", "constant"), "one_cycle", "of the rate"),
    "warmup": Setting(not_negative, None, "epochs in which the rate rises to its peak; if not given, 0.3 of all for one_cycle, else 0"),
    "final_rate": Setting(not_negative, None, "learning rate at the end of the schedule; if not given, nearly 0"),
    "momentum": Setting(share, None, "momentum of the optimizer; if not given, 0.9 for sgd, else the optimizer's own"),
    "nesterov": Setting(flag, None, "Nesterov momentum, for sgd and muon"),
    "betas": Setting(two_shares, None, "decay of the two moving averages of adam and its relatives, such as 0.9,0.999"),
    "eps": Setting(positive, None, "small number that the optimizer adds to a denominator"),
    "weight_decay": Setting(number, None, "weight decay; if not given, the optimizer's own"),
    "average": Setting(share, None, "decay of a moving average of the weights, such as 0.999, which is validated and saved"),
    "clip_norm": Setting(number, None, "greatest norm of the gradients; if not given, 1 for text, else any"),
    "loss": Setting(str, None, "by its name; if not given, the labels decide"),
    "label_smoothing": Setting(share, 0.0, "probability that is spread over all classes, such as 0.1"),
    "mixup": Setting(positive, None, "alpha of MixUp, such as 0.2"),
    "cutmix": Setting(positive, None, "alpha of CutMix, such as 1"),
    "precision": Setting(one_of("float16", "bfloat16"), None, "float16 or bfloat16 for mixed precision"),
    "device": DEVICE,
    "seed": Setting(seed, 0, "of all random numbers"),
    # when to stop
    "patience": Setting(count, None, "stop after so many epochs without a better result"),
    "max_seconds": Setting(not_negative, None, "stop after so much time"),
    "fast_dev_run": Setting(whole, 0, "only try so many batches, and keep nothing"),
    "overfit": Setting(whole, 0, "learn so many batches by heart, to see that the network can"),
    # what is kept
    "keep": Setting(whole, 0, "the weights of so many of the best epochs"),
    "name": Setting(str, None, "name of the run; if not given, DATA-MODEL-1, -2, ..."),
    "exist_ok": Setting(flag, False, "replace the run of that name, if there is one"),
    "runs": Setting(str, "runs", "the folder that runs are kept in"),
    "json": Setting(flag, False, "one JSON object a line instead of words, for programs"),
}  # fmt: skip
