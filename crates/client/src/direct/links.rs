//! Links to brokers, one a broker.

use std::collections::{BTreeMap, VecDeque};

use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::{DirectConnectRequest, DirectConnectResponse};
use headrace_wire::time::Now;

use super::{RETRY_MS, RETRY_REFUSED_MS};
use crate::core::{CallSpec, Lane, Target};
use crate::error::{Error, Result};
use crate::events::{ClientName, client_event};
use crate::io::{LinkId, LinkRequest, Output};
use crate::options::Datapath;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The driver makes an end of it.
    Beginning(LinkId),
    /// The broker is asked for its end; ours is made already, or will be with its address.
    Asking(Option<LinkId>),
    /// The driver is making it.
    Connecting(LinkId),
    Up(LinkId),
    /// Not again before this time.
    Down(u64),
    /// Not again before the broker ends its connection, as one does that is started anew.
    Refused,
}

/// What a link goes over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fabric {
    Shm,
    Verbs,
}

/// A broker, and the link to it.
#[derive(Debug)]
struct Node {
    fabric: Fabric,
    state: State,
    /// Why there is none over shared memory, and whether that lasts.
    without_shm: Option<(String, bool)>,
}

/// The links of one client.
#[derive(Debug)]
pub(crate) struct Links {
    datapath: Datapath,
    name: ClientName,
    brokers: BTreeMap<i32, Node>,
    next: u32,
    requests: VecDeque<(LinkId, LinkRequest)>,
    /// Why there is no link and will be none, until it is told.
    refused: Option<Error>,
    /// It was told: once is enough.
    reported: bool,
    /// Why this machine has no verbs.
    no_verbs: Option<String>,
}

impl Links {
    /// The links of the client of this name.
    pub(crate) fn new(datapath: Datapath, name: ClientName) -> Self {
        let (brokers, requests) = (BTreeMap::new(), VecDeque::new());
        Self { datapath, name, brokers, next: 0, requests, refused: None, reported: false, no_verbs: None }
    }

    /// Whether there are to be any.
    pub(crate) fn are_wanted(&self) -> bool {
        self.datapath.is_one_sided()
    }

    /// Whether it is an error that there is none.
    pub(crate) fn are_required(&self) -> bool {
        self.datapath.is_required()
    }

    /// The link to a broker, if it stands.
    pub(crate) fn to(&self, node: i32) -> Option<LinkId> {
        match self.brokers.get(&node)?.state {
            State::Up(link) => Some(link),
            _ => None,
        }
    }

    /// Whether a link is one over which memory is read and written by operations, and not seen.
    pub(crate) fn is_remote(&self, link: LinkId) -> bool {
        self.of(link).is_some_and(|(_, node)| node.fabric == Fabric::Verbs)
    }

    fn of(&self, link: LinkId) -> Option<(i32, &Node)> {
        let is = |node: &Node| match node.state {
            State::Beginning(at) | State::Asking(Some(at)) | State::Connecting(at) | State::Up(at) => {
                at == link
            }
            State::Asking(None) | State::Down(_) | State::Refused => false,
        };
        self.brokers.iter().find(|(_, node)| is(node)).map(|(number, node)| (*number, node))
    }

    fn set(&mut self, node: i32, state: State) {
        if let Some(node) = self.brokers.get_mut(&node) {
            node.state = state;
        }
    }

    fn new_link(&mut self) -> LinkId {
        let link = LinkId(self.next);
        self.next += 1;
        link
    }

