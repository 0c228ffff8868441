"""`Explainer`: what a network computes for some inputs, and which parts of them its prediction depends on.

Every method is compiled at its first call and runs natively from then on; keep the explainer to explain many inputs. The functions below it
make one for a single call.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from ..derivatives import grad, pull
from ..dtypes import float32
from ..errors import UserError
from ..nn.module import Module
from ..ops.activation import relu
from ..ops.convert import asarray
from ..ops.creation import ones_like
from ..ops.elementwise import abs as absolute
from ..ops.elementwise import astype, where
from ..ops.movement import broadcast_to, expand_dims
from ..ops.reduce import max as maximum_over
from ..ops.reduce import sum as sum_over
from ..ops.statistics import mean
from ..tensor import Tensor
from ..tracing.jit import jit
from ..train.task import prediction_of
from .recording import LayerCall, evaluating, find_call, head_of, last_maps, recorded
from .targets import chosen, decided, pair, plus_plus_weights, probabilities, rows, targets
from .windows import covering_mean, starts

OCCLUDED_AT_ONCE = 64  # images of a batch


class Explainer:
    """A network in evaluation mode, with the preprocessing of its inputs if it has one.

    >>> from weft import nn
    >>> network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(None, 2))
    >>> sorted(Explainer(network).activations(np.zeros((1, 1, 5, 5), np.float32)))
    ['', 'layers.0', 'layers.1', 'layers.2', 'layers.3']
    """

    def __init__(self, network: Module, prepare: Module | None = None) -> None:
        if not isinstance(network, Module):
            raise UserError("Explainer", f"a module is required, got {type(network).__name__}.")
        self.network, self.prepare = network, prepare
        self._maps_layer: str | None = None

    # --- what it computes ---------------------------------------------------------------------------------------------------

    def activations(self, x: Any) -> dict[str, Tensor]:
        """The output of every layer by its path; "" is the network itself. A layer that is called again gets #2, #3 and so on."""
        with self.evaluating():
            return self._activations(asarray(x))

    @jit
    def _activations(self, x: Tensor) -> dict[str, Tensor]:
        _, calls = self.recorded(x)
        return {call.name: call.tensor for call in calls if call.tensor is not None}

    def layers(self, x: Any) -> list[LayerCall]:
        """The calls of all layers in the order in which they begin, computed without compiling anything."""
        with self.evaluating():
            return self.recorded(asarray(x))[1]

    def scores(self, x: Any) -> np.ndarray:
        """The outputs of the network: a row of scores for each example."""
        with self.evaluating():
            return self._scores(asarray(x)).numpy()

    @jit
    def _scores(self, x: Tensor) -> Tensor:
        return self._scored(x)[0]

    def embed(self, x: Any) -> tuple[np.ndarray, np.ndarray]:
        """The input of the last layer with weights, as a vector for each example, and the scores."""
        with self.evaluating():
            vectors, scores = self._embed(asarray(x))
        return vectors.numpy(), scores.numpy()

    @jit
    def _embed(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores, calls = self._scored(x)
        found = astype(head_of("embedding", calls).input, float32)
        return (mean(found, axis=tuple(range(2, found.ndim))) if found.ndim > 2 else found), scores

    # --- why ----------------------------------------------------------------------------------------------------------------

    def grad_cam(self, x: Any, target: Any = None, layer: str | None = None, plus_plus: bool = False) -> np.ndarray:
        """Grad-CAM (Selvaraju et al. 2017): the channels of a layer, weighted by how much the score of a class rises with them.

        map = relu(sum over c of w_c A_c), w_c = mean over pixels of d score / d A_c

        `target`: a class for each example or for all; the predicted one by default. `layer`: by default the last one with maps at the
        resolution of the last convolution. `plus_plus`: the weights of Grad-CAM++ (Chattopadhay et al. 2018). The result is
        (batch, height, width) of the layer, not scaled.
        """
        return self.grad_cam_and_scores(x, target, layer, plus_plus)[0]

    def grad_cam_and_scores(
        self, x: Any, target: Any = None, layer: str | None = None, plus_plus: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Grad-CAM, and the scores that the same program computes."""
        x = self._images("grad_cam", x)
        layer = self.maps_layer(x) if layer is None else layer
        with self.evaluating():
            maps, scores = self._grad_cam(x, targets("grad_cam", target, len(x)), layer, plus_plus)
        return maps.numpy(), scores.numpy()

    def maps_layer(self, x: Any) -> str:
        """The layer that Grad-CAM looks at by default."""
        if self._maps_layer is None:
            self._maps_layer = last_maps("grad_cam", self.layers(asarray(x)[:1])).name
        return self._maps_layer

    @jit(static=("layer", "plus_plus"))
    def _grad_cam(self, x: Tensor, target: Tensor, layer: str, plus_plus: bool) -> tuple[Tensor, Tensor]:
        scores, calls = self._scored(x)
        call = find_call("grad_cam", calls, layer)
        if not call.is_spatial or call.tensor is None:
            shape = None if call.tensor is None else call.tensor.shape
            raise UserError(
                "grad_cam",
                f"a layer with outputs (batch, channels, height, width) is required, got {layer!r} with {shape}.",
            )
        score = sum_over(chosen(scores, target))
        (found,) = pull([score._node], [ones_like(score)], [call.tensor._node])
        if found is None:
            raise UserError("grad_cam", f"a layer that the scores depend on is required, got {layer!r}.")
        maps, slope = astype(call.tensor, float32), astype(found, float32)
        weights = plus_plus_weights(maps, slope) if plus_plus else mean(slope, axis=(2, 3), keepdims=True)
        return relu(sum_over(weights * maps, axis=1)), scores

    def saliency(self, x: Any, target: Any = None) -> np.ndarray:
        """The absolute gradient of the score with respect to the prepared input, its largest channel: (batch, height, width)."""
        x = self._images("saliency", x)
        with self.evaluating():
            return self._saliency(x, targets("saliency", target, len(x))).numpy()

    @jit
    def _saliency(self, x: Tensor, target: Tensor) -> Tensor:
        return maximum_over(absolute(self._slope(self._prepared(x), target)), axis=1)

    def integrated_gradients(self, x: Any, target: Any = None, steps: int = 32) -> np.ndarray:
        """Integrated gradients (Sundararajan et al. 2017) from an input of zeros after preprocessing, which is the mean image where images
        are normalized. They sum up to the difference of the scores. The result has the shape of the prepared input.

        a = p * mean over steps of d score / d p at (k + 0.5) / steps * p
        """
        if steps < 1:
            raise UserError("integrated_gradients", f"a step or more is required, got {steps}.")
        x = self._images("integrated_gradients", x)
        wanted = targets("integrated_gradients", target, len(x))
        shares = asarray(((np.arange(steps) + 0.5) / steps).astype(np.float32))
        with self.evaluating():
            return np.stack([self._integrated(x[i], wanted[i], shares).numpy() for i in range(len(x))])

    @jit
    def _integrated(self, image: Tensor, target: Tensor, shares: Tensor) -> Tensor:
        p = self._prepared(expand_dims(image, 0))
        target = decided(self._scored_of(p)[0], expand_dims(target, 0))
        path = p * shares.reshape(-1, *(1 for _ in p.shape[1:]))
        slope = self._slope(path, broadcast_to(target, shares.shape))
        found: Tensor = p[0] * mean(slope, axis=0)
        return found

    def occlusion(
        self,
        x: Any,
        window: int | tuple[int, int],
        stride: int | tuple[int, int] | None = None,
        target: Any = None,
        fill: float | None = None,
    ) -> np.ndarray:
        """How much the probability of a class falls when a window of the image is hidden (Zeiler and Fergus 2014).

        Every pixel gets the mean over the windows that cover it; `stride` is half a window by default. Hidden pixels get the value `fill`, by default
        the mean of each channel of the image. Networks with one output: how much it falls. The result is (batch, height, width).
        """
        x = self._images("occlusion", x)
        size = x.shape[2:]
        extent = pair("window", window)
        step = pair("stride", stride if stride is not None else tuple(max(1, n // 2) for n in extent))
        if any(w > n for w, n in zip(extent, size, strict=True)):
            raise UserError("occlusion", f"a window of at most {size} is required, got {extent}.")
        wanted = targets("occlusion", target, len(x))
        tops, lefts = (starts(n, w, s) for n, w, s in zip(size, extent, step, strict=True))
        with self.evaluating():
            falls = [self._falls(x[i], wanted[i], tops, lefts, extent, fill) for i in range(len(x))]
        return np.stack([covering_mean(fall, tops, lefts, extent, size) for fall in falls])

    def _falls(
        self,
        image: Tensor,
        target: Tensor,
        tops: np.ndarray,
        lefts: np.ndarray,
        extent: tuple[int, int],
        fill: float | None,
    ) -> np.ndarray:
        """The fall for each window, in batches of one size, so that one program serves them all."""
        places = np.stack(np.meshgrid(tops, lefts, indexing="ij"), axis=-1).reshape(-1, 2).astype(np.int32)
        at_once = min(OCCLUDED_AT_ONCE, len(places))
        padded = np.concatenate([places, np.repeat(places[-1:], -len(places) % at_once, axis=0)])
        filled = asarray(np.float32(np.nan if fill is None else fill))
        found = [
            self._hidden(image, target, asarray(padded[i : i + at_once]), filled, extent).numpy()
            for i in range(0, len(padded), at_once)
        ]
        return np.concatenate(found)[: len(places)].reshape(len(tops), len(lefts))

    @jit(static="extent")
    def _hidden(self, image: Tensor, target: Tensor, places: Tensor, fill: Tensor, extent: tuple[int, int]) -> Tensor:
        height, width = image.shape[1:]
        rows, columns = asarray(np.arange(height, dtype=np.int32)), asarray(np.arange(width, dtype=np.int32))
        inside_row = (rows >= places[:, :1]) & (rows < places[:, :1] + extent[0])
        inside_column = (columns >= places[:, 1:]) & (columns < places[:, 1:] + extent[1])
        covered = expand_dims(expand_dims(inside_row, 2) & expand_dims(inside_column, 1), 1)
        means = mean(astype(image, float32), axis=(1, 2), keepdims=True)
        value = astype(where(fill == fill, fill, means), image.dtype)  # nan: none was given
        hidden = where(covered, value, expand_dims(image, 0))
        whole = probabilities(self._scored(expand_dims(image, 0))[0])
        target = decided(whole, expand_dims(target, 0))
        found: Tensor = whole[0, target[0]] - probabilities(self._scored(hidden)[0])[:, target[0]]
        return found

    # --- inside -------------------------------------------------------------------------------------------------------------

    def evaluating(self) -> AbstractContextManager[None]:
        """Inside, network and preprocessing are in evaluation mode."""
        return evaluating(*(part for part in (self.network, self.prepare) if part is not None))

    def _images(self, where_: str, x: Any) -> Tensor:
        found = asarray(x)
        if found.ndim != 4:
            raise UserError(
                where_,
                f"a batch of images (batch, channels, height, width) is required, got an array of shape {found.shape}.",
            )
        return found

    def _prepared(self, x: Tensor) -> Tensor:
        if self.prepare is not None:
            return self.prepare(x)  # type: ignore[no-any-return]
        return x if x.dtype.is_float else astype(x, float32)

    def recorded(self, x: Tensor) -> tuple[Any, list[LayerCall]]:
        """The output, and the calls of all layers, as part of the function that is being traced."""
        return recorded(self.network, x if self.prepare is None else self.prepare(x))

    def _scored(self, x: Tensor) -> tuple[Tensor, list[LayerCall]]:
        return self._scored_of(x if self.prepare is None else self.prepare(x))

    def _scored_of(self, prepared: Tensor) -> tuple[Tensor, list[LayerCall]]:
        output, calls = recorded(self.network, prepared)
        return rows(prediction_of(output)), calls

    def _slope(self, prepared: Tensor, target: Tensor) -> Tensor:
        """The gradient of each example's score with respect to its prepared input."""
        found: Tensor = grad(lambda p: sum_over(chosen(self._scored_of(p)[0], target)))(prepared)
        return astype(found, float32)


# --- for one call ---------------------------------------------------------------------------------------------------------------


def activations(model: Module, x: Any) -> Mapping[str, Tensor]:
    """The output of every layer by its path; see `Explainer.activations`."""
    return Explainer(model).activations(x)


def grad_cam(
    model: Module, x: Any, target: Any = None, layer: str | None = None, plus_plus: bool = False
) -> np.ndarray:
    """Where a class is seen in images, by the gradients at a layer's maps; see `Explainer.grad_cam`."""
    return Explainer(model).grad_cam(x, target, layer, plus_plus)


def saliency(model: Module, x: Any, target: Any = None) -> np.ndarray:
    """The pixels that change the score of a class fastest; see `Explainer.saliency`."""
    return Explainer(model).saliency(x, target)


def integrated_gradients(model: Module, x: Any, target: Any = None, steps: int = 32) -> np.ndarray:
    """What each input value adds to the score of a class; see `Explainer.integrated_gradients`."""
    return Explainer(model).integrated_gradients(x, target, steps)


def occlusion(
    model: Module, x: Any, window: int | tuple[int, int], stride: int | tuple[int, int] | None = None, target: Any = None,
    fill: float | None = None,
) -> np.ndarray:  # fmt: skip
    """Which regions of images a prediction depends on, by hiding them; see `Explainer.occlusion`."""
    return Explainer(model).occlusion(x, window, stride, target, fill)
