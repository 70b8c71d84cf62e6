//! Bearer tokens, and where they come from.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use crate::options::Secret;

/// A token is asked for anew this long before it ends, milliseconds: the broker's clock may be ahead of ours.
const EARLY_MS: i64 = 30_000;

/// A bearer token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// What is sent.
    pub text: Secret,
    /// When it ends, Unix milliseconds; `None` when that is not known, and it is then asked for anew for every
    /// connection.
    pub expires_ms: Option<i64>,
}

type Fetch = dyn Fn() -> Result<Token, String> + Send + Sync;

/// Where the tokens of OAUTHBEARER come from: nowhere, a fixed text, or a function that may block.
///
/// Engines read the token at hand; the driver sees to it that there is a good one before it connects. The two share it
/// under a lock, which is never held while a function runs.
#[derive(Clone, Default)]
pub struct TokenSource(Option<Arc<Shared>>);

struct Shared {
    fetch: Option<Box<Fetch>>,
    held: Mutex<Option<Token>>,
}

impl TokenSource {
    /// Always this token.
    #[must_use]
    pub fn fixed(text: Secret) -> Self {
        let held = Mutex::new(Some(Token { text, expires_ms: None }));
        Self(Some(Arc::new(Shared { fetch: None, held })))
    }

    /// The tokens that `fetch` gives; an error is the reason in words. It is called on a thread of its own.
    pub fn calling(fetch: impl Fn() -> Result<Token, String> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(Shared { fetch: Some(Box::new(fetch)), held: Mutex::new(None) })))
    }

    /// Whether there is a source at all.
    #[must_use]
    pub fn is_given(&self) -> bool {
        self.0.is_some()
    }

    /// Whether [`renew`](Self::renew) must run before the next connection is made.
    #[must_use]
    pub fn is_stale(&self, wall_ms: i64) -> bool {
        let Some(shared) = self.0.as_ref().filter(|shared| shared.fetch.is_some()) else { return false };
        let held = shared.held.lock().unwrap_or_else(PoisonError::into_inner);
        let expires_ms = held.as_ref().and_then(|token| token.expires_ms);
        expires_ms.is_none_or(|at| at.saturating_sub(EARLY_MS) <= wall_ms)
    }

    /// Gets a new token; blocks as long as its function does.
    pub fn renew(&self) -> Result<(), String> {
        let Some((shared, fetch)) = self.0.as_ref().and_then(|s| Some((s, s.fetch.as_ref()?))) else {
            return Ok(());
        };
        let token = fetch()?;
        *shared.held.lock().unwrap_or_else(PoisonError::into_inner) = Some(token);
        Ok(())
    }

    /// The token at hand.
    pub(crate) fn token(&self) -> Option<Token> {
        self.0.as_ref()?.held.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
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

    #[test]
    fn a_function_is_asked_again_when_its_token_is_about_to_end() {
        let calls = Arc::new(AtomicI64::new(0));
        let counted = calls.clone();
        let source = TokenSource::calling(move || {
            let n = counted.fetch_add(1, Ordering::Relaxed) + 1;
            Ok(Token { text: Secret::new(format!("t{n}")), expires_ms: Some(n * 100_000) })
        });
        assert!(source.is_given() && source.is_stale(0) && source.token().is_none());
        source.renew().unwrap();
        assert_eq!(source.token().unwrap().text.expose(), "t1");
        assert!(!source.is_stale(60_000) && source.is_stale(70_000));
        source.renew().unwrap();
        assert_eq!(source.clone().token().unwrap().text.expose(), "t2");
        assert!(!source.is_stale(100_000));
    }

    #[test]
    fn a_failed_renewal_keeps_what_there_is() {
        let fail = Arc::new(AtomicI64::new(0));
        let failing = fail.clone();
        let source = TokenSource::calling(move || match failing.load(Ordering::Relaxed) {
            0 => Ok(Token { text: Secret::new("t".to_owned()), expires_ms: None }),
            _ => Err("the issuer is down".to_owned()),
        });
        source.renew().unwrap();
        fail.store(1, Ordering::Relaxed);
        assert_eq!(source.renew(), Err("the issuer is down".to_owned()));
        assert!(source.is_stale(0) && source.token().is_some(), "without an end it is asked for each time");
    }

    #[test]
    fn a_fixed_token_is_never_stale() {
        let source = TokenSource::fixed(Secret::new("t".to_owned()));
        assert!(!source.is_stale(i64::MAX) && source.renew().is_ok() && source.is_given());
        assert!(!TokenSource::default().is_given());
    }
}
