"""Writes the files of this folder with Keras (3.15): KERAS_BACKEND=torch python tests/keras_files/make.py. They are kept, because weft's tests have no Keras."""

from pathlib import Path

import keras
import numpy as np
from keras import layers

FOLDER = Path(__file__).parent


def network() -> keras.Model:
    """Every variable counts on from its number, so that a test knows all values."""
    model = keras.Sequential(
        [
            keras.Input((5, 5, 2)),
            layers.Conv2D(3, 3, name="first"),
            layers.BatchNormalization(name="norm"),
            layers.DepthwiseConv2D(2, name="depthwise"),
            layers.Flatten(),
            layers.Dense(4, name="predictions"),
        ]
    )
    for number, variable in enumerate(model.weights):
        variable.assign(np.arange(np.prod(variable.shape), dtype=np.float32).reshape(variable.shape) + 100 * number)
    return model


def main() -> None:
    model = network()
    model.save(FOLDER / "whole.h5")
    model.save_weights(FOLDER / "only.weights.h5")
    model.compile("sgd", "mse")  # its variables are in the file too
    model.save(FOLDER / "whole.keras")


if __name__ == "__main__":
    main()
