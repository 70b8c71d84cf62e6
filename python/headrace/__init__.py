"""Kafka for Arrow and PySpark.

>>> import headrace as hr
>>> with hr.Broker.start() as broker:
...     with hr.Producer(broker.bootstrap_servers) as producer:
...         metadata = producer.send("orders", b"one").result(timeout=10)
...     hr.read(broker.bootstrap_servers, "orders").read_all().num_rows
1
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._types import GroupMetadata, RecordMetadata, TopicPartition
from headrace.errors import KafkaError

if TYPE_CHECKING:
    from headrace import aio
    from headrace._columns import bad_rows
    from headrace._native import __version__
    from headrace.admin import Admin, NewTopic
    from headrace.broker import Broker
    from headrace.consumer import Consumer
    from headrace.producer import Producer
    from headrace.reading import Read, read
    from headrace.registry import SchemaRegistry
    from headrace.share import AcknowledgeType, ShareConsumer
    from headrace.values import Avro, Json, Protobuf, Text, decode, encode

__all__ = [
    "AcknowledgeType",
    "Admin",
    "Avro",
    "Broker",
    "Consumer",
    "GroupMetadata",
    "Json",
    "KafkaError",
    "NewTopic",
    "Producer",
    "Protobuf",
    "Read",
    "RecordMetadata",
    "SchemaRegistry",
    "ShareConsumer",
    "Text",
    "TopicPartition",
    "__version__",
    "aio",
    "bad_rows",
    "decode",
    "encode",
    "read",
]

# Loaded on first use: `headrace broker` must not pay for pyarrow, which alone takes 39 MB.
_LAZY = {
    "AcknowledgeType": "headrace.share",
    "Admin": "headrace.admin",
    "Avro": "headrace.values",
    "Broker": "headrace.broker",
    "Consumer": "headrace.consumer",
    "Json": "headrace.values",
    "NewTopic": "headrace.admin",
    "Producer": "headrace.producer",
    "Protobuf": "headrace.values",
    "Read": "headrace.reading",
    "SchemaRegistry": "headrace.registry",
    "ShareConsumer": "headrace.share",
    "Text": "headrace.values",
    "__version__": "headrace._native",
    "aio": "headrace.aio",
    "bad_rows": "headrace._columns",
    "decode": "headrace.values",
    "encode": "headrace.values",
    "read": "headrace.reading",
}


def __getattr__(name: str) -> object:
    """Loads a public name's module on first use."""
    module = _LAZY.get(name)
    if module is None:
        message = f"module 'headrace' has no attribute {name!r}"
        raise AttributeError(message)
    from importlib import import_module  # noqa: PLC0415  (first use)

    loaded = import_module(module)
    value: object = loaded if loaded.__name__ == f"{__name__}.{name}" else getattr(loaded, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return sorted(__all__)
