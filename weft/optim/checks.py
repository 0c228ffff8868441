"""Argument checks of optimizers and schedules."""

from __future__ import annotations

from ..errors import UserError


def fractions(where: str, **values: float) -> None:
    """Each must lie in [0, 1)."""
    for word, value in values.items():
        if not (_is_number(value) and 0.0 <= value < 1.0):
            raise UserError(where, f"{word} must be a number in [0, 1), got {value!r}.")


def not_negative(where: str, **values: float) -> None:
    """Each must be 0 or more."""
    for word, value in values.items():
        if not (_is_number(value) and value >= 0.0):
            raise UserError(where, f"{word} must be a number of 0 or more, got {value!r}.")


def positive(where: str, **values: float) -> None:
    """Each must be greater than 0."""
    for word, value in values.items():
        if not (_is_number(value) and value > 0.0):
            raise UserError(where, f"{word} must be a number greater than 0, got {value!r}.")


def counts(where: str, **values: int) -> None:
    """Each must be an int of 1 or more."""
    for word, value in values.items():
        if not (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
            raise UserError(where, f"{word} must be an int of 1 or more, got {value!r}.")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
