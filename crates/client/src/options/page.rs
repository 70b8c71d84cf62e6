//! The reference page, docs/options.md.

use std::fmt::Write;

use headrace_options::{Kind, Row, reasons, table};

use super::known::{OF_LIBRDKAFKA, OF_SHARE_GROUPS, UNSUPPORTED};
use super::role::Role;
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
        let lines = rows().filter(|(of, _)| *of == role).map(|(_, row)| line(role, row));
        let heads = ["option", "takes", "default", "what it does"];
        let _ = write!(page, "\n## {title}\n\n{}", table(heads, lines));
    }
    let settings: Vec<String> = OF_SHARE_GROUPS.iter().map(|name| format!("`{name}`")).collect();
    let _ = write!(
        page,
        "\n## Settings of share groups\n\nThey belong to the group, not to a client: set them with `Admin.alter_group_config`.\n\n{}\n",
        settings.join(", ")
    );
    page += &reasons("Known to Kafka, not supported", ["option", "why"], UNSUPPORTED);
    page + &reasons("Names of librdkafka", ["option", "what to use"], OF_LIBRDKAFKA)
}

fn line(role: Role, row: &Row) -> [String; 4] {
    let mark = if row.ours { " *" } else { "" };
    let default = match row.default {
        Some("") => "empty".to_owned(),
        Some(default) => format!("`{default}`"),
        None if matches!(
            (role, row.name),
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
    [format!("`{}`{mark}", row.name), takes, default, row.sentence.to_owned()]
}