    /// Begins a link to a broker, when one is to be made now: the request for it, if that comes first.
    pub(crate) fn ask(
        &mut self,
        now: Now,
        number: i32,
        timeout_ms: u64,
    ) -> Option<(CallSpec, DirectConnectRequest)> {
        let first = if self.datapath == Datapath::Verbs { Fabric::Verbs } else { Fabric::Shm };
        let new = Node { fabric: first, state: State::Down(0), without_shm: None };
        let node = self.brokers.entry(number).or_insert(new);
        let due = matches!(node.state, State::Down(until) if until <= now.mono_ms);
        if !due || !self.datapath.is_one_sided() {
            return None;
        }
        client_event!(DEBUG, LINK, self.name, broker = number, over = ?node.fabric, "asking for a link");
        if node.fabric == Fabric::Verbs {
            let link = self.new_link();
            self.set(number, State::Beginning(link));
            self.request(link, LinkRequest::MakeEndpoint);
            return None;
        }
        node.state = State::Asking(None);
        Some(request(number, timeout_ms, "shm", Vec::new()))
    }

    /// An end of a link over verbs is made, or cannot be: the request for the broker's.
    pub(crate) fn begun(
        &mut self,
        now: Now,
        link: LinkId,
        made: std::result::Result<Vec<u8>, String>,
        timeout_ms: u64,
    ) -> Option<(i32, CallSpec, DirectConnectRequest)> {
        let (number, _) = self.of(link)?;
        match made {
            Ok(hello) => {
                self.set(number, State::Asking(Some(link)));
                let (spec, request) = request(number, timeout_ms, "verbs", hello);
                Some((number, spec, request))
            }
            Err(why) => {
                self.no_verbs = Some(why.clone());
                self.fails(now, number, why, true);
                None
            }
        }
    }

    /// What a broker has answered.
    pub(crate) fn answered(&mut self, now: Now, number: i32, result: Result<DirectConnectResponse>) {
        let Some(&Node { state: State::Asking(begun), .. }) = self.brokers.get(&number) else { return };
        let refusal = match result {
            Ok(response) if response.error_code == 0 => {
                let link = begun.unwrap_or_else(|| self.new_link());
                self.set(number, State::Connecting(link));
                let (address, token) = (response.address, response.token);
                let request = match begun {
                    None => LinkRequest::Connect { address, token },
                    Some(_) => LinkRequest::Join(response.hello),
                };
                return self.request(link, request);
            }
            Ok(response) => {
                Error::broker(response.error_code.into(), response.error_message.unwrap_or_default())
            }
            Err(error) => error,
        };
        if let Some(link) = begun {
            self.request(link, LinkRequest::Close);
        }
        let why = match refusal.code() {
            Some(ErrorCode::UNSUPPORTED_VERSION) => {
                format!("node {number} is no broker of headrace's, and shares no memory")
            }
            _ => refusal.to_string(),
        };
        self.fails(now, number, why, !refusal.retriable());
    }

    /// A link stands: whose it is.
    pub(crate) fn linked(&mut self, link: LinkId) -> Option<i32> {
        let (number, node) = self.of(link)?;
        if node.state != State::Connecting(link) {
            return None;
        }
        client_event!(INFO, LINK, self.name, broker = number, over = ?node.fabric, link = link.0, "linked");
        self.set(number, State::Up(link));
        Some(number)
    }

    /// A link could not be made, or has ended: whose it was.
    pub(crate) fn unlinked(&mut self, now: Now, link: LinkId, why: String, lasting: bool) -> Option<i32> {
        let (number, node) = self.of(link)?;
        if matches!(node.state, State::Up(_)) && !lasting {
            client_event!(
                INFO,
                LINK,
                self.name,
                broker = number,
                link = link.0,
                error = why.as_str(),
                again_in_ms = RETRY_MS,
                "the link has ended"
            );
            self.down(now, number);
        } else {
            self.fails(now, number, why, lasting);
        }
        Some(number)
    }

    /// Ends a link whose broker says what cannot be.
    pub(crate) fn give_up(&mut self, now: Now, link: LinkId, why: String) {
        self.unlinked(now, link, why, false);
        self.request(link, LinkRequest::Close);
    }

    /// The links that stand.
    pub(crate) fn standing(&self) -> Vec<LinkId> {
        self.brokers.keys().filter_map(|node| self.to(*node)).collect()
    }

