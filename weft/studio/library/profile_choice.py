"""Which profiles are shown: the one that was chosen or the newest, those of other devices, and what they are compared with."""

from __future__ import annotations

from collections.abc import Sequence

from ...device_names import CPU
from ...insight.profile_record import ProfileRecord
from ...jobs.profiles.store import StoredProfile
from ...records import dataclass
from .profiles import ProfiledThing, alike, newest, settings_of

BOTH = "both"


@dataclass(frozen=True)
class Compared:
    """A profile, and the one that it is compared with."""

    after: ProfileRecord
    before: ProfileRecord | None = None

    @property
    def differing(self) -> tuple[str, ...]:
        """The settings in which they differ: the one is not an earlier state of the other then, but measured in another way."""
        if self.before is None:
            return ()
        now, was = settings_of(self.after), settings_of(self.before)
        return tuple(name for name in now if now[name] != was[name])


@dataclass(frozen=True)
class Shelf:
    """A run or a network with its profiles. `is_later`: of what a page is compared with, whether it was made of the page's own."""

    thing: ProfiledThing
    profiles: Sequence[StoredProfile]
    is_later: bool | None = None


class ProfileChoice:
    """What a person has chosen, and what follows from it. The first shelf is the page's own."""

    def __init__(self, shelves: Sequence[Shelf]) -> None:
        self.shelves = shelves
        self.wanted: str | None = None  # the profile that was chosen
        self.together = False  # all devices in one picture
        self.other = ""  # what it is compared with: the number of a shelf and the id of a profile

    @property
    def own(self) -> Sequence[StoredProfile]:
        return self.shelves[0].profiles

    def update(self, shelves: Sequence[Shelf]) -> None:
        """Take what was read again; a profile that is new is shown."""
        if {one.id for one in shelves[0].profiles} - {one.id for one in self.own}:
            self.wanted = None
        self.shelves = shelves

    # --- choosing -------------------------------------------------------------------------------------------------------------------

    def show(self, id: str) -> None:
        self.wanted = id

    def set_device(self, device: str) -> None:
        """Show the newest profile on a device, or those of all devices."""
        self.together = device == BOTH
        if not self.together:
            self.set("device", device)

    def set(self, name: str, value: str | int) -> None:
        """Show the profile with another device, batch or what: with the other settings as they are, if there is one."""
        if self.record is None:
            return
        found = alike(self.own, {**settings_of(self.record), name: value}) or alike(self.own, {name: value})
        self.wanted = found.id if found is not None else self.wanted

    def compare_with(self, key: str) -> None:
        self.other = key

    # --- what is shown --------------------------------------------------------------------------------------------------------------

    @property
    def primary(self) -> StoredProfile | None:
        found = next((one for one in self.own if one.id == self.wanted and one.record is not None), None)
        return found or newest(self.own)

    @property
    def record(self) -> ProfileRecord | None:
        return self.primary.record if self.primary is not None else None

    @property
    def outdated(self) -> StoredProfile | None:
        """The newest profile, if it cannot be read."""
        return self.own[0] if self.own and self.own[0].record is None else None

    def known(self, name: str) -> list[str | int]:
        """The devices, batches or kinds of calls that were measured; GPUs first, small batches first."""
        values = {getattr(one.record, name) for one in self.own if one.record is not None}
        return sorted(values, key=lambda value: (value == CPU, value))

    @property
    def others(self) -> list[tuple[str, ProfiledThing, StoredProfile | None]]:
        """What the profile can be compared with: other runs by their profile that was made in the same way, and others of its own."""
        shown = self.primary
        related = [(f"{i}:", one.thing, self._of(one, self.record)) for i, one in enumerate(self.shelves) if i]
        own = [one for one in self.own if one.record is not None and one is not shown]
        return [*related, *((f"0:{one.id}", self.shelves[0].thing, one) for one in own)]

    @property
    def unmeasured(self) -> ProfiledThing | None:
        """What it is to be compared with, if that was not measured in the same way."""
        return next((thing for key, thing, found in self.others if key == self.other and found is None), None)

    @property
    def pair(self) -> Compared | None:
        return self.pairs[0] if self.pairs else None

    @property
    def pairs(self) -> list[Compared]:
        """The profile that was chosen, and with `together` one of each other device that is like it."""
        record = self.record
        if record is None:
            return []
        records = [record]
        if self.together:
            settings, devices = settings_of(record), self.known("device")
            found = [alike(self.own, {**settings, "device": one}) for one in devices if one != record.device]
            records += [one.record for one in found if one is not None and one.record is not None]
        return [self._compared(one) for one in records]

    def _compared(self, record: ProfileRecord) -> Compared:
        number, _, id = self.other.partition(":")
        shelf = self.shelves[int(number)] if number.isdigit() and int(number) < len(self.shelves) else None
        if shelf is None:
            return Compared(record)
        other = next((one for one in shelf.profiles if one.id == id), None) if id else self._of(shelf, record)
        if other is None or other.record is None or other.record is record:
            return Compared(record)
        if self.together and other.record.device != record.device:  # each device is compared with itself
            return Compared(record)
        pair = Compared(record, other.record)
        is_later = shelf.is_later if shelf.is_later is not None else other.record.made > record.made
        return Compared(other.record, record) if is_later and not pair.differing else pair

    def _of(self, shelf: Shelf, record: ProfileRecord | None) -> StoredProfile | None:
        """The newest profile of a shelf that was measured in the same way."""
        return None if record is None else alike(shelf.profiles, settings_of(record))
