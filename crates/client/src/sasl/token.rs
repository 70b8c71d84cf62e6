//! Bearer tokens, and where they come from.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::{Cause, clip};
use crate::options::Secret;

/// Of a token's life this much goes by before the next one is asked for, percent. Kafka's own client has the same.
const LIFE_PERCENT: i64 = 80;
/// The field of the message that the token itself stands in: no extension may have its name.
const TOKEN_FIELD: &str = "auth";

/// A bearer token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// What is sent.
    pub text: Secret,
    /// When it ends, Unix milliseconds; `None` when that is not known, and it is then asked for anew for every
    /// login.
    pub expires_ms: Option<i64>,
    /// What is sent along with it, names and values (KIP-342).
    pub extensions: Vec<(String, Secret)>,
}

impl Token {
    /// A token of which nothing more is known.
    #[must_use]
    pub fn new(text: Secret) -> Self {
        Self { text, expires_ms: None, extensions: Vec::new() }
    }

    /// Why it cannot be sent, as the rest of a sentence; its text is not in it.
    pub(super) fn check(&self) -> Result<(), String> {
        let text = self.text.expose();
        // A control character would end the message's field and begin another.
        if text.is_empty() || !text.bytes().all(|b| b.is_ascii_graphic()) {
            return Err("the token has characters that no token can have".to_owned());
        }
        for (name, value) in &self.extensions {
            let named = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphabetic());
            if !named || name == TOKEN_FIELD {
                return Err(format!(
                    "the extension '{}' has a name that is not letters alone, or is that of the token",
                    clip(name)
                ));
            }
            let visible = |b: u8| b.is_ascii_graphic() || b" \t\r\n".contains(&b);
            if value.expose().is_empty() || !value.expose().bytes().all(visible) {
                return Err(format!("the extension '{name}' has a value that cannot be sent"));
            }
        }
        Ok(())
    }
}

/// Why a function gives no token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenFailure {
    /// The reason in words.
    pub why: String,
    /// What is behind it.
    pub cause: Option<Cause>,
}

impl From<String> for TokenFailure {
    fn from(why: String) -> Self {
        Self { why, cause: None }
    }
}

/// There is no token to log in with.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NoToken {
    pub(crate) failure: TokenFailure,
    /// There never was one, so it is not a passing trouble of whoever issues them.
    pub(crate) lasting: bool,
}

type Fetch = dyn Fn() -> Result<Token, TokenFailure> + Send + Sync;

/// Where the tokens of OAUTHBEARER come from: nowhere, a fixed text, or a function that may block.
///
/// Engines read the token at hand; the driver, which an engine asks by
/// [`ChannelRequest::RenewToken`](crate::io::ChannelRequest::RenewToken), sees to it that there is a good one. The two share it under a
/// lock, which is never held while a function runs.
#[derive(Clone, Default)]
pub struct TokenSource(Option<Arc<Shared>>);

struct Shared {
    fetch: Option<Box<Fetch>>,
    state: Mutex<State>,
    /// Held while the function runs: of several clients with one source, one asks, and the others take what it got.
    asking: Mutex<()>,
}

#[derive(Default)]
struct State {
    held: Option<Held>,
    /// Why the last call of the function gave none.
    failure: Option<TokenFailure>,
    /// The function has given a token before.
    proven: bool,
}

struct Held {
    token: Token,
    /// When the next one is to be asked for, Unix milliseconds; `None`: for every login.
    renew_ms: Option<i64>,
}

impl TokenSource {
    /// Always this token.
    #[must_use]
    pub fn fixed(text: Secret) -> Self {
        let held = Some(Held { token: Token::new(text), renew_ms: None });
        Self::with(None, State { held, ..State::default() })
    }

    /// The tokens that `fetch` gives. It is called on a thread of its own, and never twice at once.
    pub fn calling(fetch: impl Fn() -> Result<Token, TokenFailure> + Send + Sync + 'static) -> Self {
        Self::with(Some(Box::new(fetch)), State::default())
    }

