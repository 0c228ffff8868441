"""Checks every metric against its definition, written here in plain NumPy with loops, and against cases worked out by hand.

Metrics over many batches must give what the function gives of everything at once, inside compiled steps too.
"""

import math

import numpy as np
import pytest
from scipy import ndimage, special, stats

import weft
from weft import metrics
from weft.testing import counted, generator


@pytest.fixture(autouse=True)
def on_the_reference_device():
    with weft.knobs.set(device="reference"):
        yield


def near(actual, expected, tolerance=1e-6):
    counted()
    actual = np.asarray(actual.numpy() if isinstance(actual, weft.Tensor) else actual, np.float64)
    assert actual.shape == np.shape(expected)
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


# --- classes -------------------------------------------------------------------------------------------------------------------


def count(found, truth, classes):
    matrix = np.zeros((classes, classes), int)
    for t, f in zip(np.ravel(truth), np.ravel(found), strict=True):
        matrix[t, f] += 1
    return matrix


def divided(a, b):
    return a / b if b else 0.0


def scores_by_hand(found, truth, classes, beta=1.0):
    """Precision, recall, F and intersection over union of each class, and how often it is there."""
    rows = []
    for c in range(classes):
        right = sum(f == t == c for f, t in zip(found, truth, strict=True))
        said, there = sum(f == c for f in found), sum(t == c for t in truth)
        p, r = divided(right, said), divided(right, there)
        f = divided((1 + beta**2) * p * r, beta**2 * p + r)
        rows.append((p, r, f, divided(right, said + there - right), there, said + there > 0))
    return np.array(rows, float)


def averages(values, there, occurs):
    return {
        "none": values,
        "macro": values[occurs > 0].mean(),
        "weighted": (values * there).sum() / there.sum(),
    }


@pytest.mark.parametrize("seed", range(4))
def test_scores_of_classes(seed):
    rng = generator(f"classes {seed}")
    classes = 2 + seed
    found, truth = rng.integers(0, classes, 30), rng.integers(0, max(classes - 1, 2), 30)
    table = scores_by_hand(found, truth, classes, beta=2.0)
    plain = scores_by_hand(found, truth, classes)
    for name, column, rows, settings in (
        ("precision", 0, table, {}), ("recall", 1, table, {}), ("f_beta", 2, table, {"beta": 2.0}), ("f1", 2, plain, {}),
    ):  # fmt: skip
        f = metrics.find(name)
        for average, expected in averages(rows[:, column], rows[:, 4], rows[:, 5]).items():
            near(f(found, truth, classes=classes, average=average, **settings), expected)
        near(f(found, truth, classes=classes, average="micro", **settings), np.mean(found == truth))
        if classes == 2:
            near(f(found, truth, classes=2, **settings), rows[1, column])
    near(metrics.accuracy(found, truth), np.mean(found == truth))
    near(metrics.per_class_accuracy(found, truth, classes=classes), table[:, 1])
    near(metrics.mean_iou(found, truth, classes=classes), table[table[:, 5] > 0, 3].mean())
    near(metrics.dice_score(found, truth, classes=classes), plain[table[:, 5] > 0, 2].mean())
    near(metrics.confusion_matrix(found, truth, classes=classes), count(found, truth, classes))


@pytest.mark.parametrize("seed", range(3))
def test_correlations_of_classes(seed):
    rng = generator(f"correlation {seed}")
    truth = rng.integers(0, 3, 40)
    found = np.where(rng.random(40) < 0.6, truth, rng.integers(0, 3, 40))
    hot = [np.eye(3)[x] - np.eye(3)[x].mean(0) for x in (found, truth)]
    cov = lambda a, b: (a * b).sum()  # noqa: E731
    near(metrics.mcc(found, truth, classes=3), cov(*hot) / math.sqrt(cov(hot[0], hot[0]) * cov(hot[1], hot[1])))
    two = [x % 2 for x in (found, truth)]
    near(metrics.mcc(*two, classes=2), stats.pearsonr(*two)[0])
    agreed = np.mean(found == truth)
    chance = sum(np.mean(found == c) * np.mean(truth == c) for c in range(3))
    near(metrics.cohen_kappa(found, truth, classes=3), (agreed - chance) / (1 - chance))


