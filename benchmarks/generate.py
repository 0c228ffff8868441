"""Text generation: weft and torch side by side. Tokens a second with one prompt and with many, and how long a prompt takes to be read.

    python benchmarks/generate.py                                   GPT-2 (124M parameters), float32, on this CPU
    python benchmarks/generate.py --device cuda --dtype bfloat16    on a GPU
    python benchmarks/generate.py --network small --tokens 32       a GPT of 11M parameters, quick
    python benchmarks/generate.py --skip-compile --peers none       without torch.compile; without torch
    python benchmarks/generate.py --cpu-time                        on one thread and in CPU time: for a machine that others use too

Everybody has the same weights and reads the same prompt (prefill), then writes greedily, a token of each example at a time (decode), into a
static key-value cache. torch runs eagerly, compiled (`torch.compile`, on GPUs with CUDA graphs) and, on GPUs, captured in a CUDA graph. Tokens stay
on the device; they are read every 16 steps. With one prompt, a row shows speculative decoding: the first blocks of the same network
(--draft-layers) draft four tokens a step. How many of them are accepted depends on the networks; with these random weights it says nothing
of trained ones, but the cost of drafting and checking is what it is. Contestants take turns; reported is the least time of the rounds. The logits of the prompt must
agree. A contestant that fails is noted, and the others go on. --json FILE keeps the figures.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import platform
import time
import traceback
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import weft
from weft import zoo
from weft.text.decoder import CachedDecoder
from weft.text.sampling import Sampler, Sampling
from weft.text.speculative import DraftModel, SpeculativeDecoder

DRAFTED = 4  # tokens of a step, where they are drafted
CHUNK = 16  # tokens of each example that are written before they are read
TOLERANCE = {"float32": 2e-3, "bfloat16": 8e-2, "float16": 2e-2}  # of logits, relative to the largest one
SIZES = {  # vocabulary, context, features, heads, layers
    "gpt2": (50257, 1024, 768, 12, 12),
    "small": (65, 1024, 384, 6, 6),
    "tiny": (65, 256, 64, 2, 2),
}


def main() -> None:
    options = _options()
    found: list[dict[str, Any]] = []
    with weft.knobs.set(device=options.device, **({"threads": options.threads} if options.threads else {})):
        for batch in options.batches:
            found += _measured(batch, options)
            if options.json is not None:
                facts = {"machine": platform.processor() or platform.machine(), "weft": weft.__version__, "rows": found}
                options.json.write_text(json.dumps(facts, indent=1))
    print(_table(found))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--network", choices=SIZES, default="gpt2")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--dtype", choices=TOLERANCE, default="float32", help="of weights and cache")
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 32], help="numbers of prompts")
    parser.add_argument("--prompt", type=int, default=128, help="tokens of a prompt")
    parser.add_argument("--tokens", type=int, default=128, help="tokens that are written in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--draft-layers", type=int, default=2, help="blocks of the network that drafts; 0: no such row")
    parser.add_argument("--peers", choices=("all", "none"), default="all")
    parser.add_argument("--skip-compile", action="store_true", help="without torch.compile")
    parser.add_argument("--threads", type=int, default=0, help="of a CPU; 0: as many as there are cores")
    parser.add_argument("--cpu-time", action="store_true", help="measure CPU time, on one thread")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.threads = 1 if options.cpu_time else options.threads
    return options


# --- the rows -----------------------------------------------------------------------------------------------------------------


class Contestant:
    """Somebody who reads a prompt and continues it."""

    name: str

    def prefill(self) -> None:
        """Read the prompts, up to the first token that follows."""
        raise NotImplementedError

    def logits(self) -> np.ndarray:
        """Of the token after the prompts, (batch, vocabulary)."""
        raise NotImplementedError

    def decode(self, tokens: int) -> np.ndarray:
        """Write so many tokens for each example, (batch, tokens)."""
        raise NotImplementedError


def _measured(batch: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The figures of all contestants for this number of prompts."""
    model = _model(options)
    prompts = np.random.default_rng(0).integers(0, SIZES[options.network][0], (batch, options.prompt)).astype(np.int32)
    rows: list[dict[str, Any]] = []
    contestants: list[tuple[Contestant, dict[str, Any]]] = []
    expected: tuple[np.ndarray, np.ndarray] | None = None  # logits and tokens of the first
    for name, make in _makers(model, prompts, options).items():
        row: dict[str, Any] = {"name": name, "batch": batch, "dtype": options.dtype, "device": options.device}
        rows.append(row)
        try:
            begin = time.perf_counter()
            contestant = make()
            contestant.prefill()
            tokens = contestant.decode(CHUNK)
            row["first_seconds"] = time.perf_counter() - begin
            logits = contestant.logits()
            expected = (logits, tokens) if expected is None else expected
            row["difference"] = float(np.abs(logits - expected[0]).max() / np.abs(expected[0]).max())
            # Rounding may decide between two tokens that are as likely.
            row["same_tokens"] = float(np.mean(tokens == expected[1]))
            if not row["difference"] <= TOLERANCE[options.dtype]:
                raise ValueError(f"its logits differ by {row['difference']:.1e}")
            contestants.append((contestant, row))
        except Exception as error:  # a peer's failure must not end the others'
            traceback.print_exc()
            row["failure"] = f"{type(error).__name__}: {error}".splitlines()[0]
        print(f"{name}, batch {batch}: ready {row}", flush=True)
    for _ in range(options.rounds):
        for contestant, row in contestants:
            _take_turn(contestant, row, options)
    for contestant, row in contestants:
        row["tokens_per_second"] = batch * options.tokens / row["decode_seconds"]
        if isinstance(contestant, WeftDraft):
            row["accepted_per_step"] = contestant.draft.accepted_per_step
    contestants.clear()
    gc.collect()
    return rows


