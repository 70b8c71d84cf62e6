//! Queues of work, and of its completions.

#![expect(unsafe_code, reason = "calls of libibverbs")]

use std::ffi::c_int;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use super::device::{Atomics, Device, Domain};
use super::memory::{Grants, Piece, Place};
use super::sys::{self, QpAttr, RecvWr, SendWr, Sge, Wc};
use super::{Result, VerbsError, check, last};

/// Pieces of one operation, with the head of a message; a device may have room for fewer.
pub(super) const PIECES_MAX: usize = crate::PIECES_MAX + 1;
/// Completions that are taken in one call.
const TAKEN_AT_ONCE: usize = 16;
/// Numbers of queue pairs and packets have 24 bits.
const NUMBER_MAX: u32 = (1 << 24) - 1;
/// Routers between two peers.
const HOPS: u8 = 64;
/// About 0.6 ms: how long a peer waits that had nothing posted to receive into.
const NOT_READY: u8 = 12;

/// Why work has failed. The first failure ends a connection: what was posted after it comes back [`Failure::Flushed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The peer's card found no right to do it: a wrong key, out of bounds, or revoked.
    #[error("the peer grants no such access")]
    Access,
    /// The peer's card did not understand it.
    #[error("the peer refuses the request")]
    Request,
    /// The peer's card has failed.
    #[error("the peer's device has failed")]
    Peer,
    /// Nobody answers.
    #[error("the peer does not answer")]
    Silent,
    /// The peer has posted nothing to receive into.
    #[error("the peer has no room to receive")]
    NotReceiving,
    /// Other work has failed before.
    #[error("the connection has ended")]
    Flushed,
    /// A local piece is not registered any more.
    #[error("local memory is not registered any more")]
    Local,
    /// What libibverbs calls by this number.
    #[error("the device says status {0}")]
    Other(u32),
}

impl Failure {
    fn of(status: u32) -> Failure {
        match status {
            sys::WC_REM_ACCESS_ERR => Failure::Access,
            sys::WC_REM_INV_REQ_ERR => Failure::Request,
            sys::WC_REM_OP_ERR => Failure::Peer,
            sys::WC_RETRY_EXC_ERR => Failure::Silent,
            sys::WC_RNR_RETRY_EXC_ERR => Failure::NotReceiving,
            sys::WC_WR_FLUSH_ERR => Failure::Flushed,
            sys::WC_LOC_PROT_ERR => Failure::Local,
            other => Failure::Other(other),
        }
    }
}

/// What has been done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// What was posted with [`QueuePair::post`].
    Work,
    /// A message has come into what was posted to receive.
    Received {
        /// How many bytes.
        bytes: u32,
    },
    /// A peer's write has come, all of it. It took what was posted to receive, and wrote nothing there.
    Notified {
        /// The peer's word.
        word: u32,
        /// How many bytes it has written.
        bytes: u32,
    },
}

/// The end of something that was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// As it was posted.
    pub id: u64,
    /// Number of the queue pair.
    pub pair: u32,
    /// How it ended.
    pub done: Result<Done, Failure>,
}

impl Completion {
    fn of(raw: &Wc) -> Completion {
        let done = match (raw.status, raw.opcode) {
            (sys::WC_SUCCESS, sys::WC_RECV) => Ok(Done::Received { bytes: raw.byte_len }),
            (sys::WC_SUCCESS, sys::WC_RECV_RDMA_WITH_IMM) => {
                Ok(Done::Notified { word: u32::from_be(raw.imm_data), bytes: raw.byte_len })
            }
            (sys::WC_SUCCESS, _) => Ok(Done::Work),
            (status, _) => Err(Failure::of(status)),
        };
        Completion { id: raw.wr_id, pair: raw.qp_num, done }
    }
}

/// Where the completions of queue pairs come, and what to sleep on until they do.
pub struct Completions {
    raw: NonNull<sys::Cq>,
    channel: Channel,
    /// Entries that no queue pair may fill yet: one that runs over ends all of its queue pairs.
    room: AtomicU32,
}

