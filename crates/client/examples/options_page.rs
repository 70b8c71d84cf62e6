//! Prints the reference page of all options: `cargo run -p headrace-client --example options_page > docs/options.md`.

use std::io::Write;

fn main() -> std::io::Result<()> {
    std::io::stdout().write_all(headrace_client::options::page().as_bytes())
}
