//! What was generated from the table of errors still says what the table says.

#[expect(dead_code, reason = "its main is for the command line")]
#[path = "../../examples/errors_python.rs"]
mod generator;

fn committed(path: &str) -> String {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    std::fs::read_to_string(format!("{root}/{path}")).unwrap_or_default()
}

#[test]
fn the_python_classes_are_fresh() {
    let path = "python/headrace/_error_table.py";
    assert!(committed(path) == generator::python_module(), "{path} is stale: run `make generate`");
}

#[test]
fn the_page_is_fresh() {
    let path = "docs/errors.md";
    assert!(committed(path) == generator::errors_page(), "{path} is stale: run `make generate`");
}