def test_hand_computed_classes():
    """2 right positives, 1 false alarm, 1 missed, 4 right negatives."""
    found, truth = np.array([1, 1, 1, 0, 0, 0, 0, 0]), np.array([1, 1, 0, 1, 0, 0, 0, 0])
    near(metrics.precision(found, truth, classes=2), 2 / 3)
    near(metrics.recall(found, truth, classes=2), 2 / 3)
    near(metrics.mcc(found, truth, classes=2), (2 * 4 - 1 * 1) / 15)
    near(metrics.cohen_kappa(found, truth, classes=2), (6 / 8 - 34 / 64) / (1 - 34 / 64))
    near(metrics.mean_iou(found, truth, classes=2), (2 / 4 + 4 / 6) / 2)


def test_three_forms_of_predictions():
    rng = generator("forms")
    p, truth = rng.random((2, 5)), rng.integers(0, 2, (2, 5))
    two = np.stack([1 - p, p], axis=1)  # (batch, classes, places)
    expected = np.mean((p > 0.5) == truth)
    near(metrics.accuracy(p, truth), expected)
    near(metrics.accuracy(p, truth.astype(bool)), expected)
    near(metrics.accuracy(p > 0.5, truth), expected)
    near(metrics.accuracy(two, truth, axis=1), expected)
    near(metrics.accuracy(np.moveaxis(two, 1, -1), truth), expected)
    near(metrics.accuracy(p, truth, threshold=0.2), np.mean((p > 0.2) == truth))
    near(metrics.mean_iou(two, truth), metrics.mean_iou(p > 0.5, truth).item())
    near(metrics.confusion_matrix(two, truth, axis=1), count((p > 0.5).astype(int), truth, 2))


def test_top_k():
    rng = generator("top k")
    scores, truth = rng.integers(0, 4, (50, 6)).astype(np.float32), rng.integers(0, 6, 50)  # with many ties
    for k in (1, 2, 6):
        order = [sorted(range(6), key=lambda c, row=row: (-row[c], c))[:k] for row in scores]
        expected = np.mean([t in best for t, best in zip(truth, order, strict=True)])
        near(metrics.top_k_accuracy(scores, truth, k=k), expected)
        near(metrics.top_k_accuracy(scores.T, truth, k=k, axis=0), expected)
    near(metrics.top_k_accuracy(scores, truth, k=1), metrics.accuracy(scores, truth).item())
    near(metrics.top_k_accuracy(np.full((3, 4), np.nan), np.array([0, 1, 2]), k=4), 0.0)


def test_ignored_targets_do_not_count():
    scores = np.array([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]])
    truth = np.array([0, 255, 1])
    near(metrics.accuracy(scores, truth, ignore_index=255), 0.5)
    near(metrics.top_k_accuracy(scores, truth, k=1, ignore_index=255), 0.5)
    near(metrics.recall(scores, truth, ignore_index=255, average="none"), [1.0, 0.0])
    near(metrics.confusion_matrix(scores, truth, ignore_index=255), [[1, 0], [1, 0]])
    with pytest.raises(weft.RunError, match="index 255 is out of range"):
        metrics.confusion_matrix(scores, truth).numpy()


def test_nothing_by_nothing_is_0():
    empty = np.zeros(0, int)
    assert metrics.accuracy(empty, empty).item() == 0.0
    assert metrics.top_k_accuracy(np.zeros((0, 3)), empty, k=1).item() == 0.0
    for name in ("precision", "recall", "f1", "mcc", "cohen_kappa", "mean_iou"):
        assert metrics.find(name)(empty, empty, classes=2).item() == 0.0
    same = np.zeros(4, int)
    assert metrics.precision(same, same, classes=2).item() == 0.0  # class 1 is never said
    assert metrics.mcc(same, same, classes=2).item() == 0.0
    assert metrics.cohen_kappa(same, same, classes=2).item() == 0.0
    assert metrics.mean_iou(same, same, classes=3).item() == 1.0  # what never occurs does not count


