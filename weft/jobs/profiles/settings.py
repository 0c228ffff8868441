"""The settings of a profile, in a file of their own: reading them does not import the code that measures."""

from __future__ import annotations

from ..schema import Setting, count, fraction

PROFILE_SETTINGS = {
    "run": Setting(str, None, "folder of the run"),
    "network": Setting(str, None, "name of the network, if it is no run"),
    "device": Setting(str, "cpu", "cpu, cuda, cuda:1, ..."),
    "batch": Setting(count, 1, "examples of a call"),
    "what": Setting(str, "infer", "inference, or a step of training", choices=("infer", "train")),
    "repeats": Setting(count, None, "calls that are timed; default: 200, or as many as 20 seconds allow"),
    "runs": Setting(str, "runs", "folder that runs are kept in"),
}  # fmt: skip
ENERGY_SETTINGS = {
    **{name: PROFILE_SETTINGS[name] for name in ("run", "network", "device", "batch", "runs")},
    "density": Setting(fraction, 0.1, "share of the weights that sparse forms keep"),
}  # fmt: skip
PROFILE_OPTIONS = ("device", "batch", "what", "repeats")  # what a person chooses
