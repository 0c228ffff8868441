"""Everything the studio does, as REST below /api/v1. Pages change nothing but through it."""

from . import (
    account,
    admin,
    classify,
    compare,
    compressions,
    corrections,
    datasets,
    designs,
    doctor,
    embedding,
    ensembles,
    events,
    explain,
    folds,
    jobs,
    predictions,
    profiles,
    queue,
    recipes,
    run_actions,
    run_evaluations,
    run_results,
    runs,
    search,
    submission,
    sweeps,
    text,
    uploads,
)  # fmt: skip

# The order matters where one router answers to every path below a name, as `runs` does.
ROUTERS = (
    submission, jobs, queue, run_results, run_evaluations, run_actions, embedding, compressions, profiles, explain, runs, sweeps, folds, ensembles, compare, predictions, classify, text, events, uploads, doctor,
    datasets, corrections, designs, recipes,
    search, account, admin,
)  # fmt: skip