# --- scores --------------------------------------------------------------------------------------------------------------------


def auc_by_pairs(scores, truth):
    pairs = [(a > b) + 0.5 * (a == b) for a in scores[truth == 1] for b in scores[truth == 0]]
    return np.mean(pairs)


def precision_by_steps(scores, truth):
    area = last = 0.0
    for limit in sorted(set(scores.tolist()), reverse=True):
        found = scores >= limit
        recall = truth[found].sum() / truth.sum()
        area += (recall - last) * truth[found].mean()
        last = recall
    return area


@pytest.mark.parametrize("ties", [0, 3, 40])
def test_areas_under_curves(ties):
    rng = generator(f"auc {ties}")
    truth = rng.integers(0, 2, 60)
    scores = rng.random(60) + 0.3 * truth
    scores = np.round(scores * ties) / ties if ties else scores
    near(metrics.roc_auc(scores, truth), auc_by_pairs(scores, truth))
    near(metrics.roc_auc(scores, truth.astype(bool)), auc_by_pairs(scores, truth))
    near(metrics.average_precision(scores, truth), precision_by_steps(scores, truth))
    near(metrics.find("pr_auc")(scores.reshape(6, 10), truth.reshape(6, 10)), precision_by_steps(scores, truth))


def test_areas_of_one_kind_only():
    scores = np.array([0.1, 0.7])
    assert math.isnan(metrics.roc_auc(scores, np.array([1, 1])).item())
    assert math.isnan(metrics.roc_auc(scores, np.array([0, 0])).item())
    assert math.isnan(metrics.average_precision(scores, np.array([0, 0])).item())
    near(metrics.average_precision(scores, np.array([1, 1])), 1.0)
    near(metrics.roc_auc(scores, np.array([0, 1])), 1.0)
    near(metrics.roc_auc(scores, np.array([1, 0])), 0.0)


def test_calibration():
    rng = generator("calibration")
    p = special.softmax(2 * rng.normal(size=(200, 3)), axis=-1)
    truth = rng.integers(0, 3, 200)
    sure, right = p.max(1), p.argmax(1) == truth
    expected = 0.0
    for low in np.arange(10) / 10:
        inside = (sure > low) & (sure <= low + 0.1)
        if inside.any():
            expected += inside.mean() * abs(right[inside].mean() - sure[inside].mean())
    near(metrics.calibration_error(p, truth, bins=10), expected)
    near(metrics.calibration_error(np.array([1.0, 0.0, 1.0, 1.0]), np.array([1, 0, 0, 1])), 0.25)
    near(metrics.calibration_error(np.array([0.75] * 4), np.array([1, 0, 1, 1])), 0.0)
    near(metrics.calibration_error(np.array([0.85, 0.95]), np.array([0, 1]), bins=10), (0.85 + 0.05) / 2)
    near(metrics.calibration_error(np.array([0.5, 1.0]), np.array([0, 0]), bins=2), (0.5 + 1.0) / 2)


# --- numbers and images ---------------------------------------------------------------------------------------------------------


def test_numbers():
    rng = generator("numbers")
    a, b = rng.normal(size=(4, 5)), rng.normal(size=(4, 5))
    near(metrics.mae(a, b), np.abs(a - b).mean(), 1e-12)
    near(metrics.mse(a, b), ((a - b) ** 2).mean(), 1e-12)
    near(metrics.rmse(a, b), math.sqrt(((a - b) ** 2).mean()), 1e-12)
    near(metrics.r2(a, b), 1 - ((a - b) ** 2).sum() / ((b - b.mean()) ** 2).sum(), 1e-12)
    near(metrics.r2(b, b), 1.0)
    near(metrics.r2(np.full(5, b.mean()), b[0] - b[0].mean() + b.mean()), 0.0)
    near(metrics.r2(np.ones(3), np.ones(3)), 1.0)
    near(metrics.r2(np.ones(3), np.zeros(3)), 0.0)


