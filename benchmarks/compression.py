"""The rows of Deep Compression and their successors: train, compress, measure; ratios count the bytes of files.

    python -m benchmarks.compression --data FOLDER                         all rows, 3 seeds
    python -m benchmarks.compression --data FOLDER --row best-lenet5 --seed 0 --seed 1
    python -m benchmarks.compression --data FOLDER --row best-lenet5 --validation       to choose settings
    WEFT_DEVICE=cuda python -m benchmarks.compression --data FOLDER --jobs 12 --limit 280   many processes that share a GPU

FOLDER has the folders mnist and fashion-mnist with their four files each. Prints a JSON line for each seed: errors of the original and of what the file computes in
percent, bytes and ratios of weights.packed in both codes and of the whole .weft file. Recipes are in benchmarks/compression_recipes.py. --validation trains on five sixths of
the training set and measures on the rest; --set changes a setting of a recipe, --scale the epochs of all trainings. With --jobs each row and seed is a process of its own.
The paper (Han, Mao, Dally 2016): LeNet-300-100 1.64 -> 1.58 %, 40x; LeNet-5 0.80 -> 0.74 %, 39x.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import numpy as np

import weft
from benchmarks.compression_recipes import RECIPES, Recipe
from weft import compress, data, nn, optim, train
from weft.compress.pack import packed_weights
from weft.io import safetensors
from weft.packing.packed_tensors import pack_tensors
from weft.train.results import evaluated

CALIBRATION = 1000  # images that choose the grids of activations
ORIGINAL = (
    "network",
    "data",
    "batch",
    "shift",
    "flip",
    "epochs",
    "rate",
    "weight_decay",
)  # settings of the uncompressed network


class Bench:
    """A network with its data: trains it and measures its error."""

    def __init__(self, folder: str, recipe: Recipe, seed: int, validation: bool, examples: int | None = None) -> None:
        splits = data.open_dataset(recipe.data, from_=str(Path(folder) / recipe.data))
        if validation:
            splits = data.held_out(splits, share=1 / 6)
        self.training, self.measured = splits.train, splits.validation if validation else splits.test
        if examples is not None:
            self.training = data.Subset(self.training, np.arange(examples))
        self.recipe, self.seed = recipe, seed
        self.augment(recipe.shift)
        weft.seed(seed)
        self.model: nn.Module = recipe.make()
        self.teacher: nn.Module | None = None

    def augment(self, shift: int) -> None:
        """Shift training images by up to so many pixels from now on, and flip them if the recipe says so."""
        changes: list[nn.Module] = [data.RandomCrop(28, padding=shift)] if shift else []
        changes += [data.RandomFlip()] if self.recipe.flip else []
        self.prepare = nn.Sequential(data.ToFloat(), *changes, data.Normalize(*self.recipe.normalize))

    def train(self, epochs: int, rate: float, **settings: Any) -> None:
        """Train the network; with the predictions of the teacher, if there is one."""
        if not epochs:
            return
        loader = data.Loader(self.training, self.recipe.batch, seed=self.seed, drop_last=True)
        schedule = optim.schedules.one_cycle(rate, len(loader) * epochs)
        settings |= {"rate": schedule, "epochs": epochs, "prepare": self.prepare, "seed": self.seed}
        if self.teacher is None:
            train.fit(self.model, loader, None, **settings)
            return
        with compress.distilling(self.model, self.teacher, weight=self.recipe.distill) as loss:
            train.fit(self.model, loader, None, loss=loss, **settings)

    def train_sgd(self, epochs: int, rate: float, weight_decay: float) -> None:
        self.train(epochs, rate, optimizer="sgd", momentum=0.9, weight_decay=weight_decay)

    def error(self, network: Any = None) -> float:
        """Percent of the images that are classified wrong, by the network or by what was made of it."""
        call, images = self._classifier(network)
        return 100 * (1 - evaluated(call, images).numbers["accuracy"])

    def classes(self, network: Any = None) -> np.ndarray:
        """The most probable class of each image."""
        call, images = self._classifier(network)
        return np.concatenate([call(inputs).numpy().argmax(1) for inputs, _ in images])

    def _classifier(self, network: Any) -> tuple[Any, data.Loader]:
        """A network with its preprocessing, compiled, and the images to measure it on."""
        model, prepare = network or self.model.eval(), self.prepare.eval()
        assert self.measured is not None
        return weft.jit(lambda x: model(prepare(x))), data.Loader(self.measured, 1000, shuffle=False)

    def calibration(self) -> np.ndarray:
        images: np.ndarray = self.prepare.eval()(self.training.inputs(np.arange(CALIBRATION))).numpy()
        return images


def progress(what: str, seed: int, begun: float, found: dict[str, Any]) -> None:
    """Tell on stderr what is known so far."""
    print(f"{time.perf_counter() - begun:.0f} s, {what}, seed {seed}: {found}", file=sys.stderr, flush=True)


def row(name: str, folder: str, seed: int, given: argparse.Namespace) -> dict[str, Any]:
    """Train and compress one network with one seed."""
    recipe = RECIPES[name]._replace(**dict(given.set)).scaled(given.scale)
    begun = time.perf_counter(), time.process_time()
    bench = Bench(folder, recipe, seed, given.validation, given.examples)
    train_original(bench, given)
    found: dict[str, Any] = {"row": name, "seed": seed, "measured": "validation" if given.validation else "test"}
    found["error_before"] = round(bench.error(), 3)
    progress(name, seed, begun[0], found)
    if recipe.distill:
        bench.teacher = taught(bench) if recipe.teacher else copy.deepcopy(bench.model).eval()
    step = {"int8": _int8, "fixed": _fixed, "pack": _pack}[recipe.method]
    found |= step(bench)
    wall, cpu = time.perf_counter() - begun[0], time.process_time() - begun[1]
    return found | {"seconds": round(wall), "cpu_seconds": round(cpu)}


def train_original(bench: Bench, given: argparse.Namespace) -> None:
    """Train the uncompressed network, or read it where an earlier row has kept it."""
    recipe = bench.recipe
    settings = {name: getattr(recipe, name) for name in ORIGINAL}
    settings |= {"seed": bench.seed, "validation": given.validation, "examples": given.examples}
    name = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]
    kept = Path(given.keep or ".") / f"{recipe.network}-{bench.seed}-{name}.safetensors"
    if given.keep and kept.exists():
        bench.error()  # the sizes of lazy layers are known after a call
        bench.model.load(safetensors.load(kept))
        return
    bench.train_sgd(recipe.epochs, recipe.rate, recipe.weight_decay)
    if given.keep:
        kept.parent.mkdir(parents=True, exist_ok=True)
        safetensors.save(kept, bench.model.named_tensors())


def taught(bench: Bench) -> nn.Module:
    """The network of another row, trained on the same data, whose predictions the network learns from."""
    recipe, student = RECIPES[bench.recipe.teacher], bench.model
    weft.seed(bench.seed)
    bench.model = recipe.make()
    bench.train_sgd(bench.recipe.teacher_epochs, recipe.rate, recipe.weight_decay)
    progress("teacher", bench.seed, time.perf_counter(), {"error": round(bench.error(), 3)})
    teacher, bench.model = bench.model.eval(), student
    return teacher


def _int8(bench: Bench) -> dict[str, Any]:
    """Post-training quantization, computed with the int8 kernels; agreement is the percentage of the images whose most probable class stays."""
    expected = bench.classes()
    compress.int8(bench.model.eval(), bench.calibration())
    progress("int8", bench.seed, time.perf_counter(), {"error_emulated": round(bench.error(), 3)})
    integers = compress.to_int8(bench.model)
    agreement = 100 * float((bench.classes(integers) == expected).mean())
    return {"error_after": round(bench.error(integers), 3), "agreement": round(agreement, 2)}


def _fixed(bench: Bench) -> dict[str, Any]:
    """Fixed point of each width, at once and after fine-tuning."""
    recipe, original, begun = bench.recipe, bench.model, time.perf_counter()
    found: dict[str, Any] = {}
    for bits in recipe.fixed_bits:
        bench.model = copy.deepcopy(original)
        compress.fixed_point(bench.model.eval(), bench.calibration(), bits)
        found[f"error_{bits}_bits_at_once"] = round(bench.error(), 3)
        bench.train(recipe.final_epochs, recipe.share_rate, optimizer="adam")
        found[f"error_{bits}_bits"] = round(bench.error(), 3)
        progress("fixed point", bench.seed, begun, found)
    return found


def _pack(bench: Bench) -> dict[str, Any]:
    """Prune in steps, retrain, share, fine-tune, pack."""
    recipe, model, begun = bench.recipe, bench.model, time.perf_counter()
    before = sum(tensor.numpy().nbytes for tensor in model.named_tensors().values())
    bench.augment(max(recipe.shift, recipe.retrain_shift))
    if recipe.channels:
        narrow(bench)
    for step in range(recipe.steps):
        if isinstance(recipe.density, float):
            now = compress.gradual(1.0, recipe.density, recipe.steps)[step]
            compress.prune(model, now, scope="global", score="lamp")
        else:
            ends = dict(zip(compress.weights_of(model), recipe.density, strict=True))
            compress.prune(model, {path: compress.gradual(1.0, end, recipe.steps)[step] for path, end in ends.items()})
        last = step == recipe.steps - 1
        bench.train_sgd(
            recipe.final_epochs if last else recipe.step_epochs, recipe.retrain_rate, recipe.retrain_weight_decay
        )
    found: dict[str, Any] = {"error_pruned": round(bench.error(), 3)}
    progress("pruned", bench.seed, begun, found)
    if recipe.shrink:
        compress.shrink(model.eval(), weft.asarray(bench.calibration()[:1]))
    found["densities"] = [round(density, 4) for density in compress.densities(model).values()]
    bits = (
        recipe.bits if isinstance(recipe.bits, int) else dict(zip(compress.weights_of(model), recipe.bits, strict=True))
    )
    compress.share(model, bits)
    if recipe.bias_bits:
        share_biases(model, recipe.bias_bits)
    bench.train(recipe.share_epochs, recipe.share_rate, optimizer="adam")
    return found | _sizes(bench, before)


def narrow(bench: Bench) -> None:
    """Remove channels and neurons, so that fewer weights have to be told where they are, and train what is left."""
    recipe, model, example = bench.recipe, bench.model, weft.asarray(bench.calibration()[:1])
    layers = (path.removesuffix(".weight") for path in compress.weights_of(model))
    kept = dict(zip(layers, recipe.channels, strict=False))
    compress.prune_channels(model.eval(), example, kept)
    compress.shrink(model, example)
    bench.train_sgd(recipe.channel_epochs, recipe.retrain_rate, recipe.retrain_weight_decay)
    progress("channels", bench.seed, time.perf_counter(), {"error": round(bench.error(), 3)})


def share_biases(model: nn.Module, bits: int) -> None:
    """Let biases be shared values, too."""
    for layer in list(model.modules()):
        bias = vars(layer).get("bias")
        if isinstance(bias, weft.Tensor) and bias.ndim == 1:
            centroids, members = compress.kmeans(bias.numpy(), (1 << bits) - 1)
            compress.parametrize(layer, "bias", compress.Codebook(centroids, members + 1))


def _sizes(bench: Bench, before: int) -> dict[str, Any]:
    model = bench.model.eval()
    coders: tuple[Literal["huffman", "rans"], ...] = ("huffman", "rans")
    sizes = {coder: len(pack_tensors(packed_weights(model, True), coder).content) for coder in coders}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.weft"
        files = {
            coder: compress.pack(model, path, weft.zeros((1, 1, 28, 28)), half=True, coder=coder) for coder in coders
        }
        error = bench.error(weft.load(path).eval())
    found: dict[str, Any] = {"error_after": round(error, 3), "bytes_before": before}
    for coder, size in sizes.items():
        found |= {f"{coder}_bytes": size, f"{coder}_ratio": round(before / size, 1)}
        found |= {f"{coder}_file": files[coder], f"{coder}_file_ratio": round(before / files[coder], 1)}
    return found


def run_jobs(given: argparse.Namespace, tasks: list[tuple[str, int]]) -> None:
    """Run each row and seed in a process of its own, so many at a time; what a process prints is printed when it ends."""
    words = list(sys.argv[1:])
    for option in ("--row", "--seed", "--jobs", "--limit"):  # given to each process for itself
        while option in words:
            del words[words.index(option) : words.index(option) + 2]

    def run(task: tuple[str, int]) -> None:
        command = [sys.executable, "-m", "benchmarks.compression", *words, "--row", task[0], "--seed", str(task[1])]
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=given.limit)
            print(done.stdout.strip() or f"{task[0]}, seed {task[1]}: exit status {done.returncode}", flush=True)
        except subprocess.TimeoutExpired:
            print(f"{task[0]}, seed {task[1]}: not done in {given.limit:.0f} s", flush=True)

    with ThreadPoolExecutor(given.jobs) as pool:
        list(pool.map(run, tasks))


def setting(text: str) -> tuple[str, Any]:
    """A setting of a recipe and its value in JSON: final_epochs=60, density=[0.08,0.09,0.26]."""
    name, _, value = text.partition("=")
    if name not in Recipe._fields:
        raise argparse.ArgumentTypeError(f"a recipe has no setting {name!r}: {', '.join(Recipe._fields)}")
    return name, json.loads(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder with the folders mnist and fashion-mnist")
    parser.add_argument("--row", choices=sorted(RECIPES), action="append", help="default: all")
    parser.add_argument("--seed", type=int, action="append", help="default: 0, 1 and 2")
    parser.add_argument("--validation", action="store_true", help="measure on a sixth of the training set, held out")
    parser.add_argument("--examples", type=int, help="train on so many only, to try a command")
    parser.add_argument("--scale", type=float, default=1.0, help="of the epochs of all trainings")
    parser.add_argument("--set", type=setting, action="append", default=[], help="a setting of the recipe: name=JSON")
    parser.add_argument("--keep", help="folder for uncompressed networks, which rows with the same training share")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--limit", type=float, help="seconds that a process may take")
    given = parser.parse_args()
    tasks = [(name, seed) for name in given.row or RECIPES for seed in given.seed or (0, 1, 2)]
    if given.jobs > 1:
        run_jobs(given, tasks)
        return
    for name, seed in tasks:
        print(json.dumps(row(name, given.data, seed, given)), flush=True)


if __name__ == "__main__":
    main()