    fn with(fetch: Option<Box<Fetch>>, state: State) -> Self {
        Self(Some(Arc::new(Shared { fetch, state: Mutex::new(state), asking: Mutex::new(()) })))
    }

    /// Whether there is a source at all.
    #[must_use]
    pub fn is_given(&self) -> bool {
        self.0.is_some()
    }

    /// Whether [`renew`](Self::renew) must run before the next login: there is no token, its end is not known, or it
    /// has lived for 80 % of its life.
    #[must_use]
    pub fn is_stale(&self, wall_ms: i64) -> bool {
        let Some(shared) = self.0.as_ref().filter(|shared| shared.fetch.is_some()) else { return false };
        let state = lock(&shared.state);
        state.held.as_ref().and_then(|held| held.renew_ms).is_none_or(|at| at <= wall_ms)
    }

    /// Gets a new token unless there is a good one; blocks as long as its function does. What goes wrong is reported by the
    /// login that needs the token.
    pub fn renew(&self, wall_ms: i64) {
        let Some((shared, fetch)) = self.0.as_ref().and_then(|s| Some((s, s.fetch.as_ref()?))) else {
            return;
        };
        let _one_at_a_time = lock(&shared.asking);
        if !self.is_stale(wall_ms) {
            return;
        }
        let fetched = fetch().and_then(|token| {
            token.check()?;
            match token.expires_ms {
                Some(at) if at <= wall_ms => Err("the token has expired already".to_owned().into()),
                _ => Ok(token),
            }
        });
        let mut state = lock(&shared.state);
        match fetched {
            Ok(token) => {
                let life = |at: i64| at.saturating_sub(wall_ms);
                let renew_ms =
                    token.expires_ms.map(|at| wall_ms.saturating_add(life(at) / 100 * LIFE_PERCENT));
                *state = State { held: Some(Held { token, renew_ms }), failure: None, proven: true };
            }
            Err(failure) => state.failure = Some(failure),
        }
    }

    /// The token at hand, if it has not expired.
    pub(crate) fn token(&self, wall_ms: i64) -> Result<Token, NoToken> {
        let missing = |why: &str| TokenFailure::from(why.to_owned());
        let Some(shared) = self.0.as_ref() else {
            return Err(NoToken { failure: missing("nothing gives a token"), lasting: true });
        };
        let state = lock(&shared.state);
        let held = state.held.as_ref().map(|held| &held.token);
        match held.filter(|token| token.expires_ms.is_none_or(|at| at > wall_ms)) {
            Some(token) => Ok(token.clone()),
            None => Err(NoToken {
                failure: state.failure.clone().unwrap_or_else(|| missing("the token has expired")),
                lasting: !state.proven,
            }),
        }
    }

    /// A broker refuses the token: the next login asks for another, if a function gives them.
    pub(crate) fn discard(&self, token: &Token) {
        let Some(shared) = self.0.as_ref().filter(|shared| shared.fetch.is_some()) else { return };
        let mut state = lock(&shared.state);
        if state.held.as_ref().is_some_and(|held| held.token == *token) {
            state.held = None;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for TokenSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.0 {
            None => "TokenSource(none)",
            Some(shared) if shared.fetch.is_some() => "TokenSource(function)",
            Some(_) => "TokenSource(fixed)",
        })
    }
}

impl PartialEq for TokenSource {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (None, None) => true,
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

impl Eq for TokenSource {}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use super::*;

    fn token(text: &str, expires_ms: Option<i64>) -> Token {
        Token { expires_ms, ..Token::new(Secret::new(text.to_owned())) }
    }

    fn text(source: &TokenSource, wall_ms: i64) -> String {
        source.token(wall_ms).unwrap().text.expose().to_owned()
    }

