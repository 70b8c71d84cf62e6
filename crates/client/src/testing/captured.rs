//! Keeps events, for tests of what the log tells.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// An event: level, target, and the texts of its fields, the message among them.
#[derive(Clone, Debug)]
pub(crate) struct Captured {
    pub(crate) level: Level,
    pub(crate) target: &'static str,
    fields: Vec<(&'static str, String)>,
}

impl Captured {
    /// A field's text; empty when the event has none of that name.
    pub(crate) fn field(&self, name: &str) -> &str {
        self.fields.iter().find(|(known, _)| *known == name).map_or("", |(_, text)| text)
    }

    pub(crate) fn message(&self) -> &str {
        self.field("message")
    }
}

struct Keeps(Arc<Mutex<Vec<Captured>>>);

/// What is logged meanwhile, on all levels.
pub(crate) fn events_of(act: impl FnOnce()) -> Vec<Captured> {
    let kept = Arc::new(Mutex::new(Vec::new()));
    tracing::subscriber::with_default(Keeps(kept.clone()), act);
    let mut kept = kept.lock().unwrap();
    std::mem::take(&mut *kept)
}

struct Fields<'a>(&'a mut Vec<(&'static str, String)>);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.push((field.name(), format!("{value:?}")));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.push((field.name(), value.to_owned()));
    }
}

impl Subscriber for Keeps {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        !metadata.is_span() && metadata.target().starts_with("headrace")
    }

    fn event(&self, event: &Event<'_>) {
        let mut fields = Vec::new();
        event.record(&mut Fields(&mut fields));
        let metadata = event.metadata();
        self.0.lock().unwrap().push(Captured { level: *metadata.level(), target: metadata.target(), fields });
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}
