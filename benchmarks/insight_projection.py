"""How good projections between measured machines are: every network, from each machine to each other one."""

from __future__ import annotations

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
    """Project every network from each machine to the measured roof of each other one."""
    return [
        ProjectionError(network, source, target, projected_seconds(here, profiles[target][network], target, kinds[target]), profiles[target][network].total.seconds)
        for source in profiles
        for target in profiles
        for network, here in profiles[source].items()
        if source != target and network in profiles[target]
    ]  # fmt: skip


def projected_seconds(here: ProgramProfile, there: ProgramProfile, name: str, kind: str) -> float:
    """Of the machine that `there` was measured on nothing is used but its roof and its launch overhead."""
    return project(here, measured_machine(name, there, kind)).seconds
