"""Networks that people write as text, and imported ones: check, save, list, clone, delete, import, classify."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Body, HTTPException, Query, Request

from ...errors import UserError
from ...jobs.network_store import ImportedNetwork, NetworkStore
from ...zoo.catalogue import FACTS
from ...zoo.definition import zoo_network_as_text
from ..library.designs import USUAL_BATCH, check_design, vocabulary
from ..ui.context import Studio
from ..uploads import receive, upload_folder

LARGEST_IMAGE = 32 << 20  # bytes
Text = Annotated[str, Body(embed=True, description="YAML: a list of layers under `layers:`", max_length=1 << 20)]


def router(studio: Studio) -> APIRouter:
    """The routes below /designs."""
    routes = APIRouter(prefix="/designs", tags=["designs"])
    store = NetworkStore(studio.config.runs)

    @routes.get("")
    def designs() -> dict[str, Any]:
        """The networks that are saved as text, with their versions, and the imported ones."""
        return {
            "saved": [{"name": name, "versions": store.versions(name)} for name in store.names()],
            "imported": [_imported(one) for one in store.imported()],
        }

    @routes.get("/layers")
    def layers() -> dict[str, Any]:
        """The layers that a network can be written with: arguments, defaults and help."""
        return dict(vocabulary())

    @routes.post("/check")
    def check(text: Text, batch: Annotated[int, Body(embed=True, ge=1, le=1 << 20)] = USUAL_BATCH) -> dict[str, Any]:
        """Check a text: problems with line, column and fix; else shapes, parameters, multiply-adds and memory of each layer. It is never executed."""
        return check_design(text).as_json(batch)

    @routes.get("/zoo/{name}")
    def of_zoo(name: str) -> dict[str, str]:
        """A network of the zoo as text, to start from."""
        if name not in FACTS:
            raise HTTPException(404, f"there is no network {name} in the zoo")
        return {"name": name, "text": zoo_network_as_text(name).text}

    @routes.post("/import")
    async def import_file(request: Request, filename: str, name: str | None = None) -> dict[str, Any]:
        """Import the body of the request: a saved program (.weft), an ONNX model, or weights (.safetensors, .npz, .pth, ...). Nothing in it is executed."""
        with upload_folder(store.folder) as folder:
            target = folder / "upload"
            await receive(request.stream(), target, studio.config.largest_upload)
            shown = Path(filename).name
            return _said(await asyncio.to_thread(store.import_file, target, name or None, filename=shown))

    @routes.post("/import-path")
    def import_path(
        path: Annotated[str, Body(embed=True)], name: Annotated[str | None, Body(embed=True)] = None
    ) -> dict[str, Any]:
        """Import a file of this machine, in one of the allowed folders."""
        found = studio.paths.path(path, "file")
        if not found.is_file():
            raise UserError("studio", f"a file is required, got the folder {path}.")
        return _said(store.import_file(found, name or None))

    @routes.get("/{name}")
    def one(name: str, version: Annotated[int | None, Query(ge=1)] = None) -> dict[str, Any]:
        """The text of a network: its latest version, or an earlier one."""
        if name not in store.names():
            raise HTTPException(404, f"there is no network {name}")
        return {"name": name, "versions": store.versions(name), "text": store.text(name, version)}

    @routes.put("/{name}")
    def save(name: str, text: Text) -> dict[str, Any]:
        """Save a text under a name. Earlier versions are kept; a text with problems is rejected."""
        return {"name": name, "version": store.save(name, text), "open": f"/networks/{name}"}

    @routes.post("/{name}/clone")
    def clone(name: str, to: Annotated[str, Body(embed=True)]) -> dict[str, Any]:
        """Save a copy under another name."""
        if to in store.names():
            raise UserError("networks", f"a name that is not taken is required, got {to}.")
        return {"name": to, "version": store.save(to, store.text(name)), "open": f"/networks/{to}"}

    @routes.delete("/{name}")
    def delete(name: str) -> dict[str, str]:
        """Delete a network with all versions, or an imported one. Runs keep the text of theirs."""
        store.delete(name)
        return {"message": f"{name} is deleted.", "open": "/networks"}

    return routes


def _imported(one: ImportedNetwork) -> dict[str, Any]:
    return {**asdict(one), "runnable": one.is_runnable}


def _said(one: ImportedNetwork) -> dict[str, Any]:
    return {**_imported(one), "message": f"{one.name} is imported.", "open": f"/networks/{one.name}"}
