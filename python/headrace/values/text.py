"""Texts and numbers as the serializers of Kafka's own clients write them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headrace import _native
from headrace.errors import SchemaError
from headrace.values.format import BadRow, Format, OnError


class Text(Format):
    """Texts and numbers as the serializers of Kafka's own clients write them.

    Args:
        type: ``pa.string()`` (default; ``StringSerializer``), or one of ``bool_``, ``int16``, ``int32``, ``int64``,
            ``float32`` and ``float64`` (``ShortSerializer`` and so on: big endian).
        on_error: As for `Avro`.

    Raises:
        SchemaError: Kafka has no serializer for the type.
    """

    def __init__(self, type: pa.DataType | None = None, *, on_error: OnError = "raise") -> None:  # noqa: A002
        super().__init__(on_error)
        self._type = type
        try:
            decoder = _native.TextDecoder(str(pa.string() if type is None else type))
        except ValueError as error:
            raise SchemaError(str(error)) from None
        self._decoder = decoder

    def __reduce__(self) -> tuple[Any, ...]:
        """The same in another process."""
        return (_text, (self._type, self.on_error))

    def column(self, rows: pa.Array, headers: pa.Array | None = None) -> tuple[pa.Array, list[BadRow]]:
        """The values of rows, in which bad ones are null, and what is wrong with those."""
        del headers
        column, bad = self._decoder.decode(rows)
        return pa.array(column), bad


def _text(type: pa.DataType | None, on_error: OnError) -> Text:  # noqa: A002
    return Text(type, on_error=on_error)
