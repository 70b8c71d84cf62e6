"""The clients for asyncio: calls that would wait are awaited, and the event loop is never blocked.

>>> import asyncio, headrace as hr
>>> async def main(servers):
...     async with hr.aio.Producer(servers) as producer:
...         sent = await producer.send("orders", b"one")
...         await sent
...     async with hr.aio.Consumer(servers, auto_offset_reset="earliest") as consumer:
...         await consumer.assign([("orders", 0)])
...         return (await consumer.poll(timeout=10.0)).num_rows
>>> with hr.Broker.start() as broker:
...     asyncio.run(main(broker.bootstrap_servers))
1
"""

from __future__ import annotations

from headrace.aio._flows import AtMostOnce, Batches, Committable, Committables, Mapped, Partitions
from headrace.aio.consumer import Consumer
from headrace.aio.producer import Producer
from headrace.aio.share import ShareConsumer
from headrace.aio.stream import Stream

__all__ = [
    "AtMostOnce",
    "Batches",
    "Committable",
    "Committables",
    "Consumer",
    "Mapped",
    "Partitions",
    "Producer",
    "ShareConsumer",
    "Stream",
]