def test_perplexity():
    near(metrics.perplexity(np.zeros((3, 7)), np.array([1, 2, 3])), 7.0)
    logits, truth = generator("perplexity").normal(size=(4, 3)), np.array([0, 2, -1, 1])
    log_p = special.log_softmax(logits, axis=-1)[np.arange(4), truth]
    near(metrics.perplexity(logits, truth, ignore_index=-1), math.exp(-log_p[[0, 1, 3]].mean()))


def test_psnr():
    a = np.zeros((2, 1, 4, 4))
    b = np.stack([np.full((1, 4, 4), 0.1), np.full((1, 4, 4), 0.01)])
    near(metrics.psnr(a, b), (20 + 40) / 2, 1e-9)
    near(metrics.psnr(255 * a, 255 * b, peak=255.0), 30.0, 1e-9)
    assert metrics.psnr(a, a).item() == math.inf


def test_ssim():
    rng = generator("ssim")
    a = rng.random((2, 2, 14, 16))
    b = np.clip(a + 0.2 * rng.normal(size=a.shape), 0, 1)
    places = np.arange(11) - 5
    window = np.exp(-(places**2) / (2 * 1.5**2))
    window = np.outer(window, window) / window.sum() ** 2

    def blur(x):
        return np.stack([ndimage.correlate(p, window)[5:-5, 5:-5] for p in x.reshape(-1, 14, 16)])

    ma, mb = blur(a), blur(b)
    va, vb, both = blur(a * a) - ma**2, blur(b * b) - mb**2, blur(a * b) - ma * mb
    c1, c2 = 0.01**2, 0.03**2
    expected = ((2 * ma * mb + c1) * (2 * both + c2) / ((ma**2 + mb**2 + c1) * (va + vb + c2))).mean()
    near(metrics.ssim(a, b), expected, 1e-10)
    near(metrics.ssim(255 * a, 255 * b, peak=255.0), expected, 1e-10)
    near(metrics.ssim(weft.asarray(a, dtype="float32"), weft.asarray(b, dtype="float32")), expected, 1e-4)
    near(metrics.ssim(a, a), 1.0)


# --- boxes ---------------------------------------------------------------------------------------------------------------------


def box(x, y, size=2):
    return [x, y, x + size, y + size]


def test_mean_average_precision_by_hand():
    """Class 1: right, wrong (taken already), right of 3 objects: (1 + 2/3) / 3. Class 2: one object, one miss by overlap."""
    first = metrics.Detections([box(0, 0), box(0, 0), box(9, 9)], [1, 1, 2], [0.9, 0.8, 0.5])
    second = metrics.Detections(weft.asarray([box(4, 4)]), weft.asarray([1]), weft.asarray([0.7]))
    targets = [
        metrics.Detections([box(0, 0), box(20, 20), box(10, 10)], [1, 1, 2]),
        metrics.Detections([box(4, 4)], [1]),
    ]
    one = (1 + 2 / 3) / 3
    near(metrics.mean_average_precision([first, second], targets), one / 2)
    near(metrics.mean_average_precision([first, second], targets, iou=1 / 7), (one + 1) / 2)
    near(metrics.mean_average_precision([first, second], targets, iou=[0.5, 1 / 7]), (one / 2 + (one + 1) / 2) / 2)


def test_mean_average_precision_takes_the_best_later_precision():
    """wrong, right, right: precisions 0, 1/2, 2/3; at both recalls the best at or beyond is 2/3."""
    found = metrics.Detections([box(50, 50), box(0, 0), box(5, 5)], [0, 0, 0], [0.9, 0.8, 0.7])
    near(metrics.mean_average_precision([found], [metrics.Detections([box(0, 0), box(5, 5)], [0, 0])]), 2 / 3)


def test_mean_average_precision_without_boxes():
    nothing = metrics.Detections([], [], [])
    assert math.isnan(metrics.mean_average_precision([nothing], [nothing]))
    assert metrics.mean_average_precision([nothing], [metrics.Detections([box(0, 0)], [3])]) == 0.0
    found = metrics.Detections([box(0, 0)], [3], [1.0])
    assert math.isnan(metrics.mean_average_precision([found], [nothing]))


