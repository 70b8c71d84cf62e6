"""Numbers by a record's sequence or offset, in arrays that grow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

FIRST_SIZE: Final = 1 << 12
SEQUENCE_MAX: Final = 1 << 36


class Marks:
    """A number for each index, 0 before it is set."""

    def __init__(self, kind: type[np.generic] = np.uint8) -> None:
        """`kind` is the numbers' type."""
        self.values: NDArray[Any] = np.zeros(FIRST_SIZE, kind)

    def at(self, indexes: NDArray[np.int64]) -> NDArray[Any]:
        """A view of all numbers that reaches these indexes.

        Raises:
            ValueError: one is beyond what a run can have.
        """
        size = int(indexes.max()) + 1 if len(indexes) else 0
        if size > SEQUENCE_MAX:
            raise ValueError(f"a record of sequence {size - 1:,}")
        have = len(self.values)
        if size > have:
            more = np.zeros(max(size, 2 * have) - have, self.values.dtype)
            self.values = np.concatenate([self.values, more])
        return self.values

    def count(self, indexes: NDArray[np.int64]) -> None:
        """Adds 1 for each time that an index is given; stays at the type's highest number."""
        values = self.at(indexes)
        unique, times = np.unique(indexes, return_counts=True)
        highest = np.iinfo(values.dtype).max
        values[unique] = np.minimum(values[unique].astype(np.int64) + times, highest)
