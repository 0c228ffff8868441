"""Products and networks of few bits, and with 2:4 sparsity, on a GPU against weft's bfloat16 and float32, and against torch: the same work, in turns, medians over rounds.

    python benchmarks/gpu_int8.py                       everything; writes benchmarks/results/gpu-int8-<name>.json
    python benchmarks/gpu_int8.py --only products       only the rows whose name holds one of these words
    python benchmarks/gpu_int8.py --budget 200          starts no row later than so many seconds from now
    python benchmarks/gpu_int8.py --dry                 small shapes on the CPU: tries the script

Errors are those of the result against the exact one, relative to its largest number; for networks in int8 against the same network on the CPU.
Products give bfloat16, as the layers of a network would, with the scales of their operands; "int8 sums" are the plain int32 sums. Layers with weights of 8 and 4
bits are chains with different weights, so that those do not stay in the cache, and so long that the host is not what bounds them; times are those of one layer.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import weft
from weft import compress, nn, zoo
from weft.ops.grouped import grouped_weight
from weft.ops.semi_sparse import packed, semi_sparse_weight

HERE = Path(__file__).resolve().parent
ROUNDS, TURN = 9, 0.03  # turns of each contestant, and the seconds of a turn
Call = Callable[[], Any]
Contestants = dict[str, tuple[Call, float]]  # how it is called, and its error
Row = tuple[str, Callable[[], Contestants], int]  # how often the work is done in a call


def main() -> None:
    options = _options()
    if not options.dry:
        weft.knobs.device = "cuda"
    begin, rows = time.time(), []
    path = options.json or HERE / "results" / f"gpu-int8-{_gpu_name(options.dry)}.json"
    for name, make, count in _rows(options.dry):
        wanted = not options.only or any(word in name for word in options.only)
        if not wanted or time.time() - begin > options.budget:
            continue
        made = make()
        seconds = _medians({who: call for who, (call, _) in made.items()}, options.dry)
        rows.append({"name": name, "seconds": {w: s / count for w, s in seconds.items()}, "errors": {w: None if e != e else e for w, (_, e) in made.items()}})  # fmt: skip
        _show(rows[-1])
        if not options.dry:
            path.write_text(
                json.dumps({"commit": options.commit, "gpu": _gpu_name(False), "rows": rows}, indent=1) + "\n"
            )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--only", nargs="+", default=[], help="rows whose name holds one of these")
    parser.add_argument("--budget", type=float, default=float("inf"), help="start no row later than so many seconds")
    parser.add_argument("--json", type=Path, help="where the results go")
    parser.add_argument("--commit", default="", help="what is measured")
    parser.add_argument("--dry", action="store_true", help="small shapes on the CPU")
    return parser.parse_args()


def _gpu_name(dry: bool) -> str:
    device: Any = None if dry else weft.runtime.cuda.find()[0]
    name = "cpu" if dry else device.gpu.name
    return re.sub(r"[^a-z0-9]+", "-", name.lower().replace("nvidia", "")).strip("-")


# --- measuring ------------------------------------------------------------------------------------------------------------------


def _medians(calls: dict[str, Call], dry: bool) -> dict[str, float]:
    """Seconds of a call: in each round every contestant has its turn, many calls and one wait."""
    found: dict[str, list[float]] = {who: [] for who in calls}
    repeats: dict[str, int] = {}
    for who, call in calls.items():
        for _ in range(4):  # compiled, recorded, replayed
            call()
        repeats[who] = max(1, min(2000, int(TURN / _turn(call, 3))))
    for _ in range(1 if dry else ROUNDS):
        for who, call in calls.items():
            found[who].append(_turn(call, repeats[who]))
    return {who: statistics.median(times) for who, times in found.items()}


def _turn(call: Call, repeats: int) -> float:
    _wait()
    begin = time.perf_counter()
    for _ in range(repeats):
        call()
    _wait()
    return (time.perf_counter() - begin) / repeats


def _wait() -> None:
    if weft.knobs.device == "cuda":
        weft.runtime.cuda.synchronize()
    if _has_torch():
        _torch().cuda.synchronize()


def _show(row: dict[str, Any]) -> None:
    base = row["seconds"].get("weft bfloat16") or row["seconds"]["weft float32"]
    print(row["name"])
    for who, seconds in row["seconds"].items():
        print(
            f"    {who:24}{1e6 * seconds:10.1f} us{base / seconds:7.2f} x   {_about_error(row['errors'][who])}",
            flush=True,
        )


def _about_error(error: float | None) -> str:
    return "" if error is None else f"error {error:.1e}"


def _has_torch() -> bool:
    return weft.knobs.device == "cuda" and importlib.util.find_spec("torch") is not None


def _torch() -> Any:
    return importlib.import_module("torch")


def _compiled_with(f: Callable[[Any], Any], x: Any) -> Call:
    """A function that captures its weights, as those of a network are: what is made of them is made once."""
    made = weft.jit(f)
    return lambda: made(x)


def _compiled(f: Callable[..., Any], *arguments: Any) -> Call:
    made = weft.jit(f)
    return lambda: made(*arguments)


def _error(found: Any, exact: np.ndarray) -> float:
    return float(np.abs(np.asarray(found, np.float64) - exact).max() / np.abs(exact).max())


# --- the rows -------------------------------------------------------------------------------------------------------------------


def _rows(dry: bool) -> Iterator[Row]:
    for n in (64,) if dry else (4096, 8192):
        yield f"products, {n} square", functools.partial(_products, n), 1
    for inner, layers in ((64, 2),) if dry else ((4096, 32), (11008, 16)):
        for batch in (1, 16):
            outer = min(inner, 4096)
            name = f"{layers} layers of {outer} x {inner}, batch {batch}"
            yield name, functools.partial(_weight_only, outer, inner, layers, batch), layers
    yield f"MLP of 4 layers, {4096 if not dry else 32} wide", lambda: _mlp(32 if dry else 4096), 1
    for batch in (1,) if dry else (1, 16):
        yield f"ResNet-{18 if dry else 50}, batch {batch}", functools.partial(_resnet, 32 if dry else 224, batch), 1


def _products(n: int) -> Contestants:
    rng = np.random.default_rng(0)
    floats = [rng.standard_normal((n, n), np.float32) for _ in range(2)]
    halves = [weft.asarray(a).astype("bfloat16").realize() for a in floats]
    integers = [rng.integers(-127, 128, (n, n)).astype(np.int8) for _ in range(2)]
    bytes_, codes = [weft.asarray(a) for a in integers], [weft.to_float8(a, 0.02).realize() for a in floats]
    scales = [weft.asarray(np.float32(0.02)) for _ in range(2)]
    kept, places = (weft.asarray(a).realize() for a in _pruned(floats[1]))
    kept = kept.astype("bfloat16").realize()
    calls = {
        "weft bfloat16": _compiled(lambda x, w: x @ w.T, *halves),
        "weft 2:4 bfloat16": _compiled_with(lambda x: x @ semi_sparse_weight(kept, places).T, halves[0]),
        "weft int8": _compiled(lambda x, w, s: (weft.matmul(x, w.T, dtype="int32") * s).astype("bfloat16"), *bytes_, scales[0]),
        "weft int8 sums": _compiled(lambda x, w: weft.matmul(x, w.T, dtype="int32"), *bytes_),
        "weft float8": _compiled(lambda x, w, s, t: weft.float8_matmul(x, w, s, t).astype("bfloat16"), *codes, *scales),
    }  # fmt: skip
    sums = _part(*bytes_)
    exact = {"weft bfloat16": _part(*halves), "weft int8": sums * np.float32(0.02), "weft int8 sums": sums}
    exact["weft 2:4 bfloat16"] = _part(halves[0], semi_sparse_weight(kept, places))
    exact["weft float8"] = _part(*(weft.from_float8(c, 0.02) for c in codes))
    found = {
        who: (call, _error(call()[:64, :256].astype("float64").numpy(), exact[who])) for who, call in calls.items()
    }
    return found | (_torch_products(floats, integers) if _has_torch() else {})


def _pruned(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The values and positions of a weight of which the first and third of four neighbours are kept."""
    weight = weight.copy()
    weight[:, 1::2] = 0
    return packed(weight)


