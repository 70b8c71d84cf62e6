"""Numbers as Arrow arrays, without a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import NDArray


def column(numbers: NDArray[Any]) -> pa.Array:
    """An array of the same type; `pyarrow.array` would import pandas, for which a worker would stop a second or two."""
    values = np.ascontiguousarray(numbers)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(values)])
