"""The predictor that a name refers to. For a saved program, no module that trains is imported."""

from __future__ import annotations

from pathlib import Path

from ... import onnx
from ...errors import UserError
from ...io.file_kind import file_kind
from ...saved.program import load
from .. import of_runs
from ..find import find_run
from .bare_model import BareModel, ImageInput
from .predictor import Predictor, predictor_of_bare_model, predictor_of_facts


def find_predictor(
    verb: str,
    name: str,
    images: ImageInput | None = None,
    trust_compiled: bool | None = None,
    checkpoint: str = "best",
) -> Predictor:
    """The predictor of a saved program or ONNX model (a file), or of a run.

    `images`: for models without preprocessing inside. `trust_compiled`: of the code in a saved program, see `weft.load`.
    `checkpoint`: the weights of a run, best or last.
    """
    given, path = images or ImageInput(), Path(name)
    if not path.is_file():
        _refuse_settings(given, name)
        return of_runs.predictor_of_run(verb, find_run(name), checkpoint)
    kind = file_kind(path, verb)
    if kind == "weights":
        raise UserError(
            verb,
            f"{name} holds weights alone: which network? weft convert {name} net.weft model=NAME makes one of them.",
        )
    model: BareModel = onnx.load(path) if kind == "onnx" else load(path, trust_compiled=trust_compiled)
    if "preprocessing" not in model.facts:
        return predictor_of_bare_model(name, model, given)
    _refuse_settings(given, name)
    return predictor_of_facts(model.facts, model)


def _refuse_settings(given: ImageInput, name: str) -> None:
    if given != ImageInput():
        raise UserError(
            "predict",
            f"settings of images are for models without preprocessing inside; {name} contains its own preprocessing.",
        )
