"""The error of energy counters that are not available."""


class CounterError(Exception):
    """A counter is not available: the text says why."""
