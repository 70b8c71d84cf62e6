//! Errors that brokers answer with: one table, of which everything else is made.

mod table;

use std::fmt;

pub use table::TABLE;

/// What a client can do about an error.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Remedy {
    /// Nothing to do: success.
    None,
    /// Ask again, after a pause.
    Retry,
    /// Ask again, of the leader that fresh metadata names.
    RetryWithMetadata,
    /// Ask again, of the coordinator that `FindCoordinator` names.
    RetryWithCoordinator,
    /// Abort the transaction; the producer can be used again then.
    Abort,
    /// This client can do nothing more; a new one can, perhaps with other settings.
    NewClient,
    /// Depends on what was asked; asking the same again gives the same answer.
    Other,
}

/// A row of [`TABLE`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorInfo {
    /// The error.
    pub code: ErrorCode,
    /// Kafka's name, such as `NOT_LEADER_OR_FOLLOWER`.
    pub name: &'static str,
    /// What a client can do.
    pub remedy: Remedy,
    /// What it means, in a sentence.
    pub message: &'static str,
}

/// An error code as it stands in a message. A code that is not in [`TABLE`], from a broker newer than this client,
/// is kept and counts as [`Remedy::Other`].
#[derive(Copy, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ErrorCode(i16);

impl ErrorCode {
    /// An error by its code, known or not.
    #[must_use]
    pub const fn new(code: i16) -> Self {
        Self(code)
    }

    /// An error by Kafka's name for it.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        TABLE.iter().find(|row| row.name == name).map(|row| row.code)
    }

    /// The number in the message.
    #[must_use]
    pub const fn code(self) -> i16 {
        self.0
    }

    /// Its row, if it is known.
    #[must_use]
    pub fn info(self) -> Option<&'static ErrorInfo> {
        // The table starts at -1 and has no gap, which a test checks.
        usize::try_from(self.0.checked_add(1)?).ok().and_then(|row| TABLE.get(row))
    }

    /// Kafka's name; `UNKNOWN_ERROR_CODE` if it is not known here.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.info().map_or("UNKNOWN_ERROR_CODE", |row| row.name)
    }

    /// What it means, in a sentence.
    #[must_use]
    pub fn message(self) -> &'static str {
        self.info().map_or("An error code of a newer broker, not known here.", |row| row.message)
    }

    /// What a client can do about it.
    #[must_use]
    pub fn remedy(self) -> Remedy {
        self.info().map_or(Remedy::Other, |row| row.remedy)
    }

    /// Whether it is no error.
    #[must_use]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// `Ok` if it is no error; for `?`.
    pub const fn check(self) -> Result<(), Self> {
        if self.is_none() { Ok(()) } else { Err(self) }
    }

    /// Whether the same request may succeed later.
    #[must_use]
    pub fn retriable(self) -> bool {
        matches!(self.remedy(), Remedy::Retry | Remedy::RetryWithMetadata | Remedy::RetryWithCoordinator)
    }

    /// Whether the client cannot go on and a new one is needed.
    #[must_use]
    pub fn fatal(self) -> bool {
        self.remedy() == Remedy::NewClient
    }

    /// Whether aborting the transaction helps.
    #[must_use]
    pub fn abortable(self) -> bool {
        self.remedy() == Remedy::Abort
    }
}

impl From<i16> for ErrorCode {
    fn from(code: i16) -> Self {
        Self(code)
    }
}

impl From<ErrorCode> for i16 {
    fn from(error: ErrorCode) -> Self {
        error.0
    }
}

impl fmt::Debug for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.0)
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}", self.name(), self.0, self.message())
    }
}

impl std::error::Error for ErrorCode {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn table_has_every_code_once_and_in_order() {
        for (row, code) in TABLE.iter().zip(-1..) {
            assert_eq!(row.code.code(), code, "{}", row.name);
            assert_eq!(row.code.info(), Some(row));
            assert_eq!(ErrorCode::from_name(row.name), Some(row.code));
        }
        assert_eq!(TABLE.len(), 135);
        let names: HashSet<_> = TABLE.iter().map(|row| row.name).collect();
        assert_eq!(names.len(), TABLE.len());
        let messages: HashSet<_> = TABLE.iter().map(|row| row.message).collect();
        assert_eq!(messages.len(), TABLE.len());
    }

    #[test]
    fn unknown_codes_survive() {
        for code in [i16::MIN, -2, 134, i16::MAX] {
            let error = ErrorCode::from(code);
            assert_eq!(i16::from(error), code);
            assert_eq!(error.info(), None);
            assert!(!error.retriable() && !error.fatal() && !error.abortable());
            assert!(error.to_string().starts_with(&format!("UNKNOWN_ERROR_CODE ({code})")));
        }
    }

    #[test]
    fn remedies_steer() {
        assert!(ErrorCode::NOT_LEADER_OR_FOLLOWER.retriable());
        assert!(ErrorCode::PRODUCER_FENCED.fatal());
        assert!(ErrorCode::INVALID_PRODUCER_EPOCH.fatal());
        assert!(ErrorCode::TRANSACTION_ABORTABLE.abortable());
        assert_eq!(ErrorCode::NONE.check(), Ok(()));
        assert_eq!(ErrorCode::OFFSET_OUT_OF_RANGE.check(), Err(ErrorCode::OFFSET_OUT_OF_RANGE));
        assert_eq!(ErrorCode::NOT_COORDINATOR.remedy(), Remedy::RetryWithCoordinator);
    }
}
