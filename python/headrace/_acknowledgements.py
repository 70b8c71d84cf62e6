"""What callers of a share consumer say of rows, as the native side takes it."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable


class AcknowledgeType(IntEnum):
    """What becomes of a record that was delivered; the numbers are Kafka's."""

    ACCEPT = 1
    """It has been processed."""
    RELEASE = 2
    """It has not been: it is delivered again, to whoever comes first (five times in all, by default)."""
    REJECT = 3
    """It cannot be processed, and is delivered to nobody any more."""
    RENEW = 4
    """It is being processed still: its lock begins anew (KIP-1222, Kafka 4.2 or newer)."""


How: TypeAlias = "str | int | Iterable[Any]"
"""One word or number for all rows, or something of a value for each: an Arrow array, or what Arrow makes one of."""

WORDS: Final = {kind.name.lower(): kind for kind in AcknowledgeType}
NAMES: Final = {"topic": pa.string(), "partition": pa.int32(), "offset": pa.int64(), "delivery_count": pa.int16()}
"""The columns that name a row, as the native side takes them."""


def marks(rows: Any, how: Any, otherwise: Any) -> pa.Table:
    """The rows' names and Kafka's number for each.

    Raises:
        UsageError: the rows lack a column, or ``how`` is not one word or one value a row.
    """
    table = _table(rows)
    if missing := [name for name in NAMES if name not in table.column_names]:
        raise _usage(
            f"rows are known by their columns {', '.join(NAMES)}; these have no {', '.join(missing)}: keep them when "
            "columns are chosen"
        )
    if twice := [name for name in NAMES if table.column_names.count(name) > 1]:
        raise _usage(f"there are several columns {', '.join(twice)}: which of them name the rows?")
    columns = {name: _cast(table.column(name), kind, f"column {name}") for name, kind in NAMES.items()}
    columns["acknowledge_type"] = _types(how, otherwise, table.num_rows)
    return pa.table(columns)


def _table(rows: Any) -> pa.Table:
    if isinstance(rows, pa.Table):
        return rows
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    if isinstance(rows, (list, tuple)) and rows and all(isinstance(batch, pa.RecordBatch) for batch in rows):
        return pa.Table.from_batches(rows)
    if hasattr(rows, "__arrow_c_stream__") or hasattr(rows, "__arrow_c_array__"):
        try:
            return pa.table(rows)
        except (pa.ArrowException, TypeError, ValueError) as error:
            message = f"rows to acknowledge have columns; those of {_name(rows)} cannot be read: {error}"
            raise _usage(message) from error
    if isinstance(rows, (list, tuple)) and not rows:
        return pa.schema(NAMES).empty_table()
    raise _usage(f"rows to acknowledge are a RecordBatch, a Table, a list of batches, or Arrow data, not {_name(rows)}")


def _types(how: Any, otherwise: Any, rows: int) -> pa.Array[Any] | pa.ChunkedArray[Any]:
    rest = _kind(otherwise, "otherwise")
    if isinstance(how, (str, bytes, int)) and not isinstance(how, bool):
        return pa.repeat(pa.scalar(int(_kind(how, "how")), pa.int8()), rows)
    column = _column(how)
    if len(column) != rows:
        raise _usage(f"how: {len(column)} values for {rows} rows")
    if rows == 0:
        return pa.array([], pa.int8())
    if column.null_count:
        raise _usage("how: there are nulls among the values")
    if pa.types.is_boolean(column.type):
        yes = pa.scalar(int(AcknowledgeType.ACCEPT), pa.int8())
        return pc.if_else(column, yes, pa.scalar(int(rest), pa.int8()))
    if pa.types.is_integer(column.type):
        return _cast(column, pa.int8(), "how")
    if pa.types.is_floating(column.type):
        raise _usage(f"how: values of {column.type} are no words or numbers of acknowledgements")
    words = _cast(column, pa.string(), "how")
    found = pc.index_in(words, value_set=pa.array(list(WORDS)))
    if found.null_count:
        unknown = words.filter(pc.is_null(found))[0].as_py()
        _kind(unknown, "how")
    numbers = pa.array([int(kind) for kind in WORDS.values()], pa.int8())
    return numbers.take(found)


def _column(how: Any) -> Any:
    if isinstance(how, (pa.Array, pa.ChunkedArray)):
        return how
    try:
        return pa.chunked_array(how) if hasattr(how, "__arrow_c_stream__") else pa.array(how)
    except (pa.ArrowException, TypeError, ValueError, KeyError) as error:
        message = (
            f"how: a word ({', '.join(WORDS)}), a mask, or a column of words or numbers, not {_name(how)}: {error}"
        )
        raise _usage(message) from error


def _kind(word: Any, option: str) -> AcknowledgeType:
    try:
        return WORDS[word] if isinstance(word, str) else AcknowledgeType(word)
    except (KeyError, ValueError, TypeError):
        names = ", ".join(f"{name} ({int(kind)})" for name, kind in WORDS.items())
        message = f"{option}: {word!r} is no type of acknowledgement; they are {names}"
        raise _usage(message) from None


def _cast(column: Any, kind: pa.DataType, what: str) -> Any:
    if column.type == kind:
        return column
    try:
        return column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        message = f"{what}: values of {column.type} are no {kind}: {error}"
        raise _usage(message) from error


def _name(value: object) -> str:
    return type(value).__name__


def _usage(message: str) -> UsageError:
    return UsageError(message, name="ILLEGAL_ARGUMENT")