def _take_turn(contestant: Contestant, row: dict[str, Any], options: argparse.Namespace) -> None:
    clock = time.process_time if options.cpu_time else time.perf_counter
    try:
        contestant.prefill()  # wakes it up
        begin = clock()
        contestant.prefill()
        middle = clock()
        contestant.decode(options.tokens)
        end = clock()
    except Exception as error:
        traceback.print_exc()
        row["failure"] = f"{type(error).__name__}: {error}".splitlines()[0]
        return
    row["prefill_seconds"] = min(row.get("prefill_seconds", np.inf), middle - begin)
    row["decode_seconds"] = min(row.get("decode_seconds", np.inf), end - middle)


def _makers(model: Any, prompts: np.ndarray, options: argparse.Namespace) -> dict[str, Callable[[], Contestant]]:
    found: dict[str, Callable[[], Contestant]] = {"weft": partial(Weft, model, prompts, options)}
    if options.draft_layers and len(prompts) == 1:
        found["weft, with a draft"] = partial(WeftDraft, model, prompts, options)
    if options.peers == "none" or find_spec("torch") is None:
        return found
    ways = ["eager", *([] if options.skip_compile else ["compiled"]), *(["graph"] if options.device == "cuda" else [])]
    for way in ways:
        found[f"torch {way}"] = partial(Torch, model, prompts, options, way)
    return found


def _table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| batch | contestant | prefill ms | tokens/s | ms a token | first text s | against the best peer | accepted of 4 |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        if "tokens_per_second" not in row:
            lines.append(f"| {row['batch']} | {row['name']} | failed: {row.get('failure', 'not measured')} | | | | | |")
            continue
        peers = [
            r["tokens_per_second"]
            for r in rows
            if r["batch"] == row["batch"] and not r["name"].startswith("weft") and "tokens_per_second" in r
        ]
        ratio = f"{row['tokens_per_second'] / max(peers):.2f}" if row["name"].startswith("weft") and peers else ""
        accepted = f"{row['accepted_per_step']:.2f}" if "accepted_per_step" in row else ""
        step = 1e3 * row["batch"] / row["tokens_per_second"]
        lines.append(
            f"| {row['batch']} | {row['name']} | {1e3 * row['prefill_seconds']:.2f} | {row['tokens_per_second']:,.0f} | {step:.3f} "
            f"| {row['first_seconds']:.1f} | {ratio} | {accepted} |"
        )
    return "\n".join(lines)


# --- weft ---------------------------------------------------------------------------------------------------------------------


def _model(options: argparse.Namespace) -> Any:
    vocabulary, context, features, heads, layers = SIZES[options.network]
    weft.seed(0)
    return zoo.gpt(vocabulary, context, features, heads, layers).eval()


