//! Whose an option is.

/// Which client an option belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Every client.
    Common,
    /// Producers.
    Producer,
    /// Consumers.
    Consumer,
    /// Consumers of a share group.
    Share,
    /// Admin clients.
    Admin,
}

impl Role {
    /// The client in words.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Common => "client",
            Self::Producer => "producer",
            Self::Consumer => "consumer",
            Self::Share => "share consumer",
            Self::Admin => "admin client",
        }
    }

    pub(super) const fn takes(self, row: Self) -> bool {
        matches!(row, Self::Common) || row as u8 == self as u8
    }
}
