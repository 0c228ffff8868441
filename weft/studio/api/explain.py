"""Why a network predicts what it does: its layers, their activations and weights as pictures, and maps over an image."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from fastapi import APIRouter, HTTPException, UploadFile
from fastapi.responses import Response

from ...errors import UserError
from ...interpret import nearest
from ...interpret.pictures import rgb
from ...jobs.embedding import EmbeddingMap
from ...report.png import data_url, png
from ..library import tiles
from ..library.explained import ExplainedNetwork
from ..library.layer_facts import LayerDetails
from ..ui.context import Studio

LARGEST = 32 << 20  # bytes of an image file
NEIGHBOURS = 8
KEPT = {"Cache-Control": "private, max-age=600"}  # addresses of pictures hold the time of the weights


def router(studio: Studio) -> APIRouter:
    """The routes below /networks that look into a network. `image` is test-12 for one of the held-out split, or what /images answered."""
    routes = APIRouter(prefix="/networks", tags=["networks"])

    _add_layers(routes, studio)
    _add_images(routes, studio)
    return routes


def _add_layers(routes: APIRouter, studio: Studio) -> None:
    """The routes about layers: their statistics, activations and weights."""

    @routes.get("/{run:path}/layers")
    def layers(run: str, image: str, checkpoint: str = "best") -> list[dict[str, Any]]:
        """All layers with the statistics of their outputs for an image, and of their weights."""
        network = _find(studio, run, checkpoint)
        return [
            {"name": row.name, "title": row.title, "kind": row.kind, "depth": row.depth, "shape": list(row.shape), "parameters": row.parameters}
            | _statistics(network.details(image, row.name))
            for row in network.layers
        ]  # fmt: skip

    @routes.get("/{run:path}/activations.png")
    def activations(run: str, layer: str, image: str, checkpoint: str = "best", v: str = "") -> Response:
        """The channels of a layer for an image, 16 in a row; opacity is the activation."""
        return _picture(tiles.activation_mask(_find(studio, run, checkpoint).outputs(image, layer)))

    @routes.get("/{run:path}/weights.png")
    def weights(run: str, layer: str, part: str = "colours", checkpoint: str = "best", v: str = "") -> Response:
        """The filters of a layer, 16 in a row: colours of filters with three channels, else the positive or the negative part as opacity."""
        weight = _find(studio, run, checkpoint).weight(layer)
        if weight is None or weight.ndim not in (2, 4):
            raise UserError("studio", f"a convolution or a linear layer is required, got {layer!r}.")
        if part == "colours" and tiles.has_colours(weight):
            return _picture(tiles.filter_colours(weight))
        if part not in ("positive", "negative") or tiles.has_colours(weight):
            raise UserError("studio", "part is colours of filters with three channels, else positive or negative.")
        return _picture(tiles.filter_mask(weight, part == "negative"))

    @routes.get("/{run:path}/channel.png")
    def channel(run: str, layer: str, channel: int, image: str, checkpoint: str = "best", v: str = "") -> Response:
        """One channel of a layer over the image."""
        network = _find(studio, run, checkpoint)
        values = network.outputs(image, layer)
        if values.ndim != 3 or not 0 <= channel < len(values):
            raise UserError("studio", f"a channel of a layer with maps is required, got {channel} of {layer!r}.")
        return _picture(tiles.channel_overlay(network.image(image), values[channel]))

    @routes.get("/{run:path}/exciting")
    def exciting(run: str, layer: str, channel: int, checkpoint: str = "best", count: int = 8) -> list[dict[str, Any]]:
        """The held-out images, of a sample of 64, for which a channel is largest on average."""
        network = _find(studio, run, checkpoint)
        if not 0 <= channel < network.layer(layer).channels:
            raise UserError("studio", f"a channel of {layer!r} is required, got {channel}.")
        split = network.held_out[0]
        return [{"image": f"{split}-{i}", "mean": mean} for i, mean in network.exciting(layer, channel, min(count, 64))]


def _add_images(routes: APIRouter, studio: Studio) -> None:
    """The routes about images, and the explanation of a prediction."""

    @routes.get("/{run:path}/images/{image}.png")
    def picture(run: str, image: str, checkpoint: str = "best") -> Response:
        """An image as the network takes it."""
        return _picture(png(rgb(_find(studio, run, checkpoint).image(image))))

    @routes.post("/{run:path}/images")
    def keep(run: str, image: UploadFile, checkpoint: str = "best") -> dict[str, str]:
        """Send an image to look at; the name that stands for it while the studio keeps it."""
        return {"image": _find(studio, run, checkpoint).upload(_content(image))}

    @routes.get("/{run:path}/explain")
    def explain(run: str, image: str, checkpoint: str = "best", target: str = "") -> dict[str, Any]:
        """Why the network predicts what it does for an image: maps as pictures, numbers, and similar training images."""
        network = _find(studio, run, checkpoint)
        return _explanation(network, image, target, studio.embeddings.current(network.folder, checkpoint))

    @routes.post("/{run:path}/explain")
    def explain_file(
        run: str, image: UploadFile | None = None, path: str = "", checkpoint: str = "best", target: str = ""
    ) -> dict[str, Any]:
        """The same for an image that is sent, or for a file on the server."""
        network = _find(studio, run, checkpoint)
        if (image is None) == (not path):
            raise UserError("studio", "an image or the path of a file on the server is required.")
        name = (
            network.upload(_content(image)) if image is not None else network.add_file(studio.paths.path(path, "file"))
        )
        return _explanation(network, name, target, studio.embeddings.current(network.folder, checkpoint))


def _find(studio: Studio, run: str, checkpoint: str) -> ExplainedNetwork:
    row = studio.index.get(run)
    if row is None:
        raise HTTPException(404, f"there is no run {run}")
    return studio.explained.get(studio.networks, row.folder, checkpoint)


def _content(image: UploadFile) -> bytes:
    content = image.file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise HTTPException(413, f"images of up to {LARGEST >> 20} MiB are accepted")
    return content


def _picture(content: bytes) -> Response:
    return Response(content, media_type="image/png", headers=KEPT)


def _statistics(found: LayerDetails) -> dict[str, Any]:
    known = {"activations": found.activations} | ({"weight": found.weight.statistics} if found.weight else {})
    made: dict[str, Any] = {
        name: {key: getattr(one, key) for key in ("mean", "std", "min", "max", "norm", "zeros")}
        | {"counts": one.counts.tolist(), "edges": one.edges.tolist()}
        for name, one in known.items()
    }
    return made | {"silent": found.silent}


def _explanation(network: ExplainedNetwork, image: str, target: str, similar: EmbeddingMap | None) -> dict[str, Any]:
    start = time.perf_counter()
    classes = list(network.predictor.classes)
    if target and classes and target not in classes:
        raise UserError("studio", f"one of the classes is required as target, got {target!r}.")
    chosen = None if not target else classes.index(target) if classes else int(target)
    found = network.explain(image, chosen)
    shares = found.probabilities
    best = [int(i) for i in np.argsort(-shares, kind="stable")[:5]] if classes else []
    return {
        "image": image, "target": classes[found.target] if classes else str(found.target),
        "classes": [{"name": classes[i], "probability": float(shares[i])} for i in best],
        "numbers": [] if classes else [float(v) for v in found.scores],
        "input": {"picture": data_url(png(rgb(found.image))), "size": " × ".join(map(str, found.image.shape[1:]))},
        "maps": [
            {"name": one.name, "title": one.title, "note": one.note, "largest": float(one.values.max()), "picture": data_url(png(one.picture(found.image)))}
            for one in found.maps
        ],
        "similar": [] if similar is None else _similar(network, found.image, similar),
        "has_embedding": similar is not None,
        "milliseconds": 1000 * (time.perf_counter() - start),
    }  # fmt: skip


def _similar(network: ExplainedNetwork, image: np.ndarray, known: EmbeddingMap) -> list[dict[str, Any]]:
    """The training images whose embeddings are nearest."""
    vector, _ = network.explainer.embed(image[None])
    order, similarity = nearest(known.train_vectors, vector, NEIGHBOURS)
    names = known.classes
    return [
        {
            "picture": data_url(png(known.train_thumbs[i])), "similarity": float(s), "index": int(known.train_indices[i]),
            "label": names[int(known.train_labels[i])] if names else f"{float(known.train_labels[i].ravel()[0]):.4g}",
        }
        for i, s in zip(order[0], similarity[0], strict=True)
    ]  # fmt: skip
