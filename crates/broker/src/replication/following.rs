//! What a follower does with an answer: cuts off where its log and the leader's part, and appends what the leader has.

use headrace_cluster::model::NodeId;
use headrace_log::{AppendError, Disk, LogError};
use headrace_wire::direct::Pushed;
use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::fetch_response::PartitionData;
use headrace_wire::primitive::Records;
use headrace_wire::records::BatchHeader;
use headrace_wire::time::Now;

use super::fetcher::Fetched;
use super::role::Role;
use crate::context::{Change, Context};
use crate::store::{Partition, Place};

/// Why a copy cannot be kept up.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Append(#[from] AppendError),
    #[error(transparent)]
    Log(#[from] LogError),
    #[error("what is to be cut off could not be noted first")]
    Unnoted,
    #[error("the leader answers {0}")]
    Refused(ErrorCode),
}

impl<D: Disk> Context<D> {
    /// Has no start miss what is about to be cut off: noted once for all that are. Whether it was.
    pub(super) fn prepare_cuts(&mut self, fetched: &[Fetched]) -> bool {
        let mut cuts = false;
        for Fetched { place, data, .. } in fetched {
            let Some(partition) = self.store.partition_mut(*place) else { continue };
            let from = match cut_of(partition, data) {
                Some(Cut::At(offset)) => offset,
                Some(Cut::All(_)) => 0,
                None => continue,
            };
            partition.log.doubt_from(from);
            cuts = true;
        }
        if !cuts {
            return true;
        }
        // The file may say more than the log does, which has perhaps been opened since.
        let noted = self.store.checkpoint();
        noted.map_err(|error| self.store.note_trouble(&error)).is_ok()
    }

    /// Takes over what a leader has answered.
    ///
    /// # Errors
    /// Nothing was; why, if that is worth a word. It is to be asked again in a while.
    pub(super) fn take_over(&mut self, fetched: &Fetched, may_cut: bool) -> Result<(), Option<String>> {
        let Fetched { place, asked, data } = fetched;
        let now = self.now;
        let Some(partition) = self.store.partition_mut(*place) else { return Err(None) };
        // It may have been elected meanwhile, or somebody else.
        let is_asked = matches!(&partition.role, Role::Follower(following)
            if following.epoch == asked.epoch && !following.is_pushed);
        if !is_asked || partition.log.end_offset() != asked.end {
            return Ok(());
        }
        let before = partition.log.end_offset();
        let taken = take(partition, now, data, may_cut);
        let (due, end) = (partition.log.flush_due(), partition.log.end_offset());
        self.flushes.note(*place, due);
        let copied = data.records.as_ref().map_or(0, Records::len);
        self.counts.replication_bytes_in += if end > before { copied as u64 } else { 0 };
        if end < before {
            let topic = self.store.by_id(place.0).map(|topic| topic.name.clone()).unwrap_or_default();
            tracing::info!(
                target: headrace_wire::targets::BROKER,
                topic = &*topic,
                partition = place.1,
                from = end,
                to = before,
                "records cut off that the leader does not have"
            );
        }
        match taken {
            Ok(readable) => {
                self.note_readable(*place, readable);
                Ok(())
            }
            Err(Failure::Refused(error)) if is_passing(error) => Err(None),
            Err(failure) => {
                let topic = self.store.by_id(place.0).map(|topic| topic.name.clone()).unwrap_or_default();
                Err(Some(format!("the copy of {topic}-{}: {failure}", place.1)))
            }
        }
    }
}

impl<D: Disk> Context<D> {
    /// Consumers that wait for a copy may have so many bytes more now.
    fn note_readable(&mut self, place: Place, readable: Option<u64>) {
        if let Some(bytes) = readable
            && self.store.partition_mut(place).is_some_and(|partition| !partition.watchers.is_empty())
        {
            self.changes.push_back(Change::CopyCommitted { place, bytes });
        }
    }

    /// Takes over what a leader has pushed: where the copy ends then.
    ///
    /// # Errors
    /// Nothing was. Whether something is wrong with the copy, the fetch says that follows.
    pub(crate) fn take_pushed(
        &mut self,
        place: Place,
        leader: NodeId,
        pushed: &[u8],
    ) -> Result<i64, ErrorCode> {
        let (header, records) = Pushed::split(pushed).ok_or(ErrorCode::CORRUPT_MESSAGE)?;
        let now = self.now;
        let partition = self.store.partition_mut(place).ok_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)?;
        let Role::Follower(following) = &partition.role else {
            return Err(ErrorCode::NOT_LEADER_OR_FOLLOWER);
        };
        if !following.is_pushed || following.leader != Some(leader) {
            return Err(ErrorCode::NOT_LEADER_OR_FOLLOWER);
        }
        if following.epoch != header.leader_epoch {
            return Err(ErrorCode::FENCED_LEADER_EPOCH);
        }
        let log = &mut partition.log;
        if !records.is_empty() {
            let size = log
                .append_copy(now, header.leader_epoch, records)
                .map_err(|error| ErrorCode::new(error.code()));
            let due = log.flush_due();
            self.flushes.note(place, due);
            size?;
            self.counts.replication_bytes_in += records.len() as u64;
        }
        let said = (header.high_watermark, header.log_start_offset);
        let readable = partition.take_marks(said, records.len() as u64);
        let end = partition.log.end_offset();
        self.note_readable(place, readable.map_err(|_| ErrorCode::KAFKA_STORAGE_ERROR)?);
        Ok(end)
    }
}

