"""Entries of the log in words: requests to the API are logged by method and path."""

from __future__ import annotations

import re
from urllib.parse import unquote

METHODS = ("post", "put", "patch", "delete")
# Pattern of method and path, and what was done; \1 and so on are parts of the path. The first that fits holds.
_SENTENCES = tuple(
    (re.compile(pattern), text)
    for pattern, text in (
        (r"post /jobs", "Added trainings"),
        (r"post /jobs/(\d+)/(pause|resume|stop|hold|release|retry)", r"\2 job \1"),
        (r"post /jobs/(\d+)/priority", r"Changed the priority of job \1"),
        (r"post /jobs/(\d+)/move", r"Moved job \1"),
        (r"post /queue/(pause|resume|hold|release)", r"\1 the queue"),
        (r"post /sweeps", "Started a sweep"),
        (r"post /folds", "Started a cross-validation"),
        (r"post /(sweeps|folds)/([^/]+)/(pause|resume)", r"\3 \2"),
        (r"post /ensembles", "Made an ensemble"),
        (r"post /datasets", "Made a dataset"),
        (r"post /datasets/([^/]+)/[^/]+/changes", r"Changed the dataset \1"),
        (r"post /datasets/([^/]+)/corrections", r"Corrected images of \1"),
        (r"post /datasets/([^/]+)/.*doctor(/save)?", r"Examined the dataset \1"),
        (r"put /datasets/([^/]+)/.*doctor/decisions", r"Decided on findings in \1"),
        (r"delete /datasets/([^/]+)", r"Deleted the dataset \1"),
        (r"put /designs/([^/]+)", r"Saved the network \1"),
        (r"delete /designs/([^/]+)", r"Deleted the network \1"),
        (r"put /recipes/([^/]+)", r"Saved the recipe \1"),
        (r"delete /recipes/([^/]+)", r"Deleted the recipe \1"),
        (r"post /designs/import.*", "Imported a network"),
        (r"post /runs/(delete|restore|annotate)", r"\1 runs"),
        (r"patch /runs/(.+)/annotations", r"Annotated \1"),
        (r"post /runs/(.+)/(pause|stop|resume|extend|branch)", r"\2 \1"),
        (r"post /runs/(.+)/exports", r"Exported \1"),
        (r"post /runs/(.+)/compressions", r"Compressed \1"),
        (r"post /(?:runs|networks)/(.+)/profiles", r"Measured \1"),
        (r"post /(?:runs|networks)/(.+)/energy", r"Compared the energy of \1"),
        (r"post /runs/(.+)/embedding", r"Mapped \1"),
        (r"post /runs/(.+)/evaluations", r"Evaluated \1"),
        (r"delete /runs/(.+)/checkpoints.*", r"Deleted checkpoints of \1"),
        (r"delete /(?:runs|networks)/(.+)/profiles/.*", r"Deleted a profile of \1"),
        (r"post /runs/(.+)/compression/points/(\d+)/keep", r"Kept point \2 of \1"),
        (r"post /runs/(.+)/checkpoints/keep", r"Deleted checkpoints of \1"),
        (r"post /predictions(/upload)?", "Predicted many images"),
        (r"delete /predictions/(\d+)", r"Deleted the predictions \1"),
        (r"post /networks/(.+)/load", r"Loaded \1"),
        (r"delete /networks/(.+)/loaded", r"Released \1"),
        (r"post /networks/(.+)/(?:explain|images)", r"Looked into \1"),
        (r"delete /datasets/([^/]+)/([^/]+)", r"Deleted the dataset \1 \2"),
        (r"post /designs/([^/]+)/clone", r"Copied the network \1"),
        (r"(?:post|put|delete) /uploads.*", "Sent files"),
    )
)
_PAST = {
    "pause": "Paused", "resume": "Resumed", "stop": "Stopped", "hold": "Held", "release": "Released", "retry": "Retried", "delete": "Deleted",
    "restore": "Restored", "annotate": "Annotated", "extend": "Extended", "branch": "Branched off",
}  # fmt: skip


def change_text(action: str, target: str) -> tuple[str, str]:
    """What was done, and on what: a sentence for requests that are known, else as it was logged.

    >>> change_text("post", "/jobs/54/hold"), change_text("delete", "/datasets/old"), change_text("sign in", "anna")
    (('Held job 54', ''), ('Deleted the dataset old', ''), ('sign in', 'anna'))
    """
    if action not in METHODS:
        return action, target
    asked = f"{action} {unquote(target)}"
    for pattern, text in _SENTENCES:
        if (found := pattern.fullmatch(asked)) is not None:
            first, _, rest = found.expand(text).partition(" ")
            return f"{_PAST.get(first, first)} {rest}".strip(), ""
    return action, target