// SAFETY: libibverbs may be called from any thread, and locks where it must.
unsafe impl Send for Completions {}
// SAFETY: as above.
unsafe impl Sync for Completions {}

impl fmt::Debug for Completions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completions").field("room", &self.room).finish_non_exhaustive()
    }
}

impl Completions {
    /// With room for so many; queue pairs take of it what they may have under way.
    ///
    /// # Errors
    /// [`VerbsError::TooMany`], [`VerbsError::System`].
    pub fn new(device: &Arc<Device>, room: u32) -> Result<Arc<Completions>> {
        let most = device.limits().completions;
        let entries = c_int::try_from(room).ok().filter(|_| room <= most);
        let too_many = || VerbsError::TooMany { what: "completions", asked: room.into(), room: most.into() };
        let entries = entries.ok_or_else(too_many)?;
        let channel = Channel::new(device)?;
        let (context, raw) = (device.context.as_ptr(), channel.raw.as_ptr());
        // SAFETY: the device is open and the channel is its; both are held as long as what is made here.
        let made = unsafe { (device.library.create_cq)(context, entries, std::ptr::null_mut(), raw, 0) };
        let raw = NonNull::new(made).ok_or_else(|| last("make a completion queue"))?;
        Ok(Arc::new(Completions { raw, channel, room: AtomicU32::new(room) }))
    }

    /// Takes up to `most` completions, and says how many.
    ///
    /// # Errors
    /// [`VerbsError::System`]: the device has failed.
    pub fn poll(&self, out: &mut Vec<Completion>, most: usize) -> Result<usize> {
        let mut taken: usize = 0;
        let mut found = [Wc::default(); TAKEN_AT_ONCE];
        while taken < most {
            let asked = most.saturating_sub(taken).min(TAKEN_AT_ONCE);
            let count = self.poll_some(&mut found, asked)?;
            let found = found.iter().take(count);
            out.extend(found.map(Completion::of));
            taken = taken.saturating_add(count);
            if count < asked {
                break;
            }
        }
        // What the card has written before a completion is seen after it.
        fence(Ordering::Acquire);
        Ok(taken)
    }

    fn poll_some(&self, into: &mut [Wc; TAKEN_AT_ONCE], most: usize) -> Result<usize> {
        let most = c_int::try_from(most.min(into.len())).unwrap_or(0);
        // SAFETY: whatever the device is, it is open as long as `self`.
        let poll = unsafe { self.channel.device.context.as_ref() }.ops.poll_cq;
        let poll = poll.ok_or_else(|| last("poll a completion queue"))?;
        // SAFETY: the queue is ours, and there is room for so many.
        let count = unsafe { poll(self.raw.as_ptr(), most, into.as_mut_ptr()) };
        usize::try_from(count).map_err(|_| last("poll a completion queue"))
    }

    /// Has the next completion wake whoever waits for the descriptor. Those that have come before do not: look once more
    /// before waiting.
    ///
    /// # Errors
    /// [`VerbsError::System`].
    pub fn arm(&self) -> Result<()> {
        // SAFETY: whatever the device is, it is open as long as `self`.
        let arm = unsafe { self.channel.device.context.as_ref() }.ops.req_notify_cq;
        let arm = arm.ok_or_else(|| last("arm a completion queue"))?;
        // SAFETY: the queue is ours.
        check("arm a completion queue", unsafe { arm(self.raw.as_ptr(), 0) })
    }

