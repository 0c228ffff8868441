"""How good predictions are: functions of predictions and targets, and objects that add up over batches.

from weft import metrics

metrics.accuracy(prediction, target)  # of one batch
seen = metrics.Accuracy()  # of many: seen.update(prediction, target) in a compiled step, then seen.value()
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import UserError
from .boxes import Detections as Detections
from .boxes import mean_average_precision as mean_average_precision
from .classes import accuracy as accuracy
from .classes import cohen_kappa as cohen_kappa
from .classes import confusion_matrix as confusion_matrix
from .classes import dice_score as dice_score
from .classes import f1 as f1
from .classes import f_beta as f_beta
from .classes import mcc as mcc
from .classes import mean_iou as mean_iou
from .classes import per_class_accuracy as per_class_accuracy
from .classes import precision as precision
from .classes import recall as recall
from .classes import top_k_accuracy as top_k_accuracy
from .numbers import mae as mae
from .numbers import mse as mse
from .numbers import perplexity as perplexity
from .numbers import psnr as psnr
from .numbers import r2 as r2
from .numbers import rmse as rmse
from .numbers import ssim as ssim
from .ranking import average_precision as average_precision
from .ranking import calibration_error as calibration_error
from .ranking import roc_auc as roc_auc
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
    """A metric, a function of predictions and targets, by its name; a function is given back as it is.

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
