//! Share sessions: the model of brokers with share groups, and requests of it that wait.

use headrace_wire::messages::*;
use headrace_wire::uuid::Uuid;

use super::kafka::ScriptedKafka;
use super::share::{Late, Outcome};
use super::world::{Answer, Incoming};
use crate::io::ConnId;

impl ScriptedKafka {
    /// The answer, unless it waits under the token that the request was given.
    fn unless_waiting<R>(&mut self, i: &Incoming, outcome: Outcome<R>) -> Option<R> {
        match outcome {
            Outcome::Answer(response) => Some(response).filter(|_| !self.is_silent(i)),
            Outcome::Waits => {
                self.waiting.insert(self.last_token, i.clone());
                None
            }
        }
    }

    fn is_silent(&self, i: &Incoming) -> bool {
        self.silent.is_some_and(|node| i.node() == node)
    }

    fn token(&mut self) -> u64 {
        self.last_token += 1;
        self.last_token
    }

    pub(super) fn share_fetch(
        &mut self,
        i: &Incoming,
        request: &ShareFetchRequest,
    ) -> Option<ShareFetchResponse> {
        let token = self.token();
        let outcome = self.share.share_fetch(i.node(), i.conn.0.into(), token, request);
        self.unless_waiting(i, outcome)
    }

    pub(super) fn share_acknowledge(
        &mut self,
        i: &Incoming,
        request: &ShareAcknowledgeRequest,
    ) -> Option<ShareAcknowledgeResponse> {
        let response = self.share.share_acknowledge(i.node(), i.conn.0.into(), request);
        (!self.is_silent(i)).then_some(response)
    }

    pub(super) fn watch(&mut self, i: &Incoming, request: &FetchRequest) -> Option<FetchResponse> {
        let token = self.token();
        match self.share.watch(i.node(), i.conn.0.into(), token, request.clone()) {
            Outcome::Answer(response) => Some(response),
            waits @ Outcome::Waits => self.unless_waiting(i, waits),
        }
    }

    pub(super) fn ends(&mut self, request: &ListOffsetsRequest) -> ListOffsetsResponse {
        self.share.ends(&|_| Uuid([1; 16]), request)
    }

    /// Answers to requests that have waited.
    pub(super) fn late_answers(&mut self) -> Vec<(ConnId, Vec<u8>)> {
        let mut ready = Vec::new();
        for (_, token, late) in self.share.ready(self.now.mono_ms) {
            let i = self.waiting.remove(&token).unwrap();
            let answer = match late {
                Late::Share(_) if self.is_silent(&i) => continue,
                Late::Share(response) => self.finish::<ShareFetchRequest>(&i, response),
                Late::Watch(response) => self.finish::<FetchRequest>(&i, response),
            };
            if let Answer::Bytes(bytes) = answer {
                ready.push((i.conn, bytes));
            }
        }
        ready
    }
}
