"""The verb `compare`: a short form of `weft runs compare`."""

from __future__ import annotations

from collections.abc import Sequence

from .runs import runs


def compare(words: Sequence[str]) -> None:
    """Compare runs: settings, results, what mattered, where networks disagree: weft compare RUN RUN html=compare.html."""
    runs(["compare", *words])
