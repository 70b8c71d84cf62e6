//! Links to brokers, one a broker.

use std::collections::{BTreeMap, VecDeque};

use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::{DirectConnectRequest, DirectConnectResponse};
use headrace_wire::time::Now;

use super::RETRY_MS;
use crate::core::{CallSpec, Lane, Target};
use crate::engine::{Action, LinkId};
use crate::error::{Error, Result};
use crate::options::Datapath;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The broker is asked for its address.
    Asking,
    /// The driver is making it.
    Connecting(LinkId),
    Up(LinkId),
    /// Not again before this time.
    Down(u64),
}

/// The links of one client.
#[derive(Debug)]
pub(crate) struct Links {
    datapath: Datapath,
    brokers: BTreeMap<i32, State>,
    next: u32,
    actions: VecDeque<Action>,
    /// Why there is no link and will be none, until it is told.
    refused: Option<Error>,
    /// It was told: once is enough.
    told: bool,
}

impl Links {
    pub(crate) fn new(datapath: Datapath) -> Self {
        let (brokers, actions) = (BTreeMap::new(), VecDeque::new());
        Self { datapath, brokers, next: 0, actions, refused: None, told: false }
    }

    /// Whether there are to be any.
    pub(crate) fn are_wanted(&self) -> bool {
        self.datapath != Datapath::Tcp
    }

    /// Whether it is an error that there is none.
    pub(crate) fn are_required(&self) -> bool {
        self.datapath == Datapath::Shm
    }

    /// The link to a broker, if it stands.
    pub(crate) fn to(&self, node: i32) -> Option<LinkId> {
        match self.brokers.get(&node) {
            Some(State::Up(link)) => Some(*link),
            _ => None,
        }
    }

    /// The request for a link to a broker, when it is to be made now.
    pub(crate) fn ask(
        &mut self,
        now: Now,
        node: i32,
        timeout_ms: u64,
    ) -> Option<(CallSpec, DirectConnectRequest)> {
        let due = match self.brokers.get(&node) {
            None => true,
            Some(State::Down(until)) => *until <= now.mono_ms,
            Some(_) => false,
        };
        if !due || !self.are_wanted() {
            return None;
        }
        self.brokers.insert(node, State::Asking);
        let spec = CallSpec::new(Target::Node(node), Lane::Direct, timeout_ms);
        Some((spec, DirectConnectRequest { fabric: "shm".to_owned() }))
    }

    /// What a broker has answered.
    pub(crate) fn answered(&mut self, now: Now, node: i32, result: Result<DirectConnectResponse>) {
        let refusal = match result {
            Ok(response) if response.error_code == 0 => {
                let link = LinkId(self.next);
                self.next += 1;
                self.brokers.insert(node, State::Connecting(link));
                let (address, token) = (response.address, response.token);
                self.actions.push_back(Action::Link { link, address, token });
                return;
            }
            Ok(response) => {
                Error::broker(response.error_code.into(), response.error_message.unwrap_or_default())
            }
            Err(error) => error,
        };
        if refusal.retriable() {
            self.down(now, node);
        } else {
            let why = match refusal.code() {
                Some(ErrorCode::UNSUPPORTED_VERSION) => {
                    format!("node {node} is no broker of headrace's, and shares no memory")
                }
                _ => refusal.to_string(),
            };
            self.refuse(node, why);
        }
    }

    /// A link stands: whose it is.
    pub(crate) fn linked(&mut self, link: LinkId) -> Option<i32> {
        let (node, state) = self.brokers.iter_mut().find(|(_, state)| **state == State::Connecting(link))?;
        *state = State::Up(link);
        Some(*node)
    }

    /// A link could not be made, or has ended: whose it was.
    pub(crate) fn unlinked(&mut self, now: Now, link: LinkId, why: String, lasting: bool) -> Option<i32> {
        let is = |state: &State| matches!(state, State::Connecting(at) | State::Up(at) if *at == link);
        let node = *self.brokers.iter().find(|(_, state)| is(state))?.0;
        if lasting {
            self.refuse(node, why);
        } else {
            self.down(now, node);
        }
        Some(node)
    }

    /// Ends a link whose broker says what cannot be.
    pub(crate) fn give_up(&mut self, now: Now, link: LinkId, why: String) {
        self.unlinked(now, link, why, false);
        self.actions.push_back(Action::Unlink { link });
    }

    fn down(&mut self, now: Now, node: i32) {
        self.brokers.insert(node, State::Down(now.mono_ms.saturating_add(RETRY_MS)));
    }

    fn refuse(&mut self, node: i32, why: String) {
        self.brokers.insert(node, State::Down(u64::MAX));
        if !self.told {
            self.told = true;
            self.refused = Some(Error::config("headrace.datapath", why));
        }
    }

    /// Why there is no link and will be none, once.
    pub(crate) fn take_refusal(&mut self) -> Option<Error> {
        self.refused.take()
    }

    pub(crate) fn act(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    pub(crate) fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When a broker may be asked again.
    pub(crate) fn poll_timeout(&self, now: Now) -> Option<u64> {
        let until = self.brokers.values().filter_map(|state| match state {
            State::Down(until) => Some(*until),
            _ => None,
        });
        until.filter(|until| *until > now.mono_ms && *until < u64::MAX).min()
    }
}
