"""Language models in the folders of Hugging Face: config.json, the weights, and a tokenizer.json (see `load_tokenizer`)."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import RunError, UserError
from ..io import load_weights
from ..zoo.gpt import GPT
from ..zoo.published import load_published

CONFIG, SIZES = "config.json", ("vocab_size", "n_positions", "n_embd", "n_head", "n_layer")
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
# Settings of config.json that GPT-2 has in one way only, and that way.
EXPECTED = {
    "model_type": "gpt2", "activation_function": "gelu_new", "tie_word_embeddings": True, "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False,
}  # fmt: skip


def load_pretrained(folder: str | os.PathLike[str]) -> GPT:
    """A GPT-2 of any size with its published weights, for inference: model = load_pretrained("gpt2-folder").

    The folder is a copy of a model of Hugging Face; nothing is downloaded. Training it further: set dropout, and call `train()`.
    """
    path = Path(folder)
    config = _config(path / CONFIG)
    wrong = [f"{name}={config[name]!r}" for name, value in EXPECTED.items() if config.get(name, value) != value]
    vocabulary, positions, features, heads, layers = (_size(path, config, name) for name in SIZES)
    if config.get("n_inner") not in (None, 4 * features):
        wrong.append(f"n_inner={config['n_inner']!r}")
    if wrong or "model_type" not in config:
        raise UserError(
            "load_pretrained", f"a GPT-2 is required, {path / CONFIG} has {', '.join(wrong) or 'no model_type'}."
        )
    weights = next((path / name for name in WEIGHTS if (path / name).is_file()), None)
    if weights is None:
        raise UserError("load_pretrained", f"{' or '.join(WEIGHTS)} is required in {path}, which has neither.")
    values = load_weights(weights)
    described = features * (vocabulary + positions + 12 * features * layers)  # without biases
    held = sum(value.size for value in values.values())
    if described > held:  # before so much memory is taken
        raise UserError(
            "load_pretrained", f"{path / CONFIG} describes {described:,} parameters, and {weights} has {held:,}."
        )
    try:
        model = GPT(vocabulary, positions, features, heads, layers, 0.0, eps=_eps(config))
        load_published(model, "gpt2", values)
    except UserError as error:
        raise UserError("load_pretrained", f"{path / CONFIG} does not fit {weights.name}: {error.message}") from None
    return model.eval()


def _config(file: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        problem = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        raise RunError("load_pretrained", f"{file} cannot be read: {problem}.") from None
    if not isinstance(found, dict):
        raise UserError("load_pretrained", f"an object in JSON is required, {file} holds none.")
    return found


def _size(folder: Path, config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UserError("load_pretrained", f"{name} in {folder / CONFIG} must be an int of 1 or more, got {value!r}.")
    return value


def _eps(config: Mapping[str, Any]) -> float:
    value = config.get("layer_norm_epsilon", 1e-5)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1:
        raise UserError("load_pretrained", f"layer_norm_epsilon must be a number from 0 to 1, got {value!r}.")
    return float(value)
