"""Guards: what must be unchanged since a function was traced for its program to be valid."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import field
from typing import Any

from ..records import dataclass
from ..runtime import Buffer
from ..tensor import Changes, Holder, Tensor


class ModuleSettings:
    """What objects such as modules were set to: plain values, and which parts they had."""

    def __init__(self, holders: Iterable[Holder]) -> None:
        self.then = [(h, h.settings()) for h in holders]
        # Lists and dicts can change without anybody being told: they are looked at every time.
        mutable = [v for _, found in self.then for v in found.values() if isinstance(v, list | dict)]
        self.inside = [(v, list(_content_of(v))) for v in mutable]
        self.changes = Changes.count

    def hold(self) -> bool:
        """Whether all of it is as it was."""
        for container, then in self.inside:
            if len(container) != len(then) or not all(map(operator.is_, _content_of(container), then)):
                return False
        if self.changes != Changes.count:
            if not all(_same(holder.settings(), then) for holder, then in self.then):
                return False
            self.changes = Changes.count
        return True


def _content_of(container: Any) -> Iterable[Any]:
    return container.values() if isinstance(container, dict) else container


def _same(now: dict[str, Any], then: dict[str, Any]) -> bool:
    plain = (bool, int, float, str, tuple)
    return now.keys() == then.keys() and all(
        v is then[n] or (isinstance(v, plain) and type(v) is type(then[n]) and v == then[n]) for n, v in now.items()
    )


@dataclass(eq=False)
class Guards:
    """See the head of this file."""

    settings: ModuleSettings | None = None
    seen: list[tuple[Tensor, Buffer, int]] = field(default_factory=list)  # values that Python read, with their versions
    had_grads: list[tuple[Tensor, bool]] = field(default_factory=list)  # which tensors had a .grad

    def hold(self) -> bool:
        """Whether every .grad is there, or missing, as it was, and all settings and values that Python read are what they were."""
        for tensor, had in self.had_grads:
            if (tensor.grad is None) is had:
                return False
        for tensor, value, version in self.seen:
            if tensor._node.value is not value or value.version != version:
                return False
        return self.settings is None or self.settings.hold()
