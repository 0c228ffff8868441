"""What pages and the API work with."""

from __future__ import annotations

from dataclasses import field

from ...jobs.queue.job_queue import JobQueue
from ...records import dataclass
from ..config import StudioConfig
from ..library.batches import Batches
from ..library.compressions import Compressions
from ..library.datasets import DatasetLibrary
from ..library.embeddings import EmbeddingMaps
from ..library.event_stream import EventStream
from ..library.explained import ExplainedNetworks
from ..library.feed import Feed
from ..library.loaded import LoadedNetworks
from ..library.previews import TrainingPreviews
from ..library.profiles import Profiles
from ..library.runs import RunIndex
from ..library.storage import DiskStorage
from ..paths import AllowedPaths
from ..store.store import AccountStore
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
    store: AccountStore
    storage: DiskStorage
    datasets: DatasetLibrary
    batches: Batches
    events: EventStream
    previews: TrainingPreviews
    compressions: Compressions
    explained: ExplainedNetworks = field(default_factory=ExplainedNetworks)
    embeddings: EmbeddingMaps = field(default_factory=EmbeddingMaps)
    profiles: Profiles = field(default_factory=Profiles)
