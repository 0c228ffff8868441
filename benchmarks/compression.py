"""Deep Compression's rows for MNIST, with seeds: train, prune, retrain, share, fine-tune, pack; ratios count the bytes of files.

    python benchmarks/compression.py --data FOLDER                      LeNet-300-100 and LeNet-5, 3 seeds
    python benchmarks/compression.py --data FOLDER --network lenet5 --seeds 1 --density 0.05

Prints a JSON line for each seed: errors of the original and of the packed program in percent, bytes and ratios of weights.packed in both codes, and of the whole
.weft file. The paper (Han, Mao, Dally 2016): LeNet-300-100 1.64 -> 1.58 %, 40x; LeNet-5 0.80 -> 0.74 %, 39x.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import weft
from weft import compress, data, nn, optim, train, zoo
from weft.compress.pack import packed_weights
from weft.packing.packed_tensors import pack_tensors
from weft.train.results import evaluated


class Recipe(NamedTuple):
    """How a network is trained and compressed; densities are those of the paper, layer by layer."""

    make: Any
    densities: tuple[float, ...]
    bits: tuple[int, ...]
    epochs: int = 30
    rate: float = 0.1
    weight_decay: float = 5e-4


RECIPES = {
    "lenet_300_100": Recipe(lambda: nn.Sequential(nn.Flatten(), zoo.lenet_300_100()), (0.08, 0.09, 0.26), (5, 5, 5)),
    "lenet5": Recipe(zoo.lenet5, (0.66, 0.12, 0.08, 0.19), (6, 6, 5, 5), epochs=20, rate=0.05),
}
BATCH = 100


class Measured:
    """A network with its data: training and its error."""

    def __init__(self, folder: str, model: nn.Module, seed: int) -> None:
        self.splits = data.open_dataset("mnist", from_=folder)
        self.prepare = nn.Sequential(data.ToFloat(), data.Normalize((0.1307,), (0.3081,)))
        self.model, self.seed = model, seed

    def train(self, epochs: int, rate: float, **settings: Any) -> None:
        loader = data.Loader(self.splits.train, BATCH, seed=self.seed, drop_last=True)
        schedule = optim.schedules.one_cycle(rate, len(loader) * epochs)
        train.fit(
            self.model, loader, None, epochs=epochs, rate=schedule, prepare=self.prepare, seed=self.seed, **settings
        )

    def error(self, network: Any = None) -> float:
        """Percent of the test images that are classified wrong."""
        model = network or self.model.eval()
        call = weft.jit(lambda x: model(self.prepare(x)))
        assert self.splits.test is not None
        return 100 * (1 - evaluated(call, data.Loader(self.splits.test, 1000, shuffle=False)).numbers["accuracy"])


def row(name: str, folder: str, seed: int, given: argparse.Namespace) -> dict[str, Any]:
    """Train and compress one network with one seed."""
    recipe, begun = RECIPES[name], time.process_time()
    weft.seed(seed)
    model = recipe.make()
    one = Measured(folder, model, seed)
    one.train(
        given.epochs or recipe.epochs, recipe.rate, optimizer="sgd", momentum=0.9, weight_decay=recipe.weight_decay
    )
    found: dict[str, Any] = {"network": name, "seed": seed, "error_before": round(one.error(), 2)}
    paths = list(compress.weights_of(model))
    factor = 1.0 if given.density is None else given.density / min(recipe.densities)
    ends = {path: min(1.0, factor * density) for path, density in zip(paths, recipe.densities, strict=True)}
    for step in range(given.steps):
        compress.prune(model, {path: compress.gradual(1.0, end, given.steps)[step] for path, end in ends.items()})
        one.train(
            given.prune_epochs, 0.3 * recipe.rate, optimizer="sgd", momentum=0.9, weight_decay=recipe.weight_decay / 5
        )
    found["error_pruned"] = round(one.error(), 2)
    compress.share(model, {path: given.bits or bits for path, bits in zip(paths, recipe.bits, strict=True)})
    one.train(given.share_epochs, 1e-4, optimizer="adam")
    return found | _sizes(one) | {"cpu_seconds": round(time.process_time() - begun)}


def _sizes(one: Measured) -> dict[str, Any]:
    model = one.model.eval()
    before = sum(tensor.numpy().nbytes for tensor in model.named_tensors().values())
    sizes = {coder: len(pack_tensors(packed_weights(model, True), coder).content) for coder in ("huffman", "rans")}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.weft"
        whole = compress.pack(model, path, weft.zeros((1, 1, 28, 28)), half=True)
        error = one.error(weft.load(path).eval())
    print(compress.report(model, half=True))
    print(compress.report(model, half=True, coder="huffman"))
    ratios = {f"{coder}_ratio": round(before / size, 1) for coder, size in sizes.items()}
    return {"error_after": round(error, 2), **ratios, **sizes, "file": whole, "file_ratio": round(before / whole, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder with the four files of MNIST")
    parser.add_argument("--network", choices=sorted(RECIPES), action="append")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, help="of the first training")
    parser.add_argument("--steps", type=int, default=4, help="of pruning")
    parser.add_argument("--prune-epochs", type=int, default=8, help="after each step of pruning")
    parser.add_argument("--share-epochs", type=int, default=3)
    parser.add_argument("--density", type=float, help="of the sparsest layer; the paper's if none is given")
    parser.add_argument("--bits", type=int, help="of all layers")
    given = parser.parse_args()
    for name in given.network or sorted(RECIPES):
        for seed in range(given.seeds):
            print(json.dumps(row(name, given.data, seed, given)), flush=True)


if __name__ == "__main__":
    main()
