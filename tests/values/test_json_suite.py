"""JSONTestSuite (Nicolas Seriot, "Parsing JSON is a Minefield"): what every reader of JSON must take, and must not.

Its files are those that a crate carries for its own tests (`tests/values/suites`), which has renamed some.
"""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

import headrace as hr
from tests.values import suites

# In the suite readers are free to take these; the crate whose files they are takes them, and has called them `y_`.
FREE = {
    "y_number_double_huge_neg_exp.json",
    "y_number_huge_exp.json",
    "y_number_neg_int_huge_exp.json",
    "y_number_pos_double_huge_exp.json",
    "y_number_real_neg_overflow.json",
    "y_number_real_pos_overflow.json",
    "y_number_real_underflow.json",
    "y_number_too_big_neg_int.json",
    "y_number_too_big_pos_int.json",
    "y_number_very_big_negative_int.json",
    "y_structure_500_nested_arrays.json",
}
# The crate's own.
FOREIGN = {"y_issue_1.json"}
# Of those that readers are free to take, the crate has left these out.
LEFT_OUT = {
    "i_string_1st_surrogate_but_2nd_missing.json": b'["\\uDADA"]',
    "i_string_UTF-16LE_with_BOM.json": '\ufeff["é"]'.encode("utf-16-le"),
    "i_string_utf16BE_no_BOM.json": '["é"]'.encode("utf-16-be"),
    "i_string_utf16LE_no_BOM.json": '["é"]'.encode("utf-16-le"),
    "i_structure_UTF-8_BOM_empty_object.json": b"\xef\xbb\xbf{}",
}
# A struct without the field in which a file is put: what stands there is skipped, whatever it is.
SKIPPED = hr.Json(pa.schema([("nobody", pa.int64())]))
TEXTS = hr.Json(pa.list_(pa.string()))


@pytest.fixture(scope="module")
def files():
    found = {file.name: file.read_bytes() for file in suites.JSON.glob("*.json")}
    assert found, "the suite is not there: make .deps/json-suite/.stamp"
    return found


def taken(form, texts):
    """The names of those that are decoded, each by itself and all in one column, which must be the same."""
    together = {row for row, _, _ in form.column(pa.array(texts.values()))[1]}
    for at, text in enumerate(texts.values()):
        _, bad = form.column(pa.array([text]))
        assert bool(bad) == (at in together)
    return {name for at, name in enumerate(texts) if at not in together}


def skipped(texts):
    return taken(SKIPPED, {name: b'{"x":' + text + b"}" for name, text in texts.items()})


def test_what_is_json_is_taken(files):
    valid = {name: text for name, text in files.items() if name.startswith("y_")}
    assert len(valid.keys() - FREE - FOREIGN) == 95
    assert skipped(valid) == valid.keys()


def test_what_is_none_is_refused(files):
    invalid = {name: text for name, text in files.items() if name.startswith("n_")}
    assert len(invalid) == 188
    assert skipped(invalid) == set()
    # As rows of their own, without anything around them.
    assert taken(SKIPPED, invalid) == set()


def test_where_readers_are_free_texts_are_utf8_and_halves_of_pairs_are_no_text(files):
    free = {name: text for name, text in files.items() if name.startswith("i_")} | LEFT_OUT
    assert len(free | dict.fromkeys(FREE)) == 35
    utf8 = {name for name, text in free.items() if text.decode("utf-8", "ignore").encode() == text}
    # A byte order mark is no space.
    assert skipped(free) == utf8 - {"i_structure_UTF-8_BOM_empty_object.json"}
    assert taken(TEXTS, free) == set()


def test_texts_are_those_that_python_reads(files):
    rows = {}
    for name, text in files.items():
        if name.startswith("y_"):
            value = json.loads(text) if name not in FREE else None
            if isinstance(value, list) and all(isinstance(item, (str, type(None))) for item in value):
                rows[name] = (text, value)
    assert len(rows) > 40
    assert hr.decode(pa.array([text for text, _ in rows.values()]), TEXTS).to_pylist() == [v for _, v in rows.values()]
