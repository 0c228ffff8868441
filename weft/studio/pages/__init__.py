"""The pages, one a file. Each has a function `add(studio)` that registers its addresses."""

from . import (
    account,
    admin,
    batch,
    classify,
    compare,
    dataset,
    dataset_doctor,
    datasets,
    design,
    folds,
    home,
    networks,
    new_dataset,
    queue,
    run,
    runs,
    sweep,
    sweeps,
    train,
)  # fmt: skip

# The order matters where one page answers to every path below a name, as `dataset` does.
PAGES = (
    home, new_dataset, datasets, dataset_doctor, dataset, design, networks, runs, run, compare, classify, batch, train, sweeps, sweep, folds, queue, account, admin,
)  # fmt: skip
