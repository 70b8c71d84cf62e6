//! Prints the reference page of all settings: `cargo run -p headrace-broker --example settings_page > docs/broker.md`.

use std::io::Write;

fn main() -> std::io::Result<()> {
    std::io::stdout().write_all(headrace_broker::settings_page().as_bytes())
}
