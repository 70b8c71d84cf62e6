//! The values of options of TLS and SASL.

use std::fmt;

use headrace_options::{Kind, OptionValue, choice};

/// A text that is never printed: not in `Debug`, not in an error.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Keeps a text from being printed.
    #[must_use]
    pub fn new(text: String) -> Self {
        Self(text)
    }

    /// The text itself.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl OptionValue for Secret {
    fn from_text(text: Option<&str>, _: Kind) -> Option<Self> {
        Some(Self(text.unwrap_or("").to_owned()))
    }
}

choice! {
    /// `security.protocol`: what stands between the socket and Kafka's requests.
    SecurityProtocol {
        /// Nothing.
        Plaintext = "PLAINTEXT",
        /// TLS.
        Ssl = "SSL",
        /// SASL.
        SaslPlaintext = "SASL_PLAINTEXT",
        /// TLS, and SASL in it.
        SaslSsl = "SASL_SSL",
    }
}

impl SecurityProtocol {
    /// Whether connections are encrypted.
    #[must_use]
    pub const fn uses_tls(self) -> bool {
        matches!(self, Self::Ssl | Self::SaslSsl)
    }

    /// Whether the client says who it is by SASL.
    #[must_use]
    pub const fn uses_sasl(self) -> bool {
        matches!(self, Self::SaslPlaintext | Self::SaslSsl)
    }
}

choice! {
    /// `sasl.mechanism`: how the client says who it is.
    Mechanism {
        /// Name and password as they are.
        Plain = "PLAIN",
        /// Proof of the password, with SHA-256.
        ScramSha256 = "SCRAM-SHA-256",
        /// Proof of the password, with SHA-512.
        ScramSha512 = "SCRAM-SHA-512",
        /// A bearer token.
        OAuthBearer = "OAUTHBEARER",
    }
}
