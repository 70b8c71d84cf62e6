//! Pushing to followers: which partitions go to whom, and what of their logs.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use headrace_cluster::model::{NodeId, Registration};
use headrace_log::Disk;
use headrace_wire::direct::Pushed;
use headrace_wire::records::{BatchHeader, batch_size};

use super::action::{Lane, PeerAction, PeerConn, PushAction, PushEvent};
use super::pusher::{Fabric, Granted, Next, Pusher, Pushing, Wish};
use super::role::Role;
use crate::context::{Context, Fresh};
use crate::fetch::is_prefix;
use crate::store::{Place, read_range};

/// A write of up to so many bytes is made in one piece.
const FLAT_BYTES_MAX: usize = 4096;

/// All that this broker pushes, and what the driver is to do for it.
#[derive(Debug, Default)]
pub(crate) struct Pushes {
    pushers: BTreeMap<NodeId, Pusher>,
    links: VecDeque<PushAction>,
    connections: VecDeque<PeerAction>,
}

impl Pushes {
    pub(crate) fn poll_link(&mut self) -> Option<PushAction> {
        self.links.pop_front()
    }

    pub(super) fn poll_connection(&mut self) -> Option<PeerAction> {
        self.connections.pop_front()
    }

    /// When [`Self::handle_timeout`] has something to do.
    pub(super) fn deadline(&self) -> Option<u64> {
        self.pushers.values().filter_map(Pusher::due).min()
    }

    /// A follower has all of a partition that this broker leads.
    pub(crate) fn caught_up<D: Disk>(&mut self, context: &Context<D>, place: Place, follower: Registration) {
        let fabrics = Fabric::to_try(&context.config);
        if fabrics.is_empty() {
            return;
        }
        let known = self.pushers.get(&follower.0);
        if known.is_none_or(|known| known.follower != follower) {
            self.drop_follower(follower.0);
            let Some(at) = context.endpoint(follower.0) else { return };
            self.pushers.insert(follower.0, Pusher::new(follower, at, fabrics));
        }
        if let Some(pusher) = self.pushers.get_mut(&follower.0) {
            pusher.want(place);
        }
        self.attend(context, follower.0);
    }

    /// Copies that are pushed into.
    pub(crate) fn pushed(&self) -> u64 {
        self.pushers.values().map(Pusher::pushed).sum()
    }

    fn drop_follower(&mut self, node: NodeId) {
        if self.pushers.remove(&node).is_some() {
            self.close(node);
        }
    }

    fn close(&mut self, node: NodeId) {
        self.links.push_back(PushAction::Close { node });
        self.connections.push_back(PeerAction::Close { peer: PeerConn { node, lane: Lane::Push } });
    }

    /// Followers that are dead, or were registered anew, are pushed to no more.
    pub(super) fn retain(&mut self, is_alive: impl Fn(Registration) -> bool) {
        let gone = self.pushers.values().map(|pusher| pusher.follower).filter(|one| !is_alive(*one));
        for follower in gone.collect::<Vec<_>>() {
            self.drop_follower(follower.0);
        }
    }

    /// This broker leads a partition no longer, or in another epoch.
    pub(super) fn end(&mut self, place: Place) {
        for pusher in self.pushers.values_mut() {
            pusher.forget(place);
        }
    }

    pub(crate) fn note_appended(&mut self, place: Place) {
        for pusher in self.pushers.values_mut() {
            pusher.appended(place);
        }
    }

    pub(crate) fn note_committed(&mut self, place: Place, now_ms: u64) {
        for pusher in self.pushers.values_mut() {
            pusher.committed(place, now_ms);
        }
    }

    /// Pushes what there is to whoever has room. What is still in memory is not read again.
    pub(crate) fn push_all<D: Disk>(&mut self, context: &mut Context<D>) {
        for pusher in self.pushers.values_mut() {
            pusher.push(|place, copy, room| next_of(context, place, copy, room), &mut self.links);
        }
        context.fresh.clear();
        context.keeps_fresh = self.pushers.values().any(|pusher| pusher.pushed() > 0);
    }

    pub(super) fn handle_timeout<D: Disk>(&mut self, context: &Context<D>) {
        for node in self.pushers.keys().copied().collect::<Vec<_>>() {
            if let Some(pusher) = self.pushers.get_mut(&node) {
                pusher.handle_timeout(context.now.mono_ms);
            }
            self.attend(context, node);
        }
    }

