//! Parts of reference pages, in Markdown.

use std::fmt::Write;

/// A table.
#[must_use]
pub fn table<const N: usize>(heads: [&str; N], lines: impl IntoIterator<Item = [String; N]>) -> String {
    let mut table = format!("| {} |\n{}|\n", heads.join(" | "), "|---".repeat(N));
    for cells in lines {
        let _ = writeln!(table, "| {} |", cells.join(" | "));
    }
    table
}

/// A section of names with the reason for each; a name that ends in a dot stands for all that begin so.
#[must_use]
pub fn reasons(title: &str, heads: [&str; 2], names: &[(&str, &str)]) -> String {
    let line = |(name, why): &(&str, &str)| {
        let all = if name.ends_with('.') { "*" } else { "" };
        [format!("`{name}{all}`"), (*why).to_owned()]
    };
    format!("\n## {title}\n\n{}", table(heads, names.iter().map(line)))
}
