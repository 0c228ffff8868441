"""GPT-2 in a folder of Hugging Face: the logits are those of its formulas, in NumPy and float64."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from weft import text, zoo
from weft.errors import RunError, UserError
from weft.jobs.weights import load_initial_weights

CONFIG: dict[str, Any] = {
    "model_type": "gpt2", "vocab_size": 23, "n_positions": 12, "n_embd": 16, "n_head": 4, "n_layer": 2, "layer_norm_epsilon": 1e-3,
    "activation_function": "gelu_new", "n_inner": None, "architectures": ["GPT2LMHeadModel"],
}  # fmt: skip


def made_up(config: dict[str, Any]) -> dict[str, np.ndarray]:
    """A checkpoint under the names of Hugging Face; Conv1D keeps its weights as (inputs, outputs)."""
    rng, width = np.random.default_rng(0), config["n_embd"]
    shapes: dict[str, tuple[int, ...]] = {
        "wte.weight": (config["vocab_size"], width),
        "wpe.weight": (config["n_positions"], width),
    }
    for i in range(config["n_layer"]):
        for name, outputs in (("attn.c_attn", 3 * width), ("attn.c_proj", width), ("mlp.c_fc", 4 * width)):
            shapes |= {f"h.{i}.{name}.weight": (width, outputs), f"h.{i}.{name}.bias": (outputs,)}
        shapes |= {f"h.{i}.mlp.c_proj.weight": (4 * width, width), f"h.{i}.mlp.c_proj.bias": (width,)}
        shapes |= {f"h.{i}.{norm}.{part}": (width,) for norm in ("ln_1", "ln_2") for part in ("weight", "bias")}
        shapes[f"h.{i}.attn.bias"] = (1, 1, config["n_positions"], config["n_positions"])  # the causal mask: no weights
    shapes |= {"ln_f.weight": (width,), "ln_f.bias": (width,)}
    return {name: rng.normal(size=shape, scale=0.4).astype(np.float32) for name, shape in shapes.items()}


def gpt2(w: dict[str, np.ndarray], config: dict[str, Any], tokens: list[int]) -> np.ndarray:
    """The logits of every position, as the paper and its code have them."""
    w = {name: value.astype(np.float64) for name, value in w.items()}
    width, heads, eps = config["n_embd"], config["n_head"], config["layer_norm_epsilon"]

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        return (x - mean) / np.sqrt(var + eps) * w[f"{name}.weight"] + w[f"{name}.bias"]

    def conv1d(x: np.ndarray, name: str) -> np.ndarray:
        return x @ w[f"{name}.weight"] + w[f"{name}.bias"]

    def gelu(x: np.ndarray) -> np.ndarray:
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))

    x = w["wte.weight"][tokens] + w["wpe.weight"][: len(tokens)]
    future = np.triu(np.ones((len(tokens), len(tokens)), bool), 1)
    for i in range(config["n_layer"]):
        q, k, v = np.split(conv1d(norm(x, f"h.{i}.ln_1"), f"h.{i}.attn.c_attn"), 3, axis=-1)
        parts = []
        for h in range(heads):
            at = slice(h * width // heads, (h + 1) * width // heads)
            scores = np.where(future, -np.inf, q[:, at] @ k[:, at].T / np.sqrt(width // heads))
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            parts.append(weights / weights.sum(-1, keepdims=True) @ v[:, at])
        x = x + conv1d(np.concatenate(parts, -1), f"h.{i}.attn.c_proj")
        x = x + conv1d(gelu(conv1d(norm(x, f"h.{i}.ln_2"), f"h.{i}.mlp.c_fc")), f"h.{i}.mlp.c_proj")
    return norm(x, "ln_f") @ w["wte.weight"].T


def folder(path: Path, weights: dict[str, np.ndarray], **config: Any) -> Path:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps({**CONFIG, **config}))
    save_file(weights, path / "model.safetensors")
    return path


@pytest.mark.parametrize("prefix", ["", "transformer."])
def test_logits_and_greedy_text(prefix: str, tmp_path: Path) -> None:
    weights, tokens = made_up(CONFIG), [3, 1, 4, 1, 5, 9, 2]
    named = {prefix + name: value for name, value in weights.items()}
    if prefix:  # the model with its head, which is the token embedding
        named["lm_head.weight"] = weights["wte.weight"].copy()
    model = text.load_pretrained(folder(tmp_path / "gpt2", named))
    expected = gpt2(weights, CONFIG, tokens)
    np.testing.assert_allclose(model([tokens]).numpy()[0], expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    written = list(tokens)
    while len(written) < CONFIG["n_positions"]:
        written.append(int(gpt2(weights, CONFIG, written)[-1].argmax()))
    assert text.generate(model, tokens, max_new_tokens=5, temperature=0) == written


def test_a_training_begins_with_published_weights(tmp_path: Path) -> None:
    """weft train book.txt model=gpt weights=FILE: a network whose vocabulary has no default, too."""
    weights = made_up(CONFIG)
    model = zoo.gpt(23, context=12, features=16, heads=4, layers=2)
    begun = load_initial_weights(model, "gpt", str(folder(tmp_path / "gpt2", weights) / "model.safetensors"))
    assert set(begun.names) == set(model.named_tensors())
    np.testing.assert_array_equal(model.tokens.weight.numpy(), weights["wte.weight"])
    np.testing.assert_array_equal(
        model.blocks[1].attention.key.weight.numpy(), weights["h.1.attn.c_attn.weight"][:, 16:32].T
    )


def test_errors(tmp_path: Path) -> None:
    weights = made_up(CONFIG)
    with pytest.raises(RunError, match=r"config\.json cannot be read: No such file"):
        text.load_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"a GPT-2 is required, .* has model_type='llama'\."):
        text.load_pretrained(folder(tmp_path / "llama", weights, model_type="llama"))
    with pytest.raises(UserError, match=r"has activation_function='relu', n_inner=8\."):
        text.load_pretrained(folder(tmp_path / "relu", weights, activation_function="relu", n_inner=8))
    with pytest.raises(UserError, match=r"n_head in .*config\.json must be an int of 1 or more, got 'four'\."):
        text.load_pretrained(folder(tmp_path / "four", weights, n_head="four"))
    with pytest.raises(UserError, match=r"config\.json describes 9,776 parameters, and .*\.safetensors has 7,440\."):
        text.load_pretrained(folder(tmp_path / "three", weights, n_layer=3))
    renamed = {name.replace("h.1.ln_1.", "h.1.ln_9."): value for name, value in weights.items()}
    with pytest.raises(UserError, match=r"these weights of hugging face do not fit gpt2\. missing: h\.1\.ln_1\."):
        text.load_pretrained(folder(tmp_path / "renamed", renamed))
    (tmp_path / "llama" / "model.safetensors").unlink()
    (tmp_path / "llama" / "config.json").write_text(json.dumps(CONFIG))
    with pytest.raises(
        UserError, match=r"model\.safetensors or pytorch_model\.bin is required in .*, which has neither"
    ):
        text.load_pretrained(tmp_path / "llama")
