"""The bubble of pipelines, measured against theory: an MLP and a CNN in stages of one thread each.

python benchmarks/pipeline.py [stages] [FOLDER for pictures]
"""

import sys
from functools import partial
from pathlib import Path

import numpy as np

import weft
from weft import nn, optim, parallel
from weft.parallel.pipeline_report import PipelineReport
from weft.report import pipeline_svg

REPEATS = 7


def mlp(stages: int) -> tuple[nn.Sequential, tuple[int, ...]]:
    layers = [part for _ in range(4 * stages) for part in (nn.Linear(512, 512), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(512, 10)), (1024, 512)


def cnn(stages: int) -> tuple[nn.Sequential, tuple[int, ...]]:
    layers = [
        part for _ in range(2 * stages) for part in (nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU())
    ]
    return nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), *layers, nn.GlobalAvgPool(), nn.Linear(32, 10)), (
        64,
        3,
        32,
        32,
    )


NETWORKS = {"mlp": mlp, "cnn": cnn}


def measured(name: str, stages: int, micro_batches: int, schedule: str) -> PipelineReport:
    """The report of the step with the median time."""
    weft.random.seed(1)
    model, shape = NETWORKS[name](stages)
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=shape).astype(np.float32), rng.integers(0, 10, shape[0])
    pipeline = parallel.Pipeline(
        model, weft.cross_entropy, partial(optim.sgd, rate=0.01), x, micro_batches=micro_batches, schedule=schedule
    )
    reports = []
    for _ in range(2 + REPEATS):
        pipeline.step(x, y)
        reports.append(pipeline.report())
    return sorted(reports[2:], key=lambda report: report.seconds)[REPEATS // 2]


def main(stages: int, folder: str) -> None:
    parallel.Mesh(stage=stages)
    rank, pictures = parallel.world().rank, dict[tuple[str, int], str]()
    for name in NETWORKS:
        for micro_batches in (4, 8, 16):
            reports = [measured(name, stages, micro_batches, schedule) for schedule in ("gpipe", "1f1b")]
            pictures[name, micro_batches] = pipeline_svg(*reports)
            if rank == 0:
                print(f"\n{name}", *reports, sep="\n", flush=True)
    if rank == 0 and folder:
        for (name, micro_batches), picture in pictures.items():
            Path(folder, f"pipeline-{name}-{micro_batches}.svg").write_text(picture)


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    parallel.run(main, count, count, sys.argv[2] if len(sys.argv) > 2 else "", threads=1)
