"""Metrics: functions of predictions and targets, and streaming metrics that accumulate over batches.

from weft import metrics

metrics.accuracy(prediction, target)  # of one batch
seen = metrics.Accuracy()  # of many: seen.update(prediction, target) in a compiled step, then seen.value()
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import UserError
from .classification import accuracy as accuracy
from .classification import cohen_kappa as cohen_kappa
from .classification import confusion_matrix as confusion_matrix
from .classification import dice_score as dice_score
from .classification import f1 as f1
from .classification import f_beta as f_beta
from .classification import mcc as mcc
from .classification import mean_iou as mean_iou
from .classification import per_class_accuracy as per_class_accuracy
from .classification import precision as precision
from .classification import recall as recall
from .classification import top_k_accuracy as top_k_accuracy
from .detection import Detections as Detections
from .detection import mean_average_precision as mean_average_precision
from .ranking import average_precision as average_precision
from .ranking import calibration_error as calibration_error
from .ranking import roc_auc as roc_auc
from .regression import mae as mae
from .regression import mse as mse
from .regression import perplexity as perplexity
from .regression import psnr as psnr
from .regression import r2 as r2
from .regression import rmse as rmse
from .regression import ssim as ssim
from .streaming import AUC as AUC
from .streaming import Accuracy as Accuracy
from .streaming import ConfusionMatrix as ConfusionMatrix
from .streaming import Mean as Mean
from .streaming import MeanOf as MeanOf
from .streaming import Metric as Metric
from .streaming import TopK as TopK

METRICS: dict[str, Callable[..., Any]] = {
    "accuracy": accuracy,
    "top_k_accuracy": top_k_accuracy,
    "per_class_accuracy": per_class_accuracy,
    "precision": precision,
    "recall": recall,
    "f_beta": f_beta,
    "f1": f1,
    "confusion_matrix": confusion_matrix,
    "mean_iou": mean_iou,
    "dice_score": dice_score,
    "mcc": mcc,
    "cohen_kappa": cohen_kappa,
    "roc_auc": roc_auc,
    "average_precision": average_precision,
    "pr_auc": average_precision,
    "calibration_error": calibration_error,
    "mae": mae,
    "mse": mse,
    "rmse": rmse,
    "r2": r2,
    "perplexity": perplexity,
    "psnr": psnr,
    "ssim": ssim,
    "mean_average_precision": mean_average_precision,
}


def find(which: str | Callable[..., Any]) -> Callable[..., Any]:
    """Look up a metric, a function of predictions and targets, by name; a function is returned unchanged.

    >>> find("accuracy")([0, 1, 1, 1], [0, 1, 0, 1]).item()
    0.75
    """
    if not isinstance(which, str):
        if not callable(which):
            raise UserError("metrics.find", f"the name of a metric or a function is required, got {which!r}.")
        return which
    if which not in METRICS:
        raise UserError("metrics.find", f"there is no metric {which!r}. Known: {', '.join(METRICS)}.")
    return METRICS[which]
