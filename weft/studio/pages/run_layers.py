"""The layers of a run's network: weights, activations for an image, statistics, and what the prediction depends on."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

import numpy as np
from nicegui import background_tasks, ui

from ...errors import UserError, WeftError
from ...interpret import LayerSurvey
from ..library.explained import ExplainedNetwork
from ..library.layer_facts import LayerRow, shape_text
from ..library.run_checkpoints import checkpoint_epochs, checkpoint_titles, epoch_slider
from ..library.run_network import why_without_layers
from ..library.runs import RunRow
from ..library.tiles import grid_of, has_colours, tiles_of
from ..ui.context import Studio
from ..ui.formats import three_figures
from ..ui.fragment import Fragment
from ..ui.layer_cards import channel_line, histograms, layer_facts, layer_statistics
from ..ui.rendering import render

FEW_TILES, FEW_FILTERS = 60, 36  # that are shown at first


def layers(studio: Studio, row: RunRow) -> None:
    """Add the tab to the page."""
    base = studio.config.prefix
    ui.add_head_html(f'<link rel="stylesheet" href="{base}/assets/layers.css">')
    for script in ("layers.js", "why.js"):
        ui.add_head_html(f'<script src="{base}/assets/{script}" defer></script>')
    given = ui.context.client.request.query_params
    view = LayersView(studio, row, given.get("image", ""), given.get("layer", ""), given.get("checkpoint", "best"))
    background_tasks.create(view.open(), name=f"layers of {row.id}")


class LayersView:
    """What one page shows: an image, a layer, one of its channels. It is drawn off the event loop."""

    def __init__(self, studio: Studio, row: RunRow, image: str, layer: str, checkpoint: str) -> None:
        self.studio, self.row = studio, row
        self.image, self.layer, self.checkpoint = image, layer, checkpoint
        self.epochs: dict[str, int | None] = {}  # of the checkpoints by name
        self.channel, self.words, self.overlay, self.every_tile, self.by_strength = 0, "", False, False, False
        self.opened: set[str] = set()
        self.network: ExplainedNetwork | None = None
        self.sample: LayerSurvey | None = None
        self._opening = asyncio.Lock()
        self.main = Fragment(
            render("layers_loading.html"),
            on={
                "layer": self._choose_layer, "toggle": self._toggle, "channel": self._choose_channel, "image": self._choose_image,
                "step": self._step, "checkpoint": self._choose_checkpoint, "epoch": self._choose_epoch, "view": self._choose_view, "tiles": self._choose_tiles,
                "order": self._choose_order, "filter": self._filter,
            },
        )  # fmt: skip
        self.why = Fragment("", "section").classes("card sect why").props('aria-label="Why"')
        self.why.set_visibility(False)

    async def open(self) -> None:
        """Load the network and show it; then look at more images to tell which channels are dead."""
        try:
            async with self._opening:
                await self._load()
            network = self._known
            sample = await asyncio.to_thread(network.survey)
            if network is self.network and self.sample is None:
                self.sample = sample
                await self._show()
        except WeftError as error:
            if not self.main.is_deleted:
                self.main.show(render("problem.html", message=error.message))

    async def _load(self) -> None:
        """Load and show the checkpoint that is wanted now: a slider that is dragged asks faster than networks are loaded."""
        if why := why_without_layers(self.row.folder):
            raise UserError("studio", why)
        found = await asyncio.to_thread(
            self.studio.explained.get, self.studio.networks, self.row.folder, self.checkpoint
        )
        if found is self.network:
            return
        self.network, self.sample = found, None
        self.epochs = await asyncio.to_thread(checkpoint_epochs, self.row.folder)
        if not self.image:
            self.image = f"{(await asyncio.to_thread(lambda: self._known.held_out))[0]}-0"
        await self._show()
        self._show_why()

    @property
    def _known(self) -> ExplainedNetwork:
        assert self.network is not None
        return self.network

    async def _show(self) -> None:
        try:
            html = await asyncio.to_thread(self._html)
        except WeftError as error:
            html = render("problem.html", message=error.message)
        if not self.main.is_deleted:  # the page may have been closed meanwhile
            self.main.show(html)

    def _show_why(self) -> None:
        if self.main.is_deleted:
            return
        self.why.set_visibility(True)
        self.why.show(
            render("why.html", network=self.row.id, checkpoint=self._known.loaded.checkpoint, image=self.image)
        )

    # --- events -------------------------------------------------------------------------------------------------------------

    async def _choose_layer(self, name: str) -> None:
        self.layer, self.channel, self.every_tile = name, 0, False
        await self._show()

    async def _toggle(self, name: str) -> None:
        self.opened ^= {name}
        await self._show()

    async def _choose_channel(self, number: str) -> None:
        self.channel = int(number)
        await self._show()

    async def _choose_image(self, name: str) -> None:
        self.image = name
        await self._show()
        self._show_why()

    async def _step(self, by: str) -> None:
        """The next or the previous image of the split; after one that was sent, the first."""
        split, examples = await asyncio.to_thread(lambda: self._known.held_out)
        number = self.image.removeprefix(f"{split}-")
        place = (int(number) + int(by)) % len(examples) if number.isdigit() else 0
        await self._choose_image(f"{split}-{place}")

    async def _choose_checkpoint(self, name: str) -> None:
        self.checkpoint = name
        await self.open()

    async def _choose_epoch(self, place: str) -> None:
        slider = epoch_slider(self.epochs, self.checkpoint)
        if slider is not None:
            await self._choose_checkpoint(slider.names[min(int(place), len(slider.names) - 1)])

    async def _choose_view(self, name: str) -> None:
        self.overlay = name == "overlay"
        await self._show()

    async def _choose_tiles(self, _: str) -> None:
        self.every_tile = not self.every_tile
        await self._show()

    async def _choose_order(self, _: str) -> None:
        self.by_strength = not self.by_strength
        await self._show()

    async def _filter(self, fields: Mapping[str, Any]) -> None:
        self.words = str(fields["words"]).strip().lower()
        await self._show()

    # --- what is shown --------------------------------------------------------------------------------------------------------

    def _html(self) -> str:
        network = self._known
        rows = network.layers
        if not any(row.name == self.layer for row in rows):
            self.layer = rows[0].name
        chosen = network.layer(self.layer)
        values, weight = network.outputs(self.image, self.layer), network.weight(self.layer)
        details = network.details(self.image, self.layer)
        self.channel = min(self.channel, chosen.channels - 1)
        split, examples = network.held_out
        dead = None if self.sample is None else self._dead(self.sample)
        leaves = dead and {
            name: n for name, n in dead.items() if name == self.layer or not network.layer_has_parts(name)
        }
        return render(
            "layers.html", row=self.row, checkpoint=self.checkpoint, titles=checkpoint_titles(self.epochs), slider=epoch_slider(self.epochs, self.checkpoint), split=split, count=len(examples),
            image=self.image, picture=self._picture(), answer=self._answer(), rows=self._visible(rows), opened=self.opened, words=self.words,
            largest=max((one.norm for one in rows), default=0.0) or 1.0, dead=dead or {}, chosen=chosen, shape=shape_text, details=details,
            facts=layer_facts(chosen, details, leaves, network.sample_count), channel=self.channel,
            tiles=self._tiles(values), grid=grid_of(chosen.channels), addresses=self._addresses(weight), weight=weight,
            filters=[] if weight is None or weight.ndim not in (2, 4) else tiles_of(len(weight), None if self.every_tile else FEW_TILES if has_colours(weight) else FEW_FILTERS),
            weight_grid=(1, 1) if weight is None else grid_of(len(weight)), every_tile=self.every_tile, overlay=self.overlay and values.ndim == 3,
            can_overlay=values.ndim == 3, by_strength=self.by_strength, channel_line=channel_line(values, self.channel),
            histograms=histograms(details), statistics=layer_statistics(chosen, details, leaves, network.sample_count), small=max(network.predictor.shape[1:]) <= 64,
            exciting=self._exciting(split), sampled=network.sample_count,
            tile_size=_tile_size(len(chosen.shape), chosen.channels), filter_size=0 if weight is None else _filter_size(weight),
        )  # fmt: skip

    def _visible(self, rows: Sequence[LayerRow]) -> list[LayerRow]:
        """The rows that match the words, or those whose groups are open; the way to the chosen layer is always open."""
        if self.words:
            return [row for row in rows if self.words in f"{row.name} {row.title} {row.kind}".lower()]
        names = {row.name for row in rows}

        def is_hidden(name: str) -> bool:
            groups = [above for above in _above(name) if above in names]
            return any(above not in self.opened and not self.layer.startswith(f"{above}.") for above in groups)

        return [row for row in rows if not is_hidden(row.name)]

    def _tiles(self, values: np.ndarray) -> list[Any]:
        channels = values.shape[0] if values.ndim in (1, 3) else values.shape[-1]
        found = tiles_of(channels)
        if self.by_strength:
            means = values.reshape(channels, -1).mean(axis=1) if values.ndim in (1, 3) else values.mean(axis=0)
            found = sorted(found, key=lambda tile: -float(means[tile.channel]))
        return found if self.every_tile else found[:FEW_TILES]

    def _dead(self, found: LayerSurvey) -> dict[str, int]:
        return {name: len(one.dead) for name, one in found.statistics.items() if one.dead}

    def _exciting(self, split: str) -> list[tuple[str, str, str]]:
        """The images that excite the chosen channel most: their names, the means of the channel, and addresses."""
        if self.sample is None:
            return []
        found = self._known.exciting(self.layer, self.channel)
        names = [(f"{split}-{i}", f"{mean:.2g}") for i, mean in found]
        return [(name, mean, self._address(f"images/{quote(name)}.png")) for name, mean in names]

    def _address(self, what: str, **values: Any) -> str:
        path = f"{self.studio.config.prefix}/api/v1/networks/{quote(self.row.id)}/{what}"
        stamp = id(self._known) % 1_000_000
        return f"{path}?{urlencode({**values, 'checkpoint': self._known.loaded.checkpoint, 'v': stamp})}"

    def _picture(self) -> str:
        return self._address(f"images/{quote(self.image)}.png")

    def _addresses(self, weight: np.ndarray | None) -> dict[str, str]:
        found = {
            "activations": self._address("activations.png", layer=self.layer, image=self.image),
            "overlay": self._address("channel.png", layer=self.layer, image=self.image, channel=self.channel),
        }
        if weight is not None and weight.ndim in (2, 4):
            parts = ["colours"] if has_colours(weight) else ["positive", "negative"]
            found |= {part: self._address("weights.png", layer=self.layer, part=part) for part in parts}
        return found

    def _answer(self) -> dict[str, Any]:
        """What the network says about the image, and whether that is right."""
        classes, scores = self._known.predictor.classes, self._known.scores(self.image)
        if not classes:
            return {
                "text": ", ".join(three_figures(float(v)) for v in scores[:4]),
                "share": None,
                "right": None,
                "true": "",
            }
        best, true = int(scores.argmax()), self._known.true_classes(self.image)
        shares = 1.0 / (1.0 + np.exp(-scores)) if self._known.predictor.is_multi_label else _softmax(scores)
        return {
            "text": classes[best], "share": float(shares[best]), "right": best in true if true else None,
            "true": ", ".join(classes[one] for one in true),
        }  # fmt: skip


def _softmax(scores: np.ndarray) -> np.ndarray:
    shifted = np.exp(scores - scores.max())
    return np.asarray(shifted / shifted.sum())


def _tile_size(rank: int, channels: int) -> int:
    """The least width of a tile, so that few channels are shown large."""
    return 22 if rank == 1 else 72 if channels <= 16 else 56 if channels <= 36 else 40


def _filter_size(weight: np.ndarray) -> int:
    """The least width of a filter."""
    return 44 if len(weight) <= FEW_FILTERS or not has_colours(weight) else 28


def _above(name: str) -> list[str]:
    """The paths that lead to a layer: a, a.b of a.b.c."""
    parts = name.split(".")
    return [".".join(parts[:i]) for i in range(1, len(parts))]
