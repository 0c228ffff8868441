"""Rows of published networks on a GPU: GPT-2, ViT-B/16, ConvNeXt-T, MobileNetV2 and EfficientNet-B0, trained by AdamW or used, with the same weights in all libraries.

JAX's networks are in gpu_published_jax.py. torch has those for images from torchvision; its GPT-2 is written here as people write it today: one product for queries, keys and values, and
torch's fused attention. Memory is the most that a step has in use, parameters and optimizer included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import gpu_published_jax
import gpu_torch
import gpu_weft
import numpy as np
from cases.peers import need
from gpu_measure import Case, Contestant, Place

import weft
from weft import optim, zoo
from weft.zoo.published import load_published

TRAINING, INFERENCE = "training step, AdamW", "inference, published networks"
RATE = 1e-4
IMAGE = (3, 224, 224)


@dataclass(frozen=True)
class Published:
    """A row: the network, its batch, and what is aimed at."""

    name: str
    network: str  # of weft.zoo
    batch: int
    training: bool
    goal: float  # milliseconds
    before: float  # torch's best, when the goal was set

    @property
    def precision(self) -> str:
        return "bfloat16" if self.training else "float16"

    @property
    def is_text(self) -> bool:
        return self.network == "gpt2"

    def batches(self) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(0)
        if self.is_text:
            tokens = rng.integers(0, 50257, (2, self.batch, 1024))
            return tokens[0], tokens[1].reshape(-1)
        return rng.standard_normal((self.batch, *IMAGE), np.float32), rng.integers(0, 1000, self.batch)


ROWS = [
    Published("GPT-2 124M, batch 8 x 1024, bfloat16", "gpt2", 8, True, 20.0, 21.6),
    Published("ViT-B/16, batch 64, bfloat16", "vit_base", 64, True, 20.0, 21.5),
    Published("ConvNeXt-T, batch 64, bfloat16", "convnext_tiny", 64, True, 24.0, 27.1),
    Published("GPT-2 124M, batch 1 x 1024, float16", "gpt2", 1, False, 0.85, 0.94),
    Published("ViT-B/16, batch 1, float16", "vit_base", 1, False, 0.55, 0.64),
    Published("ViT-B/16, batch 64, float16", "vit_base", 64, False, 5.8, 6.27),
    Published("MobileNetV2, batch 128, bfloat16", "mobilenet_v2", 128, True, 23.0, 23.0),
    Published("EfficientNet-B0, batch 128, bfloat16", "efficientnet_b0", 128, True, 37.3, 37.3),
]
# Whatever drops activations at random is off: losses could not be compared otherwise.
TORCHVISION: dict[str, dict[str, float]] = {
    "convnext_tiny": {"stochastic_depth_prob": 0.0},
    "mobilenet_v2": {"dropout": 0.0},
    "efficientnet_b0": {"dropout": 0.0, "stochastic_depth_prob": 0.0},
}
WEFT: dict[str, Callable[[], Any]] = {
    "gpt2": partial(zoo.gpt2, dropout=0.0),
    "vit_base": zoo.vit_base,
    "convnext_tiny": partial(zoo.convnext_tiny, drop_path=0.0),
    "mobilenet_v2": partial(zoo.mobilenet_v2, dropout=0.0),
    "efficientnet_b0": partial(zoo.efficientnet, dropout=0.0, drop_path=0.0),
}


def cases() -> Iterator[Case]:
    """Every row. They are no part of a dry run: the networks have one size."""
    for row in ROWS:
        ways = (gpu_torch.EAGER, gpu_torch.GRAPH, gpu_torch.COMPILED)
        names = ("torch", "torch graph", "torch compiled")
        found: dict[str, Callable[[], Contestant]] = {
            name: partial(_torch, row, way) for name, way in zip(names, ways, strict=True)
        }
        found["jax"] = partial(_jax, row)
        found["weft"] = partial(_weft, row)
        group = TRAINING if row.training else INFERENCE
        note = f"torch was seen at {row.before} ms before"
        yield Case(group, row.name, found, goal=1e-3 * row.goal, ahead=1.0, allowed=0.02, note=note)


# --- torch ------------------------------------------------------------------------------------------------------------------------


def torch_network(network: str) -> tuple[Any, Callable[[Any], Any]]:
    """A network with its own initialization, the same each time, and the function that it computes."""
    torch = need("torch")
    torch.manual_seed(0)
    if network == "gpt2":
        made = _gpt2_layers()
        return made, partial(_gpt2_logits, made)
    models = import_module("torchvision").models
    if network in TORCHVISION:
        made = getattr(models, network)(**TORCHVISION[network])
        return made, made
    made = models.vit_b_16()
    torch.nn.init.normal_(made.heads.head.weight, std=0.02)  # published as zeros, which nothing can be compared by
    return made, made


def _gpt2_layers() -> Any:
    """The layers of GPT-2 by their published names."""
    nn = need("torch").nn

    def block() -> Any:
        attention = nn.ModuleDict({"c_attn": nn.Linear(768, 2304), "c_proj": nn.Linear(768, 768)})
        feed = nn.ModuleDict({"c_fc": nn.Linear(768, 3072), "c_proj": nn.Linear(3072, 768)})
        return nn.ModuleDict({"ln_1": nn.LayerNorm(768), "attn": attention, "ln_2": nn.LayerNorm(768), "mlp": feed})

    made = nn.ModuleDict({"wte": nn.Embedding(50257, 768), "wpe": nn.Embedding(1024, 768)})
    made["h"], made["ln_f"] = nn.ModuleList(block() for _ in range(12)), nn.LayerNorm(768)
    for parameter in made.parameters():
        if parameter.ndim == 2:
            nn.init.normal_(parameter, std=0.02)
    return made


def _gpt2_logits(net: Any, x: Any) -> Any:
    torch = need("torch")
    functional, (batch, time) = torch.nn.functional, x.shape
    y = net["wte"](x) + net["wpe"](torch.arange(time, device=x.device))
    for block in net["h"]:
        joined = block["attn"]["c_attn"](block["ln_1"](y))
        q, k, v = (t.view(batch, time, 12, 64).transpose(1, 2) for t in joined.split(768, dim=2))
        heads = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y + block["attn"]["c_proj"](heads.transpose(1, 2).reshape(batch, time, 768))
        hidden = functional.gelu(block["mlp"]["c_fc"](block["ln_2"](y)), approximate="tanh")
        y = y + block["mlp"]["c_proj"](hidden)
    return functional.linear(net["ln_f"](y), net["wte"].weight)


def _torch(row: Published, way: str) -> Contestant:
    return _torch_training(row, way) if row.training else _torch_inference(row, way)


def _torch_training(row: Published, way: str) -> Contestant:
    torch, peak = need("torch"), gpu_torch.Peak()
    net, forward = torch_network(row.network)
    net.to(Place.device)
    x, y = (torch.from_numpy(a).to(Place.device) for a in row.batches())
    if not row.is_text:
        net.to(memory_format=torch.channels_last)
        x = x.to(memory_format=torch.channels_last)
    captured = way == gpu_torch.GRAPH
    optimizer = torch.optim.AdamW(net.parameters(), lr=RATE, fused=True, capturable=captured)
    start = [p.detach().clone() for p in net.parameters()]

    def loss() -> Any:
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=not captured):
            out = forward(x)
            return torch.nn.functional.cross_entropy(out.reshape(-1, out.shape[-1]), y)

    chosen = torch.compile(loss, dynamic=False, mode="reduce-overhead") if way == gpu_torch.COMPILED else loss

    def step() -> Any:
        if way == gpu_torch.COMPILED:
            torch.compiler.cudagraph_mark_step_begin()
        optimizer.zero_grad(set_to_none=True)
        value = chosen()
        value.backward()
        optimizer.step()
        return value

    call = gpu_torch.Captured(step) if captured else step
    with torch.no_grad():
        for parameter, value in zip(net.parameters(), start, strict=True):
            parameter.copy_(value)
    return Contestant(call, gpu_torch.wait, lambda: [call().detach().float().cpu().numpy().reshape(1)], peak)


def _torch_inference(row: Published, way: str) -> Contestant:
    torch, peak = need("torch"), gpu_torch.Peak()
    net, forward = torch_network(row.network)
    net.to(Place.device, torch.float16).eval().requires_grad_(False)
    x = torch.from_numpy(row.batches()[0]).to(Place.device)
    x = x if row.is_text else x.to(torch.float16).contiguous(memory_format=torch.channels_last)
    chosen = torch.compile(forward, dynamic=False, mode="reduce-overhead") if way == gpu_torch.COMPILED else forward

    def run() -> Any:
        if way == gpu_torch.COMPILED:
            torch.compiler.cudagraph_mark_step_begin()
        with torch.no_grad() if way == gpu_torch.COMPILED else nullcontext():
            return chosen(x)

    call = gpu_torch.Captured(run) if way == gpu_torch.GRAPH else run
    return Contestant(call, gpu_torch.wait, lambda: [call().float().cpu().numpy().reshape(-1)[:1000]], peak)


# --- JAX --------------------------------------------------------------------------------------------------------------------------


def _jax(row: Published) -> Contestant:
    need("jax")
    x, y = row.batches()
    if row.training:
        return gpu_published_jax.training(row.network, row.precision, _weights(row), x, y, RATE)
    return gpu_published_jax.inference(row.network, row.precision, _weights(row), x)


def _weights(row: Published) -> dict[str, np.ndarray]:
    """torch's, by its names."""
    return {name: tensor.detach().numpy() for name, tensor in torch_network(row.network)[0].state_dict().items()}


