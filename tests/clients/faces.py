"""The ways to send a record, as one: what a test says of bad input holds for each of them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import headrace as hr
from headrace.errors import KafkaError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

FACES = ["send", "send_arrow", "results", "aio-send", "aio-send_arrow", "aio-results"]
TIMEOUT_SECONDS = 30


@contextlib.asynccontextmanager
async def opened(face: str, servers: str, **options: Any) -> AsyncIterator[Any]:
    """The producer of a face; what fails in it is what `outcome` has told."""
    if face.startswith("aio"):
        producer = hr.aio.Producer(servers, **options)
        try:
            yield producer
        finally:
            with contextlib.suppress(KafkaError):
                await producer.close()
    else:
        blocking = hr.Producer(servers, **options)
        try:
            yield blocking
        finally:
            with contextlib.suppress(KafkaError):
                blocking.close()


async def outcome(face: str, producer: Any, topic: str, value: bytes, partition: int | None = None) -> Any:
    """What became of a record: None when it was written, else the error; of a row among results, its text."""
    columns: dict[str, Any] = {"value": [value]}
    if partition is not None:
        columns["partition"] = pa.array([partition], pa.int32())
    results = face.endswith("results")
    try:
        if face.endswith("send"):
            sent = producer.send(topic, value, partition=partition)
        else:
            sent = producer.send_arrow(topic, pa.table(columns), results=results)
        # From asyncio first the call is awaited, then its future.
        reported = await (await sent) if face.startswith("aio") else sent.result(TIMEOUT_SECONDS)
    except KafkaError as error:
        return error
    if not results:
        return None
    (row,) = reported.to_pylist()
    assert (row["error"] is None) == (row["offset"] is not None), row
    return row["error"]