    /// Ends links, and asks for none for a while: the brokers that this is about.
    pub(crate) fn hold_off(&mut self, now: Now) -> Vec<i32> {
        let until = now.mono_ms.saturating_add(RETRY_REFUSED_MS);
        let mut held = Vec::new();
        for (number, node) in &mut self.brokers {
            match node.state {
                State::Up(link) => self.requests.push_back((link, LinkRequest::Close)),
                State::Down(before) if before < until => {}
                // What is on its way is given up when it lacks something itself.
                _ => continue,
            }
            node.state = State::Down(until);
            held.push(*number);
        }
        held
    }

    /// A broker's connection for links has ended: the link over verbs that ends with it, which is not seen otherwise. Where
    /// the peer has ended it, a broker that has refused may have been started with other options.
    pub(crate) fn connection_ended(&mut self, now: Now, number: i32, by_peer: bool) -> Option<LinkId> {
        let node = self.brokers.get_mut(&number)?;
        match node.state {
            State::Connecting(link) | State::Up(link) if node.fabric == Fabric::Verbs => return Some(link),
            State::Refused if by_peer => self.down(now, number),
            _ => (),
        }
        None
    }

    /// There is no link over this fabric. There may be one over the other.
    fn fails(&mut self, now: Now, number: i32, why: String, lasting: bool) {
        let auto = self.datapath == Datapath::Auto;
        let no_verbs = self.no_verbs.is_some();
        let Some(node) = self.brokers.get_mut(&number) else { return };
        client_event!(
            DEBUG,
            LINK,
            self.name,
            broker = number,
            over = ?node.fabric,
            error = why.as_str(),
            lasting,
            "no link"
        );
        let before = node.without_shm.take();
        if auto && node.fabric == Fabric::Shm && !no_verbs {
            node.without_shm = Some((why, lasting));
            node.fabric = Fabric::Verbs;
            node.state = State::Down(now.mono_ms);
            return;
        }
        let (why, lasting) = before.map_or((why.clone(), lasting), |(shm, lasts)| (shm, lasting && lasts));
        if lasting {
            self.refuse(number, why);
        } else {
            self.down(now, number);
        }
    }

    fn down(&mut self, now: Now, number: i32) {
        let auto = self.datapath == Datapath::Auto;
        if let Some(node) = self.brokers.get_mut(&number) {
            node.state = State::Down(now.mono_ms.saturating_add(RETRY_MS));
            if auto {
                node.fabric = Fabric::Shm;
            }
        }
    }

    fn refuse(&mut self, number: i32, why: String) {
        client_event!(
            INFO,
            LINK,
            self.name,
            broker = number,
            error = why.as_str(),
            "no link, and none is asked for before the broker ends its connection"
        );
        self.set(number, State::Refused);
        if !self.reported {
            self.reported = true;
            self.refused = Some(Error::config("headrace.datapath", why));
        }
    }

    /// Why there is no link and will be none, once.
    pub(crate) fn take_refusal(&mut self) -> Option<Error> {
        self.refused.take()
    }

    /// Something to be done about a link, or over it.
    pub(crate) fn request(&mut self, link: LinkId, request: LinkRequest) {
        self.requests.push_back((link, request));
    }

    /// The next thing that the driver is to do about a link.
    pub(crate) fn poll_request<E>(&mut self) -> Option<Output<E>> {
        self.requests.pop_front().map(|(link, request)| Output::Link(link, request))
    }

    /// When a broker may be asked again.
    pub(crate) fn poll_timeout(&self, now: Now) -> Option<u64> {
        let until = self.brokers.values().filter_map(|node| match node.state {
            State::Down(until) => Some(until),
            _ => None,
        });
        until.filter(|until| *until > now.mono_ms).min()
    }
}

