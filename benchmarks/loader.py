"""Does the loader keep up? Its images a second against those of a compiled training step, and what feeding it costs.

python benchmarks/loader.py [seconds for each measurement]

Made data of the sizes of MNIST and CIFAR-10, batches of 128, float32, SGD. A step is measured on one batch that stays,
then on the batches of the loader, in turns: the difference is what the loader costs. The last column has the
augmentation in the step too.
"""

import sys
import time
from collections.abc import Callable, Iterator

import numpy as np

import weft
from weft import data, nn, optim, zoo

BATCH = 128
Step = Callable[[weft.Tensor, weft.Tensor], weft.Tensor]


def small_cnn() -> nn.Module:
    """Three convolutions and a linear layer, for 3 x 32 x 32."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 32), (32, 64), (64, 64)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 16, 10))


CASES = {
    "MNIST-sized": (60_000, (1, 28, 28), zoo.lenet5, "lenet5"),
    "CIFAR-sized": (50_000, (3, 32, 32), small_cnn, "small CNN"),
}


def main(seconds: float) -> None:
    columns = "data", "loader alone, images/s: 0 / 1 / 2 workers", "network", "step, images/s", "fed by the loader"
    print("| " + " | ".join([*columns, "slower by", "with light augmentation"]) + " |\n" + "|---" * 7 + "|")
    for name, (count, shape, make, network) in CASES.items():
        rng = np.random.default_rng(0)
        dataset = data.Arrays(rng.integers(0, 256, (count, *shape), dtype=np.uint8), rng.integers(0, 10, count))
        alone = [loader_speed(dataset, workers, seconds) for workers in (0, 1, 2)]
        augments = data.ToFloat(), data.augmentation("light", shape[1:], flip=False)
        plain, augmented = (training_step(make(), a) for a in augments)
        fixed, fed, changed = step_speeds(dataset, plain, augmented, seconds)
        speeds = " / ".join(f"{s:,.0f}" for s in alone)
        slower = 100.0 * (fixed / fed - 1.0)
        print(
            f"| {name} | {speeds} | {network} | {fixed:,.0f} | {fed:,.0f} | {slower:.1f} % | {changed:,.0f} |",
            flush=True,
        )


def loader_speed(dataset: data.Dataset, workers: int, seconds: float) -> float:
    batches = endless(data.Loader(dataset, BATCH, drop_last=True, workers=workers))
    next(batches)
    return BATCH / per_call(lambda: next(batches), seconds)


def endless(loader: data.Loader) -> Iterator[data.Batch]:
    while True:
        yield from loader


def training_step(model: nn.Module, augment: nn.Module) -> Step:
    """One compiled step: pixels to floats, loss, derivatives, update."""
    optimizer = optim.sgd(model, 0.01, momentum=0.9)

    @weft.jit
    def step(x: weft.Tensor, y: weft.Tensor) -> weft.Tensor:
        loss = nn.cross_entropy(model(augment(x)), y)
        optimizer.minimize(loss)
        return loss

    return step


def step_speeds(dataset: data.Dataset, plain: Step, augmented: Step, seconds: float) -> list[float]:
    """Images a second: the step on one batch, on those of the loader, and with augmentation on those of the loader.

    In turns, and the best of them: others use the machine too.
    """
    batches = endless(data.Loader(dataset, BATCH, drop_last=True))
    x, y = next(batches)
    calls: tuple[Callable[[], weft.Tensor], ...] = (
        lambda: plain(x, y),
        lambda: plain(*next(batches)),
        lambda: augmented(*next(batches)),
    )
    for call in calls:
        call().item()
    turns = [[per_call(call, seconds / 8) for call in calls] for _ in range(8)]
    return [BATCH / min(times) for times in zip(*turns, strict=True)]


def per_call(call: Callable[[], object], seconds: float) -> float:
    """Seconds a call, over calls for so long."""
    calls, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        call()
        calls += 1
    return (time.perf_counter() - start) / calls


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 3.0)
