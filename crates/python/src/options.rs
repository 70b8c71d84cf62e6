//! Options as Python gives them: texts, and the function among them.

use std::sync::mpsc::{Sender, channel};

use headrace_client::error::{Cause, Error};
use headrace_client::options::{CommonConfig, Secret};
use headrace_client::sasl::{Token, TokenFailure, TokenSource};
use pyo3::exceptions::PyBaseException;
use pyo3::prelude::*;

use crate::{errors, wait};

/// The function that gives tokens, by confluent-kafka's name.
const OAUTH_CB: &str = "oauth_cb";
/// What it is called with.
const OAUTH_CONFIG: &str = "sasl.oauthbearer.config";
/// Milliseconds in a second, for times from Python.
const MS: f64 = 1_000.0;

/// Name and value, as Python gives them.
pub(crate) type Given<'py> = Vec<(String, Bound<'py, PyAny>)>;

/// Has the log looked after, since a client or a broker is about to start: `headrace._logging` finds out what is wanted.
pub(crate) fn attend(py: Python<'_>) -> PyResult<()> {
    wait::counted(py, || py.import("headrace._logging")?.getattr("attend")?.call0().map(drop))
}

/// A client's options.
pub(crate) struct Options {
    pub(crate) pairs: Vec<(String, String)>,
    tokens: Option<TokenSource>,
}

impl Options {
    /// Tells the function from the texts. A client is about to start, and so its log.
    pub(crate) fn of(py: Python<'_>, given: Given<'_>) -> PyResult<Self> {
        attend(py)?;
        let mut pairs: Vec<(String, String)> = Vec::with_capacity(given.len());
        let mut callback = None;
        for (name, value) in given {
            if name == OAUTH_CB {
                callback = Some(value.unbind());
            } else {
                pairs.push((name, value.extract()?));
            }
        }
        let tokens = callback.map(|callback| {
            let config = pairs.iter().find(|(name, _)| name == OAUTH_CONFIG).map(|(_, value)| value.clone());
            let config = config.unwrap_or_default();
            TokenSource::calling(move || ask(&callback, &config))
        });
        Ok(Self { pairs, tokens })
    }

    /// Gives the function to a client of these options.
    pub(crate) fn complete(&self, py: Python<'_>, config: &mut CommonConfig) -> PyResult<()> {
        let Some(tokens) = &self.tokens else { return Ok(()) };
        config.take_tokens_from(OAUTH_CB, tokens.clone()).map_err(|e| errors::to_py(py, &e))
    }
}

/// Has the function called, and waits for what it gives without the GIL.
///
/// A thread of Python's own calls it (`headrace._oauth`): when the interpreter ends while the function runs, Python stops
/// that thread, and no frame of Rust is on its stack.
fn ask(callback: &Py<PyAny>, config: &str) -> Result<Token, TokenFailure> {
    let ending = || TokenFailure::from("the interpreter ends".to_owned());
    if wait::is_ending() {
        return Err(ending());
    }
    let (answer_to, answer) = channel();
    let started = Python::try_attach(|py| {
        let call = || {
            py.import("headrace._oauth")?.getattr("ask")?.call1((callback, config, TokenReply { answer_to }))
        };
        call().map(drop).map_err(|e| e.to_string())
    });
    match started {
        None => Err(ending()),
        Some(Err(why)) => Err(why.into()),
        Some(Ok(())) => {
            answer.recv().unwrap_or_else(|_| Err("oauth_cb ended without an answer".to_owned().into()))
        }
    }
}

/// Takes what the function gives.
#[pyclass(frozen, module = "headrace._native")]
pub(crate) struct TokenReply {
    answer_to: Sender<Result<Token, TokenFailure>>,
}

#[pymethods]
impl TokenReply {
    /// A token, when it ends (seconds since the Unix epoch), and its extensions.
    fn give(&self, token: String, expires: f64, extensions: Vec<(String, String)>) {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a float beyond the range becomes the nearest number"
        )]
        let expires_ms = Some((expires * MS) as i64);
        let extensions = extensions.into_iter().map(|(name, value)| (name, Secret::new(value))).collect();
        self.answer(Ok(Token { text: Secret::new(token), expires_ms, extensions }));
    }

    /// Why there is none, and the exception behind it.
    fn fail(&self, why: String, exception: Py<PyBaseException>) {
        self.answer(Err(TokenFailure { why, cause: Some(Cause::new(exception)) }));
    }
}

impl TokenReply {
    fn answer(&self, answer: Result<Token, TokenFailure>) {
        // Only whoever asked holds the other end, and it waits.
        let _ = self.answer_to.send(answer);
    }
}

/// The exception behind an error, if it is from Python.
pub(crate) fn exception_behind(error: &Error) -> Option<&Py<PyBaseException>> {
    match error {
        Error::Login { cause: Some(cause), .. } => cause.get(),
        _ => None,
    }
}
