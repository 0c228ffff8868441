"""The predictor that a name stands for. A saved program imports nothing that trains."""

from __future__ import annotations

from pathlib import Path

from ... import onnx
from ...errors import UserError
from ...saved.program import load
from .. import of_runs
from ..find import find_run
from .onnx_predictor import ImageInput, known_facts
from .predictor import Predictor, predictor_of_facts, predictor_of_foreign_model, predictor_of_program


def find_predictor(
    verb: str,
    name: str,
    images: ImageInput | None = None,
    trust_compiled: bool | None = None,
    checkpoint: str = "best",
) -> Predictor:
    """The predictor of a saved program or ONNX model (a file), or of a run.

    `images`: for models that do not say how they take images. `trust_compiled`: of the code in a saved program, see `weft.load`.
    `checkpoint`: the weights of a run, best or last.
    """
    path = Path(name)
    model = onnx.load(path) if path.is_file() and path.suffix.lower() == ".onnx" else None
    known = {} if model is None else known_facts(model)
    if model is not None and not known:
        return predictor_of_foreign_model(name, model, images or ImageInput())
    if images is not None and images != ImageInput():
        raise UserError(
            "predict",
            f"settings of images are for ONNX models of other programs; {name} says itself how images become its inputs.",
        )
    if model is not None:
        return predictor_of_facts(known, model)
    if path.is_file():
        return predictor_of_program(load(path, trust_compiled=trust_compiled))
    return of_runs.predictor_of_run(verb, find_run(name), checkpoint)
