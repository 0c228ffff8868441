"""The settings of commands that train on a cluster: which cluster, and what each training needs of a node."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ...device_names import read_device_name
from ...errors import UserError
from ...knobs import knobs
from ...records import dataclass
from ..schema import Setting, count, not_negative

PACK, SHARED = "pack", "shared"


def cluster_address(text: str) -> str:
    """The address of a Ray cluster; ValueError if it is invalid.

    >>> cluster_address("ray"), cluster_address("ray://head:10001"), cluster_address("10.0.0.1:6379")
    ('ray', 'ray://head:10001', '10.0.0.1:6379')
    """
    if text != "ray" and re.fullmatch(r"(ray://)?[\w.\[\]:-]+:\d+", text) is None:
        raise ValueError("it must be ray, ray://HOST:PORT or HOST:PORT")
    return text


CLUSTER: dict[str, Setting] = {
    "cluster": Setting(cluster_address, None, "Ray cluster to train on: ray (the one of this machine, or RAY_ADDRESS), ray://HOST:PORT or HOST:PORT", "cluster"),
    "cpus": Setting(count, 1, "cluster: CPUs of each training", "cluster"),
    "gpus": Setting(not_negative, None, "cluster: GPUs of each training, such as 0.5; default: 1 with device=cuda, else 0", "cluster"),
    "cluster_data": Setting(str, PACK, "cluster: pack sends data files to the nodes, shared finds them there under the same path", "cluster", (PACK, SHARED)),
}  # fmt: skip


@dataclass(frozen=True)
class ClusterPlan:
    """A cluster, and what each training needs of a node."""

    address: str = "ray"
    cpus: int = 1
    gpus: float = 0.0
    data: str = PACK


def cluster_plan(
    where: str, own: Mapping[str, Any], given: Mapping[str, Any], device: str | None
) -> ClusterPlan | None:
    """The plan of validated settings; None without a cluster. `given` are the names of settings that were given, `device` is that of the trainings."""
    if own["cluster"] is None:
        alone = [name for name in CLUSTER if name in given and given[name] is not None]
        if alone and alone != ["cluster"]:
            raise UserError(where, f"{alone[-1]}= is for clusters, got no cluster. Add cluster=ray, or leave it out.")
        return None
    device = device or knobs.device
    name = read_device_name(device)
    if name.is_one_gpu:
        raise UserError(where, f"device=cuda is required on a cluster, which chooses the GPU, got device={device}.")
    gpus = own["gpus"] if own["gpus"] is not None else float(name.is_gpu)
    if name.is_gpu != (gpus > 0):
        raise UserError(where, f"gpus= must suit the device, got gpus={gpus:g} and device={device}. Leave gpus= out, or change device=.")  # fmt: skip
    if gpus > 1:
        raise UserError(where, f"a training uses one GPU, got gpus={gpus:g}. Give gpus=1 or a part of one.")
    return ClusterPlan(own["cluster"], own["cpus"], gpus, own["cluster_data"])
