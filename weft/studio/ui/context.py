"""What pages and the API work with."""

from __future__ import annotations

from dataclasses import dataclass

from ...jobs.queue import JobQueue
from ..config import StudioConfig
from ..library.batches import Batches
from ..library.event_stream import EventStream
from ..library.feed import Feed
from ..library.loaded import LoadedNetworks
from ..library.runs import RunIndex
from ..paths import AllowedPaths
from .fragment import LiveFragments


@dataclass(frozen=True)
class Studio:
    """One studio: its settings, what it knows, and what its pages show live."""

    config: StudioConfig
    index: RunIndex
    queue: JobQueue
    feed: Feed
    live: LiveFragments
    networks: LoadedNetworks
    paths: AllowedPaths
    batches: Batches
    events: EventStream