# --- compiled, and over many batches --------------------------------------------------------------------------------------------


def test_compiled_is_plain():
    rng = generator("compiled metrics")
    scores, truth = rng.normal(size=(20, 3)).astype(np.float32), rng.integers(0, 3, 20)
    p, bits = rng.random(20).astype(np.float32), rng.integers(0, 2, 20)
    images = rng.random((2, 2, 1, 12, 12)).astype(np.float32)

    def everything(scores, truth, p, bits, a, b):
        of_classes = [
            metrics.accuracy(scores, truth), metrics.top_k_accuracy(scores, truth, k=2),
            metrics.f1(scores, truth, average="macro"), metrics.precision(p, bits), metrics.recall(p, bits),
            metrics.mcc(scores, truth), metrics.cohen_kappa(scores, truth), metrics.mean_iou(scores, truth),
        ]  # fmt: skip
        of_scores = [metrics.roc_auc(p, bits), metrics.average_precision(p, bits), metrics.calibration_error(p, bits)]
        of_numbers = [metrics.r2(a, b), metrics.rmse(a, b), metrics.psnr(a, b), metrics.ssim(a, b)]
        single = [*of_classes, *of_scores, *of_numbers, metrics.perplexity(scores, truth)]
        return weft.stack(single), metrics.confusion_matrix(scores, truth)

    given = (scores, truth, p, bits, *images)
    plain, matrix = everything(*map(weft.asarray, given))
    with weft.knobs.set(device="cpu"):
        compiled, compiled_matrix = weft.jit(everything)(*map(weft.asarray, given))
        near(compiled, plain.numpy(), 1e-5)
        near(compiled_matrix, matrix.numpy())


STREAMS = [
    (metrics.Accuracy, metrics.accuracy, "scores"),
    (lambda: metrics.TopK(2), lambda p, t: metrics.top_k_accuracy(p, t, k=2), "scores"),
    (lambda: metrics.ConfusionMatrix(3), metrics.confusion_matrix, "scores"),
    (lambda: metrics.MeanOf(metrics.mse), metrics.mse, "numbers"),
    (lambda: metrics.AUC(bins=16), metrics.roc_auc, "sixteenths"),
    (lambda: metrics.AUC("pr", bins=16), metrics.average_precision, "sixteenths"),
]


def example(kind, rng, n):
    if kind == "scores":
        return rng.normal(size=(n, 3)).astype(np.float32), rng.integers(0, 3, n)
    if kind == "numbers":
        return rng.normal(size=n).astype(np.float32), rng.normal(size=n).astype(np.float32)
    return (rng.integers(0, 16, n) / 16).astype(np.float32), rng.integers(0, 2, n)


@pytest.mark.parametrize(("make", "whole", "kind"), STREAMS)
def test_batches_add_up_to_the_whole(make, whole, kind):
    rng = generator(f"stream {kind}")
    predictions, targets = example(kind, rng, 30)
    expected = whole(weft.asarray(predictions), weft.asarray(targets)).numpy()
    metric = make()
    for _ in range(2):  # the second time after a reset
        for part in (slice(0, 7), slice(7, 20), slice(20, 30)):
            metric.update(predictions[part], targets[part])
        near(metric.value(), expected)
        metric.reset()
        assert not np.nan_to_num(metric.value().numpy()).any()


