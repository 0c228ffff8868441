"""Finds copies: images with equal pixels by their digest, and nearly equal ones by a perceptual hash and the correlation of small
pictures. Images are compared only if their hashes agree in part, so 10,000 images take seconds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

import numpy as np

from ...records import dataclass
from .image_facts import BLANK, ImageFacts
from .report import Place

MOST_DIFFERENT = 0.1  # 1 - correlation of near copies, at most
_SHARE = 0.2  # of the difference between an image and its tenth neighbour, which is no copy
_SAMPLE, _NEIGHBOUR = 400, 10
_BANDS, _BAND_BITS = 4, 16
_MOST_BITS = 14  # that the hashes of two images may differ in
_MIRROR_FROM = 32  # pixels: mirrored images are copies of photographs, not of small signs and letters
_STEP = 1 << 18
KEPT_FIRST = {"train": 0, "test": 1, "validation": 2}  # which of two copies stays: the lower one


@dataclass(frozen=True)
class Pair:
    """Two images that are alike; the first is the one to keep."""

    first: int
    second: int
    alike: float  # correlation
    exact: bool = False
    mirrored: bool = False


@dataclass(frozen=True)
class FoundCopies:
    """Groups of equal images, and pairs of nearly equal ones, all with the one to keep first."""

    groups: list[list[int]]
    pairs: list[Pair]


def find_copies(facts: ImageFacts, side: int) -> FoundCopies:
    """All copies in a dataset; `side` is the shorter side of its images."""
    groups = _equal(facts)
    rest = {row for group in groups for row in group[1:]}
    chosen = np.array([i for i in range(len(facts)) if i not in rest and facts.spread[i] >= BLANK], np.int64)
    found: dict[tuple[int, int], Pair] = {}
    for mirrored in (False, True) if side >= _MIRROR_FROM else (False,):
        for a, b, alike in _near(facts, chosen, mirrored):
            first, second = sorted((a, b), key=lambda row: _order(facts.places[row]))
            known = found.get((first, second))
            if known is None or alike > known.alike:
                found[first, second] = Pair(first, second, alike, mirrored=mirrored)
    return FoundCopies(groups, sorted(_much_more_alike(found.values(), facts, chosen), key=lambda pair: -pair.alike))


def _much_more_alike(pairs: Iterable[Pair], facts: ImageFacts, chosen: np.ndarray) -> list[Pair]:
    """The pairs that are much more alike than both images are to others around them: two ones of a hand are alike as well."""
    found = list(pairs)
    rows = sorted({row for pair in found for row in (pair.first, pair.second)})
    limits: dict[int, float] = {}
    for start in range(0, len(rows), _SAMPLE):
        part = rows[start : start + _SAMPLE]
        limits |= zip(part, _limits(facts.thumbs[part], facts.thumbs[chosen]).tolist(), strict=True)
    return [pair for pair in found if 1 - pair.alike <= min(limits[pair.first], limits[pair.second])]


def _equal(facts: ImageFacts) -> list[list[int]]:
    by_digest: defaultdict[bytes, list[int]] = defaultdict(list)
    for row, digest in enumerate(facts.digests):
        if facts.spread[row] >= BLANK:  # blank images show nothing that could be copied
            by_digest[digest].append(row)
    return [sorted(rows, key=lambda row: _order(facts.places[row])) for rows in by_digest.values() if len(rows) > 1]


def _order(place: Place) -> tuple[int, int]:
    return KEPT_FIRST[place[0]], place[1]


def _limits(thumbs: np.ndarray, others: np.ndarray) -> np.ndarray:
    """For each picture, the largest difference that a near copy of it may have."""
    if len(others) <= 2 * _NEIGHBOUR:
        return np.full(len(thumbs), MOST_DIFFERENT / 2)
    alike = np.partition(thumbs @ others.T, -1 - _NEIGHBOUR, axis=1)[:, -1 - _NEIGHBOUR]
    return np.clip(_SHARE * (1 - alike), 1e-3, MOST_DIFFERENT)


def _near(facts: ImageFacts, chosen: np.ndarray, mirrored: bool) -> Iterator[tuple[int, int, float]]:
    """Pairs of chosen images that are nearly equal, or one is nearly the other mirrored."""
    if not len(chosen):  # all images are blank
        return
    sample = np.random.default_rng(0).permutation(chosen)[:_SAMPLE]
    # What the images with the nearest neighbours allow is a bound for all, so that few pairs are looked at closely.
    different = float(np.quantile(_limits(facts.thumbs[sample], facts.thumbs[chosen]), 0.05))
    asked = (facts.mirrored if mirrored else facts.hashes)[chosen]
    pictures = facts.thumbs[chosen]
    side = int(np.sqrt(pictures.shape[1]))
    flipped = pictures.reshape(-1, side, side)[:, :, ::-1].reshape(len(pictures), -1) if mirrored else pictures
    for a, b in candidates(asked, facts.hashes[chosen]):
        few = np.bitwise_count(asked[a] ^ facts.hashes[chosen[b]]) <= _MOST_BITS
        a, b = a[few], b[few]
        alike = np.einsum("ij,ij->i", flipped[a], pictures[b])
        good = alike >= 1 - different
        rows = zip(chosen[a[good]].tolist(), chosen[b[good]].tolist(), alike[good].tolist(), strict=True)
        yield from ((first, second, min(1.0, value)) for first, second, value in rows)


def candidates(asked: np.ndarray, hashes: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Pairs i < j whose hashes agree, but for at most one bit, in at least one of four bands of 16 bits.

    All pairs with up to seven different bits are among them, and few others: they are looked up, not compared all with all.
    """
    flips = np.array([0, *(1 << bit for bit in range(_BAND_BITS))], np.uint64)
    for band in range(_BANDS):
        shift = np.uint64(band * _BAND_BITS)
        mask = np.uint64((1 << _BAND_BITS) - 1)
        keys = (hashes >> shift) & mask
        order = np.argsort(keys, kind="stable")
        ordered = keys[order]
        wanted = (asked >> shift) & mask
        for flip in flips:
            start = np.searchsorted(ordered, wanted ^ flip, "left")
            count = np.searchsorted(ordered, wanted ^ flip, "right") - start
            yield from _expanded(start, count, order)


def _expanded(start: np.ndarray, count: np.ndarray, order: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Pairs of an image and each of the `count` images from `start` on in this order, in parts of bounded size."""
    ends = np.cumsum(count)
    begin = 0
    while begin < len(count):
        base = ends[begin - 1] if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, base + _STEP, "right")))
        counts = count[begin:end]
        a = np.repeat(np.arange(begin, end), counts)
        within = np.arange(len(a)) - np.repeat(np.cumsum(counts) - counts, counts)
        b = order[np.repeat(start[begin:end], counts) + within]
        later = a < b
        yield a[later], b[later]
        begin = end
