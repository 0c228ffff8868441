"""Product quantization (Jégou et al. 2011; Gong et al. 2014): the inputs of each output are cut into short vectors, each replaced by its nearest centroid.

    product_quantize(model, bits=6, size=4)         # 64 centroids of 4 weights each: 1.5 bits per weight, plus the codebooks

There is a codebook for each position of a vector among the inputs, or one for the whole layer. The centroids are parameters: training continues, and the gradient of
a centroid is the sum of the gradients of its vectors, as with `share`. Saved programs hold indices and codebooks.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from ..errors import UserError
from ..nn.module import Module
from ..ops.convert import asarray
from ..ops.convert import parameter as as_parameter
from ..ops.indexing import take
from ..tensor import ArrayLike, Tensor
from .layers import by_weight, weights_of
from .parametrize import Parametrization

Scope = Literal["place", "layer"]
ROUNDS = 25  # of k-means: it usually converges sooner


class ProductCodebook(Parametrization):
    """A weight of vectors from codebooks: centroids (books, count, size), indices (outputs, vectors of an output); book m is that of position m, or the only one.

    >>> ProductCodebook([[[1.0, 2.0], [3.0, 4.0]]], [[0, 1], [1, 1]], (2, 4))().tolist()
    [[1.0, 2.0, 3.0, 4.0], [3.0, 4.0, 3.0, 4.0]]
    """

    def __init__(self, centroids: ArrayLike, indices: ArrayLike, shape: tuple[int, ...]) -> None:
        self.centroids = as_parameter(asarray(centroids).detach())
        books, count, size = self.centroids.shape
        given = np.asarray(indices)
        fits = given.ndim == 2 and given.shape[0] == shape[0] and given.size * size == np.prod(shape)
        if not fits or books not in (1, given.shape[1]) or given.min() < 0 or given.max() >= count:
            raise UserError(
                "ProductCodebook",
                f"indices below {count} for a weight of shape {shape} and {books} codebooks of vectors of {size} are required, got {given.shape}.",
            )
        self._shape = tuple(shape)
        self.indices = asarray(given.astype(np.uint8 if count <= 256 else np.int32)).realize()

    def forward(self) -> Tensor:
        books, count, size = self.centroids.shape
        first = np.arange(self.indices.shape[1], dtype=np.int32) * (count if books > 1 else 0)
        places = self.indices.astype("int32") + asarray(first)
        return take(self.centroids.reshape((books * count, size)), places, axis=0).reshape(self._shape)


def product_quantize(
    model: Module, bits: int | dict[str, int] = 6, *, size: int = 4, codebooks: Scope = "place", seed: int = 0
) -> dict[str, float]:
    """Replace the weights of layers by vectors of up to `size` weights from codebooks of 2^bits; returns the relative squared error of each weight.

    `size` is lowered to the largest number that divides the inputs of a layer. `codebooks`: one for each "place" of a vector, which is more accurate, or one for the
    whole "layer", which is smaller.

    >>> from weft import nn
    >>> net = nn.Sequential(nn.Linear(16, 200), nn.ReLU(), nn.Linear(200, 10))
    >>> errors = product_quantize(net, {"layers.0": 6})
    >>> list(errors), 0 < errors["layers.0.weight"] < 0.2
    (['layers.0.weight'], True)
    """
    if codebooks not in ("place", "layer"):
        raise UserError("product_quantize", f"codebooks must be 'place' or 'layer', got {codebooks!r}.")
    if not isinstance(size, int) or size < 1:
        raise UserError("product_quantize", f"vectors of 1 or more weights are required, got {size!r}.")
    known, errors = weights_of(model), {}
    for path, width in by_weight("product_quantize", "bits", bits, model).items():
        if width not in range(1, 13):
            raise UserError("product_quantize", f"1 to 12 bits are required, got {width} for {path}.")
        if known[path].parametrization is not None:
            what = type(known[path].parametrization).__name__
            raise UserError("product_quantize", f"a plain weight is required, got {path}, which is a {what}.")
        value = known[path].value
        made = _quantized(value, 1 << width, size, codebooks, seed)
        known[path].replace(made)
        errors[path] = float(((made().numpy() - value) ** 2).sum() / max(float((value**2).sum()), 1e-30))
    return errors


def _quantized(value: np.ndarray, count: int, size: int, codebooks: Scope, seed: int) -> ProductCodebook:
    inputs = int(np.prod(value.shape[1:]))
    length = next(n for n in range(min(size, inputs), 0, -1) if inputs % n == 0)
    vectors = value.reshape(len(value), inputs // length, length)
    groups = [vectors.reshape(-1, length)] if codebooks == "layer" else list(np.swapaxes(vectors, 0, 1))
    found = [vector_kmeans(group, count, seed) for group in groups]
    most = max(len(centroids) for centroids, _ in found)
    books = np.stack([np.pad(centroids, ((0, most - len(centroids)), (0, 0))) for centroids, _ in found])
    indices = np.stack([members for _, members in found], axis=1).reshape(vectors.shape[:2])
    return ProductCodebook(books, indices, value.shape)


def vector_kmeans(vectors: np.ndarray, clusters: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Cluster vectors by k-means, initialized with a random subset: the centroids, and the cluster of each vector. No cluster is empty."""
    if not np.isfinite(vectors).all():
        raise UserError("product_quantize", "finite weights are required, got some that are nan or infinite.")
    points = np.unique(vectors, axis=0)
    rng = np.random.default_rng(seed)
    centroids = points[np.sort(rng.choice(len(points), min(clusters, len(points)), replace=False))].astype(np.float64)
    members = _nearest(vectors, centroids)
    for _ in range(ROUNDS):
        counts = np.bincount(members, minlength=len(centroids))
        sums = np.zeros_like(centroids)
        np.add.at(sums, members, vectors)
        centroids = np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], centroids)
        if not counts.all():  # move an empty cluster to where the error is largest
            far = np.argsort(-((vectors - centroids[members]) ** 2).sum(1), kind="stable")
            centroids[counts == 0] = vectors[far[: int((counts == 0).sum())]]
        before, members = members, _nearest(vectors, centroids)
        if np.array_equal(before, members):
            break
    used, members = np.unique(members, return_inverse=True)
    return centroids[used].astype(vectors.dtype), members.reshape(-1)


def _nearest(vectors: np.ndarray, centroids: np.ndarray) -> np.ndarray:
    """The index of the nearest centroid of each vector."""
    norms = (centroids**2).sum(1)
    parts = [norms - 2 * part @ centroids.T for part in np.array_split(vectors, len(vectors) // 65536 + 1)]
    return np.concatenate([part.argmin(1) for part in parts])