    #[test]
    fn a_function_is_asked_again_after_four_fifths_of_a_tokens_life() {
        let calls = Arc::new(AtomicI64::new(0));
        let counted = calls.clone();
        let source = TokenSource::calling(move || {
            let n = counted.fetch_add(1, Ordering::Relaxed) + 1;
            Ok(token(&format!("t{n}"), Some(n * 100_000)))
        });
        assert!(source.is_given() && source.is_stale(0) && source.token(0).is_err());
        source.renew(0);
        assert_eq!(text(&source, 0), "t1");
        assert!(!source.is_stale(79_999) && source.is_stale(80_000));
        source.renew(79_999);
        assert_eq!(calls.load(Ordering::Relaxed), 1, "it is still good");
        source.renew(80_000);
        assert_eq!(text(&source.clone(), 80_000), "t2");
        assert!(!source.is_stale(175_999) && source.is_stale(176_000));
    }

    #[test]
    fn a_failed_renewal_keeps_what_there_is_until_it_has_expired() {
        let fail = Arc::new(AtomicI64::new(1));
        let failing = fail.clone();
        let source = TokenSource::calling(move || match failing.load(Ordering::Relaxed) {
            0 => Ok(token("t", Some(1_000))),
            _ => Err("the issuer is down".to_owned().into()),
        });
        source.renew(0);
        let missing = source.token(0).unwrap_err();
        assert!(missing.lasting && missing.failure.why == "the issuer is down", "{missing:?}");
        fail.store(0, Ordering::Relaxed);
        source.renew(0);
        fail.store(1, Ordering::Relaxed);
        source.renew(900);
        assert!(source.is_stale(900) && text(&source, 999) == "t");
        let missing = source.token(1_000).unwrap_err();
        assert!(!missing.lasting, "there was one before: the trouble may pass");
    }

    #[test]
    fn a_token_without_an_end_is_asked_for_each_time() {
        let source = TokenSource::calling(|| Ok(token("t", None)));
        source.renew(0);
        assert!(source.is_stale(0) && text(&source, i64::MAX) == "t");
    }

    #[test]
    fn a_token_that_cannot_be_used_is_none() {
        let extended = |name: &str, value: &str| {
            let extensions = vec![(name.to_owned(), Secret::new(value.to_owned()))];
            Token { extensions, ..token("hunter2", None) }
        };
        for (bad, said) in [
            (token("hunter2\u{1}host=x", None), "characters"),
            (token("", None), "characters"),
            (token("hunter2", Some(500)), "expired already"),
            (extended("auth", "x"), "'auth'"),
            (extended("a=b", "x"), "'a=b'"),
            (extended("", "x"), "name"),
            (extended("trace", "hunter2\u{1}"), "'trace'"),
            (extended("trace", ""), "'trace'"),
        ] {
            let source = TokenSource::calling(move || Ok(bad.clone()));
            source.renew(500);
            let why = source.token(500).unwrap_err().failure.why;
            assert!(why.contains(said) && !why.contains("hunter2"), "{why}");
        }
    }

    #[test]
    fn a_refused_token_is_given_up_and_no_other() {
        let source = TokenSource::calling(|| Ok(token("t", Some(1_000))));
        source.renew(0);
        source.discard(&token("older", Some(1_000)));
        assert!(!source.is_stale(0));
        source.discard(&source.token(0).unwrap());
        assert!(source.is_stale(0) && source.token(0).is_err());
        let fixed = TokenSource::fixed(Secret::new("t".to_owned()));
        fixed.discard(&fixed.token(0).unwrap());
        assert_eq!(text(&fixed, 0), "t");
    }

    #[test]
    fn a_fixed_token_is_never_stale() {
        let source = TokenSource::fixed(Secret::new("t".to_owned()));
        source.renew(0);
        assert!(!source.is_stale(i64::MAX) && source.is_given() && text(&source, i64::MAX) == "t");
        assert!(!TokenSource::default().is_given() && TokenSource::default().token(0).is_err());
    }
}
