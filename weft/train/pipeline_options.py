"""The settings of a training that is a pipeline: its schedule, what it stores, and where the network is cut."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import UserError
from ..hints import nearest
from ..parallel.forms import COUNTED, CUTS, MEASURED
from ..parallel.pipeline_schedule import SCHEDULES
from ..records import dataclass


@dataclass(frozen=True)
class PipelineOptions:
    """The settings of pipelines; None and False if they are not given."""

    schedule: str | None = None  # "1f1b" or "gpipe"
    recompute: bool = False  # store the inputs of stages only
    cuts: str | Sequence[str] | None = None  # see CUTS

    def check(self, stages: int | None) -> None:
        """Reject unknown values, and settings of pipelines in a training that is none. None: the number of stages is not known yet."""
        given = {"pipeline_schedule": self.schedule, "recompute": self.recompute, "cuts": self.cuts}
        named = [name for name, value in given.items() if value not in (None, False)]
        if named and stages == 1:
            raise UserError(
                "fit", f"{named[0]}= requires a pipeline, such as parallel=pipeline:2. Leave it out otherwise."
            )
        if self.schedule not in (None, *SCHEDULES):
            raise UserError("fit", f"pipeline_schedule is {' or '.join(SCHEDULES)}, got {self.schedule!r}. {nearest(str(self.schedule), list(SCHEDULES))}")  # fmt: skip
        if not isinstance(self.recompute, bool):
            raise UserError("fit", f"recompute is True or False, got {self.recompute!r}.")
        words = self.cuts if isinstance(self.cuts, list | tuple) else []
        wrong = self.cuts not in (None, MEASURED, COUNTED) and not words
        if wrong or not all(isinstance(word, str) for word in words):
            raise UserError("fit", f"cuts is {CUTS}, got {self.cuts!r}.")
        if words and stages is not None and len(words) != stages - 1:
            raise UserError("fit", f"cuts names the last layer of each stage but the last: {stages - 1} for {stages} stages, got {len(words)}.")  # fmt: skip

    def after(self, saved: Sequence[str] | None, stages: int) -> Sequence[str] | None:
        """The layers to cut after: as given, or as in the checkpoint that is continued; None: they follow from costs."""
        if isinstance(self.cuts, list | tuple):
            return self.cuts
        return saved if saved is not None and len(saved) == stages - 1 and self.cuts != COUNTED else None
