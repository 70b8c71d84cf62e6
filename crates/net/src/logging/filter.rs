//! What `HEADRACE_LOG` says: `debug`, `headrace=info,headrace::producer=trace`.

use headrace_wire::targets;
use tracing::level_filters::LevelFilter;

use super::Levels;

/// Of no event.
pub(super) const NOTHING: Levels = [LevelFilter::OFF; targets::ALL.len()];
/// What all targets begin with.
const ALL: &str = "headrace";
/// How much of a word that means nothing is shown.
const SHOWN_CHARS_MAX: usize = 60;

/// Reads directives, which commas separate: `LEVEL`, `TARGET=LEVEL`, or `TARGET` for all there is of it. Levels are `off`,
/// `error`, `warn`, `info`, `debug` and `trace`. The directive with the longest target counts, whatever the order.
///
/// # Errors
/// Which directive cannot be, and what can.
pub(super) fn parse(text: &str) -> Result<Levels, String> {
    let mut directives = Vec::new();
    for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        let (target, level) = match (word.split_once('='), level(word)) {
            (None, Some(level)) => ("", level),
            (None, None) => (word, LevelFilter::TRACE),
            (Some((target, text)), _) => {
                let level = level(text.trim());
                (target.trim(), level.ok_or_else(|| no_level(text.trim()))?)
            }
        };
        if !(target.is_empty() || target == ALL || targets::index(target).is_some()) {
            return Err(no_target(target));
        }
        directives.push((target, level));
    }
    directives.sort_by_key(|(target, _)| target.len());
    let mut levels = NOTHING;
    for (wanted, target) in levels.iter_mut().zip(targets::ALL) {
        let mut of_it =
            directives.iter().filter(|(named, _)| named.is_empty() || *named == ALL || *named == target);
        if let Some((_, level)) = of_it.next_back() {
            *wanted = *level;
        }
    }
    Ok(levels)
}

fn level(text: &str) -> Option<LevelFilter> {
    Some(match text.to_ascii_lowercase().as_str() {
        "off" => LevelFilter::OFF,
        "error" => LevelFilter::ERROR,
        "warn" => LevelFilter::WARN,
        "info" => LevelFilter::INFO,
        "debug" => LevelFilter::DEBUG,
        "trace" => LevelFilter::TRACE,
        _ => return None,
    })
}

fn shown(text: &str) -> String {
    text.chars().take(SHOWN_CHARS_MAX).collect()
}

fn no_level(text: &str) -> String {
    format!("{:?} is no level; there are off, error, warn, info, debug and trace", shown(text))
}

fn no_target(text: &str) -> String {
    format!(
        "{:?} is neither a level nor a target; targets are {ALL}, {}",
        shown(text),
        targets::ALL.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(levels: &Levels, target: &str) -> LevelFilter {
        levels[targets::index(target).unwrap()]
    }

    #[test]
    fn one_level_is_for_all() {
        for text in ["debug", "DEBUG", "headrace=debug", " headrace = debug ,"] {
            assert_eq!(parse(text), Ok([LevelFilter::DEBUG; targets::ALL.len()]), "{text}");
        }
        assert_eq!(parse(""), Ok(NOTHING));
    }

    #[test]
    fn the_longest_target_counts_whatever_the_order() {
        for text in ["headrace=info,headrace::producer=trace", "headrace::producer,info"] {
            let levels = parse(text).unwrap();
            assert_eq!(of(&levels, targets::PRODUCER), LevelFilter::TRACE, "{text}");
            assert_eq!(of(&levels, targets::CONSUMER), LevelFilter::INFO, "{text}");
        }
        let levels = parse("debug,headrace::connection=off").unwrap();
        assert_eq!(of(&levels, targets::CONNECTION), LevelFilter::OFF);
        assert_eq!(of(&levels, targets::BROKER), LevelFilter::DEBUG);
    }

    #[test]
    fn what_cannot_be_is_named_with_what_can() {
        assert!(parse("headrace=loud").unwrap_err().contains("\"loud\" is no level; there are off, error"));
        assert!(parse("headrace::prodcer=info").unwrap_err().contains("headrace::producer"));
        assert!(parse("deubg").unwrap_err().starts_with("\"deubg\" is neither a level nor a target"));
        assert!(parse(&format!("headrace={}\n", "x".repeat(10_000))).unwrap_err().len() < 200);
    }
}
