//! SASL: what a client sends to authenticate, without the frames around it.
//!
//! PLAIN (RFC 4616), SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677), OAUTHBEARER (RFC 7628). As in Kafka's own
//! client, names and passwords are taken as they are, without `SASLprep`.

mod scram;
mod token;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;

use self::scram::{Hash, Scram};
pub(crate) use self::token::NoToken;
pub use self::token::{Token, TokenFailure, TokenSource};
use crate::error::clip;
use crate::options::{CommonConfig, Mechanism, Secret};

/// Bytes of a nonce: 32 letters of base64, and no padding.
const NONCE_BYTES: usize = 24;

/// Who the client is, for every connection that it makes.
#[derive(Debug, Clone)]
pub(crate) struct Credentials {
    mechanism: Mechanism,
    username: String,
    password: Secret,
    tokens: TokenSource,
    /// What nonces are made from.
    seed: u64,
}

impl Credentials {
    /// `None` when the protocol goes without SASL.
    pub(crate) fn of(config: &CommonConfig, seed: u64) -> Option<Self> {
        if !config.security_protocol.uses_sasl() {
            return None;
        }
        Some(Self {
            mechanism: config.sasl_mechanism?,
            username: config.sasl_username.clone().unwrap_or_default(),
            password: config.sasl_password.clone(),
            tokens: config.sasl_oauthbearer_token.clone(),
            seed,
        })
    }

    /// Whether an exchange that begins now had better wait for a new token.
    pub(crate) fn is_stale(&self, wall_ms: i64) -> bool {
        self.mechanism == Mechanism::OAuthBearer && self.tokens.is_stale(wall_ms)
    }

    /// A new exchange. No two of one client may have the same `number`: it makes the nonce.
    pub(crate) fn begin(&self, number: u64) -> Exchange {
        let scram = |hash| {
            let nonce = nonce(self.seed, number);
            Says::Scram(Box::new(Scram::new(hash, &self.username, self.password.clone(), nonce)))
        };
        let says = match self.mechanism {
            Mechanism::Plain => {
                Says::Plain { username: self.username.clone(), password: self.password.clone() }
            }
            Mechanism::ScramSha256 => scram(Hash::Sha256),
            Mechanism::ScramSha512 => scram(Hash::Sha512),
            Mechanism::OAuthBearer => {
                Says::Bearer { tokens: self.tokens.clone(), token: None, refused: None }
            }
        };
        Exchange { mechanism: self.mechanism, says }
    }
}

/// Unguessable as far as the seed is: the driver takes it from the system's source of random numbers.
fn nonce(seed: u64, number: u64) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, &seed.to_be_bytes());
    let tag = hmac::sign(&key, &number.to_be_bytes());
    STANDARD.encode(tag.as_ref().get(..NONCE_BYTES).unwrap_or(tag.as_ref()))
}

/// One authentication.
#[derive(Debug)]
pub(crate) struct Exchange {
    mechanism: Mechanism,
    says: Says,
}

#[derive(Debug)]
enum Says {
    Plain {
        username: String,
        password: Secret,
    },
    Scram(Box<Scram>),
    Bearer {
        tokens: TokenSource,
        /// The one that this exchange is about, once it is known.
        token: Option<Token>,
        /// What the broker has against the token, as it says before it ends the exchange.
        refused: Option<String>,
    },
}

