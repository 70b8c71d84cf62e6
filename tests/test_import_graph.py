"""The check for import circles, on crates of a few lines."""

import importlib
from pathlib import Path

import pytest


@pytest.fixture
def circles(monkeypatch, tmp_path):
    """The circles of a crate that is given file by file."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "scripts"))
    graph = importlib.import_module("import_graph")

    def find(files):
        for name, text in files.items():
            file = tmp_path / "src" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        found = graph.Crate(tmp_path / "src").circles()
        return [[str(file.relative_to(tmp_path / "src")) for file in circle] for circle in found]

    return find


RING = {
    "lib.rs": "mod a; mod b; mod c; mod d;",
    "a.rs": "use crate::b::B; pub struct A(B);",
    "b.rs": "use super::c; pub struct B(c::C);",
    "c.rs": "pub struct C(crate::d::D);",
    "d.rs": "use crate::{a::{A as First}}; pub struct D(Option<Box<First>>);",
}


def test_a_ring_is_found_however_its_names_are_written(circles):
    assert circles(RING) == [["a.rs", "b.rs", "c.rs", "d.rs"]]


@pytest.mark.parametrize(
    "inside",
    [
        "#[cfg(test)]\nmod tests { use crate::a::A; }",
        '// crate::a::A\n/* crate::a::A */ const S: &str = "crate::a::A";',
    ],
)
def test_tests_comments_and_texts_count_for_nothing(circles, inside):
    assert circles({**RING, "d.rs": f"pub struct D;\n{inside}"}) == []


def test_a_name_counts_for_the_file_that_defines_it(circles):
    parent = "mod a; mod b; mod c; mod d; pub use a::A; pub use b::B; pub use c::C; pub use d::D;"
    children = {
        "b": "use super::A; pub struct B(A);",
        "c": "use super::B; pub struct C(B);",
        "d": "use super::*; pub struct D(C);",
    }
    files = {"lib.rs": "mod m;", "m/mod.rs": parent, "m/a.rs": "pub struct A;"}
    files |= {f"m/{name}.rs": text for name, text in children.items()}
    assert circles(files) == []
    used = parent + " fn all() -> (A, B, C, D) { todo!() } pub struct Own;"
    assert circles({**files, "m/mod.rs": used}) == []
    assert circles({**files, "m/mod.rs": used, "m/a.rs": "use super::Own; pub struct A(Own);"}) == [
        ["m/a.rs", "m/b.rs", "m/c.rs", "m/d.rs", "m/mod.rs"]
    ]


def test_one_object_cut_over_files_is_a_circle(circles):
    engine = "mod a; mod b; mod c; pub struct Engine; impl Engine { fn run(&self) { self.a(); self.b(); self.c(); } }"
    files = {"lib.rs": "mod engine;", "engine.rs": engine}
    files |= {f"engine/{name}.rs": f"use super::Engine; impl Engine {{ pub fn {name}(&self) {{}} }}" for name in "abc"}
    assert circles(files) == [["engine/a.rs", "engine/b.rs", "engine/c.rs", "engine.rs"]]
