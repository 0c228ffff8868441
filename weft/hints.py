"""Suggestions: for unknown names close matches and the names that other libraries use; for missing packages how to install them."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

# Settings of weft, and their names in other libraries.
ELSEWHERE = {
    "rate": "lr learning_rate eta",
    "batch": "batch_size bs",
    "epochs": "num_epochs n_epochs max_epochs",
    "b1": "beta1 betas",
    "b2": "beta2",
    "eps": "epsilon",
    "weight_decay": "wd",
    "clip_norm": "max_grad_norm gradient_clip_val clipnorm",
    "clip_value": "clipvalue",
    "accumulate": "gradient_accumulation_steps accumulate_grad_batches",
    "schedule": "scheduler lr_scheduler",
    "loss": "criterion",
    "model": "arch network",
    "precision": "dtype",
    "seed": "random_state",
    "workers": "num_workers",
    "overfit": "overfit_batches",
    "max_seconds": "max_time",
    "folder": "log_dir output_dir",
    "on_epoch": "callbacks",
}
_OURS = {theirs: ours for ours, words in ELSEWHERE.items() for theirs in words.split()}


def nearest(word: str, known: Sequence[str]) -> str:
    """A suggestion for an unknown name."""
    close = [ours for ours in (_OURS.get(word),) if ours in known] or difflib.get_close_matches(word, known, 1)
    return f"Did you mean {close[0]}?" if close else f"Known: {', '.join(sorted({*known}))}."


def install(extra: str) -> str:
    """How to install an optional extra.

    Another project is called weft on the Python Package Index, so `pip install 'weft[onnx]'` would fetch that one.

    >>> install("onnx")
    "Run in the checkout of weft: pip install '.[onnx]'."
    """
    return f"Run in the checkout of weft: pip install '.[{extra}]'."
