"""Predictions of one network for some images: the networks that can be used, those in memory, and classify."""

from __future__ import annotations

import asyncio
import base64
import binascii
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.datastructures import UploadFile

from ...errors import UserError
from ..library.loaded import LoadedNetwork
from ..library.usable import UsableNetwork, network_id, usable_network, usable_networks
from ..ui.context import Studio
from ..uploads import bounded_request
from ..url_images import fetch_image

LARGEST = 32 << 20  # bytes of an image file
LARGEST_REQUEST = 256 << 20
MOST = 256  # images in a request


class ImagesToClassify(BaseModel):
    """Images of a JSON request: their content in base64 (or as data: addresses), files on the server, and addresses."""

    model_config = ConfigDict(extra="forbid")
    images: list[str] = Field(default=[], description="contents of image files in base64, or data: URLs")
    paths: list[str] = Field(default=[], description="image files on the server, inside of the allowed folders")
    urls: list[str] = Field(
        default=[], description="http and https addresses, if the studio was started with urls=true"
    )


class ClassProbability(BaseModel):
    name: str
    probability: float


class ImageResult(BaseModel):
    """What a network makes of one image: classes with probabilities, or the numbers of a network without classes, or an error."""

    image: str
    classes: list[ClassProbability] = []
    numbers: list[float] = []
    error: str | None = None


class Classification(BaseModel):
    """The answer for all images of a request, in their order."""

    network: str
    checkpoint: str
    milliseconds: float = Field(description="time that the network took, without reading the images")
    results: list[ImageResult]


class UsableFacts(BaseModel):
    """A network that can be used."""

    id: str
    name: str
    kind: str = Field(description="run, or the suffix of a file: weft or onnx")
    checkpoints: list[str]
    data: str | None = None
    model: str | None = None
    best_metric: str | None = None
    best: float | None = None


class LoadedFacts(BaseModel):
    """A network in memory."""

    id: str
    checkpoint: str
    nbytes: int
    used: float = Field(description="when it was used last, in seconds since 1970")
    classes: int
    input: list[int] = Field(description="channels, height and width of the images that it takes")
    notes: list[str] = Field(description="what was assumed of a network that does not say how it takes images")


BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "image": {
                            "type": "array",
                            "items": {"type": "string", "format": "binary"},
                            "description": "an image file; the field may be repeated",
                        }
                    },
                }
            },
            "application/json": {"schema": ImagesToClassify.model_json_schema()},
        },
    }
}


def router(studio: Studio) -> APIRouter:
    """The routes below /networks."""
    routes = APIRouter(prefix="/networks", tags=["networks"])

    def find(name: str) -> UsableNetwork:
        found = usable_network(studio.index, name)
        if found is None:
            raise HTTPException(404, f"there is no run and no imported network {name}")
        return found

    @routes.get("/usable", response_model=list[UsableFacts])
    def usable() -> list[UsableFacts]:
        """All networks that can be used: of runs that have weights, and imported files."""
        return [_facts(one) for one in usable_networks(studio.index)]

    @routes.get("/loaded", response_model=list[LoadedFacts])
    def loaded() -> list[dict[str, Any]]:
        """The networks in memory, the most recently used first."""
        return [_loaded(studio, one) for one in studio.networks.all()]

    @routes.post("/{run:path}/classify", response_model=Classification, openapi_extra=BODY)
    async def classify(
        request: Request,
        run: str,
        top: Annotated[int, Query(ge=1, le=1000, description="classes in the answer")] = 5,
        checkpoint: Annotated[str, Query(description="weights of a run: best or last")] = "best",
    ) -> dict[str, Any]:
        """Classify images: files in a form, or JSON with contents, paths on the server or addresses."""
        network = find(run)
        images = await sent_images(studio, request)
        found, milliseconds = await asyncio.to_thread(
            lambda: studio.networks.get(network.path, checkpoint).predict([content for _, content in images], top)
        )
        if all(one.error for one in found):
            raise HTTPException(400, found[0].error)
        results = [
            {
                "image": name, "classes": [{"name": c, "probability": p} for c, p in one.classes], "numbers": list(one.numbers),
                "error": one.error or None,
            }
            for (name, _), one in zip(images, found, strict=True)
        ]  # fmt: skip
        return {
            "network": network.id,
            "checkpoint": checkpoint if network.row else "",
            "milliseconds": milliseconds,
            "results": results,
        }

    @routes.post("/{run:path}/load", response_model=LoadedFacts)
    def load(run: str, checkpoint: str = "best") -> dict[str, Any]:
        """Load a network into memory, so that the first image is classified at once."""
        return _loaded(studio, studio.networks.get(find(run).path, checkpoint))

    @routes.delete("/{run:path}/loaded")
    def release(run: str, checkpoint: str | None = None) -> dict[str, Any]:
        """Free the memory of a network. It is loaded again when it is used."""
        held = {one.path for one in studio.networks.all() if network_id(studio.index.root, one.path) == run}
        count = sum(studio.networks.release(path, checkpoint) for path in held)
        if not count:
            raise HTTPException(404, f"{run} is not loaded")
        return {"released": count, "message": f"{Path(run).name} is released."}

    return routes


