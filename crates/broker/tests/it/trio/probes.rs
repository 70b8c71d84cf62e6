//! What the chaos asks and sees of such brokers: requests that nobody waits for, who leads at a moment, and what the store has.

use super::*;
use headrace_cluster::model::PartitionValue;

/// The connection of one who looks in.
const PROBE: ConnId = ConnId(4);
/// Those of producers, each of which has one to each broker.
const PRODUCERS: u64 = 10;

impl Trio {
    /// A producer sends a batch to a broker, which may be paused; the correlation id.
    pub(crate) fn produce_as(
        &mut self,
        producer: usize,
        to: i32,
        acks: i16,
        topic: &str,
        value: &str,
    ) -> i32 {
        let conn = ConnId(PRODUCERS + producer as u64);
        let node = self.nodes.get_mut(&to).unwrap();
        if node.clients.insert(conn) {
            node.broker.handle_connect(node.clock.at(self.now), conn, "127.0.0.1:5010");
        }
        self.last_correlation += 1;
        let request = produce_request(acks, topic, 0, batch(self.now.wall_ms, &[value]));
        let request = ProduceRequest { timeout_ms: 10_000, ..request };
        let encoded = frame::encode_request(9, self.last_correlation, Some("test"), &request).unwrap();
        self.arrive(Travelling::Client(to, conn, encoded.to_bytes().unwrap().slice(4..)));
        self.settle();
        self.last_correlation
    }

    /// Who gives out records of partition 0 of a topic as its leader, at this moment: nothing happens between two answers.
    pub(crate) fn leading(&mut self, topic: &str) -> Vec<i32> {
        let request = fetch_request(&[(topic, 0, 0)]);
        let mut leading = Vec::new();
        for id in self.awake() {
            self.last_correlation += 1;
            let encoded = frame::encode_request(READS_LEADERS, self.last_correlation, Some("test"), &request);
            let bytes = encoded.unwrap().to_bytes().unwrap().slice(4..);
            let node = self.nodes.get_mut(&id).unwrap();
            let now = node.clock.at(self.now);
            node.broker.handle_connect(now, PROBE, "127.0.0.1:5004");
            node.broker.handle_frame(now, PROBE, bytes);
            let mut out = Vec::new();
            while let Some(response) = node.broker.poll_response() {
                out.push((response.conn, flatten(&response)));
            }
            node.broker.handle_disconnect(now, PROBE);
            for (conn, bytes) in out {
                if conn == PROBE {
                    let answer = frame::decode_response::<FetchRequest>(READS_LEADERS, bytes).unwrap().1;
                    leading.extend((error_of(&answer) == ErrorCode::NONE).then_some(id));
                } else {
                    self.route(id, conn, bytes);
                }
            }
        }
        leading
    }

    /// Partition 0 of a topic, as the store has it.
    pub(crate) fn stored(&self, topic: &str) -> PartitionValue {
        let value = |key: &str| {
            let pair = self.store.get(key).unwrap();
            model::decode(&pair.key, &pair.value).unwrap().1
        };
        let model::Value::Topic(found) = value(&format!("topics/{topic}")) else { panic!("{topic}") };
        let model::Value::Partition(found) = value(&format!("partitions/{}/0", found.id)) else {
            panic!("{topic}");
        };
        found
    }

    /// Who is in sync in it, and under which registration.
    pub(crate) fn in_sync(&self, topic: &str) -> BTreeMap<i32, i64> {
        self.stored(topic).isr.iter().map(|one| (one.0, one.1)).collect()
    }

    /// Under which broker epoch a broker is registered.
    pub(crate) fn registration(&self, id: i32) -> Option<i64> {
        self.store.get(&format!("nodes/{id}")).map(|pair| pair.created)
    }

    /// Has partition 0 of a topic these replicas, in this order, and the first of them lead.
    pub(crate) fn lead(&mut self, topic: &str, order: [i32; 3]) {
        self.ask_to_reassign(order[0], topic, Some(&order));
        self.ask_for_first(order[0]);
    }

    /// Where a broker's copy of partition 0 ends: how many records there are in its file.
    pub(crate) fn end(&self, id: i32, topic: &str) -> usize {
        decode(Some(&Bytes::from(self.bytes(id, topic, 0)).into())).len()
    }

    /// Whether a change that a broker has asked for is on its way to the store.
    pub(crate) fn is_asking(&self, id: i32) -> bool {
        let is_its = |one: &Travelling| match one {
            Travelling::Asked(from, _, _, request) => {
                *from == id && matches!(request, StoreRequest::Commit { .. })
            }
            _ => false,
        };
        self.travelling.values().any(is_its)
    }
}
