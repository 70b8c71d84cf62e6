//! One event as a line of text.

use std::fmt::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use tracing::field::{Field, Visit};
use tracing::{Event, Level};

/// The longest text, in bytes: names of hosts and topics, and reasons, come from peers.
const TEXT_BYTES_MAX: usize = 4096;
/// What stands at the end of one that was longer.
const CUT: &str = "...";
/// The field that `tracing` has the message in.
const MESSAGE: &str = "message";
/// Which client it is, which stands in front.
const CLIENT: &str = "client";
const CLIENT_ID: &str = "client_id";

/// What a field holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FieldValue {
    /// A number.
    Number(i64),
    /// Anything else.
    Text(String),
}

/// An event, owned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// When it happened.
    pub time: SystemTime,
    /// How serious it is.
    pub level: Level,
    /// One of [`headrace_wire::targets`].
    pub target: &'static str,
    /// The client if it is of one, the message, and the other fields.
    pub text: String,
    /// The fields by name, in order.
    pub fields: Vec<(&'static str, FieldValue)>,
}

impl Line {
    /// What an event says. Its texts are cut to 4 KiB each, and have no control characters.
    pub(super) fn of(event: &Event<'_>, time: SystemTime) -> Self {
        let mut taken = Taken::default();
        event.record(&mut taken);
        let metadata = event.metadata();
        let text = taken.text();
        Self { time, level: *metadata.level(), target: metadata.target(), text, fields: taken.fields }
    }
}

/// The line as it stands on stderr, with its end.
impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} {:>5} {}: {}", Utc(self.time), self.level, self.target, self.text)
    }
}

#[derive(Default)]
struct Taken {
    message: String,
    fields: Vec<(&'static str, FieldValue)>,
}

impl Taken {
    fn take(&mut self, field: &Field, value: FieldValue) {
        match (field.name(), value) {
            (MESSAGE, FieldValue::Text(text)) => self.message = text,
            (name, value) => self.fields.push((name, value)),
        }
    }

    /// `producer my-app: message broker=1 error="it is not there"`.
    fn text(&self) -> String {
        let mut text = String::new();
        let of = |name| self.fields.iter().find(|(known, _)| *known == name).map(|(_, value)| value);
        if let (Some(FieldValue::Text(kind)), Some(FieldValue::Text(id))) = (of(CLIENT), of(CLIENT_ID)) {
            text = format!("{kind} {id}: ");
        }
        text.push_str(&self.message);
        for (name, value) in self.fields.iter().filter(|(name, _)| ![CLIENT, CLIENT_ID].contains(name)) {
            // Writing to a string does not fail.
            let _ = match value {
                FieldValue::Number(number) => write!(text, " {name}={number}"),
                FieldValue::Text(value) if is_plain(value) => write!(text, " {name}={value}"),
                FieldValue::Text(value) => write!(text, " {name}=\"{}\"", quoted(value)),
            };
        }
        text
    }
}

/// So that a quotation mark that nothing escapes is the value's end.
fn quoted(value: &str) -> String {
    value.replace('\\', r"\\").replace('"', r#"\""#)
}

/// Whether it is seen where a value ends.
fn is_plain(value: &str) -> bool {
    !value.is_empty() && !value.contains([' ', '"', '='])
}

impl Visit for Taken {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let mut short = Short::default();
        let _ = write!(short, "{value:?}");
        self.take(field, FieldValue::Text(short.end()));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        let mut short = Short::default();
        let _ = short.write_str(value);
        self.take(field, FieldValue::Text(short.end()));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.take(field, FieldValue::Number(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.take(field, FieldValue::Number(i64::try_from(value).unwrap_or(i64::MAX)));
    }
}

/// A text that stays within its line and does not grow beyond its limit, whoever wrote it.
#[derive(Default)]
struct Short {
    text: String,
    is_cut: bool,
}

impl Short {
    fn end(mut self) -> String {
        if self.is_cut {
            self.text.push_str(CUT);
        }
        self.text
    }
}

impl Write for Short {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        for c in more.chars() {
            if self.text.len() >= TEXT_BYTES_MAX {
                self.is_cut = true;
                return Err(fmt::Error);
            }
            // These are what `escape_debug` escapes although they can be shown.
            if matches!(c, '"' | '\'' | '\\') {
                self.text.push(c);
            } else {
                self.text.extend(c.escape_debug());
            }
        }
        Ok(())
    }
}

/// A moment as `2026-11-25T03:14:15.123456Z`.
struct Utc(SystemTime);

impl fmt::Display for Utc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let since = self.0.duration_since(UNIX_EPOCH).unwrap_or_default();
        let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
        // The Gregorian calendar by eras of 400 years that begin on the first of March, which puts the leap day last.
        let days = days + 719_468;
        let (era, day) = (days / 146_097, days % 146_097);
        let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153;
        let day = day - (153 * month + 2) / 5 + 1;
        let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
        let year = year + era * 400 + next;
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        let micros = since.subsec_micros();
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use tracing::span::{Attributes, Id, Record};
    use tracing::subscriber::with_default;
    use tracing::{Metadata, Subscriber};

    use super::*;

    /// Keeps lines.
    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<Line>>>);