    /// Takes what has made the descriptor ready, so that it can be waited for once more.
    ///
    /// # Errors
    /// [`VerbsError::System`].
    pub fn awake(&self) -> Result<()> {
        loop {
            let (mut queue, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
            let channel = self.channel.raw.as_ptr();
            // SAFETY: the channel is ours; the call fills both.
            let answer = unsafe {
                (self.channel.device.library.get_cq_event)(channel, &raw mut queue, &raw mut context)
            };
            if answer != 0 {
                let reported = last("wait for completions");
                let VerbsError::System { source, .. } = &reported else { return Err(reported) };
                return match source.kind() {
                    std::io::ErrorKind::WouldBlock => Ok(()),
                    std::io::ErrorKind::Interrupted => continue,
                    _ => Err(reported),
                };
            }
            // Whoever destroys the queue would wait for this.
            // SAFETY: one event of this queue was taken; the channel has no other queue.
            unsafe { (self.channel.device.library.ack_cq_events)(queue, 1) };
        }
    }

    fn reserve(&self, asked: u32) -> Result<()> {
        let take = |room: u32| room.checked_sub(asked);
        let taken = self.room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        let too_many = |room: u32| VerbsError::TooMany {
            what: "completions of a queue pair",
            asked: asked.into(),
            room: room.into(),
        };
        taken.map(|_| ()).map_err(too_many)
    }
}

impl AsFd for Completions {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

impl Drop for Completions {
    fn drop(&mut self) {
        // SAFETY: its queue pairs hold it, so there are none; its events were acknowledged when they were taken.
        let _ = unsafe { (self.channel.device.library.destroy_cq)(self.raw.as_ptr()) };
    }
}

/// What tells of completions; dropped after its queue.
struct Channel {
    raw: NonNull<sys::CompChannel>,
    device: Arc<Device>,
}

impl Channel {
    fn new(device: &Arc<Device>) -> Result<Channel> {
        // SAFETY: the device is open, and held as long as the channel.
        let made = unsafe { (device.library.create_comp_channel)(device.context.as_ptr()) };
        let raw = NonNull::new(made).ok_or_else(|| last("make a completion channel"))?;
        let channel = Channel { raw, device: device.clone() };
        let flags = rustix::fs::fcntl_getfl(&channel)
            .and_then(|flags| rustix::fs::fcntl_setfl(&channel, flags | rustix::fs::OFlags::NONBLOCK));
        flags.map_err(|errno| VerbsError::System {
            action: "set up a completion channel",
            source: errno.into(),
        })?;
        Ok(channel)
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the library made it, and nobody changes it.
        let fd = unsafe { self.raw.as_ref() }.fd;
        // SAFETY: it is open until the channel is destroyed, and so as long as `self`.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: its completion queue is gone before it.
        let _ = unsafe { (self.device.library.destroy_comp_channel)(self.raw.as_ptr()) };
    }
}

/// What a queue pair has room for, and what its peer may do to registered memory at most.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Operations under way.
    pub work: u32,
    /// Messages and notifications that may come before more is posted.
    pub receives: u32,
    /// Pieces of one operation.
    pub pieces: u32,
    /// Beside what each registration grants.
    pub grants: Grants,
}

/// How long a peer may be silent.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// An answer is waited for `4.096 µs × 2^timeout`, and up to four times as long; 31 at most.
    pub timeout: u8,
    /// How often it is asked for again; 7 at most.
    pub retries: u8,
    /// The same where the peer has nothing posted to receive into; 7 means for ever.
    pub retries_not_ready: u8,
}

impl Default for Patience {
    /// About half a second up to two: more than a switch needs to find another way, less than an operator's patience.
    fn default() -> Patience {
        Patience { timeout: 14, retries: 7, retries_not_ready: 7 }
    }
}

/// What a peer is told, to connect to a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    gid: [u8; 16],
    number: u32,
    packet: u32,
    lid: u16,
    mtu: u8,
    answers: u8,
    /// Whether its device adds to words.
    pub(super) adds: bool,
}

impl Address {
    /// Bytes of one.
    pub const LEN: usize = 29;

