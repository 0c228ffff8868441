"""The error of counters that do not answer."""


class CounterError(Exception):
    """A counter does not answer: the text says why."""
