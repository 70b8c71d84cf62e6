"""The program that the runner of Protobuf's conformance tests asks: messages to columns and back by `hr.Protobuf`.

It speaks the runner's protocol: on standard input requests, and on standard output answers, each with its length in 4
bytes, little endian, in front. Other formats than the binary one are skipped.
"""

from __future__ import annotations

import re
import struct
import sys
from typing import Any

import pyarrow as pa

import headrace as hr
from headrace.errors import DecodeError, SchemaError
from tests.values import suites
from tests.values.messages import classes

BINARY = 1
FILES = {"proto3": "test_messages_proto3.proto", "proto2": "test_messages_proto2.proto"}
FIELD = r"^\s*(?:optional |repeated |required )?(?:map<\w+, )?({})>? \w+ = \d+(?: \[.*\])?;"


def schema(file: str) -> tuple[str, dict[str, str]]:
    """The text of a schema, and what it imports.

    A message that contains itself is no column. So the messages within it are of a second schema, in which they have no
    such field, and few others. Fields of Google's types that contain themselves are left out.
    """
    text = (suites.PROTOBUF / "include" / "google" / "protobuf" / file).read_text(encoding="utf-8")

    def without(types: str, of: str) -> str:
        return re.sub(FIELD.format(types), "", of, flags=re.MULTILINE)

    text = without(r"google\.protobuf\.(?:Struct|Value|ListValue)", text)
    itself = r"TestAll(?:Required)?Types(?:Proto[23])?"
    inner = re.sub(r"^package .*;", "package inner;", without(itself, text), flags=re.MULTILINE)
    inner = without(
        r"google\.protobuf\.\w+|string|bytes|\w+Message", re.sub(r"^\s*map<.*;", "", inner, flags=re.MULTILINE)
    )
    outer = re.sub(
        FIELD.format(itself), lambda found: found[0].replace(found[1], f"inner.{found[1]}"), text, flags=re.MULTILINE
    )
    return re.sub(r"^(package .*;)", r'\1 import "inner.proto";', outer, flags=re.MULTILINE), {"inner.proto": inner}


class Formats:
    """The format of each message that is asked for."""

    def __init__(self) -> None:
        self._known: dict[str, hr.Protobuf | None] = {}

    def of(self, message: str) -> hr.Protobuf | None:
        """None, if the schema of a message is not read here."""
        if message not in self._known:
            file = FILES.get(message.split(".")[1]) if message.count(".") == 2 else None
            if file:
                text, imports = schema(file)
                self._known[message] = hr.Protobuf(text, message=message, references=imports)
        return self._known.get(message)


def answer(request: Any, response: Any, formats: Formats) -> None:
    """Fills in a response to a request."""
    if request.WhichOneof("payload") != "protobuf_payload" or request.requested_output_format != BINARY:
        response.skipped = "only the binary format is read and written"
        return
    form = formats.of(request.message_type)
    if form is None:
        response.skipped = f"{request.message_type} is not read"
        return
    try:
        columns = hr.decode(pa.array([request.protobuf_payload], pa.binary()), form)
    except DecodeError as error:
        response.parse_error = str(error)
        return
    try:
        response.protobuf_payload = hr.encode(columns, form)[0].as_py()
    except SchemaError as error:
        response.serialize_error = str(error)


def main() -> None:
    """Entry point."""
    text = (suites.PROTOBUF / "include" / "conformance" / "conformance.proto").read_text(encoding="utf-8")
    made, formats = classes(text), Formats()
    read, write = sys.stdin.buffer, sys.stdout.buffer
    while length := read.read(4):
        request = made["ConformanceRequest"].FromString(read.read(struct.unpack("<I", length)[0]))
        response = made["ConformanceResponse"]()
        if request.message_type == "conformance.FailureSet":
            response.protobuf_payload = b""
        else:
            answer(request, response, formats)
        written = response.SerializeToString()
        write.write(struct.pack("<I", len(written)) + written)
        write.flush()


if __name__ == "__main__":
    main()