    /// For a message: gid, number of the queue pair, of its first packet, lid, MTU, reads that it may answer at once,
    /// whether it adds; all in the order of the network.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let numbers = [self.number.to_be_bytes(), self.packet.to_be_bytes()];
        let [a, b] = self.lid.to_be_bytes();
        let rest = [a, b, self.mtu, self.answers, self.adds.into()];
        let all = self.gid.iter().chain(numbers.iter().flatten()).chain(&rest);
        let mut bytes = [0; Self::LEN];
        for (byte, value) in bytes.iter_mut().zip(all) {
            *byte = *value;
        }
        bytes
    }

    /// What a peer says.
    ///
    /// # Errors
    /// [`VerbsError::Peer`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Address> {
        let mut rest = bytes;
        let gid = *chunk(&mut rest)?;
        let number = u32::from_be_bytes(*chunk(&mut rest)?);
        let packet = u32::from_be_bytes(*chunk(&mut rest)?);
        let lid = u16::from_be_bytes(*chunk(&mut rest)?);
        let [mtu, answers, adds] = *chunk(&mut rest)?;
        if !rest.is_empty() {
            return Err(VerbsError::Peer("is of another length"));
        }
        if number > NUMBER_MAX || packet > NUMBER_MAX {
            return Err(VerbsError::Peer("has numbers of more than 24 bits"));
        }
        if !(sys::MTU_256..=sys::MTU_4096).contains(&mtu.into()) {
            return Err(VerbsError::Peer("has no MTU"));
        }
        Ok(Address { gid, number, packet, lid, mtu, answers, adds: adds != 0 })
    }
}

/// The next bytes.
fn chunk<'a, const N: usize>(rest: &mut &'a [u8]) -> Result<&'a [u8; N]> {
    let (found, after) = rest.split_first_chunk().ok_or(VerbsError::Peer("is of another length"))?;
    *rest = after;
    Ok(found)
}

/// A queue pair that is not connected yet: what is to receive may be posted already.
#[derive(Debug)]
pub struct Opening {
    pair: QueuePair,
    packet: u32,
}

impl Opening {
    /// A new one. `random` is where it begins to count its packets: packets of an earlier connection must not fit in.
    ///
    /// # Errors
    /// [`VerbsError::TooMany`], [`VerbsError::System`].
    pub fn new(
        domain: &Arc<Domain>,
        completions: &Arc<Completions>,
        shape: Shape,
        random: u32,
    ) -> Result<Opening> {
        let limits = domain.device.limits();
        let pieces_max = u32::try_from(PIECES_MAX).unwrap_or(0).min(limits.pieces);
        let asked = [
            ("pieces of an operation", shape.pieces, pieces_max),
            ("operations under way", shape.work, limits.work),
            ("messages to be received", shape.receives, limits.work),
        ];
        for (what, asked, room) in asked {
            if asked > room {
                return Err(VerbsError::TooMany { what, asked: asked.into(), room: room.into() });
            }
        }
        let pair = QueuePair::new(domain, completions, shape)?;
        pair.modify(
            "open a queue pair",
            sys::QP_STATE | sys::QP_PKEY_INDEX | sys::QP_PORT | sys::QP_ACCESS_FLAGS,
            QpAttr {
                qp_state: sys::QPS_INIT,
                port_num: domain.device.port,
                qp_access_flags: remote_access(shape.grants, domain.device.atomics()),
                ..QpAttr::default()
            },
        )?;
        Ok(Opening { pair, packet: random & NUMBER_MAX })
    }

    /// What the peer is told.
    #[must_use]
    pub fn address(&self) -> Address {
        let device = &self.pair.domain.device;
        Address {
            gid: device.gid,
            number: self.pair.number(),
            packet: self.packet,
            lid: device.lid,
            mtu: device.mtu,
            answers: device.limits().answers,
            adds: device.atomics() != Atomics::None,
        }
    }

    /// As [`QueuePair::receive`].
    ///
    /// # Errors
    /// The same.
    pub fn receive(&self, id: u64, into: Option<Piece<'_>>) -> Result<()> {
        self.pair.receive(id, into)
    }

