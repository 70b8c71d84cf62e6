//! The reference page, docs/options.md.

use std::fmt::Write;

use super::known::{of_librdkafka, settings_of_share_groups, unsupported};
use super::row::{Kind, Role, Row};
use super::table::rows;

/// The reference page of all options, in Markdown.
#[must_use]
pub fn page() -> String {
    let mut page = String::from(
        "# Options\n\n\
         <!-- Generated: cargo run -p headrace-client --example options_page > docs/options.md -->\n\n\
         Names are Kafka's, except those marked with *, which are headrace's own. Write them as `a.b.c` in a \
         dictionary, or as `a_b_c` as keyword arguments. An unknown name is an error that suggests the nearest \
         option; a value that is not accepted is an error that says what is.\n",
    );
    for (role, title) in [
        (Role::Common, "All clients"),
        (Role::Producer, "Producer"),
        (Role::Consumer, "Consumer"),
        (Role::Share, "Share consumer"),
        (Role::Admin, "Admin client"),
    ] {
        let _ =
            write!(page, "\n## {title}\n\n| option | takes | default | what it does |\n|---|---|---|---|\n");
        for row in rows().filter(|r| r.role == role) {
            let _ = writeln!(page, "{}", line(row));
        }
    }
    let settings: Vec<String> = settings_of_share_groups().iter().map(|name| format!("`{name}`")).collect();
    let _ = write!(
        page,
        "\n## Settings of share groups\n\nThey belong to the group, not to a client: set them with `Admin.alter_group_config`.\n\n{}\n",
        settings.join(", ")
    );
    page.push_str("\n## Known to Kafka, not supported\n\n| option | why |\n|---|---|\n");
    for (name, why) in unsupported() {
        let all = if name.ends_with('.') { "*" } else { "" };
        let _ = writeln!(page, "| `{name}{all}` | {why} |");
    }
    page.push_str("\n## Names of librdkafka\n\n| option | what to use |\n|---|---|\n");
    for (name, instead) in of_librdkafka() {
        let _ = writeln!(page, "| `{name}` | {instead} |");
    }
    page
}

fn line(row: &Row) -> String {
    let mark = if row.ours { " *" } else { "" };
    let default = match row.default {
        Some("") => "empty".to_owned(),
        Some(default) => format!("`{default}`"),
        None if matches!(
            (row.role, row.name),
            (Role::Common, "bootstrap.servers") | (Role::Share, "group.id")
        ) =>
        {
            "must be given".to_owned()
        }
        None => "none".to_owned(),
    };
    let takes = match row.kind {
        Kind::Int { min, max, unit } => {
            let range = if max == i64::MAX { format!("at least {min}") } else { format!("{min} to {max}") };
            format!("{range} {unit}").trim_end().to_owned()
        }
        Kind::Choice(words) | Kind::Choices(words) => words.join(", "),
        other => other.accepted(),
    };
    format!("| `{}`{mark} | {takes} | {default} | {} |", row.name, row.sentence)
}