impl<D: Disk> Partition<D> {
    /// Moves a copy's high watermark and the start of its log to what the leader says of its own. Bytes that can be read now
    /// and could not be before, as [`Following::take_marks`](super::role::Following::take_marks) has them.
    fn take_marks(&mut self, said: (i64, i64), appended: u64) -> Result<Option<u64>, LogError> {
        let (_, start) = said;
        let end = self.log.end_offset();
        if start > self.log.start_offset() && start <= end {
            self.log.move_start(start)?;
        }
        let Role::Follower(following) = &mut self.role else { return Ok(None) };
        Ok(following.take_marks(said, end, appended))
    }
}

/// Whether an error says no more than that the leader has another view of the cluster at the moment.
fn is_passing(error: ErrorCode) -> bool {
    matches!(
        error,
        ErrorCode::NOT_LEADER_OR_FOLLOWER
            | ErrorCode::FENCED_LEADER_EPOCH
            | ErrorCode::UNKNOWN_LEADER_EPOCH
            | ErrorCode::UNKNOWN_TOPIC_ID
            | ErrorCode::UNKNOWN_TOPIC_OR_PARTITION
    )
}

/// What is to be cut off.
enum Cut {
    /// Everything from this offset on.
    At(i64),
    /// All: the log begins anew at this offset.
    All(i64),
}

/// What an answer says that is to be cut off.
fn cut_of<D: Disk>(partition: &Partition<D>, data: &PartitionData) -> Option<Cut> {
    let log = &partition.log;
    let (error, diverging) = (ErrorCode::new(data.error_code), &data.diverging_epoch);
    // The leader has deleted what this copy would go on with.
    if error == ErrorCode::OFFSET_OUT_OF_RANGE && data.log_start_offset > log.end_offset() {
        return Some(Cut::All(data.log_start_offset));
    }
    let latest = log.latest_epoch().unwrap_or(-1);
    if let (ErrorCode::OFFSET_OUT_OF_RANGE, Role::Follower(following)) = (error, &partition.role)
        && latest > following.epoch
    {
        // The leader knows nothing of epochs that are later than its own.
        let own = log.offset_for_epoch(following.epoch, latest);
        return Some(Cut::At(own.map_or(log.start_offset(), |own| own.end_offset)));
    }
    if error != ErrorCode::NONE || (diverging.epoch < 0 && diverging.end_offset < 0) {
        return None;
    }
    // Where the own log left that epoch, if it did so earlier than the leader's.
    let own = log.offset_for_epoch(diverging.epoch, latest);
    let own = own.map_or(log.start_offset(), |own| own.end_offset);
    Some(Cut::At(own.min(diverging.end_offset)))
}

/// What [`Partition::take_marks`] says.
fn take<D: Disk>(
    partition: &mut Partition<D>,
    now: Now,
    data: &PartitionData,
    may_cut: bool,
) -> Result<Option<u64>, Failure> {
    let cut = cut_of(partition, data);
    let Role::Follower(following) = &mut partition.role else {
        return Err(Failure::Refused(ErrorCode::NOT_LEADER_OR_FOLLOWER));
    };
    let epoch = following.epoch;
    let log = &mut partition.log;
    if let Some(cut) = cut {
        if !may_cut {
            return Err(Failure::Unnoted);
        }
        let done = match cut {
            Cut::All(offset) => log.restart_at(now, offset),
            Cut::At(offset) => log.truncate(now, offset),
        };
        // Logs may part still earlier: what the leader has committed says nothing yet of what is left here. A cut that has
        // failed may be done in part.
        following.cut(log.end_offset());
        return Ok(done.map(|()| None)?);
    }
    let error = ErrorCode::new(data.error_code);
    if error != ErrorCode::NONE {
        return Err(Failure::Refused(error));
    }
    let mut appended = 0;
    if let Some(records) = data.records.as_ref().and_then(Records::to_bytes).filter(|r| !r.is_empty()) {
        // The leader's start may lie within a batch, which is copied whole.
        let first = BatchHeader::parse(&records).ok().map(|header| header.base_offset);
        if let Some(first) = first.filter(|first| log.is_empty() && (0..log.end_offset()).contains(first)) {
            log.restart_at(now, first)?;
        }
        log.append_copy(now, epoch, &records)?;
        appended = records.len() as u64;
    }
    Ok(partition.take_marks((data.high_watermark, data.log_start_offset), appended)?)
}