    /// Connects it. What is posted before the peer has done the same is sent again until it has, or patience ends.
    ///
    /// # Errors
    /// [`VerbsError::System`]: the peer's address cannot be reached from here.
    pub fn connect(self, peer: &Address, patience: Patience) -> Result<QueuePair> {
        let device = &self.pair.domain.device;
        let limits = device.limits();
        self.pair.modify(
            "reach a peer",
            sys::QP_STATE
                | sys::QP_AV
                | sys::QP_PATH_MTU
                | sys::QP_DEST_QPN
                | sys::QP_RQ_PSN
                | sys::QP_MAX_DEST_RD_ATOMIC
                | sys::QP_MIN_RNR_TIMER,
            QpAttr {
                qp_state: sys::QPS_RTR,
                path_mtu: device.mtu.min(peer.mtu).into(),
                dest_qp_num: peer.number,
                rq_psn: peer.packet,
                max_dest_rd_atomic: limits.answers,
                min_rnr_timer: NOT_READY,
                ah_attr: self.pair.way_to(peer),
                ..QpAttr::default()
            },
        )?;
        self.pair.modify(
            "connect a queue pair",
            sys::QP_STATE
                | sys::QP_TIMEOUT
                | sys::QP_RETRY_CNT
                | sys::QP_RNR_RETRY
                | sys::QP_SQ_PSN
                | sys::QP_MAX_QP_RD_ATOMIC,
            QpAttr {
                qp_state: sys::QPS_RTS,
                sq_psn: self.packet,
                max_rd_atomic: limits.questions.min(peer.answers),
                timeout: patience.timeout,
                retry_cnt: patience.retries,
                rnr_retry: patience.retries_not_ready,
                ..QpAttr::default()
            },
        )?;
        Ok(self.pair)
    }
}

fn remote_access(grants: Grants, atomics: Atomics) -> u32 {
    let flags = [
        (grants.reads, sys::ACCESS_REMOTE_READ),
        (grants.writes, sys::ACCESS_REMOTE_WRITE),
        (grants.adds && atomics != Atomics::None, sys::ACCESS_REMOTE_ATOMIC),
    ];
    flags.iter().filter(|(set, _)| *set).fold(0, |all, (_, flag)| all | flag)
}

/// What is to be done.
#[derive(Clone, Copy, Debug)]
pub enum Work {
    /// The pieces are written there, in order.
    Write {
        /// Where.
        to: Place,
        /// With this word the peer is told when all bytes are there: [`Done::Notified`].
        notify: Option<u32>,
    },
    /// The pieces are filled from there.
    Read {
        /// Where.
        from: Place,
    },
    /// A word is added to, and what it was before comes into a piece of 8 bytes.
    FetchAdd {
        /// Where: aligned to 8 bytes.
        at: Place,
        /// What is added.
        add: u64,
    },
    /// The pieces come to the peer as a message: [`Done::Received`].
    Send,
}

/// A reliable connection: what is posted is done in order, and once.
///
/// Pieces may be dropped before their work is done: a card that finds them gone fails the work, and touches nothing.
#[derive(Debug)]
pub struct QueuePair {
    raw: Raw,
    domain: Arc<Domain>,
    completions: Arc<Completions>,
    shape: Shape,
}

#[derive(Debug)]
struct Raw(NonNull<sys::Qp>);

// SAFETY: libibverbs may be called from any thread, and locks where it must.
unsafe impl Send for Raw {}
// SAFETY: as above.
unsafe impl Sync for Raw {}