    impl Subscriber for Kept {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }
        fn event(&self, event: &Event<'_>) {
            self.0
                .lock()
                .unwrap()
                .push(Line::of(event, UNIX_EPOCH + Duration::from_micros(1_764_040_455_000_123)));
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    fn line(write: impl FnOnce()) -> Line {
        let kept = Kept::default();
        with_default(kept.clone(), write);
        let mut lines = std::mem::take(&mut *kept.0.lock().unwrap());
        assert_eq!(lines.len(), 1);
        lines.remove(0)
    }

    #[test]
    fn a_line_has_time_level_target_client_message_and_fields() {
        let line = line(|| {
            tracing::debug!(
                target: "headrace::producer",
                client = "producer",
                client_id = "app",
                topic = "orders",
                partition = 3,
                broker = None::<i32>,
                error = %"no \"leader\"",
                "trying {}", "again"
            );
        });
        assert_eq!(
            line.to_string(),
            "2025-11-25T03:14:15.000123Z DEBUG headrace::producer: producer app: trying again \
             topic=orders partition=3 error=\"no \\\"leader\\\"\"\n"
        );
        assert_eq!(line.fields[2], ("topic", FieldValue::Text("orders".to_owned())));
        assert_eq!(line.fields[3], ("partition", FieldValue::Number(3)));
    }

    #[test]
    fn no_value_can_look_like_the_next_field() {
        let why = r#"gone\" topic="payments"#;
        let line = line(|| tracing::warn!(target: "headrace::broker", why, "no topic"));
        assert_eq!(line.text, r#"no topic why="gone\\\" topic=\"payments""#);
    }

    #[test]
    fn what_a_peer_says_stays_within_its_line_and_its_limit() {
        let long = format!("a\nb\x1b[31m\u{2028}{}", "x".repeat(1 << 20));
        let line = line(|| tracing::warn!(target: "headrace::broker", why = long.as_str(), "it's {long}"));
        assert!(line.text.starts_with("it's a\\nb\\u{1b}[31m\\u{2028}xxx"));
        assert_eq!(line.text.matches("xxx...").count(), 2);
        assert!(line.text.len() < 3 * TEXT_BYTES_MAX);
        assert_eq!(line.to_string().lines().count(), 1);
    }

    #[test]
    fn days_are_those_of_the_calendar() {
        let at = |seconds| Utc(UNIX_EPOCH + Duration::from_secs(seconds)).to_string();
        assert_eq!(at(0), "1970-01-01T00:00:00.000000Z");
        assert_eq!(at(951_782_399), "2000-02-28T23:59:59.000000Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00.000000Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00.000000Z");
        assert_eq!(at(1_735_689_599), "2024-12-31T23:59:59.000000Z");
    }
}
