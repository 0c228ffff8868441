"""Images, random numbers and definitions in plain NumPy for tests of augmentation."""

import numpy as np

import weft

LUMA = np.array([0.299, 0.587, 0.114]).reshape(3, 1, 1)
LABELS = np.array([0, 2, 1, 1, 0])


def made(n=5, c=3, h=6, w=7, seed=0):
    return np.random.default_rng(seed).random((n, c, h, w)).astype(np.float32)


def bilinear(picture, row, column, mode="constant", fill=0.0):
    """One image (channels, height, width) at places (row, column) of the same shape; the definition, pixel by pixel."""
    _, h, w = picture.shape
    result = np.empty((len(picture), *row.shape))
    for place in np.ndindex(row.shape):
        r, c = float(row[place]), float(column[place])
        outside = not (-0.501 < r < h - 0.499 and -0.501 < c < w - 0.499)
        if mode == "constant" and outside:
            result[(slice(None), *place)] = fill
            continue
        r, c = (folded(v, n, mode) for v, n in ((r, h), (c, w)))
        top, left = min(int(r), h - 1), min(int(c), w - 1)
        bottom, right = min(top + 1, h - 1), min(left + 1, w - 1)
        a, b = r - top, c - left
        above = picture[:, top, left] * (1 - b) + picture[:, top, right] * b
        below = picture[:, bottom, left] * (1 - b) + picture[:, bottom, right] * b
        result[(slice(None), *place)] = above * (1 - a) + below * a
    return result


def folded(v, n, mode):
    while mode == "reflect" and not 0 <= v <= n - 1:
        v = -v if v < 0 else 2 * (n - 1) - v
    return min(max(v, 0.0), n - 1.0)


def warped(x, matrices, size, mode="constant", fill=0.0):
    """Images seen through 2 x 3 matrices from centred places of the result to centred places of the image."""
    h, w = size
    u, v = np.meshgrid(np.arange(h) - (h - 1) / 2, np.arange(w) - (w - 1) / 2, indexing="ij")
    results = []
    for picture, m in zip(x.astype(np.float64), matrices, strict=True):
        row = m[0][0] * u + m[0][1] * v + m[0][2] + (x.shape[2] - 1) / 2
        column = m[1][0] * u + m[1][1] * v + m[1][2] + (x.shape[3] - 1) / 2
        results.append(bilinear(picture, row, column, mode, fill))
    return np.stack(results)


def drawn(seed, *draws):
    """The random numbers that a module draws after this seed."""
    weft.seed(seed)
    return [d().numpy() for d in draws]


def run(module, x, *more, seed=3):
    weft.seed(seed)
    result = module(weft.asarray(x), *map(weft.asarray, more))
    return [r.numpy() for r in result] if isinstance(result, tuple) else result.numpy()
