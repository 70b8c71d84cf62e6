//! The broker's side of links, and clients that lie over them.

use std::ops::Range;
use std::sync::Arc;

use headrace_broker::{LinkAction, LinkId, Refusal};
use headrace_fabric::{Memory, MemoryError, MemorySource, Note};
use headrace_link::broker::LinkOwner;
use headrace_log::MemoryFile;
use headrace_wire::messages::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
use headrace_wire::messages::delete_topics_request::DeleteTopicState;
use headrace_wire::messages::metadata_request::MetadataRequestTopic;
use headrace_wire::messages::{DeleteRecordsRequest, DeleteTopicsRequest, MetadataRequest};
use headrace_wire::time::Now;
use headrace_wire::uuid::Uuid;

use super::{METADATA_VERSION, Server};
use crate::plan::{Place, TOPICS};
use crate::rng::Rng;

const DELETE_VERSION: i16 = 6;
const DELETE_RECORDS_VERSION: i16 = 2;
/// Links that the broker has ready are counted from here.
const FIRST_OFFERED: u64 = 1 << 40;

/// Where the broker gets what it exposes: from a machine that may have no memory left.
pub(super) struct SimMemory {
    pub(super) rng: Rng,
    /// How much is not to be had, in percent.
    pub(super) missing: u64,
}

impl MemorySource for SimMemory {
    fn sealed(&mut self, name: &str, len: usize) -> Result<Arc<Memory>, MemoryError> {
        if self.rng.chance(self.missing) { Err(MemoryError::Size(len)) } else { Memory::sealed(name, len) }
    }
}

impl Server {
    /// Where links are made, of this start of the broker.
    fn address(&self) -> String {
        format!("start {}", self.starts)
    }

    /// The broker has started: it can be linked to, and its epoch is the cluster's, a new one if it was not stopped.
    pub(super) fn begin_links(&mut self, clean: bool) {
        self.windows.clear();
        let address = self.address();
        if let Some(broker) = &mut self.broker {
            broker.set_link_address(address);
        }
        self.offer();
        if !clean {
            for place in self.cluster.led_by(Some(0)) {
                self.cluster.elect(place, Some(0));
            }
            self.cluster.learn(0);
        }
    }

    /// An end of a link over RDMA is ready for the next client.
    pub(crate) fn offer(&mut self) {
        self.offered += 1;
        let link = FIRST_OFFERED + self.offered;
        if let Some(broker) = &mut self.broker {
            broker.offer_link(Ok((LinkId(link), link.to_le_bytes().to_vec())));
        }
    }

    /// The two ends are connected, or cannot be; whether they are wanted still.
    pub(crate) fn joined(&mut self, now: Now, link: u64, made: Result<bool, String>) -> bool {
        self.broker.as_mut().is_some_and(|broker| broker.handle_joined(now, LinkId(link), made))
    }

    pub(crate) fn setting(&self, name: &str) -> Option<String> {
        self.config.get(name)
    }

    /// A topic's id; zero when there is no such topic.
    pub(crate) fn topic_id(&mut self, topic: usize, now: Now) -> Result<Uuid, String> {
        let name = Some(TOPICS[topic].to_owned());
        let topics = Some(vec![MetadataRequestTopic { name, ..MetadataRequestTopic::default() }]);
        let request = MetadataRequest { topics, allow_auto_topic_creation: false, ..Default::default() };
        let response = self.call(METADATA_VERSION, &request, now)?;
        Ok(response.topics.first().map_or(Uuid::ZERO, |topic| topic.topic_id))
    }

    /// A client comes to make a link; whether it may.
    pub(crate) fn link(&mut self, link: u64, address: &str, token: [u8; 16]) -> bool {
        let here = self.address() == address;
        self.broker.as_mut().is_some_and(|broker| here && broker.handle_link(LinkId(link), token))
    }

    pub(crate) fn unlink(&mut self, link: u64) {
        self.forget_windows(link);
        if let Some(broker) = &mut self.broker {
            broker.handle_unlinked(LinkId(link));
        }
    }

    /// Bytes of files that readers over RDMA may have registered.
    pub(crate) fn window_bytes(&self) -> u64 {
        self.windows.values().sum()
    }

    /// A link has lost a file.
    pub(crate) fn forget_window(&mut self, link: u64, key: u64) {
        self.windows.remove(&(link, key));
    }

    /// A link has lost all.
    pub(crate) fn forget_windows(&mut self, link: u64) {
        self.windows.retain(|(of, _), _| *of != link);
    }

    pub(crate) fn poll_link_action(&mut self) -> Option<LinkAction<MemoryFile>> {
        self.broker.as_mut()?.poll_link_action()
    }

    /// Deletes a partition's records before an offset. What they were is kept in mind.
    pub(crate) fn delete_records(&mut self, place: Place, offset: i64, now: Now) -> Result<(), String> {
        let values = self.values(place, now)?;
        let partitions = vec![DeleteRecordsPartition { partition_index: place.partition, offset }];
        let topics = vec![DeleteRecordsTopic { name: TOPICS[place.topic].to_owned(), partitions }];
        let request = DeleteRecordsRequest { topics, ..DeleteRecordsRequest::default() };
        let response = self.call(DELETE_RECORDS_VERSION, &request, now)?;
        let answer = response.topics.first().and_then(|topic| topic.partitions.first());
        if !answer.is_some_and(|answer| answer.error_code == 0 && answer.low_watermark == offset) {
            return Err(format!("{place:?}: records before {offset} cannot be deleted: {answer:?}"));
        }
        let before = usize::try_from(offset).unwrap_or(0);
        self.deleted.insert(place, values.into_iter().take(before).collect());
        Ok(())
    }

    pub(crate) fn delete_topic(&mut self, topic: usize, now: Now) -> Result<(), String> {
        let name = Some(TOPICS[topic].to_owned());
        let topics = vec![DeleteTopicState { name, ..DeleteTopicState::default() }];
        let request = DeleteTopicsRequest { topics, ..DeleteTopicsRequest::default() };
        let response = self.call(DELETE_VERSION, &request, now)?;
        match response.responses.first() {
            Some(answer) if answer.error_code == 0 => Ok(()),
            other => Err(format!("the topic cannot be deleted: {other:?}")),
        }
    }
}

impl LinkOwner for Server {
    fn written(&mut self, now: Now, link: LinkId, note: Note) {
        if let Some(broker) = &mut self.broker {
            broker.handle_note(now, link, note);
        }
    }

    fn window(&mut self, link: LinkId, key: u64, at: u64) -> Result<Range<u64>, Refusal> {
        let Some(broker) = &mut self.broker else { return Err(Refusal::Ended) };
        let part = broker.handle_window(link, key, at)?;
        self.windows.insert((link.0, key), part.end.saturating_sub(part.start));
        Ok(part)
    }

    fn not_exposed(&mut self, link: LinkId, key: u64) {
        if let Some(broker) = &mut self.broker {
            broker.handle_not_exposed(link, key);
        }
    }

    fn notified(&mut self, link: LinkId) {
        if let Some(broker) = &mut self.broker {
            broker.handle_nudged(link);
        }
    }
}