class Weft(Contestant):
    def __init__(self, model: Any, prompts: np.ndarray, options: argparse.Namespace) -> None:
        capacity = options.prompt + options.tokens + 2 * CHUNK
        vocabulary, context, features, heads, layers = SIZES[options.network]
        self.network = zoo.gpt(vocabulary, context, features, heads, layers).eval()
        self.network.load({name: tensor.numpy() for name, tensor in model.named_tensors().items()})
        if options.dtype != "float32":
            self.network.astype(options.dtype)
        self.how, self.prompts = Sampling(temperature=0), prompts.tolist()
        sampler = Sampler(self.how.kind, len(prompts), vocabulary)
        self.decoder = CachedDecoder(self.network, sampler, min(context, capacity), padded=False)

    def prefill(self) -> None:
        self.decoder.begin(self.prompts, self.how)

    def logits(self) -> np.ndarray:
        found = weft.jit(lambda x: self.network(x, last=x.shape[1] - 1)[:, 0].astype("float32"))
        return np.array(found(weft.asarray(np.array(self.prompts, np.int32))).numpy())

    def decode(self, tokens: int) -> np.ndarray:
        return np.concatenate([self.decoder.advance(min(CHUNK, tokens - i)) for i in range(0, tokens, CHUNK)], axis=1)


class WeftDraft(Weft):
    """The same, with tokens that the first blocks of the network draft."""

    def __init__(self, model: Any, prompts: np.ndarray, options: argparse.Namespace) -> None:
        super().__init__(model, prompts, options)
        small = copy.copy(self.network)
        small.blocks = list(self.network.blocks)[: options.draft_layers]
        self.draft = DraftModel(small, DRAFTED)
        sampler = Sampler(self.how.kind, 1, SIZES[options.network][0])
        self.decoder: Any = SpeculativeDecoder(self.network, self.draft, sampler, self.decoder.cache.capacity)

    def decode(self, tokens: int) -> np.ndarray:
        found: list[int] = []
        while len(found) < tokens:
            found += self.decoder.advance(tokens - len(found))[0].tolist()
        return np.array([found])


# --- torch ----------------------------------------------------------------------------------------------------------------------


class Torch(Contestant):
    """torch's way: eager, compiled, or (on a GPU) captured in a CUDA graph."""

    def __init__(self, model: Any, prompts: np.ndarray, options: argparse.Namespace, way: str) -> None:
        import torch

        self.torch = torch
        if options.threads:
            torch.set_num_threads(options.threads)
        weights = {name: np.array(tensor.numpy()) for name, tensor in model.named_tensors().items()}
        self.network = _torch_gpt(torch, weights, prompts, options)
        self._read, self._step = self.network.read, self.network.step
        if way == "compiled":
            is_gpu = options.device == "cuda"
            torch._inductor.config.coordinate_descent_tuning = is_gpu
            for tensor in (
                *self.network.parameters(),
                *self.network.buffers(),
            ):  # so that CUDA graphs may write to them
                torch._dynamo.mark_static_address(tensor)
            self._read = torch.compile(self.network.read, fullgraph=True)
            self._step = torch.compile(
                self.network.step, fullgraph=True, mode="reduce-overhead" if is_gpu else "default"
            )
        elif way == "graph":
            self._step = self._captured()

    def _captured(self) -> Callable[[], None]:
        torch, step = self.torch, self.network.step
        with torch.no_grad():
            self.network.read()
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):  # as torch asks
                    step()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                step()
        replay: Callable[[], None] = graph.replay
        return replay

    def prefill(self) -> None:
        with self.torch.no_grad():
            self._read()
            self.network.token.cpu()

    def logits(self) -> np.ndarray:
        with self.torch.no_grad():
            found: np.ndarray = self._read().float().cpu().numpy()
        return found

    def decode(self, tokens: int) -> np.ndarray:
        found = []
        with self.torch.no_grad():
            for i in range(0, tokens, CHUNK):
                count = min(CHUNK, tokens - i)
                for _ in range(count):
                    self._step()
                found.append(self.network.written[:, :count].cpu().numpy())
        return np.concatenate(found, axis=1)


