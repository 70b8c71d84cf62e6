//! What goes wrong with requests, in their order.

use std::collections::VecDeque;

use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::ApiKey;

use super::spoil::Way;

/// What befalls one request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Fault {
    None,
    /// Nothing is done, and the answer says this of the whole, or of each part that has a code.
    Refuse(ErrorCode),
    /// It is done, and the answer says this all the same.
    DoThenSay(ErrorCode),
    /// The connection ends before anything is done.
    DropBefore,
    /// It is done, and the connection ends before the answer.
    DropAfter,
    /// It is done, and the answer carries the number of another request.
    Garble,
    /// It is done, and neither it nor any later request of the connection is answered.
    Mute,
    /// Nothing is done but what a good answer needs, and the answer is spoiled.
    Spoil(Way),
}

/// Faults to come, in queues: one for the requests of each set of kinds.
#[derive(Default)]
pub(crate) struct Faults(Vec<(Vec<ApiKey>, VecDeque<Fault>)>);

impl Faults {
    /// What befalls the next requests of these kinds.
    pub(crate) fn of(&mut self, keys: &[ApiKey]) -> &mut VecDeque<Fault> {
        let at = self.0.iter().position(|(of, _)| of == keys).unwrap_or_else(|| {
            self.0.push((keys.to_vec(), VecDeque::new()));
            self.0.len() - 1
        });
        &mut self.0[at].1
    }

    /// As `of(&[key]).push_back(fault)`.
    pub(crate) fn add(&mut self, key: ApiKey, fault: Fault) {
        self.of(&[key]).push_back(fault);
    }

    /// What befalls this request.
    pub(super) fn take(&mut self, key: ApiKey) -> Fault {
        let next = self.0.iter_mut().filter(|(keys, _)| keys.contains(&key)).find_map(|(_, q)| q.pop_front());
        next.unwrap_or(Fault::None)
    }
}
