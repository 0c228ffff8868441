"""How good projections between measured machines are: every network, from each machine to each other one."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from weft.insight import ProgramProfile, measured_machine, project

Profiles = Mapping[str, Mapping[str, ProgramProfile]]  # by machine and network


@dataclass(frozen=True)
class ProjectionError:
    """A network that was measured on both machines."""

    network: str
    source: str
    target: str
    projected: float  # seconds
    measured: float

    @property
    def error(self) -> float:
        return self.projected / self.measured - 1.0


def projected_errors(profiles: Profiles, kinds: Mapping[str, str]) -> list[ProjectionError]:
    """Project every network from each machine to each other one.

    Of the other machine only its roof is used, and what starting a kernel takes there, as its other networks show it: nothing of the network itself.
    """
    found = []
    for source, target in itertools.permutations(profiles, 2):
        for network, here in profiles[source].items():
            others = [one for name, one in profiles[target].items() if name != network]
            if network in profiles[target] and others:
                machine = measured_machine(target, others, kinds[target])
                measured = profiles[target][network].total.seconds
                found.append(ProjectionError(network, source, target, project(here, machine).seconds, measured))
    return found
