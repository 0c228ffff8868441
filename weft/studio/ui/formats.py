"""Numbers, times and names as the pages write them."""

from __future__ import annotations

import math
import time
from datetime import datetime

_SHORT = {"validation": "val"}


def metric_name(name: str) -> str:
    """The words for a metric.

    >>> metric_name("validation_accuracy"), metric_name("train_loss")
    ('val accuracy', 'train loss')
    """
    return " ".join(_SHORT.get(word, word) for word in name.split("_"))


def is_share(name: str) -> bool:
    """Whether a metric is a share, which is shown as a percentage."""
    return name.endswith(("accuracy", "precision", "recall", "f1"))


def metric_value(name: str, value: float | None) -> str:
    """A value with three significant figures, accuracies in percent.

    >>> metric_value("validation_accuracy", 0.9137), metric_value("train_loss", 0.02812), metric_value("train_loss", None)
    ('91.4 %', '0.0281', '–')
    """
    if value is None or math.isnan(value):
        return "–"
    return f"{100 * value:.1f} %" if is_share(name) else three_figures(value)


def three_figures(value: float) -> str:
    """A number with three significant figures, without an exponent where it reads well.

    >>> three_figures(1.2345), three_figures(1234.5), three_figures(0.000012345), three_figures(0.0)
    ('1.23', '1,230', '1.23e-05', '0')
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if not 1e-4 <= abs(value) < 1e7:
        return f"{value:.3g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    rounded = round(value, 2 - math.floor(math.log10(abs(value))))
    return f"{rounded:,.{digits}f}"


def count(number: int) -> str:
    """
    >>> count(70000)
    '70,000'
    """
    return f"{number:,}"


def short(number: float) -> str:
    """A large count in three figures.

    >>> short(431080), short(25557032), short(4089000000), short(62)
    ('431 k', '25.6 M', '4.09 G', '62')
    """
    for power, unit in ((9, " G"), (6, " M"), (3, " k")):
        if number >= 0.9995 * 10**power:
            return f"{three_figures(number / 10**power)}{unit}"
    return f"{number:,.0f}"


def size(count: float) -> str:
    """Bytes, in powers of 1000 as disks and GPUs are sold.

    >>> size(14_400_000_000), size(512), size(1_500_000)
    ('14.4 GB', '512 B', '1.5 MB')
    """
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError


def size_pair(used: float, total: float) -> str:
    """Two sizes in the unit of the second, unless the first is too small for it.

    >>> size_pair(14_400_000_000, 24_000_000_000), size_pair(11_800_000, 24_000_000_000)
    ('14.4 of 24 GB', '11.8 MB of 24 GB')
    """
    power = max(0, min(4, int(math.log(max(total, 1), 1000))))
    unit = ("B", "kB", "MB", "GB", "TB")[power]
    first, second = used / 1000**power, total / 1000**power
    shown = f"{first:.1f}" if first >= 0.1 or used == 0 else size(used)
    return f"{shown} of {second:.0f} {unit}" if second >= 10 else f"{shown} of {second:.1f} {unit}"


def duration(seconds: float | None) -> str:
    """
    >>> duration(7.2), duration(510), duration(8040), duration(200000), duration(None)
    ('7 s', '8 min 30 s', '2 h 14 min', '2 d 7 h', '–')
    """
    if seconds is None:
        return "–"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s" if whole % 60 else f"{whole // 60} min"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def percent(share: float) -> str:
    """
    >>> percent(0.384)
    '38 %'
    """
    return f"{100 * share:.0f} %"


def moment(when: float | None, now: float | None = None) -> str:
    """When something was, as briefly as is clear: Today 13:48, Yesterday, 12 Nov, 12 Nov 2025."""
    if when is None:
        return "–"
    at, today = datetime.fromtimestamp(when), datetime.fromtimestamp(time.time() if now is None else now)
    days = (today.date() - at.date()).days
    if days == 0:
        return f"Today {at:%H:%M}"
    if days == 1:
        return f"Yesterday {at:%H:%M}"
    return f"{at.day} {at:%b}" if at.year == today.year else f"{at.day} {at:%b %Y}"


def ago(when: float | None, now: float | None = None) -> str:
    """When somebody was last seen.

    >>> ago(1000, 1030), ago(1000, 1500), ago(None)
    ('now', '8 min ago', 'never')
    """
    if when is None:
        return "never"
    minutes = int(((time.time() if now is None else now) - when) // 60)
    return "now" if minutes < 1 else f"{minutes} min ago" if minutes < 60 else moment(when, now)


def ends(when: float | None, now: float | None = None) -> str:
    """When something expires.

    >>> ends(86400 * 61 + 5, 0), ends(3600, 0), ends(0, 1), ends(None)
    ('in 61 days', 'today', 'ended', 'never')
    """
    if when is None:
        return "never"
    left = when - (time.time() if now is None else now)
    days = int(left // 86400)
    return "ended" if left <= 0 else "today" if days < 1 else f"in {days} day{'s' if days > 1 else ''}"


def clock(when: float) -> str:
    """The time of day."""
    return f"{datetime.fromtimestamp(when):%H:%M}"


def full_time(when: float | None) -> str:
    """Date and time, for tooltips."""
    return "" if when is None else f"{datetime.fromtimestamp(when):%Y-%m-%d %H:%M:%S}"