    // ---- connections and links

    pub(super) fn connected<D: Disk>(&mut self, context: &Context<D>, node: NodeId) {
        if let Some(pusher) = self.pushers.get_mut(&node) {
            pusher.opened();
            self.attend(context, node);
        }
    }

    /// The connection to a follower has ended.
    pub(super) fn closed<D: Disk>(&mut self, context: &Context<D>, node: NodeId) {
        if let Some(pusher) = self.pushers.get_mut(&node) {
            pusher.closed(context.now.mono_ms);
            self.links.push_back(PushAction::Close { node });
        }
    }

    pub(super) fn answered<D: Disk>(&mut self, context: &Context<D>, node: NodeId, answer: Bytes) {
        let Some(pusher) = self.pushers.get_mut(&node) else { return };
        match pusher.answered(answer, context.now.mono_ms) {
            Ok((granted, action)) => {
                self.links.extend(action);
                for one in granted {
                    pusher.begin(one, agrees(context, one));
                }
            }
            Err(why) => self.fail(context, node, why),
        }
        self.attend(context, node);
    }

    pub(crate) fn handle<D: Disk>(&mut self, context: &mut Context<D>, node: NodeId, event: PushEvent) {
        let Some(pusher) = self.pushers.get_mut(&node) else { return };
        let failed = match event {
            PushEvent::EndpointReady(made) => pusher.made(made).err().map(Some),
            PushEvent::Linked => {
                if let Some(fabric) = pusher.linked() {
                    tracing::info!(target: headrace_wire::targets::BROKER, node, ?fabric, "a follower is pushed to");
                }
                None
            }
            PushEvent::Exposed { key, bytes } => {
                pusher.exposed(key, bytes);
                None
            }
            PushEvent::Revoked { .. } => Some(Some("it has taken its memory back".to_owned())),
            PushEvent::Closed { lasting: true, .. } => Some(None),
            PushEvent::Closed { why, .. } => Some(Some(why)),
            PushEvent::Note(note) => match pusher.acknowledged(note) {
                Ok(Some((place, epoch, end))) => {
                    let follower = pusher.follower;
                    return context.note_copied(follower, place, epoch, end);
                }
                Ok(None) => return,
                Err(why) => Some(Some(why)),
            },
        };
        if let Some(why) = failed {
            self.fail(context, node, why);
        }
        self.attend(context, node);
    }

    /// A follower is pushed to no more, for now or, without a reason, over no link of this kind.
    fn fail<D: Disk>(&mut self, context: &Context<D>, node: NodeId, why: Option<String>) {
        let Some(pusher) = self.pushers.get_mut(&node) else { return };
        match why {
            Some(why) => {
                tracing::debug!(target: headrace_wire::targets::BROKER, node, why, "a follower is not pushed to");
                pusher.closed(context.now.mono_ms);
            }
            None => pusher.give_up(context.now.mono_ms),
        }
        self.close(node);
    }

    /// Does what is to be done about the connection to a follower.
    fn attend<D: Disk>(&mut self, context: &Context<D>, node: NodeId) {
        let now_ms = context.now.mono_ms;
        let Some(epoch) = context.cluster.as_ref().and_then(|cluster| cluster.member.acts(now_ms)) else {
            return;
        };
        let own = Registration(context.config.node_id, epoch);
        let Some(pusher) = self.pushers.get_mut(&node) else { return };
        let look = |place: Place| leads(context, place).map(|(_, epoch)| epoch);
        let peer = PeerConn { node, lane: Lane::Push };
        while let Some(wish) = pusher.next(own, now_ms, look) {
            match wish {
                Wish::Connect(at) => {
                    self.connections.push_back(PeerAction::Connect { peer, host: at.host, port: at.port });
                }
                Wish::MakeEndpoint => self.links.push_back(PushAction::MakeEndpoint { node }),
                Wish::Send(frame) => self.connections.push_back(PeerAction::Send { peer, frame }),
                Wish::Close => {
                    self.links.push_back(PushAction::Close { node });
                    self.connections.push_back(PeerAction::Close { peer });
                }
            }
        }
    }
}

/// A partition that this broker leads, and in which epoch.
fn leads<D: Disk>(context: &Context<D>, place: Place) -> Option<(&crate::store::Partition<D>, i32)> {
    let topic = context.store.by_id(place.0)?;
    context.find_led(topic, place.1, -1).ok()
}