def _torch_gpt(torch: Any, weights: dict[str, np.ndarray], prompts: np.ndarray, options: argparse.Namespace) -> Any:
    """GPT-2 with a static cache, as `torch.compile` likes it: fixed shapes, positions as tensors, everything a buffer of one module."""
    _, _, features, heads, layers = SIZES[options.network]
    device, dtype, F = options.device, getattr(torch, options.dtype), torch.nn.functional
    (batch, length), width = prompts.shape, features // heads
    capacity = options.prompt + options.tokens + 2 * CHUNK

    class Gpt(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            for name, value in _with_joined_products(weights, layers).items():
                self.register_buffer(name.replace(".", "_"), torch.from_numpy(value).to(device, dtype))
            for i in range(layers):
                for name in ("keys", "values"):
                    empty = torch.zeros((batch, heads, capacity, width), device=device, dtype=dtype)
                    self.register_buffer(f"{name}_{i}", empty)
            self.register_buffer("prompts", torch.from_numpy(prompts.astype(np.int64)).to(device))
            self.register_buffer("token", torch.zeros((batch, 1), device=device, dtype=torch.int64))
            self.register_buffer("position", torch.zeros((1,), device=device, dtype=torch.int64))
            self.register_buffer("written", torch.zeros((batch, CHUNK), device=device, dtype=torch.int64))
            self.register_buffer("slots", torch.arange(capacity, device=device))

        def read(self) -> Any:
            """All tokens of the prompts; the logits of the token that follows."""
            logits = self.logits(self.prompts, self.slots[:length], None)
            self.position.fill_(length)
            self.token.copy_(logits.argmax(dim=-1, keepdim=True))
            return logits

        def step(self) -> None:
            """One token of each example."""
            seen = self.slots <= self.position
            logits = self.logits(self.token, self.position, seen[None, None, None, :])
            self.token.copy_(logits.argmax(dim=-1, keepdim=True))
            self.written.index_copy_(1, (self.position - length) % CHUNK, self.token)
            self.position.add_(1)

        def logits(self, tokens: Any, places: Any, seen: Any) -> Any:
            """Of the token after the last one, (batch, vocabulary)."""
            y = F.embedding(tokens, self.tokens_weight) + self.places_weight[places]
            for i in range(layers):
                y = y + self.attention(i, self.norm_of(y, f"blocks_{i}_attention_norm"), places, seen)
                x = self.product(self.norm_of(y, f"blocks_{i}_feed_forward_norm"), f"blocks_{i}_feed_forward_first")
                y = y + self.product(F.gelu(x, approximate="tanh"), f"blocks_{i}_feed_forward_second")
            return F.linear(self.norm_of(y[:, -1], "norm"), self.tokens_weight)

        def attention(self, i: int, x: Any, places: Any, seen: Any) -> Any:
            x = self.product(x, f"blocks_{i}_attention_joined")
            q, k, v = (t.view(batch, -1, heads, width).transpose(1, 2) for t in x.split(features, dim=-1))
            keys, values = getattr(self, f"keys_{i}"), getattr(self, f"values_{i}")
            keys.index_copy_(2, places, k)
            values.index_copy_(2, places, v)
            if seen is None:
                x = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            else:
                x = F.scaled_dot_product_attention(q, keys, values, attn_mask=seen)
            return self.product(x.transpose(1, 2).reshape(batch, -1, features), f"blocks_{i}_attention_output")

        def product(self, x: Any, name: str) -> Any:
            return F.linear(x, getattr(self, f"{name}_weight"), getattr(self, f"{name}_bias"))

        def norm_of(self, x: Any, name: str) -> Any:
            return F.layer_norm(x, (features,), getattr(self, f"{name}_scale"), getattr(self, f"{name}_shift"))

    return Gpt()


def _with_joined_products(weights: dict[str, np.ndarray], layers: int) -> dict[str, np.ndarray]:
    """The weights, those of queries, keys and values as one product."""
    found = dict(weights)
    for i in range(layers):
        for part in ("weight", "bias"):
            names = [f"blocks.{i}.attention.{role}.{part}" for role in ("query", "key", "value")]
            found[f"blocks.{i}.attention.joined.{part}"] = np.concatenate([found.pop(name) for name in names])
    return found


if __name__ == "__main__":
    main()