impl QueuePair {
    fn new(domain: &Arc<Domain>, completions: &Arc<Completions>, shape: Shape) -> Result<QueuePair> {
        let entries = shape.work.saturating_add(shape.receives);
        completions.reserve(entries)?;
        let mut wanted = sys::QpInitAttr {
            qp_context: std::ptr::null_mut(),
            send_cq: completions.raw.as_ptr(),
            recv_cq: completions.raw.as_ptr(),
            srq: std::ptr::null_mut(),
            cap: sys::QpCap {
                max_send_wr: shape.work,
                max_recv_wr: shape.receives,
                max_send_sge: shape.pieces,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            qp_type: sys::QPT_RC,
            // All work is completed: what is under way is always known.
            sq_sig_all: 1,
        };
        // SAFETY: domain and completion queue are of an open device, and held as long as the queue pair.
        let made = unsafe { (domain.device.library.create_qp)(domain.raw.as_ptr(), &raw mut wanted) };
        let Some(raw) = NonNull::new(made) else {
            let reported = last("make a queue pair");
            completions.room.fetch_add(entries, Ordering::Relaxed);
            return Err(reported);
        };
        Ok(QueuePair { raw: Raw(raw), domain: domain.clone(), completions: completions.clone(), shape })
    }

    /// The number that its completions have.
    #[must_use]
    pub fn number(&self) -> u32 {
        // SAFETY: the library made it, and nobody changes its number.
        unsafe { self.raw.0.as_ref() }.qp_num
    }

    /// Posts work: its completion has the same `id`. No more may be under way than the pair has room for.
    ///
    /// # Errors
    /// [`VerbsError::Bounds`], [`VerbsError::OtherDomain`], [`VerbsError::TooMany`]; [`VerbsError::System`] where the device
    /// refuses: its queue is full, or a word is not aligned.
    pub fn post(&self, id: u64, work: Work, pieces: &[Piece<'_>]) -> Result<()> {
        let filled = matches!(work, Work::Read { .. } | Work::FetchAdd { .. });
        let mut list = [Sge::default(); PIECES_MAX];
        let count = self.gather(&mut list, pieces, filled)?;
        let word = matches!(pieces, [piece] if piece.len() == size_of::<u64>());
        if matches!(work, Work::FetchAdd { .. }) && !word {
            return Err(VerbsError::NoWord);
        }
        let rdma =
            |place: Place| sys::Wr { rdma: sys::RdmaWr { remote_addr: place.address, rkey: place.key } };
        let nowhere = Place { address: 0, key: 0 };
        let (opcode, word, wr) = match work {
            Work::Write { to, notify: None } => (sys::WR_RDMA_WRITE, 0, rdma(to)),
            Work::Write { to, notify: Some(word) } => (sys::WR_RDMA_WRITE_WITH_IMM, word, rdma(to)),
            Work::Read { from } => (sys::WR_RDMA_READ, 0, rdma(from)),
            Work::Send => (sys::WR_SEND, 0, rdma(nowhere)),
            Work::FetchAdd { at, add } => {
                let atomic =
                    sys::AtomicWr { remote_addr: at.address, compare_add: add, swap: 0, rkey: at.key };
                (sys::WR_ATOMIC_FETCH_AND_ADD, 0, sys::Wr { atomic })
            }
        };
        let mut work = SendWr {
            wr_id: id,
            next: std::ptr::null_mut(),
            sg_list: list.as_mut_ptr(),
            num_sge: count,
            opcode,
            send_flags: sys::SEND_SIGNALED,
            imm_data: word.to_be(),
            wr,
            unused: [0; 7],
        };
        // SAFETY: whatever the device is, it is open as long as `self`.
        let post = unsafe { self.domain.device.context.as_ref() }.ops.post_send;
        let post = post.ok_or_else(|| last("post work"))?;
        let mut refused = std::ptr::null_mut();
        // What was written before is seen by the card.
        fence(Ordering::Release);
        // SAFETY: the queue pair is ours; work and list are copied by the call. The pieces are of memory that a
        // registration keeps mapped, and once that has ended the card does not find them.
        check("post work", unsafe { post(self.raw.0.as_ptr(), &raw mut work, &raw mut refused) })
    }

    /// Posts memory for a message of the peer's; without any it takes a notification, or a message of no bytes.
    ///
    /// # Errors
    /// As [`QueuePair::post`].
    pub fn receive(&self, id: u64, into: Option<Piece<'_>>) -> Result<()> {
        let mut list = [Sge::default(); PIECES_MAX];
        let count = self.gather(&mut list, into.as_slice(), true)?;
        let mut work =
            RecvWr { wr_id: id, next: std::ptr::null_mut(), sg_list: list.as_mut_ptr(), num_sge: count };
        // SAFETY: whatever the device is, it is open as long as `self`.
        let post = unsafe { self.domain.device.context.as_ref() }.ops.post_recv;
        let post = post.ok_or_else(|| last("post what is to receive"))?;
        let mut refused = std::ptr::null_mut();
        // SAFETY: as in `post`.
        let answer = unsafe { post(self.raw.0.as_ptr(), &raw mut work, &raw mut refused) };
        check("post what is to receive", answer)
    }

    /// Ends the connection: all that is posted comes back [`Failure::Flushed`], and the peer finds it silent.
    ///
    /// # Errors
    /// [`VerbsError::System`].
    pub fn end(&self) -> Result<()> {
        let ended = QpAttr { qp_state: sys::QPS_ERR, ..QpAttr::default() };
        self.modify("end a connection", sys::QP_STATE, ended)
    }

    fn gather(&self, list: &mut [Sge; PIECES_MAX], pieces: &[Piece<'_>], filled: bool) -> Result<c_int> {
        let room = usize::try_from(self.shape.pieces).unwrap_or(0).min(PIECES_MAX);
        let too_many = || VerbsError::TooMany {
            what: "pieces of an operation",
            asked: u64::try_from(pieces.len()).unwrap_or(u64::MAX),
            room: self.shape.pieces.into(),
        };
        let count =
            c_int::try_from(pieces.len()).ok().filter(|_| pieces.len() <= room).ok_or_else(too_many)?;
        for (entry, piece) in list.iter_mut().zip(pieces) {
            if !Arc::ptr_eq(&piece.of.domain, &self.domain) {
                return Err(VerbsError::OtherDomain);
            }
            *entry = piece.to_sge(filled)?;
        }
        Ok(count)
    }

    fn modify(&self, action: &'static str, mask: u32, mut to: QpAttr) -> Result<()> {
        let mask = c_int::try_from(mask).unwrap_or(0);
        // SAFETY: the queue pair is ours; the call reads the structure.
        let answer =
            unsafe { (self.domain.device.library.modify_qp)(self.raw.0.as_ptr(), &raw mut to, mask) };
        check(action, answer)
    }

    fn way_to(&self, peer: &Address) -> sys::AhAttr {
        let device = &self.domain.device;
        sys::AhAttr {
            grh: sys::GlobalRoute {
                dgid: sys::Gid { raw: peer.gid },
                sgid_index: device.gid_index,
                hop_limit: HOPS,
                ..sys::GlobalRoute::default()
            },
            dlid: peer.lid,
            is_global: 1,
            port_num: device.port,
            ..sys::AhAttr::default()
        }
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: nobody else has it; what it is made of goes after it.
        let _ = unsafe { (self.domain.device.library.destroy_qp)(self.raw.0.as_ptr()) };
        let entries = self.shape.work.saturating_add(self.shape.receives);
        self.completions.room.fetch_add(entries, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: Address = Address {
        gid: *b"0123456789abcdef",
        number: 0x12_3456,
        packet: 0x65_4321,
        lid: 7,
        mtu: 3,
        answers: 16,
        adds: true,
    };

    #[test]
    fn an_address_comes_back() {
        let bytes = ADDRESS.to_bytes();
        assert_eq!(&bytes[16..], [0, 0x12, 0x34, 0x56, 0, 0x65, 0x43, 0x21, 0, 7, 3, 16, 1]);
        assert_eq!(Address::from_bytes(&bytes).unwrap(), ADDRESS);
    }

    #[test]
    fn what_cannot_be_an_address_is_none() {
        let bytes = ADDRESS.to_bytes();
        let reported = |bytes: &[u8]| Address::from_bytes(bytes).unwrap_err().to_string();
        assert!(reported(&bytes[1..]).contains("another length"));
        for (at, value) in [(16, 1), (20, 1), (26, 0), (26, 6)] {
            let mut bad = bytes;
            bad[at] = value;
            assert!(reported(&bad).starts_with("a peer's RDMA address has"), "{}", reported(&bad));
        }
    }

    #[test]
    fn a_queue_pair_lets_its_peer_do_no_more_than_it_says() {
        let grants = Grants { reads: true, writes: false, adds: true };
        assert_eq!(
            remote_access(grants, Atomics::Device),
            sys::ACCESS_REMOTE_READ | sys::ACCESS_REMOTE_ATOMIC
        );
        assert_eq!(remote_access(grants, Atomics::None), sys::ACCESS_REMOTE_READ);
        assert_eq!(remote_access(Grants::default(), Atomics::Device), 0);
    }
}
