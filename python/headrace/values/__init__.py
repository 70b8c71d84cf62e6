r"""What keys and values mean: bytes to columns by a schema.

>>> import headrace as hr
>>> import pyarrow as pa
>>> order = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}'
>>> hr.decode(pa.array([b"\x54", None], pa.binary()), hr.Avro(order)).to_pylist()
[{'id': 42}, None]
>>> hr.decode(pa.array([b'{"id": 42}']), hr.Json(pa.schema([("id", pa.int64())]))).to_pylist()
[{'id': 42}]
"""

from headrace.values.avro import Avro
from headrace.values.format import BadRow, Format, OnError, decode, encode
from headrace.values.json import Json
from headrace.values.protobuf import Protobuf
from headrace.values.text import Text

__all__ = ["Avro", "BadRow", "Format", "Json", "OnError", "Protobuf", "Text", "decode", "encode"]