fn request(node: i32, timeout_ms: u64, fabric: &str, hello: Vec<u8>) -> (CallSpec, DirectConnectRequest) {
    let spec = CallSpec::new(Target::Node(node), Lane::Direct, timeout_ms);
    (spec, DirectConnectRequest { fabric: fabric.to_owned(), hello: hello.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: i32 = 1;

    fn at(mono_ms: u64) -> Now {
        Now { mono_ms, wall_ms: 0 }
    }

    fn links_of(datapath: Datapath) -> Links {
        Links::new(datapath, ClientName { kind: "consumer", id: "links".to_owned() })
    }

    fn asks(links: &mut Links, now: Now) -> Option<String> {
        links.ask(now, NODE, 100).map(|(_, request)| request.fabric)
    }

    fn refuses(links: &mut Links, now: Now, code: ErrorCode, why: &str) {
        let (error_code, error_message) = (code.code(), Some(why.to_owned()));
        let answer = DirectConnectResponse { error_code, error_message, ..DirectConnectResponse::default() };
        links.answered(now, NODE, Ok(answer));
    }

    /// The end of a link over verbs that is to be made now.
    fn begins(links: &mut Links, now: Now) -> LinkId {
        assert_eq!(asks(links, now), None, "its end is made first");
        match links.requests.pop_front() {
            Some((link, LinkRequest::MakeEndpoint)) => link,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn auto_takes_rdma_where_there_is_no_shared_memory_and_looks_for_that_again() {
        let mut links = links_of(Datapath::Auto);
        assert_eq!(asks(&mut links, at(0)).as_deref(), Some("shm"));
        refuses(&mut links, at(0), ErrorCode::INVALID_CONFIG, "another host");
        let link = begins(&mut links, at(0));
        let (number, _, request) = links.begun(at(0), link, Ok(vec![7]), 100).unwrap();
        assert_eq!((number, request.fabric.as_str(), &request.hello[..]), (NODE, "verbs", &[7][..]));
        let answer = DirectConnectResponse { hello: vec![8].into(), ..DirectConnectResponse::default() };
        links.answered(at(0), NODE, Ok(answer));
        let request = links.requests.pop_front();
        let Some((of, LinkRequest::Join(hello))) = request else { panic!("{request:?}") };
        assert_eq!((of, &hello[..]), (link, &[8][..]));
        assert_eq!((links.to(NODE), links.connection_ended(at(0), NODE, true)), (None, Some(link)));
        assert_eq!(links.linked(link), Some(NODE));
        assert!(links.to(NODE) == Some(link) && links.is_remote(link));
        assert_eq!(links.unlinked(at(5), link, "gone".to_owned(), false), Some(NODE));
        assert!(asks(&mut links, at(4 + RETRY_MS)).is_none() && links.requests.is_empty());
        assert_eq!(asks(&mut links, at(5 + RETRY_MS)).as_deref(), Some("shm"));
        assert!(links.take_refusal().is_none());
    }

    #[test]
    fn who_was_refused_asks_again_when_the_broker_has_ended_its_connection() {
        let mut links = links_of(Datapath::Shm);
        assert!(asks(&mut links, at(0)).is_some());
        refuses(&mut links, at(0), ErrorCode::INVALID_CONFIG, "headrace.direct is false");
        assert!(links.take_refusal().is_some());
        assert_eq!(links.connection_ended(at(5), NODE, false), None, "we have closed it, as it was idle");
        assert!(asks(&mut links, at(1 << 40)).is_none());
        assert_eq!(links.connection_ended(at(5), NODE, true), None);
        assert!(asks(&mut links, at(4 + RETRY_MS)).is_none());
        assert_eq!(links.poll_timeout(at(5)), Some(5 + RETRY_MS));
        assert!(asks(&mut links, at(5 + RETRY_MS)).is_some());
        refuses(&mut links, at(5 + RETRY_MS), ErrorCode::INVALID_CONFIG, "headrace.direct is false");
        assert!(links.take_refusal().is_none(), "said once");
    }

    #[test]
    fn auto_tells_why_there_is_no_shared_memory_when_there_is_no_rdma_either() {
        let mut links = links_of(Datapath::Auto);
        assert!(asks(&mut links, at(0)).is_some());
        refuses(&mut links, at(0), ErrorCode::INVALID_CONFIG, "another host");
        let link = begins(&mut links, at(0));
        assert!(links.begun(at(0), link, Err("no card".to_owned()), 100).is_none());
        let refusal = links.take_refusal().unwrap().to_string();
        assert!(refusal.contains("another host") && !refusal.contains("no card"), "{refusal}");
        assert!(asks(&mut links, at(1 << 40)).is_none() && links.requests.is_empty(), "never again");
        assert!(links.take_refusal().is_none(), "once");
        // Of another broker it is known that there is no card, and shared memory that is short now is asked for again.
        assert!(links.ask(at(0), 2, 100).is_some());
        let error_code = ErrorCode::THROTTLING_QUOTA_EXCEEDED.code();
        let full = DirectConnectResponse { error_code, ..DirectConnectResponse::default() };
        links.answered(at(0), 2, Ok(full));
        assert!(links.ask(at(0), 2, 100).is_none() && links.requests.is_empty());
        assert_eq!(links.poll_timeout(at(0)), Some(RETRY_MS));
        assert_eq!(links.ask(at(RETRY_MS), 2, 100).unwrap().1.fabric, "shm");
    }

    #[test]
    fn who_lacks_descriptors_gives_links_up_and_asks_for_none_for_a_while() {
        let mut links = links_of(Datapath::Shm);
        assert!(asks(&mut links, at(0)).is_some());
        assert!(links.hold_off(at(0)).is_empty(), "one that is on its way");
        links.answered(at(0), NODE, Ok(DirectConnectResponse::default()));
        let request = links.requests.pop_front();
        let Some((link, LinkRequest::Connect { .. })) = request else { panic!("{request:?}") };
        assert!(links.hold_off(at(0)).is_empty());
        assert_eq!(links.linked(link), Some(NODE));
        assert_eq!((links.standing(), links.hold_off(at(5))), (vec![link], vec![NODE]));
        assert!(matches!(links.requests.pop_front(), Some((of, LinkRequest::Close)) if of == link));
        assert!(links.standing().is_empty() && links.take_refusal().is_none());
        assert!(asks(&mut links, at(4 + RETRY_REFUSED_MS)).is_none());
        assert_eq!(links.poll_timeout(at(5)), Some(5 + RETRY_REFUSED_MS));
        assert!(asks(&mut links, at(5 + RETRY_REFUSED_MS)).is_some());
        // One that could not be made for want of them would be tried a second later else.
        links.answered(at(0), NODE, Ok(DirectConnectResponse::default()));
        let Some((link, LinkRequest::Connect { .. })) = links.requests.pop_front() else { panic!("no link") };
        links.unlinked(at(10), link, "no descriptors".to_owned(), false);
        assert_eq!(links.hold_off(at(10)), [NODE]);
        assert_eq!(links.poll_timeout(at(10)), Some(10 + RETRY_REFUSED_MS));
    }

    #[test]
    fn an_end_of_ours_is_given_up_when_the_broker_has_none() {
        let mut links = links_of(Datapath::Verbs);
        let link = begins(&mut links, at(0));
        links.begun(at(0), link, Ok(vec![7]), 100).unwrap();
        refuses(&mut links, at(0), ErrorCode::THROTTLING_QUOTA_EXCEEDED, "ask again");
        assert!(matches!(links.requests.pop_front(), Some((of, LinkRequest::Close)) if of == link));
        assert!(asks(&mut links, at(0)).is_none() && links.take_refusal().is_none());
        let again = begins(&mut links, at(RETRY_MS));
        assert_ne!(again, link);
    }
}