def test_updates_inside_a_compiled_step():
    rng = generator("compiled stream")
    with weft.knobs.set(device="cpu"):
        w = weft.parameter(rng.normal(size=(4, 3)).astype(np.float32))
        right, matrix, loss = metrics.Accuracy(), metrics.ConfusionMatrix(3), metrics.Mean()

        @weft.jit
        def step(x, y):
            logits = x @ w
            cost = weft.cross_entropy(logits, y)
            right.update(logits, y)
            matrix.update(logits, y)
            loss.update(cost)
            (slope,) = weft.gradients(cost, [w])
            w.assign(w - 0.1 * slope)
            return logits, cost

        for _ in range(2):
            logits, truths, costs = [], [], []
            for _ in range(3):
                x, y = rng.normal(size=(8, 4)).astype(np.float32), rng.integers(0, 3, 8)
                one, cost = step(weft.asarray(x), weft.asarray(y))
                logits.append(one.numpy())
                truths.append(y)
                costs.append(cost.item())
            found, truth = np.concatenate(logits).argmax(-1), np.concatenate(truths)
            near(right.value(), np.mean(found == truth))
            near(matrix.value(), count(found, truth, 3))
            near(matrix.accuracy(), np.mean(found == truth))
            near(loss.value(), np.mean(costs))
            for metric in (right, matrix, loss):
                metric.reset()


def test_what_follows_from_a_confusion_matrix():
    rng = generator("matrix")
    scores, truth = rng.normal(size=(40, 3)).astype(np.float32), rng.integers(0, 3, 40)
    seen = metrics.ConfusionMatrix(3)
    seen.update(scores, truth)
    for average in ("macro", "micro", "weighted", "none"):
        for name in ("precision", "recall", "f1", "f_beta"):
            near(getattr(seen, name)(average=average), metrics.find(name)(scores, truth, average=average).numpy())
    for name in ("accuracy", "per_class_accuracy", "mcc", "cohen_kappa"):
        near(getattr(seen, name)(), metrics.find(name)(scores, truth).numpy())
    near(seen.mean_iou(), metrics.mean_iou(scores, truth, axis=-1).item())


def test_a_mean_keeps_no_history_and_loses_nothing():
    mean = metrics.Mean()
    w = weft.parameter(2.0)
    mean.update(w * w)
    assert not mean.total.requires_grad
    mean.reset()
    for _ in range(3):
        mean.update(np.full(4, 16777217.0), weight=np.array([1.0, 2.0, 0.0, 1.0]))
    assert mean.total.item() == 12 * 16777217.0
    mean.reset()
    mean.update(np.array([True, False, True, True]))
    near(mean.value(), 0.75)


def test_many_bins_come_near_the_exact_area():
    rng = generator("bins")
    truth = rng.integers(0, 2, 500)
    scores = special.expit(rng.normal(size=500) + truth)
    for curve, exact in (("roc", metrics.roc_auc), ("pr", metrics.average_precision)):
        metric = metrics.AUC(curve)
        metric.update(scores, truth)
        near(metric.value(), exact(scores, truth).item(), 2e-3)


# --- errors --------------------------------------------------------------------------------------------------------------------

