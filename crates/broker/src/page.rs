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
    page.push_str(DISK_FAILURES);
    page.push_str("\n## Known to Kafka, not supported\n\n| setting | why |\n|---|---|\n");
    for (name, why) in UNSUPPORTED {
        let _ = writeln!(page, "| `{name}` | {why} |");
    }
    page
}

/// What users see when the disk refuses.
const DISK_FAILURES: &str = "
## When the disk refuses

Nothing here needs a restart. What goes wrong is printed by `headrace broker`, and is in `Broker.take_troubles()`.

**A write fails**, as on a full disk. Nothing of the records is in the log; the producer gets KAFKA_STORAGE_ERROR and \
tries again until `delivery.timeout.ms` is over. Reads go on, and retention makes room.

**A sync fails.** Syncs come with `log.flush.interval.messages`, `log.flush.interval.ms` and what topics have of these, \
and at the end of each segment. After one has failed, what was to be synced may be on no disk though it can be read, \
and another sync would say nothing about it. So that partition is offline until its records were read back, \
checked, written and synced again, which is tried each second:

| who | sees |
|---|---|
| a producer whose records waited for the sync (`flush.messages=1`) | KAFKA_STORAGE_ERROR; it tries again. The records are in the log and stay there once the partition is back: an idempotent producer's are not written twice, those of another may be |
| producers that write to the partition | KAFKA_STORAGE_ERROR; they try again until `delivery.timeout.ms` is over |
| consumers | the records up to the last sync that succeeded, then nothing new until the partition is back |
| other partitions | nothing |

A record that was acknowledged is lost only if power fails as well before the partition is back, and then only where the \
acknowledgement had not waited for a sync. Should what is read back be damaged, the partition stays offline until the \
next start, which keeps what is whole and reports the rest.

**The groups' journal, `__consumer_offsets`**, goes offline like any partition. Commits and removals of offsets get \
COORDINATOR_NOT_AVAILABLE, which clients try again; where the journal is synced before the answer, so does the commit \
whose sync has failed, though it may count all the same. A rebalance ends only when the journal can be written again. \
Members that have their partitions go on reading, heartbeats are answered, and OffsetFetch gives what was committed.

**The state file, `headrace-state.json`**, is replaced in one step, so the old one or the new one is there. While it cannot \
be written, topics cannot be made, extended, removed or given other settings (KAFKA_STORAGE_ERROR), and new idempotent \
producers get no id once those that were reserved are used up (COORDINATOR_NOT_AVAILABLE). Records go on, but for one \
case: after a crash nothing is appended before the new leader epoch is in that file. The broker tries each second. When it \
is lost, the next start is refused, since the settings of all topics are lost with it, and the default ones may keep less. Put \
it back, or start with `headrace.adopt=true`; then set again what topics are to have.
";

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