/// Whether what a copy has is how the leader's log begins.
fn agrees<D: Disk>(context: &Context<D>, granted: Granted) -> bool {
    let Some((partition, epoch)) = leads(context, granted.place) else { return false };
    let is_led = matches!(&partition.role, Role::Leader(_)) && epoch == granted.epoch;
    is_led && is_prefix(&partition.log, granted.end, granted.last_epoch, epoch)
}

/// What comes next for a copy, where the follower has room for so many bytes.
fn next_of<D: Disk>(context: &Context<D>, place: Place, copy: &Pushing, room: u64) -> Next {
    let Some((partition, epoch)) = leads(context, place) else { return Next::End };
    if epoch != copy.epoch {
        return Next::End;
    }
    let (log, high_watermark) = (&partition.log, partition.high_watermark());
    let header = Pushed { leader_epoch: epoch, high_watermark, log_start_offset: log.start_offset() };
    let most = usize::try_from(context.config.headrace_direct_replication_batch_bytes).unwrap_or(1);
    if let Some((batches, end)) = fresh_of(context, place, copy.next, most) {
        let len = batches.iter().map(|batch| batch.len()).sum::<usize>() + Pushed::LEN;
        if len as u64 > room {
            return Next::Full(len as u64);
        }
        return Next::Push { pieces: pieces_of(header, &batches, len), end, high_watermark };
    }
    // What was to come next is deleted, or cannot be read: that is for the follower's fetch to find out.
    let most = u32::try_from(most).unwrap_or(u32::MAX);
    let Ok(slice) = log.read(copy.next, most, true, log.readable_end()) else { return Next::End };
    if slice.len == 0 && !(copy.says && high_watermark > copy.said) {
        return Next::Nothing;
    }
    let len = u64::from(slice.len) + Pushed::LEN as u64;
    if len > room {
        return Next::Full(len);
    }
    let mut pieces = vec![Bytes::copy_from_slice(&header.to_bytes())];
    if slice.len > 0 {
        let (path, len) = (std::path::Path::new(""), slice.len as usize);
        let Ok(read) = read_range(&context.store.disk, &slice.file, path, slice.position, len) else {
            return Next::End;
        };
        pieces.push(read.into());
    }
    let Some(end) = end_of(pieces.get(1).map_or(&[], |read| read), copy.next) else { return Next::End };
    Next::Push { pieces, end, high_watermark }
}

/// The batches from an offset on that are still in memory: one, and as many more as `most` bytes have room for; and where they
/// end.
fn fresh_of<D: Disk>(
    context: &Context<D>,
    place: Place,
    from: i64,
    most: usize,
) -> Option<(Vec<&Fresh>, i64)> {
    let (mut batches, mut len, mut end) = (Vec::new(), 0, from);
    while let Some(batch) = context.fresh.get(&(place, end)) {
        len += batch.len();
        if !batches.is_empty() && len > most {
            break;
        }
        end = batch.end;
        batches.push(batch);
    }
    (!batches.is_empty()).then_some((batches, end))
}

/// A write of `len` bytes: in one piece where it is small, and without copying bodies where it is not.
fn pieces_of(header: Pushed, batches: &[&Fresh], len: usize) -> Vec<Bytes> {
    let mut head =
        Vec::with_capacity(if len <= FLAT_BYTES_MAX { len } else { Pushed::LEN + BatchHeader::LEN });
    head.extend_from_slice(&header.to_bytes());
    let mut pieces = Vec::new();
    for batch in batches {
        head.extend_from_slice(&batch.head);
        if len <= FLAT_BYTES_MAX {
            head.extend_from_slice(&batch.body);
        } else {
            pieces.extend([std::mem::take(&mut head).into(), batch.body.clone()]);
        }
    }
    if !head.is_empty() {
        pieces.push(head.into());
    }
    pieces
}

/// The offset after the last of these batches; `before` where there is none.
fn end_of(mut rest: &[u8], before: i64) -> Option<i64> {
    let mut end = before;
    while !rest.is_empty() {
        let (batch, after) = rest.split_at_checked(batch_size(rest)?.ok()?)?;
        end = BatchHeader::parse(batch).ok()?.last_offset() + 1;
        rest = after;
    }
    Some(end)
}