Z = np.zeros
CLASS = np.zeros(3, int)
WRONG = [
    (lambda: metrics.find("acc"), "[metrics.find] there is no metric 'acc'. Known: accuracy, top_k_accuracy,"),
    (lambda: metrics.find(1), "[metrics.find] the name of a metric or a function is required, got 1."),
    (lambda: metrics.accuracy(Z((2, 3)), CLASS), "[accuracy] predictions of the shape (3,) of the targets, or scores"),
    (lambda: metrics.accuracy(Z(3), Z(3)), "[accuracy] targets that are classes (integers or bools) are required, got float64[3]."),
    (lambda: metrics.f1(CLASS, CLASS), "[f1] class indices require the number of classes: classes=..."),
    (lambda: metrics.f1(Z((3, 4)), CLASS), "[f1] 4 classes need average='macro', 'micro', 'weighted' or 'none', got 'binary'."),
    (lambda: metrics.recall(Z(3), CLASS, average="mean"), "[recall] the average must be one of binary, macro, micro, weighted, none, got 'mean'."),
    (lambda: metrics.mcc(CLASS, CLASS, classes=0), "[mcc] the number of classes must be 1 or more, got 0."),
    (lambda: metrics.f_beta(Z(3), CLASS, beta=0.0), "[f_beta] beta must be above 0, got 0.0."),
    (lambda: metrics.top_k_accuracy(Z((3, 4)), CLASS), "[top_k_accuracy] k must be between 1 and 4, the classes, got 5."),
    (lambda: metrics.top_k_accuracy(Z((2, 4)), CLASS, k=1), "[top_k_accuracy] integer classes of shape (2,) are required, got int64[3]."),
    (lambda: metrics.roc_auc(Z((3, 2)), CLASS), "[roc_auc] one score for each target is required, got shapes (3, 2) and (3,)."),
    (lambda: metrics.calibration_error(Z(3), CLASS, bins=0), "[calibration_error] 1 bin or more is required, got 0."),
    (lambda: metrics.calibration_error(Z((2, 3)), CLASS), "[calibration_error] probabilities of the shape of the targets"),
    (lambda: metrics.r2(Z(3), Z((3, 1))), "[r2] prediction and target of one shape are required, got (3,) and (3, 1)."),
    (lambda: metrics.psnr(Z(3), Z(3)), "[psnr] images (batch, ...) are required, got shape (3,)."),
    (lambda: metrics.psnr(Z((3, 1)), Z((3, 1)), peak=0), "[psnr] the peak, the largest value a pixel can have, must be above 0, got 0."),
    (lambda: metrics.ssim(Z((1, 1, 8, 8)), Z((1, 1, 8, 8))), "[ssim] images (batch, channels, height, width) of 11 or more places are required"),
    (lambda: metrics.ssim(Z((1, 1, 8, 8)), Z((1, 1, 8, 8)), window=3, sigma=0), "[ssim] a window of 1 or more and a sigma above 0 are required, got 3 and 0."),
    (lambda: metrics.ConfusionMatrix(0), "[ConfusionMatrix] the number of classes must be 1 or more, got 0."),
    (lambda: metrics.TopK(0), "[TopK] k must be 1 or more, got 0."),
    (lambda: metrics.AUC("prc"), "[AUC] the curve must be 'roc' or 'pr', got 'prc'."),
    (lambda: metrics.AUC(bins=1), "[AUC] 2 bins or more are required, got 1."),
    (lambda: metrics.AUC().update(Z((3, 1)), CLASS), "[AUC] one score for each target is required, got (3, 1) and (3,)."),
    (lambda: metrics.Metric().value(), "[Metric] a metric needs a method value(self)."),
    (lambda: metrics.mean_average_precision([], [metrics.Detections([], [])]), "predictions and targets of as many images are required, got 0 and 1."),
    (lambda: metrics.mean_average_precision([metrics.Detections([], [])], [metrics.Detections([], [])]), "predictions need scores: Detections(boxes, classes, scores)."),
    (lambda: metrics.mean_average_precision([], [], iou=0.0), "thresholds of iou in (0, 1] are required, got 0.0."),
    (lambda: metrics.mean_average_precision([metrics.Detections([box(0, 0)], [], [])], [metrics.Detections([], [])]), "as many boxes as classes and scores are required, got 1, 0 and 0."),
]  # fmt: skip


@pytest.mark.parametrize(("call", "text"), WRONG)
def test_errors_say_what_is_required(call, text):
    counted()
    with pytest.raises(weft.UserError) as caught:
        call()
    assert text in str(caught.value)


def test_the_table_names_what_there_is():
    assert all(getattr(metrics, name) is f for name, f in metrics.METRICS.items() if name != "pr_auc")
    assert metrics.find(math.sqrt) is math.sqrt


@pytest.mark.parametrize(
    "name", ["confusion_matrix", "precision", "f_beta", "mean_iou", "dice_score", "mcc", "cohen_kappa"]
)
def test_scores_of_a_confusion_matrix_take_its_options_and_no_others(name: str) -> None:
    score = getattr(metrics, name)
    ignored = score([0, 1, 1, 0], [0, 0, 1, 7], classes=2, axis=-1, threshold=0.5, ignore_index=7)
    np.testing.assert_array_equal(ignored.numpy(), score([0, 1, 1], [0, 0, 1], classes=2).numpy())
    with pytest.raises(TypeError, match="'klasses'"):
        score([0, 1], [0, 1], klasses=2)
