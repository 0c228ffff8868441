"""Remedies for a job that has failed: a sentence, and where possible changed settings that a button can submit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from ...records import dataclass
from .kinds import TRAIN

BATCH = 64  # that a training has unless told otherwise


@dataclass(frozen=True)
class Remedy:
    """Why a job failed in a few words, what to do, and the settings to try again with; no settings: it is resumed."""

    reason: str
    advice: str = ""
    label: str = ""  # of the button; none if no button helps
    changes: Mapping[str, Any] = field(default_factory=dict)


def remedy(kind: str, why: str, settings: Mapping[str, Any]) -> Remedy:
    """The remedy for a job that failed with this message."""
    text = why.lower()
    if kind == TRAIN and _is_out_of_memory(text):
        return _smaller_batch(text, settings)
    if "no space left" in text or "disk is full" in text or "disk full" in text:
        return Remedy(
            "The disk is full.", "Free some space, then resume: it continues from its last checkpoint.", "Resume"
        )
    if "its process ended" in text:
        killed = "sigkill" in text
        advice = "If the machine ran out of memory, use a smaller batch." if killed else "See its output for the error."
        reason = why.partition(";")[0]
        return Remedy(f"{reason[:1].upper()}{reason[1:]}.", advice, "Resume")
    if "there is no device" in text or "no nvidia gpu" in text:
        return Remedy(_first(why), "Choose another device.", "Retry on the CPU", {"device": "cpu"})
    return Remedy(_first(why), "", "Retry")


def _is_out_of_memory(text: str) -> bool:
    return any(
        words in text for words in ("out of memory", "memoryerror", "are free. batch=", "are free on", "would fit")
    )


def _smaller_batch(text: str, settings: Mapping[str, Any]) -> Remedy:
    given = settings.get("batch")
    batch = given if isinstance(given, int) else BATCH
    advised = re.search(r"batch=(\d+)", text)
    smaller = int(advised[1]) if advised and int(advised[1]) < batch else batch // 2
    if smaller < 1:
        return Remedy("Out of memory with one example.", "Use a smaller network or smaller images.")
    changes = {"batch": smaller, "accumulate": int(settings.get("accumulate") or 1) * -(-batch // smaller)}
    return Remedy(
        f"Out of memory at batch {batch}.", f"Batch {smaller} with gradient accumulation sees as many examples a step.",
        f"Retry with batch {smaller}", changes,
    )  # fmt: skip


def _first(why: str) -> str:
    """The first sentence, without the place that it comes from."""
    text = re.sub(r"^\[[^\]]*\] ", "", why)
    end = re.search(r"\.(\s|$)", text)
    found = text[: end.start() + 1] if end else text
    return found[:1].upper() + found[1:]