# --- weft -------------------------------------------------------------------------------------------------------------------------


def _weft(row: Published) -> Contestant:
    model = WEFT[row.network]()
    values = _weights(row)
    if row.is_text:  # published with its matrices transposed
        values = {name: v.T if ".c_" in name and v.ndim == 2 else v for name, v in values.items()}
    load_published(model, row.network, values)
    x, y = (weft.asarray(a) for a in row.batches())
    if row.training:
        optimizer = optim.adamw(model, RATE)

        def step(x: Any, y: Any) -> Any:
            out = model(x)
            loss = weft.cross_entropy(out.reshape((-1, out.shape[-1])), y)
            optimizer.minimize(loss)
            return loss

        trained = weft.jit(step, precision=row.precision)
        memory = partial(_memory, trained, x, y)
        return Contestant(lambda: trained(x, y), gpu_weft.wait, lambda: [trained(x, y).numpy().reshape(1)], memory)
    model.eval()
    x = x if row.is_text else x.astype(row.precision).realize()
    used = weft.jit(lambda x: model(x).astype(row.precision), precision=row.precision)  # as the others give it
    memory = partial(_memory, used, x)
    return Contestant(lambda: used(x), gpu_weft.wait, lambda: [used(x).numpy().reshape(-1)[:1000]], memory)


def _memory(compiled: Any, *args: Any) -> float:
    return float(compiled.memory(*args).total)
