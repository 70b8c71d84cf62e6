//! Over memory that both sides see.

use std::collections::VecDeque;
use std::os::fd::AsFd;

use headrace_broker::{LinkAction, LinkId};
use headrace_fabric::shm::LinkError;
use headrace_fabric::{MappedLink, Note, NotesError, Rights};
use headrace_wire::time::Now;

use super::{LinkOwner, LogFile};

/// Notes that wait for room in a client's ring, before it counts as dead.
const UNSENT_MAX: usize = 1 << 16;
/// Answers and changes after which a client that is parked is notified, though there is more to take; when there is not, one
/// will do. To notify costs as much as a small batch, and who is notified of the last of five answers has nothing under way
/// meanwhile.
const OWED_MAX: usize = 2;

#[derive(Debug)]
pub(super) struct MappedEnd<M> {
    pub(super) link: M,
    /// Notes that the client's ring had no room for.
    unsent: VecDeque<Note>,
    /// What it was told since it was last seen to that it is not parked. 0 whenever the thread may sleep itself.
    owed: usize,
}

impl<M: MappedLink> MappedEnd<M> {
    pub(super) fn new(link: M) -> Self {
        Self { link, unsent: VecDeque::new(), owed: 0 }
    }

    #[inline]
    pub(super) fn poll(
        &mut self,
        now: Now,
        id: LinkId,
        owner: &mut impl LinkOwner,
    ) -> Result<bool, LinkError> {
        let note = self.link.take()?;
        if let Some(note) = note {
            owner.written(now, id, note);
        }
        if !self.unsent.is_empty() {
            self.send()?;
        }
        Ok(note.is_some())
    }

    #[inline]
    pub(super) fn act<F: LogFile>(
        &mut self,
        id: LinkId,
        action: LinkAction<F>,
        owner: &mut impl LinkOwner,
    ) -> Result<(), LinkError> {
        match action {
            LinkAction::Tell { note, .. } => {
                self.unsent.push_back(note);
                self.send()
            }
            LinkAction::Nudge { .. } => {
                owner.notified(id);
                self.owe(OWED_MAX);
                Ok(())
            }
            LinkAction::Lend { key, memory, .. } => self.link.expose(key, &memory, Rights::Write),
            LinkAction::Show { key, memory, .. } => self.link.expose(key, &memory, Rights::Read),
            LinkAction::ShowFile { key, file, bytes, .. } => {
                let system = |source| LinkError::System { action: "open a segment for readers", source };
                let opened = file.open_read_only().map_err(system)?;
                let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
                self.link.expose_file(key, opened.as_fd(), bytes)
            }
            LinkAction::End { key, .. } => self.link.revoke(key),
            LinkAction::Close { .. } => Err(LinkError::Gone),
            LinkAction::Join { .. } | LinkAction::Carry { .. } => Err(LinkError::Misuse("is made once")),
        }
    }

    fn send(&mut self) -> Result<(), LinkError> {
        while let Some(note) = self.unsent.front() {
            match self.link.post(*note) {
                Ok(()) => {
                    self.unsent.pop_front();
                    let more = self.link.has_notes()?;
                    self.owe(if more { OWED_MAX } else { 1 });
                }
                Err(NotesError::Full) if self.unsent.len() < UNSENT_MAX => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Notifies the client if it is parked, once it was told enough.
    fn owe(&mut self, most: usize) {
        self.owed += 1;
        if self.owed >= most {
            self.notify_owed();
        }
    }

    #[inline]
    pub(super) fn notify_owed(&mut self) {
        if std::mem::take(&mut self.owed) > 0 {
            self.link.notify_if_parked();
        }
    }
}
