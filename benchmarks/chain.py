"""How long the graph machinery takes, per node: a chain of 100,000 multiplications, from building to running.

python benchmarks/chain.py [number of nodes]
"""

import sys
import time

import weft


def main(length: int) -> None:
    start = last = time.perf_counter()

    def lap(what: str) -> None:
        nonlocal last
        now = time.perf_counter()
        print(f"{what:14} {now - last:6.2f} s  {1e6 * (now - last) / length:6.1f} us a node")
        last = now

    x = weft.parameter(1.0)
    y = x
    for _ in range(length):
        y = y * 1.00001
    lap("build")
    [slope] = weft.gradients(y, [x])
    lap("differentiate")
    value, derivative = y.item(), slope.item()
    lap("run both")
    print(f"end to end     {last - start:6.2f} s  value {value:.6f}, derivative {derivative:.6f}")
    text = y.graph().text()
    lap("print")
    print(f"text of {len(text):,} characters")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
