"""What is needed to predict with a trained network. A saved program contains all of it: to use one, no module that trains is imported.

`run_predictor` predicts with a run, `find_predictor` finds either by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from ... import data
from ...data.convert import to_array
from ...data.images import read_image
from ...data.resize import WAYS, Resize, resize
from ...errors import UserError
from ...graph.text import parse_type, split_type
from ...nn.module import Module
from ...ops.convert import asarray
from ...ops.creation import zeros
from ...records import dataclass
from ...saved.program import Program
from ...tensor import Tensor
from ...tracing.jit import jit
from ...tree import unflatten
from ..datasets.facts import example
from .bare_model import BareModel, ImageInput, interpreted_model

Task = Literal["classify", "regress", "text"]


class TextProgram(Module):
    """A saved program for text, called like the network that it was saved from. A missing state is all zeros."""

    def __init__(self, program: Program, context: int | None) -> None:
        self.program, self.context = program, context

    def forward(self, x: Any, state: Any = None) -> Any:
        specs = self.program.argument_types()
        x = asarray(x).astype(split_type(specs[0])[0])
        if len(specs) == 1:
            return self.program(x)
        if state is None:
            structure = self.program.manifest.functions["eval"].arguments.children[0].children[1]
            state = unflatten(
                structure, [zeros(_shape(text, x.shape[0]), dtype=split_type(text)[0]) for text in specs[1:]]
            )
        return self.program(x, state)


def _shape(text: str, batch: int) -> tuple[int, ...]:
    return parse_type(text, {"batch": batch}).shape


@dataclass(frozen=True)
class Predictor:
    """A network for images or text with what stands around it: how images are read, and the names of classes."""

    task: Task
    shape: tuple[int, ...]  # of an input: channels, height, width
    resize: Resize
    classes: Sequence[str]
    run: Callable[[Any], Tensor]  # from stored inputs to probabilities, numbers or logits; compiled
    model: Module
    text: data.Text | None = None
    batch: int | None = None  # the only batch size that the network takes
    notes: tuple[str, ...] = ()  # what was assumed about images
    prepare: Module | None = None  # from stored inputs to those of the model; None if the model takes stored inputs
    is_multi_label: bool = False  # several classes of one input may be right: each has a probability of its own

    @property
    def reads_images(self) -> bool:
        return self.task != "text" and len(self.shape) == 3

    def image(self, path: str) -> np.ndarray:
        """The pixels of an image file, as the network was trained on them."""
        channels, height, width = self.shape
        return to_array(resize(read_image(path, "gray" if channels == 1 else "rgb"), (height, width), self.resize))


def predictor_of_bare_model(name: str, model: BareModel, images: ImageInput) -> Predictor:
    """The predictor of a model without preprocessing inside."""
    found = interpreted_model(name, model.eval(), images)
    task: Task = "classify" if found.classes else "regress"
    return Predictor(
        task, found.shape, found.resize, found.classes, jit(found.run), found.run, batch=found.batch, notes=found.notes
    )


def predictor_of_program(program: Program) -> Predictor:
    """The predictor that `jobs.export` saved."""
    if "preprocessing" not in program.facts:
        raise UserError(
            "predict", "this program does not say how images become its inputs; programs written by weft export do."
        )
    return predictor_of_facts(program.facts, program)


def predictor_of_facts(known: Mapping[str, Any], network: Module) -> Predictor:
    """The predictor of a network that takes stored inputs, with the facts that `jobs.export` wrote."""
    try:
        stored = known["preprocessing"]
        task, source = known["task"], example(stored["data"])
        way = stored["resize"]
        if task not in ("classify", "regress", "text") or way not in WAYS:
            raise ValueError(f"task {task!r}, resize {way!r}")
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            "predict",
            f"what this program states about its preprocessing is wrong ({type(error).__name__}: {error}). Call it in Python: "
            "weft.load(path)(inputs).",
        ) from None
    text = source if isinstance(source, data.Text) else None
    classes = source.classes if text is None else ()
    model = network.eval()
    if text is not None:
        if not isinstance(network, Program):
            raise UserError(
                "predict",
                "a saved program or a run is required to continue a text, got an ONNX model. Write net.weft with weft export.",
            )
        model = TextProgram(network, stored.get("context")).eval()
    return Predictor(task, tuple(source.shape), way, classes, jit(model), model, text)
