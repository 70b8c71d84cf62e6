//! What every fabric does alike, as cases that two sides run together: the same suite for shared memory and RDMA, in one
//! process or two.
//!
//! Each side calls [`run`] with its [`Role`], a way to make connections of its fabric, and a stream to the other side: a
//! socket, over which descriptors and turns go, as grants go over TCP. A case that fails on one side is given up by both.

mod cases;
mod side;

use std::fmt;
use std::io::{self, Read, Write};
use std::sync::Arc;

pub use self::side::Channel;
use self::side::{Side, Turn};
use crate::endpoint::{FabricError, Waitable};
use crate::memory::{Memory, MemoryError};
use crate::region::OutOfBounds;

/// Which of the two sides this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The one that mostly begins operations.
    First,
    /// The one whose memory is mostly reached.
    Second,
}

/// Why a case failed.
#[derive(Clone, Debug)]
pub struct Failure(pub String);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failure {}

macro_rules! failures {
    ($($error:ty),*) => {
        $(impl From<$error> for Failure {
            fn from(error: $error) -> Failure {
                Failure(error.to_string())
            }
        })*
    };
}
failures!(FabricError, MemoryError, OutOfBounds, io::Error, super::shm::LinkError);

/// How one side comes to connections and memory.
pub trait Connector {
    /// One end of a fresh connection; the other side makes the other end at this moment. What the two need for it goes over the
    /// channel.
    ///
    /// # Errors
    /// [`Failure`].
    fn connect(&mut self, role: Role, channel: &mut Channel<'_>) -> Result<Box<dyn Waitable>, Failure>;

    /// Memory to register.
    ///
    /// # Errors
    /// [`Failure`].
    fn memory(&mut self, len: usize) -> Result<Arc<Memory>, Failure> {
        Ok(Memory::sealed("headrace-conformance", len)?)
    }
}

/// What came of one case.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What is shown by it.
    pub case: &'static str,
    /// Whether it was.
    pub result: Result<(), Failure>,
}

/// A stream to the other side.
pub trait Stream: Read + Write {}

impl<S: Read + Write> Stream for S {}

/// Runs all cases with the other side.
///
/// # Errors
/// [`Failure`] where the other side is lost; what came of the cases is told for each.
pub fn run(
    role: Role,
    connector: &mut dyn Connector,
    stream: &mut dyn Stream,
) -> Result<Vec<Outcome>, Failure> {
    let mut channel = Channel::new(stream);
    let mut outcomes = Vec::new();
    for (case, first, second) in cases::CASES {
        let turn: Turn = if role == Role::First { *first } else { *second };
        let mut side = Side::new(role, connector, &mut channel);
        let result = side.connect().and_then(|()| turn(&mut side));
        drop(side);
        outcomes.push(Outcome { case, result: channel.end(result)? });
    }
    Ok(outcomes)
}
