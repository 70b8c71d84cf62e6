//! The values of options of TLS and SASL.

use std::fmt;

use super::row::Kind;
use super::value::FromText;

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

impl FromText for Secret {
    fn from_text(text: Option<&str>, _: Kind) -> Result<Self, String> {
        Ok(Self(text.unwrap_or("").to_owned()))
    }
}

/// `security.protocol`: what stands between the socket and Kafka's requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecurityProtocol {
    /// Nothing.
    Plaintext,
    /// TLS.
    Ssl,
    /// SASL.
    SaslPlaintext,
    /// TLS, and SASL in it.
    SaslSsl,
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

    /// Kafka's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plaintext => "PLAINTEXT",
            Self::Ssl => "SSL",
            Self::SaslPlaintext => "SASL_PLAINTEXT",
            Self::SaslSsl => "SASL_SSL",
        }
    }
}

impl FromText for SecurityProtocol {
    fn from_text(text: Option<&str>, kind: Kind) -> Result<Self, String> {
        let text = text.unwrap_or("").trim();
        [Self::Plaintext, Self::Ssl, Self::SaslPlaintext, Self::SaslSsl]
            .into_iter()
            .find(|protocol| protocol.name().eq_ignore_ascii_case(text))
            .filter(|protocol| kind.offers(protocol.name()))
            .ok_or_else(|| kind.accepted())
    }
}

/// `sasl.mechanism`: how the client says who it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mechanism {
    /// Name and password as they are.
    Plain,
    /// Proof of the password, with SHA-256.
    ScramSha256,
    /// Proof of the password, with SHA-512.
    ScramSha512,
    /// A bearer token.
    OAuthBearer,
}

impl Mechanism {
    /// Kafka's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::ScramSha256 => "SCRAM-SHA-256",
            Self::ScramSha512 => "SCRAM-SHA-512",
            Self::OAuthBearer => "OAUTHBEARER",
        }
    }
}

impl FromText for Option<Mechanism> {
    fn from_text(text: Option<&str>, kind: Kind) -> Result<Self, String> {
        let Some(text) = text.map(str::trim) else { return Ok(None) };
        [Mechanism::Plain, Mechanism::ScramSha256, Mechanism::ScramSha512, Mechanism::OAuthBearer]
            .into_iter()
            .find(|mechanism| mechanism.name().eq_ignore_ascii_case(text))
            .map(Some)
            .ok_or_else(|| kind.accepted())
    }
}
