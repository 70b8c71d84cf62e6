"""Apache Avro's own test cases, as its Python package has them: schemas, values, defaults, and what is read as what."""

from __future__ import annotations

import io
import json
import re
import unittest
from unittest import mock

import avro.io
import avro.schema
import pyarrow as pa
import pytest
from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaIncompatibilityType
from avro.test import test_compatibility, test_io, test_schema

import headrace as hr
from headrace.errors import DecodeError, SchemaError

RECURSIVE = "contains itself"
LENIENT = ("dr. spaceman", "white space")
"""Names that are none: they are taken as they are, since they do no harm in columns."""


def numbers(cases):
    """Names of cases. Some hold a UUID that is another in each process."""
    return [str(number) for number in range(len(cases))]


def format_of(schema, **options):
    """Nothing for a schema that contains itself, which is no column."""
    try:
        return hr.Avro(schema, **options)
    except SchemaError as error:
        if RECURSIVE not in str(error):
            raise
        return None


def written(schema, datum):
    out = io.BytesIO()
    avro.io.DatumWriter(avro.schema.parse(schema)).write(datum, avro.io.BinaryEncoder(out))
    return out.getvalue()


def plain(value):
    """As Apache Avro has it: of a union's members the one that is there."""
    if isinstance(value, dict):
        if value and all(name == f"member{number}" for number, name in enumerate(value)):
            return next((plain(member) for member in value.values() if member is not None), None)
        return {name: plain(member) for name, member in value.items()}
    if isinstance(value, list):
        if value and all(isinstance(item, tuple) for item in value):
            return {key: plain(item) for key, item in value}
        return [plain(item) for item in value]
    return value


@pytest.mark.parametrize("example", test_schema.VALID_EXAMPLES, ids=str)
def test_a_schema_that_it_takes(example):
    text = str(example)
    if format_of(text) is None:
        names = re.findall(r'"name": "([\w.]+)"', text)
        assert any(text.count(f'"{name}"') > 1 for name in names)


@pytest.mark.parametrize("example", test_schema.INVALID_EXAMPLES, ids=str)
def test_a_schema_that_it_refuses(example):
    if any(name in str(example) for name in LENIENT):
        hr.Avro(str(example))
        return
    with pytest.raises(SchemaError):
        hr.Avro(str(example))


@pytest.mark.parametrize(("schema", "datum"), test_io.SCHEMAS_TO_VALIDATE, ids=numbers(test_io.SCHEMAS_TO_VALIDATE))
def test_a_value_that_it_writes(schema, datum):
    of = format_of(schema)
    if of is None:
        return
    (read,) = hr.decode(pa.array([written(schema, datum)]), of).to_pylist()
    assert plain(read) == datum


@pytest.mark.parametrize(
    ("field", "default"), test_io.DEFAULT_VALUE_EXAMPLES, ids=numbers(test_io.DEFAULT_VALUE_EXAMPLES)
)
def test_a_default_of_a_field_that_was_not_written(field, default):
    reader = {"type": "record", "name": "Test", "fields": [{"name": "H", "type": field, "default": default}]}
    avro_format = hr.Avro(reader, schemas={1: json.loads(str(test_io.LONG_RECORD_SCHEMA))})
    row = b"\0\0\0\0\1" + written(str(test_io.LONG_RECORD_SCHEMA), test_io.LONG_RECORD_DATUM)
    (read,) = hr.decode(pa.array([row]), avro_format).to_pylist()
    found = plain(read["H"])
    found = found.decode("latin-1") if isinstance(found, bytes) else found
    assert found == (pytest.approx(default) if field == "float" else default)


def compared():
    """The pairs of reader's and writer's schemas of its tests of compatibility, and what it finds."""
    pairs = []
    real = ReaderWriterCompatibilityChecker.get_compatibility

    depth = 0

    def noted(self, reader, writer, *more):
        nonlocal depth
        depth += 1
        try:
            found = real(self, reader, writer, *more)
        finally:
            depth -= 1
        if depth == 0:
            pairs.append((str(reader), str(writer), tuple(found.incompatibilities)))
        return found

    with mock.patch.object(ReaderWriterCompatibilityChecker, "get_compatibility", noted):
        suite = unittest.defaultTestLoader.loadTestsFromTestCase(test_compatibility.TestCompatibility)
        suite.run(unittest.TestResult())
    return list(dict.fromkeys(pairs))


PAIRS = compared()


@pytest.mark.parametrize(("reader", "writer", "why"), PAIRS, ids=numbers(PAIRS))
def test_what_can_be_read_as_what(reader, writer, why):
    if "[]" in (reader, writer):
        return  # a union of nothing, of which there is no value, is no schema here
    of = format_of(reader, schemas={1: writer})
    if of is None:
        return
    with pytest.raises(DecodeError) as caught:
        hr.decode(pa.array([b"\0\0\0\0\1" + b"\xff" * 20]), of)
    is_refused = "cannot be read with the reader's schema" in str(caught.value)
    if not why:
        assert not is_refused
    elif not is_refused:
        # Which branch or symbol was written, only the row says: others are read. Records are taken whatever their name.
        assert "[" in writer or set(why) == {SchemaIncompatibilityType.name_mismatch}
