"""Evaluations of a run: scores, the examples behind the confusion matrix with their pictures, and the jobs that make more of them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from ...jobs.evaluations import find_evaluation, saved_evaluations, split_names, submit_evaluation
from ...jobs.run_weights import weight_names
from ...report.evaluation import read_evaluation
from ..library.run_images import cell_examples, examples, mistakes, thumbnails_of
from ..library.run_jobs import device_for
from ..ui.context import Studio
from .run_results import find_row, picture
from .submission import submitter

MOST_EXAMPLES = 500
Split = Literal["train", "validation", "test"]
WEIGHTS = "weights of the run: best, last, or an epoch such as epoch-0007"
ChosenSplit = Annotated[Split | None, Query(description="default: the one that the run was evaluated on at its end")]
Checkpoint = Annotated[str, Query(description=WEIGHTS)]


class EvaluationWanted(BaseModel):
    """What to evaluate."""

    model_config = ConfigDict(extra="forbid")
    split: Split
    checkpoint: str = Field(default="best", description=WEIGHTS)


def router(studio: Studio) -> APIRouter:
    """The routes below /runs."""
    routes = APIRouter(prefix="/runs", tags=["results of runs"])

    @routes.get("/{run:path}/evaluation")
    def evaluation(run: str, split: ChosenSplit = None, checkpoint: Checkpoint = "best") -> dict[str, Any]:
        """Scores of all and of each class, calibration, curves and confusions on a split."""
        found = read_evaluation(evaluation_folder(studio, run, split, checkpoint))
        if found is None:
            raise HTTPException(404, f"there is no evaluation of {run} yet: it is made when the run has ended")
        return found

    @routes.get("/{run:path}/examples")
    def examples_of(
        run: str, row: int | None = None, column: int | None = None, limit: int = Query(100, ge=1, le=MOST_EXAMPLES), split: ChosenSplit = None,
        checkpoint: Checkpoint = "best",
    ) -> dict[str, Any]:  # fmt: skip
        """The examples of a cell of the confusion matrix, or all mistakes, the most confident first."""
        folder = evaluation_folder(studio, run, split, checkpoint)
        found = mistakes(folder) if row is None or column is None else cell_examples(folder, row, column)
        return {"count": len(found), "examples": [asdict(one) for one in examples(folder, found[:limit])]}

    @routes.get("/{run:path}/examples/{number}.png")
    def example_image(
        run: str, number: int, split: ChosenSplit = None, checkpoint: Checkpoint = "best", v: str = ""
    ) -> Response:
        """The picture of an example: of mistakes, and of some that are right."""
        return picture(thumbnails_of(evaluation_folder(studio, run, split, checkpoint)), number)

    @routes.get("/{run:path}/evaluations")
    def known(run: str) -> dict[str, Any]:
        """The splits and checkpoints that can be evaluated, and the evaluations that there are."""
        folder = find_row(studio, run).folder
        return {
            "splits": split_names(folder),
            "checkpoints": weight_names(folder),
            "evaluations": saved_evaluations(folder),
        }

    @routes.post("/{run:path}/evaluations")
    def start(request: Request, run: str, wanted: EvaluationWanted) -> dict[str, Any]:
        """Evaluate a split with the weights of a checkpoint, as a job of the queue."""
        row = find_row(studio, run)
        check_names(row.folder, wanted.split, wanted.checkpoint)
        job = submit_evaluation(
            studio.queue, row.folder, wanted.split, wanted.checkpoint, device_for(studio.queue, row), submitter(studio, request),
            model=row.model, data=row.data,
        )  # fmt: skip
        studio.feed.refresh_soon()
        return {"number": job.number, "message": "The run is evaluated as soon as there is room."}

    return routes


def check_names(folder: Path, split: str | None, checkpoint: str) -> None:
    """Answer 404 to a split or a checkpoint that a run does not have."""
    names = weight_names(folder)
    if checkpoint not in names:
        there = f"there are {', '.join(names)}" if names else "it has no weights yet"
        raise HTTPException(404, f"there is no checkpoint {checkpoint} of {folder.name}; {there}")
    if split is not None and split not in split_names(folder):
        raise HTTPException(
            404, f"there is no {split} split of {folder.name}; there are {', '.join(split_names(folder))}"
        )


def evaluation_folder(studio: Studio, run: str, split: str | None, checkpoint: str) -> Path:
    """The folder that holds the evaluation of a split and a checkpoint; what the run wrote at its end is in its own."""
    folder = find_row(studio, run).folder
    found = find_evaluation(folder, split, checkpoint)
    if found is None and (split, checkpoint) == (None, "best"):
        return folder
    if found is None:
        check_names(folder, split, checkpoint)
        raise HTTPException(
            404, f"{run} is not evaluated{f' on {split}' if split else ''} with {checkpoint} yet: POST /runs/{run}/evaluations"
        )  # fmt: skip
    return found