impl Exchange {
    /// Its mechanism by Kafka's name.
    pub(crate) fn mechanism(&self) -> &'static str {
        self.mechanism.name()
    }

    /// The first message, or why there is none.
    pub(crate) fn first(&self) -> Result<Vec<u8>, String> {
        match &self.says {
            Says::Plain { username, password } => {
                Ok([b"\0", username.as_bytes(), b"\0", password.expose().as_bytes()].concat())
            }
            Says::Scram(scram) => Ok(scram.first()),
            Says::Bearer { token, .. } => {
                let token = token.as_ref().ok_or("there is no token")?;
                let mut said = format!("n,,\u{1}auth=Bearer {}", token.text.expose());
                for (name, value) in &token.extensions {
                    said.extend(["\u{1}", name, "=", value.expose()]);
                }
                said.push_str("\u{1}\u{1}");
                Ok(said.into_bytes())
            }
        }
    }

    /// Whether [`take_token`](Self::take_token) must come before [`first`](Self::first).
    pub(crate) fn needs_token(&self) -> bool {
        matches!(self.says, Says::Bearer { .. })
    }

    /// Takes the token at hand for this exchange.
    pub(crate) fn take_token(&mut self, wall_ms: i64) -> Result<(), NoToken> {
        if let Says::Bearer { tokens, token, .. } = &mut self.says {
            let held = tokens.token(wall_ms)?;
            held.check().map_err(|why| NoToken { failure: why.into(), lasting: true })?;
            *token = Some(held);
        }
        Ok(())
    }

    /// The broker refuses: a token that it does not take is not to be used again.
    pub(crate) fn discard_token(&self) {
        if let Says::Bearer { tokens, token: Some(token), .. } = &self.says {
            tokens.discard(token);
        }
    }

    /// The next message after what the broker has said; `None` at the end. An error says what the broker did wrong, as
    /// the rest of a sentence that begins with its name.
    pub(crate) fn next(&mut self, said: &[u8]) -> Result<Option<Vec<u8>>, String> {
        match &mut self.says {
            Says::Plain { .. } => Ok(None),
            Says::Scram(scram) => scram.next(said),
            Says::Bearer { .. } if said.is_empty() => Ok(None),
            Says::Bearer { refused: Some(why), .. } => Err(format!("refused the token: {why}")),
            Says::Bearer { refused, .. } => {
                // It wants to hear a word before it says no (RFC 7628, section 3.2.3).
                *refused = Some(clip(&String::from_utf8_lossy(said)));
                Ok(Some(vec![1]))
            }
        }
    }

    /// What the broker said against us in the exchange itself.
    pub(crate) fn refused(&self) -> Option<&str> {
        match &self.says {
            Says::Bearer { refused, .. } => refused.as_deref(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(pairs: &[(&str, &str)]) -> CommonConfig {
        let more = [("bootstrap.servers", "k:9092"), ("security.protocol", "SASL_PLAINTEXT")];
        let pairs = more.iter().chain(pairs).map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        CommonConfig::from_pairs(pairs).unwrap()
    }

    #[test]
    fn plain_is_name_and_password_between_zeros() {
        let config = config(&[
            ("sasl.mechanism", "PLAIN"),
            ("sasl.username", "alice"),
            ("sasl.password", "p,=\u{e4}"),
        ]);
        let mut exchange = Credentials::of(&config, 1).unwrap().begin(0);
        assert_eq!(exchange.mechanism(), "PLAIN");
        assert_eq!(exchange.first().unwrap(), "\0alice\0p,=\u{e4}".as_bytes());
        assert_eq!(exchange.next(b"").unwrap(), None);
    }

    #[test]
    fn a_token_goes_out_as_it_is_and_a_refusal_is_kept() {
        let config = config(&[("sasl.mechanism", "OAUTHBEARER"), ("sasl.oauthbearer.token", "a.b.c")]);
        let credentials = Credentials::of(&config, 1).unwrap();
        let mut exchange = credentials.begin(0);
        assert!(exchange.needs_token() && exchange.first().is_err());
        exchange.take_token(0).unwrap();
        assert_eq!(exchange.first().unwrap(), b"n,,\x01auth=Bearer a.b.c\x01\x01");
        assert_eq!(exchange.next(b"").unwrap(), None);
        let mut exchange = credentials.begin(1);
        assert_eq!(exchange.next(b"{\"status\":\"invalid_token\"}").unwrap(), Some(vec![1]));
        assert_eq!(exchange.refused(), Some("{\"status\":\"invalid_token\"}"));
        exchange.next(b"again").unwrap_err();
    }

    #[test]
    fn extensions_follow_the_token() {
        let mut config = config(&[("sasl.mechanism", "OAUTHBEARER")]);
        config.sasl_oauthbearer_token = TokenSource::calling(|| {
            let extension = |name: &str, value: &str| (name.to_owned(), Secret::new(value.to_owned()));
            let extensions = vec![extension("logicalCluster", "lkc-1"), extension("pool", "a b")];
            Ok(Token { extensions, ..Token::new(Secret::new("t".to_owned())) })
        });
        config.sasl_oauthbearer_token.renew(0);
        let mut exchange = Credentials::of(&config, 1).unwrap().begin(0);
        exchange.take_token(0).unwrap();
        let first = exchange.first().unwrap();
        assert_eq!(first, b"n,,\x01auth=Bearer t\x01logicalCluster=lkc-1\x01pool=a b\x01\x01");
    }

    #[test]
    fn a_token_cannot_smuggle_in_another_field() {
        for bad in ["a\u{1}host=x", "a b", "\n"] {
            let config = config(&[("sasl.mechanism", "OAUTHBEARER"), ("sasl.oauthbearer.token", bad)]);
            let missing = Credentials::of(&config, 1).unwrap().begin(0).take_token(0).unwrap_err();
            let why = missing.failure.why;
            assert!(!why.contains(bad.trim_end()) || bad == "\n", "{why}");
        }
    }

    #[test]
    fn nonces_differ_by_number_and_by_seed() {
        let all = [nonce(1, 1), nonce(1, 2), nonce(2, 1)];
        assert!(all[0] != all[1] && all[0] != all[2] && all[1] != all[2]);
        assert!(all.iter().all(|n| n.len() == 32 && !n.contains([',', '='])));
    }

    #[test]
    fn nothing_secret_is_shown() {
        let config = config(&[
            ("sasl.mechanism", "SCRAM-SHA-512"),
            ("sasl.username", "u"),
            ("sasl.password", "hunter2"),
        ]);
        let credentials = Credentials::of(&config, 1).unwrap();
        let shown = format!("{config:?} {credentials:?} {:?}", credentials.begin(0));
        assert!(!shown.contains("hunter2"), "{shown}");
        let token = Token::new(Secret::new("t0ken".to_owned()));
        assert!(!format!("{token:?}").contains("t0ken"));
    }
}
