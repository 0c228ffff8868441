"""The shapes of answers about runs and jobs. Further fields are passed on."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class JobFacts(BaseModel):
    """A job of the queue."""

    model_config = ConfigDict(extra="allow")
    number: int
    state: str = Field(description="waiting, running, done, stopped or failed")
    why: str = Field(description="why it is in that state: paused, cancelled, or the error")
    run: str | None = Field(description="folder of its run, once there is one")
    time: float = Field(description="when it came into that state, in seconds since 1970")
    settings: dict[str, Any]


class RunFacts(BaseModel):
    """A run."""

    model_config = ConfigDict(extra="allow")
    id: str
    name: str
    model: str
    data: str
    status: str = Field(description="running, finished or stopped")
    epochs: int
    planned: int
    best_metric: str | None
    best: float | None
    best_epoch: int | None
    seconds: float | None
    started: float
    problems: list[str]


class RunDetails(RunFacts):
    """A run with its settings, its summary and all metrics by epoch."""

    settings: dict[str, Any]
    summary: dict[str, Any]
    metrics: dict[str, list[float | None]]


class Resumed(BaseModel):
    """The job that continues a run."""

    number: int
    message: str


class NewJobs(BaseModel):
    """The settings of trainings, as weft train takes them; a text with commas, such as "0.1,0.03", makes a training of each value."""

    model_config = ConfigDict(extra="forbid")
    settings: dict[str, Any]
    priority: str = Field("normal", description="low, normal or high")
    gpus: int = Field(1, ge=1, description="GPUs that each training needs, if it runs on GPUs")


class JobEvents(BaseModel):
    """Events of a job from a place on; `next` is the position to continue from, `ended` whether the stream is complete."""

    events: list[dict[str, Any]]
    next: int
    ended: bool
