//! The reference page, docs/broker.md.

use headrace_options::{reasons, table};

use crate::config::{BrokerConfig, UNSUPPORTED};
use crate::topic_config::{DefaultOf, TOPIC_OPTIONS};

const HEADS: [&str; 4] = ["setting", "type", "default", "what it does"];

/// The reference page of all settings of a broker and of its topics, in Markdown.
#[must_use]
pub fn page() -> String {
    let mut page = String::from(
        "# Settings of the broker\n\n\
         <!-- Generated: cargo run -p headrace-broker --example settings_page > docs/broker.md -->\n\n\
         For `Broker.start(config={\"log.retention.ms\": 60000})`, which takes keywords as well \
         (`log_retention_ms=60000`), and for `headrace broker -c log.retention.ms=60000`. Names are Kafka's. An \
         unknown name is an error that suggests the nearest setting; a value that is not accepted is an error that \
         says what is. `log.dir` is always the same as `data_dir`.\n\n",
    );
    page += &table(
        HEADS,
        BrokerConfig::ROWS.iter().map(|row| {
            let default = shown(row.default.unwrap_or_default());
            [format!("`{}`", row.name), row.config_type.name().to_owned(), default, row.sentence.to_owned()]
        }),
    );
    page.push_str(
        "\n## Topics\n\n\
         For `NewTopic(name, config={\"retention.ms\": \"60000\"})` and `headrace topics create NAME -c \
         retention.ms=60000`.\n\n",
    );
    page += &table(
        HEADS,
        TOPIC_OPTIONS.iter().map(|option| {
            let default = match option.default {
                DefaultOf::Broker(name) => format!("the broker's `{name}`"),
                DefaultOf::Fixed(value) => shown(value),
            };
            [
                format!("`{}`", option.name),
                option.kind.name().to_owned(),
                default,
                option.sentence().into_owned(),
            ]
        }),
    );
    page.push_str(DISK_FAILURES);
    page + &reasons("Known to Kafka, not supported", ["setting", "why"], UNSUPPORTED)
}

fn shown(default: &str) -> String {
    if default.is_empty() { "none".to_owned() } else { format!("`{default}`") }
}

/// What users see when the disk fails.
const DISK_FAILURES: &str = "
## When the disk fails

None of these failures needs a restart. `headrace broker` prints them, and `Broker.take_troubles()` returns them.

**A write fails**, for example because the disk is full. None of its records are in the log; the producer gets \
KAFKA_STORAGE_ERROR and retries until `delivery.timeout.ms` is over. Reads go on, and retention makes room.

**A sync fails.** Syncs are made as `log.flush.interval.messages`, `log.flush.interval.ms` and the settings \
`flush.messages` and `flush.ms` of topics say, and at the end of each segment. After a sync has failed, its records \
may not be on the disk although they can still be read, and another sync could succeed without having written them. So \
that partition goes offline until its records have been read back, checked, written and synced again, which is tried \
every second:

| who | sees |
|---|---|
| a producer whose records waited for the sync (`flush.messages=1`) | KAFKA_STORAGE_ERROR; it retries. The records are in the log and stay there once the partition is back: an idempotent producer does not write them twice, any other producer may |
| producers that write to the partition | KAFKA_STORAGE_ERROR; they retry until `delivery.timeout.ms` is over |
| consumers | the records up to the last sync that succeeded, then nothing new until the partition is back |
| other partitions | nothing |

An acknowledged record is lost only if the power also fails before the partition is back, and then only if its \
acknowledgement had not waited for a sync. If the records that are read back are damaged, the partition stays offline \
until the next start, which keeps the intact ones and reports the rest.

**The groups' journal, `__consumer_offsets`**, goes offline like any partition. Requests that commit or delete offsets \
get COORDINATOR_NOT_AVAILABLE, and clients retry them. Where the journal is synced before the response, a commit whose \
sync failed gets the same error, though it may have taken effect. A rebalance ends only when the journal can be written \
again. Members that have their partitions go on reading, heartbeats are answered, and OffsetFetch returns what was \
committed.

**The state file, `headrace-state.json`**, is replaced atomically, so either the old or the new version is there. \
While it cannot be written, topics cannot be created, extended, deleted or given other settings (KAFKA_STORAGE_ERROR), \
and new idempotent producers get no id once the reserved ones are used up (COORDINATOR_NOT_AVAILABLE). Records are \
still written and read, with one exception: after a crash nothing is appended before the new leader epoch is in that \
file. The broker tries to write it every second. If the file is lost, the next start is refused, because the settings \
of all topics are lost with it, and the default settings may delete records sooner. Put the file back, or start with \
`headrace.adopt=true` and then set the topics' settings again.
";

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