def _part(x: weft.Tensor, w: weft.Tensor) -> np.ndarray:
    """A part of a product that the host can compute exactly."""
    rows, columns = x[:64].astype("float64").numpy(), w[:256].astype("float64").numpy()
    return np.asarray(rows @ columns.T)


def _torch_products(floats: list[np.ndarray], integers: list[np.ndarray]) -> Contestants:
    torch = _torch()
    a, b = (torch.tensor(x, device="cuda") for x in floats)
    x, w = (t.to(torch.bfloat16) for t in (a, b))
    i, j = (torch.tensor(x, device="cuda") for x in integers)
    s = torch.full((), 0.02, device="cuda")
    c, d = ((t / s).to(torch.float8_e4m3fn) for t in (a, b))
    torch.sparse.SparseSemiStructuredTensor._FORCE_CUTLASS = False  # cuSPARSELt
    half = torch.tensor([1, 0, 1, 0], device="cuda", dtype=torch.bfloat16).repeat(len(w), w.shape[1] // 4)
    sparse = torch.sparse.to_sparse_semi_structured(w * half)
    nan = float("nan")  # its errors are not ours to tell
    return {
        "torch bfloat16": (lambda: x @ w.T, nan),
        "torch 2:4 bfloat16": (lambda: torch.nn.functional.linear(x, sparse), nan),
        "torch int8 sums": (lambda: torch._int_mm(i, j.T), nan),
        "torch float8": (lambda: torch._scaled_mm(c, d.T, s, s, out_dtype=torch.bfloat16), nan),
    }


def _weight_only(outer: int, inner: int, count: int, batch: int) -> Contestants:
    """Linear layers, one after the other, with weights in bfloat16 and as `weft.compress.weight_only` stores them; here they are random."""
    rng, shapes = np.random.default_rng(0), [((inner, outer), (outer, inner))[n % 2] for n in range(count)]
    x = weft.asarray(rng.normal(size=(batch, outer)).astype(np.float32)).astype("bfloat16").realize()
    pattern = [rng.integers(-127, 128, 1 << 16).astype(np.int8) for _ in shapes]
    codes = [
        weft.tile(weft.asarray(p), (n * k >> 16 or 1,))[: n * k].realize()
        for p, (n, k) in zip(pattern, shapes, strict=True)
    ]
    scales = [0.01 / 64 * np.ones(n, np.float32) for n, _ in shapes]
    weights: dict[str, list[Any]] = {
        "int8": [(c, weft.asarray(s)) for c, s in zip(codes, scales, strict=True)],
        "int4": [(abs(c[: c.size // 2]).astype("uint8").realize(), weft.full((c.size // 32,), 0.01 / 4).realize()) for c in codes],
    }  # fmt: skip
    decoded: dict[str, list[weft.Tensor]] = {
        name: [grouped_weight(*w, bits=int(name[-1]), shape=s) for w, s in zip(given[:2], shapes, strict=False)]
        for name, given in weights.items()
    }
    halves = [grouped_weight(*w, bits=8, shape=s).astype("bfloat16").realize() for w, s in zip(weights["int8"], shapes, strict=True)]  # fmt: skip
    weights, decoded = {"bfloat16": halves} | weights, {"bfloat16": halves} | decoded
    found: Contestants = {"weft 2:4 bfloat16": _semi_sparse_stack(x, shapes)}
    for name, given in weights.items():
        chain = _products_of if name == "bfloat16" else functools.partial(_chain, shapes=shapes, bits=int(name[-1]))
        exact = x.astype("float32").numpy()
        for w in decoded[name][:2]:
            exact = exact @ w.astype("float32").numpy().T
        error = _error(_compiled(chain, x, given[:2])().astype("float32").numpy(), exact)  # of the first two
        found[f"weft {name}" + " weights" * (name != "bfloat16")] = _compiled(chain, x, given), error
    return found | (_torch_stack(outer, inner, count, batch) if _has_torch() else {})


def _semi_sparse_stack(x: weft.Tensor, shapes: list[tuple[int, int]]) -> tuple[Call, float]:
    """The same products with weights of 2:4 sparsity."""
    rng = np.random.default_rng(0)
    kinds = {shape: _pruned(0.02 * rng.standard_normal(shape, np.float32)) for shape in set(shapes)}
    layers = [tuple(weft.asarray(a).realize() for a in kinds[shape]) for shape in shapes]
    layers = [(values.astype("bfloat16").realize(), places) for values, places in layers]

    def chain(x: weft.Tensor, count: int) -> weft.Tensor:
        return functools.reduce(lambda y, w: y @ semi_sparse_weight(*w).T, layers[:count], x)

    exact = x.astype("float32").numpy()
    for w in layers[:2]:
        exact = exact @ semi_sparse_weight(*w).astype("float32").numpy().T
    error = _error(_compiled_with(lambda x: chain(x, 2), x)().astype("float32").numpy(), exact)
    return _compiled_with(lambda x: chain(x, len(layers)), x), error


def _products_of(x: weft.Tensor, weights: list[Any]) -> weft.Tensor:
    return functools.reduce(lambda y, w: y @ w.T, weights, x)


def _chain(x: weft.Tensor, weights: list[Any], shapes: list[tuple[int, int]], bits: int) -> weft.Tensor:
    for (codes, scale), shape in zip(weights, shapes, strict=False):
        x = x @ grouped_weight(codes, scale, bits=bits, shape=shape).astype("bfloat16").T
    return x


def _torch_stack(outer: int, inner: int, count: int, batch: int) -> Contestants:
    """The same products, captured in a CUDA graph."""
    torch = _torch()
    sizes = [(inner, outer), (outer, inner)]
    weights = [0.02 * torch.randn(*sizes[n % 2], device="cuda", dtype=torch.bfloat16) for n in range(count)]
    x = torch.randn(batch, outer, device="cuda", dtype=torch.bfloat16)

    def run() -> Any:
        y = x
        for w in weights:
            y = y @ w.T
        return y

    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return {"torch bfloat16": (graph.replay, float("nan"))}


@dataclass
class Network:
    """A network in float32 and in 8 bits, on the CPU and on the GPU."""

    here: dict[str, nn.Module]
    there: dict[str, Any]

    @classmethod
    def made(cls, make: Callable[[], nn.Module], calibration: np.ndarray, float8: bool) -> Network:
        with weft.knobs.set(device="cpu"):
            quantized = make()
            compress.int8(quantized, calibration, method="minmax", weight_method="minmax")
            here = {"float32": make(), "int8": compress.to_int8(quantized)}
            if float8:
                here["float8"] = make()
                compress.float8(here["float8"], calibration)
        return cls(here, {name: _on_gpu(model, calibration.shape[1:]) for name, model in here.items()})

    def contestants(self, x: np.ndarray) -> Contestants:
        """With errors against float32 on the CPU, of int8 against int8 there."""
        with weft.knobs.set(device="cpu"):
            exact = {name: weft.jit(self.here[name])(x).numpy() for name in ("float32", "int8")}
        held = weft.asarray(x).realize()
        found: Contestants = {}
        for name in ("float32", "bfloat16", *list(self.there)[1:]):
            network = self.there["float32" if name == "bfloat16" else name]
            made = weft.jit(lambda x, network=network: network(x), precision="bfloat16" if name == "bfloat16" else None)
            expected = exact["int8" if name == "int8" else "float32"]
            found[f"weft {name}"] = functools.partial(made, held), _error(made(held).numpy(), expected)
        return found


def _on_gpu(model: nn.Module, shape: tuple[int, ...]) -> Any:
    """A network made on the CPU, on the GPU."""
    with tempfile.TemporaryDirectory() as folder:
        with weft.knobs.set(device="cpu"):
            weft.save(Path(folder) / "network.weft", model, weft.TensorSpec(("n", *shape)))
        return weft.load(Path(folder) / "network.weft").eval()


def _mlp(width: int) -> Contestants:
    def make() -> nn.Module:
        weft.seed(0)
        return nn.Sequential(*(nn.Linear(width, width, activation="relu") for _ in range(4))).eval()

    x = np.random.default_rng(0).normal(size=(min(width, 2048), width)).astype(np.float32)
    return Network.made(make, x[:64], True).contestants(x)


def _resnet(size: int, batch: int) -> Contestants:
    x = np.random.default_rng(0).normal(size=(batch, 3, size, size)).astype(np.float32)
    return _resnet_network(size).contestants(x)


@functools.cache
def _resnet_network(size: int) -> Network:
    x = np.random.default_rng(1).normal(size=(1, 3, size, size)).astype(np.float32)

    def make() -> nn.Module:
        weft.seed(0)
        model = (zoo.resnet18 if size < 224 else zoo.resnet50)().eval()
        model(x).realize()
        return model

    return Network.made(make, x, False)


if __name__ == "__main__":
    main()
