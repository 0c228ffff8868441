"""A page about a trained network: why it predicts what it does for images, and its layers. One HTML file without scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..records import dataclass
from ..report.axes import short
from ..report.page import document
from ..report.png import data_url, png
from ..report.svg import escape
from .explanation import ImageExplanation, shown_size
from .pictures import activation_tiles, as_bytes, atlas, filter_tiles, resized, rgb
from .statistics import TensorStatistics

STYLE = """<style>.maps{display:flex;flex-wrap:wrap;gap:16px;padding:12px}figure{margin:0}figcaption{font-size:13px;color:var(--soft)}
.maps img{display:block;max-width:100%;border-radius:6px;image-rendering:pixelated}.layer{padding:12px 14px;margin-bottom:12px}
.layer h3{margin:0 0 8px;overflow-wrap:anywhere}.layer .maps{padding:8px 0 0}.bars{display:flex;align-items:end;gap:1px;height:64px;width:240px}
.bars i{flex:1;background:var(--mark);min-height:1px}</style>"""
SHOWN_TILES = 64  # channels of a layer
TILE = 40  # pixels; small maps are enlarged to about this
WIDEST = 16  # tiles of a row


@dataclass(frozen=True)
class LayerView:
    """A layer on the page: its output for the image, and its weight if it has one."""

    name: str
    kind: str
    activations: np.ndarray
    statistics: TensorStatistics
    weight: np.ndarray | None = None


def interpretation_page(
    title: str,
    explanations: Mapping[str, ImageExplanation],
    classes: Sequence[str],
    layers: Sequence[LayerView] = (),
    charts: Sequence[str] = (),
) -> str:
    """The HTML of the page: each image by its name with its maps, then charts (SVG), then the layers."""
    parts = [STYLE, f"<header><h1>{escape(title)}</h1></header>"]
    parts += [_explanation(name, one, classes) for name, one in explanations.items()]
    parts += [f'<div class="card wide">{chart}</div>' for chart in charts]
    if layers:
        parts.append("<section><h2>Layers</h2>" + "".join(map(_layer, layers)) + "</section>")
    return document(title, "\n".join(parts))


def _explanation(name: str, one: ImageExplanation, classes: Sequence[str]) -> str:
    shares = one.probabilities
    best = np.argsort(-shares, kind="stable")[:5]
    if classes:
        words = ", ".join(f"{escape(classes[i])} {100 * shares[i]:.1f} %" for i in best)
        why = f"Why {escape(classes[one.target])}"
    else:
        words, why = ", ".join(short(float(v), 4) for v in one.scores), f"Why output {one.target}"
    pixels = resized(rgb(one.image).transpose(2, 0, 1) / 255.0, shown_size(one.image, 224), smooth=False)
    size = " × ".join(map(str, one.image.shape[1:]))
    figures = [_figure(as_bytes(pixels.transpose(1, 2, 0)), f"Network input, {size}")]
    figures += [_figure(m.picture(one.image), f"{m.title}, {escape(m.note)}") for m in one.maps]
    return f'<section><h2>{escape(name)}</h2><p>{words}</p><h3>{why}</h3><div class="card maps">{"".join(figures)}</div></section>'


def _layer(one: LayerView) -> str:
    found = one.statistics
    line = (
        f"{' × '.join(map(str, found.shape))}, mean {short(found.mean, 3)}, deviation {short(found.std, 3)}, "
        f"from {short(found.min, 3)} to {short(found.max, 3)}, {100 * found.zeros:.0f} % zeros"
    )
    figures = []
    if one.activations.ndim in (1, 3):
        figures.append(_figure(_gray(activation_tiles(one.activations)), "activations"))
    if one.weight is not None and one.weight.ndim in (2, 4):
        figures.append(_figure(_filters(filter_tiles(one.weight)), f"weights {' × '.join(map(str, one.weight.shape))}"))
    heights = found.counts / max(1, found.counts.max())
    bars = "".join(f'<i style="height:{100 * h:.0f}%"></i>' for h in heights)
    histogram = f'<figure><div class="bars">{bars}</div><figcaption>{short(found.min, 3)} to {short(found.max, 3)}</figcaption></figure>'
    head = f"<h3>{escape(one.name or 'network')} · {escape(one.kind)}</h3><p>{line}</p>"
    return f'<div class="card layer">{head}<div class="maps">{"".join(figures)}{histogram}</div></div>'


def _gray(tiles: np.ndarray) -> np.ndarray:
    """Channels as blue on white: the sequential colours of charts."""
    heat = atlas(enlarged(tiles[:SHOWN_TILES]), WIDEST, gap=2)[..., None]
    return as_bytes(np.array([1.0, 1.0, 1.0]) * (1 - heat) + np.array([0.09, 0.17, 0.49]) * heat)


def _filters(tiles: np.ndarray) -> np.ndarray:
    tiles = tiles[:SHOWN_TILES]
    if tiles.ndim == 4:
        bigger = enlarged(tiles.transpose(0, 3, 1, 2)).transpose(0, 2, 3, 1)
        return as_bytes(atlas(bigger, WIDEST, gap=2, background=1.0))
    signed = atlas(enlarged(tiles), WIDEST, gap=2)[..., None]
    blue, orange = np.array([0.17, 0.29, 0.8]), np.array([0.71, 0.33, 0.11])
    strength = np.abs(signed)
    return as_bytes((1 - strength) + np.where(signed > 0, blue, orange) * strength)


def enlarged(tiles: np.ndarray, side: int = TILE) -> np.ndarray:
    """Tiles of at least about `side` pixels, with square pixels."""
    height, width = tiles.shape[-2:]
    factor = max(1, side // max(height, width))
    return tiles.repeat(factor, axis=-2).repeat(factor, axis=-1)


def _figure(pixels: np.ndarray, caption: str) -> str:
    return f'<figure><img src="{data_url(png(pixels))}" alt="{caption}"><figcaption>{caption}</figcaption></figure>'