def _loaded(studio: Studio, one: LoadedNetwork) -> dict[str, Any]:
    return {
        "id": network_id(studio.index.root, one.path), "checkpoint": one.checkpoint, "nbytes": one.nbytes, "used": one.used,
        "classes": len(one.predictor.classes), "input": list(one.predictor.shape), "notes": list(one.predictor.notes),
    }  # fmt: skip


def _facts(one: UsableNetwork) -> UsableFacts:
    row = one.row
    if row is None:
        return UsableFacts(id=one.id, name=one.name, kind=one.path.suffix[1:], checkpoints=[])
    return UsableFacts(
        id=one.id, name=one.name, kind="run", checkpoints=list(one.checkpoints), data=row.data, model=row.model,
        best_metric=row.best_metric, best=row.best,
    )  # fmt: skip


async def sent_images(studio: Studio, request: Request) -> list[tuple[str, bytes | Path]]:
    """The images of a request with their names."""
    request = bounded_request(request, LARGEST_REQUEST)
    if request.headers.get("content-type", "").startswith("application/json"):
        try:
            asked = ImagesToClassify.model_validate_json(await request.body())
        except ValidationError as error:
            first = error.errors()[0]
            raise HTTPException(422, f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
        images = await asyncio.to_thread(_named_images, studio, asked)
    else:
        async with request.form(max_files=MOST) as form:
            images = [await _sent(one) for _, one in form.multi_items() if isinstance(one, UploadFile)]
    if not 1 <= len(images) <= MOST:
        raise HTTPException(422, f"1 to {MOST} images are required, got {len(images)}")
    return images


async def _sent(file: UploadFile) -> tuple[str, bytes | Path]:
    content = await file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise HTTPException(413, f"images of up to {LARGEST >> 20} MiB are accepted")
    return file.filename or "image", content


def _named_images(studio: Studio, asked: ImagesToClassify) -> list[tuple[str, bytes | Path]]:
    if asked.urls and not studio.config.urls:
        raise UserError("studio", "addresses are not read by this studio. Start it with weft studio urls=true.")
    if len(asked.images) + len(asked.paths) + len(asked.urls) > MOST:
        raise HTTPException(422, f"at most {MOST} images are accepted in a request")
    return [
        *((f"image {i + 1}", _of_base64(text)) for i, text in enumerate(asked.images)),
        *((path, _on_server(studio, path)) for path in asked.paths),
        *((url, fetch_image(url, LARGEST)) for url in asked.urls),
    ]


def _of_base64(text: str) -> bytes:
    try:
        content = base64.b64decode(text.rpartition(",")[2] if text.startswith("data:") else text, validate=True)
    except (binascii.Error, ValueError):
        raise UserError("studio", "the content of an image in base64 is required, got other characters.") from None
    if len(content) > LARGEST:
        raise HTTPException(413, f"images of up to {LARGEST >> 20} MiB are accepted")
    return content


def _on_server(studio: Studio, given: str) -> Path:
    path = studio.paths.path(given, "file")
    if not path.is_file():
        raise UserError(
            "studio", f"an image file is required, got {given!r}, a folder. Many images: see Classify many."
        )
    return path
