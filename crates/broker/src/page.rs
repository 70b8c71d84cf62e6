//! The reference page, docs/broker.md.

use std::fmt::Write;

use crate::config::{BrokerConfig, UNSUPPORTED};
use crate::topic_config::{DefaultOf, Kind, TOPIC_OPTIONS};

/// The reference page of all settings of a broker and of its topics, in Markdown.
#[must_use]
pub fn page() -> String {
    let mut page = String::from(
        "# Settings of the broker\n\n\
         <!-- Generated: cargo run -p headrace-broker --example settings_page > docs/broker.md -->\n\n\
         For `Broker.start(config={\"log.retention.ms\": 60000})`, which takes keywords as well \
         (`log_retention_ms=60000`), and for `headrace broker -c log.retention.ms=60000`. Names are Kafka's. A name \
         that nobody knows, and a value that is not accepted, is an error that names the nearest setting, or what is \
         accepted. `log.dir` is always what `data_dir` says.\n\n\
         | setting | type | default | what it does |\n|---|---|---|---|\n",
    );
    for row in BrokerConfig::OPTIONS {
        let default = if row.default.is_empty() { "none".to_owned() } else { format!("`{}`", row.default) };
        let _ = writeln!(page, "| `{}` | {} | {default} | {} |", row.name, row.kind, row.sentence);
    }
    page.push_str(
        "\n## Topics\n\n\
         For `NewTopic(name, config={\"retention.ms\": \"60000\"})` and `headrace topic create NAME -c \
         retention.ms=60000`.\n\n\
         | setting | type | default | what it does |\n|---|---|---|---|\n",
    );
    for row in TOPIC_OPTIONS {
        let default = match row.default {
            DefaultOf::Broker(name) => format!("the broker's `{name}`"),
            DefaultOf::Fixed("") => "none".to_owned(),
            DefaultOf::Fixed(value) => format!("`{value}`"),
        };
        let _ = writeln!(page, "| `{}` | {} | {default} | {} |", row.name, name_of(row.kind), row.sentence());
    }
    page.push_str("\n## Known to Kafka, not supported\n\n| setting | why |\n|---|---|\n");
    for (name, why) in UNSUPPORTED {
        let _ = writeln!(page, "| `{name}` | {why} |");
    }
    page
}

fn name_of(kind: Kind) -> &'static str {
    match kind {
        Kind::Boolean => "boolean",
        Kind::String => "string",
        Kind::Int => "int",
        Kind::Long => "long",
        Kind::Double => "double",
        Kind::List => "list",
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_reference_page_is_fresh() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/broker.md");
        let there = std::fs::read_to_string(path).unwrap();
        let how = "run: cargo run -p headrace-broker --example settings_page > docs/broker.md";
        assert!(there == super::page(), "docs/broker.md is not what the tables say; {how}");
    }
}
