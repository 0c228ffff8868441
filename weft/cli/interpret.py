"""The verb `interpret`: a page with attribution maps, all layers and the embedding of a trained network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..data.images import Unreadable
from ..errors import UserError
from ..interpret import Explainer
from ..interpret.explanation import ImageExplanation, explained
from ..interpret.page import LayerView, interpretation_page
from ..interpret.scatter import scatter
from ..interpret.statistics import statistics_of
from ..io.files import replace_file
from ..jobs.datasets.image_lists import image_files
from ..jobs.device import on
from ..jobs.embedding import make_embedding
from ..jobs.events import Event
from ..jobs.prediction.predictor import Predictor
from ..jobs.prediction.run_predictor import predictor_of_run
from ..jobs.schema import Setting, flag, whole
from ..jobs.settings import DEVICE
from ..jobs.stored import run_of
from .arguments import Words, read
from .display import Display

MOST_WORDS = 1000
KNOWN = {
    "out": Setting(str, None, "page to write; default: interpret.html in the run folder"),
    "target": Setting(str, None, "class that is explained; default: the predicted one"),
    "checkpoint": Setting(str, "best", "weights of the run", choices=("best", "last")),
    "embedding": Setting(flag, None, "make maps of held-out images by PCA and t-SNE; default: if no image is given"),
    "examples": Setting(whole, 2000, "images of the maps, at most 5,000"),
    "device": DEVICE,
}


def interpret(words: Sequence[str]) -> None:
    """Show why a network predicts what it does, layer by layer: weft interpret RUN image.jpg.

    Writes a page: for each image the parts that the prediction depends on (Grad-CAM and occlusion), for the first one the activations,
    weights and statistics of every layer. Without images, or with embedding=true, maps of held-out images by PCA and t-SNE are made
    and kept in the run folder, where the studio shows them.
    """
    given = read("interpret", words, KNOWN, MOST_WORDS)
    folder = run_of("interpret", given.plain)
    files = image_files(given.plain[1:])
    with on(given["device"]):
        predictor = predictor_of_run("interpret", folder, given["checkpoint"])
        if not predictor.reads_images:
            raise UserError(
                "weft interpret",
                f"a network for images is required, got {folder.name}, which was trained on text or numbers.",
            )
        page = _page(folder, files, predictor, given)
    out = Path(given["out"]) if given["out"] is not None else folder / "interpret.html"
    replace_file(out, [page.encode()], "interpret")
    print(f"page: {out}")


def _page(folder: Path, files: Sequence[str], predictor: Predictor, given: Words) -> str:
    explainer = Explainer(predictor.model, predictor.prepare)
    target = _target(given["target"], predictor)
    images = {file: _image(predictor, file) for file in files}
    explanations = {
        file: explained(explainer, image, target, predictor.is_multi_label) for file, image in images.items()
    }
    for file, one in explanations.items():
        print(f"{file}: {_answer(one, predictor)}")
    layers = _layers(explainer, next(iter(images.values()))) if images else []
    charts = _charts(folder, given) if given["embedding"] or (given["embedding"] is None and not files) else []
    return interpretation_page(folder.name, explanations, predictor.classes, layers, charts)


def _target(name: str | None, predictor: Predictor) -> int | None:
    if name is None:
        return None
    if name in predictor.classes:
        return list(predictor.classes).index(name)
    known = ", ".join(predictor.classes[:20]) or "the numbers of its outputs"
    if not predictor.classes and name.isdigit():
        return int(name)
    raise UserError("weft interpret", f"target is one of the classes of the network, got {name!r}. Known: {known}.")


def _image(predictor: Predictor, file: str) -> np.ndarray:
    try:
        return predictor.image(file)
    except Unreadable as reason:
        raise UserError("weft interpret", f"an image is required, got {file}, which {reason}.") from None


def _answer(one: ImageExplanation, predictor: Predictor) -> str:
    if not predictor.classes:
        return ", ".join(f"{value:.6g}" for value in one.scores)
    best = np.argsort(-one.probabilities, kind="stable")[:3]
    return ", ".join(f"{predictor.classes[i]} {100 * one.probabilities[i]:.1f} %" for i in best)


def _layers(explainer: Explainer, image: np.ndarray) -> list[LayerView]:
    values = explainer.activations(image[None])
    found = []
    for call in explainer.layers(image[None]):
        weight, output = getattr(call.module, "weight", None), values[call.name].numpy()[0].astype(np.float32)
        found.append(
            LayerView(
                call.name, type(call.module).__name__, output, statistics_of(output),
                None if weight is None else weight.numpy().astype(np.float32),
            )
        )  # fmt: skip
    return found


def _charts(folder: Path, given: Words) -> list[str]:
    with Display() as display:

        def show(event: Event) -> None:
            if event.type == "progress":
                display.bar(event["what"], event["done"], event["total"])

        made = make_embedding(folder, given["checkpoint"], None, given["examples"], given["device"], show)
    names = made.classes
    wrong = made.labels != made.predicted if names else np.zeros(len(made.labels), bool)
    return [
        scatter(
            points,
            made.labels if names else None,
            names,
            f"{title} of {len(points):,} {made.facts['split']} images",
            wrong,
        )
        for title, points in (("t-SNE", made.tsne), ("PCA", made.pca))
    ]
