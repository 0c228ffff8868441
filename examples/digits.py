"""Train a small network on real handwritten digits and show how it went: `make demo`.

Everything is here to be read: the network is two layers, the training step is four lines.
"""

import time

import weft
from weft import nn, optim

HIDDEN, EPOCHS, BATCH = 64, 12, 64


def main() -> None:
    weft.seed(1)
    images, labels = weft.data.digits()
    order = weft.random.permutation(len(images))
    x, y = weft.take(images.flatten(1), order, axis=0).realize(), weft.take(labels, order).realize()
    train_x, test_x, train_y, test_y = x[:1437], x[1437:], y[:1437], y[1437:]

    model = nn.Sequential(nn.Linear(64, HIDDEN, activation="relu"), nn.Linear(HIDDEN, 10))
    optimizer = optim.sgd(model, rate=0.1, momentum=0.9)

    @weft.jit
    def step(x: weft.Tensor, y: weft.Tensor) -> weft.Tensor:
        loss = weft.cross_entropy(model(x), y)
        optimizer.minimize(loss)
        return loss

    print(f"digits: {len(train_x)} to learn from, {len(test_x)} to test with; 64-{HIDDEN}-10 network\n")
    print("epoch  loss    accuracy on the test digits")
    losses, start = [], time.perf_counter()
    for epoch in range(EPOCHS):
        shuffled = weft.random.permutation(len(train_x)).numpy()
        for first in range(0, len(shuffled) - BATCH + 1, BATCH):
            chosen = shuffled[first : first + BATCH]
            losses.append(step(train_x[chosen], train_y[chosen]).item())
        accuracy = weft.metrics.accuracy(model(test_x), test_y).item()
        recent = sum(losses[-20:]) / 20
        print(f"{epoch + 1:5}  {recent:.4f}  {100 * accuracy:.1f} %  {'#' * round(40 * accuracy)}")
    print(f"\n{len(losses)} steps in {time.perf_counter() - start:.1f} s\n")
    print(plot(losses, "loss of each step"))
    show_some(model, images, labels, order.numpy()[-4:])


def plot(values: list[float], title: str, width: int = 64, height: int = 12) -> str:
    """A curve in the terminal: each column is the mean of some values, drawn with eighths of a character."""
    columns = [
        sum(part) / len(part)
        for i in range(width)
        if (part := values[i * len(values) // width : (i + 1) * len(values) // width])
    ]
    top = max(columns)
    eighths = [round(8 * height * c / top) for c in columns]
    lines = [title]
    for row in range(height, 0, -1):
        cells = "".join(" ▁▂▃▄▅▆▇█"[min(max(e - 8 * (row - 1), 0), 8)] for e in eighths)
        lines.append(f"{top * row / height:6.3f} ┤{cells}")
    return "\n".join([*lines, " " * 7 + "└" + "─" * width, f"{'step 1':>13}{len(values):>{width - 6}}"])


def show_some(model: nn.Module, images: weft.Tensor, labels: weft.Tensor, chosen: list[int]) -> None:
    """A few test digits as characters, and what the network takes them for."""
    print("\nsome test digits, and what the network takes them for")
    guesses = model(images[chosen].flatten(1)).argmax(axis=1).tolist()
    for row in range(8):
        print("   ".join("".join(" .:-=+*#%@"[round(9 * v)] * 2 for v in images[i, row].tolist()) for i in chosen))
    words = [f"{g}" if g == t else f"{g} (it is {t})" for g, t in zip(guesses, labels[chosen].tolist(), strict=True)]
    print("   ".join(f"{w:^16}" for w in words))


if __name__ == "__main__":
    main()
