"""The functions that hear of a group's rebalances."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from headrace._types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from typing_extensions import Self

Callback: TypeAlias = "Callable[[list[TopicPartition]], object] | None"


class Listener(NamedTuple):
    """One at least."""

    on_assigned: Callback
    on_revoked: Callback
    on_lost: Callback

    @classmethod
    def of(cls, on_assigned: Callback, on_revoked: Callback, on_lost: Callback) -> Self | None:
        """None where there is none."""
        listener = cls(on_assigned, on_revoked, on_lost)
        return listener if any(listener) else None

    def tell(self, kind: str, partitions: Iterable[tuple[str, int]]) -> object:
        """Calls the function for what has happened to the partitions, and gives what it returns."""
        on_lost = self.on_lost or self.on_revoked
        callback = {"assigned": self.on_assigned, "revoked": self.on_revoked, "lost": on_lost}[kind]
        return None if callback is None else callback([TopicPartition(*tp) for tp in partitions])
