//! The log against a model of it: a list of batches. Random appends, crashes, losses of power, full disks, deletions
//! and reads; after each step both must say the same.

use crate::common::*;
use headrace_log::{AppendError, Disk, FindingKind, Log, LogConfig, MemoryDisk, Recovery, Start, SyncFault};
use headrace_wire::compression::Codec;
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Step {
    /// A batch of so many records of so many bytes each, so many ms ago; of an idempotent producer if there is one.
    Append {
        count: usize,
        bytes: usize,
        ago: i64,
        codec: usize,
        producer: Option<usize>,
    },
    /// The same on a disk with room for so many bytes.
    AppendToFullDisk {
        room: u64,
        count: usize,
        bytes: usize,
    },
    Repeat {
        producer: usize,
        back: usize,
    },
    Reopen,
    Kill,
    /// Of each file's unsynced bytes such a part survives, in 256ths, followed by so many zeros.
    PowerLoss {
        keep: usize,
        zeros: usize,
    },
    /// So many bytes of garbage behind the last batch.
    Garbage {
        bytes: Vec<u8>,
    },
    Flush,
    /// A sync fails, and what is then appended and synced of one that was under way.
    FailedFlush,
    /// What a failed sync left in doubt is made good.
    MakeGood,
    DeleteBefore {
        percent: i64,
    },
    RetainSize,
    Read {
        percent: i64,
        max_bytes: u32,
        upper_percent: i64,
    },
    Find {
        ago: i64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let append = (1..6_usize, 0..370_usize, 0..5000_i64, 0..Codec::ALL.len(), prop::option::of(0..3_usize));
    let append = append.prop_map(|(count, bytes, ago, codec, producer)| Step::Append {
        count,
        bytes,
        ago,
        codec,
        producer,
    });
    prop_oneof![
        12 => append,
        1 => (0..800_u64, 1..4_usize, 0..300_usize)
            .prop_map(|(room, count, bytes)| Step::AppendToFullDisk { room, count, bytes }),
        2 => (0..3_usize, 0..7_usize).prop_map(|(producer, back)| Step::Repeat { producer, back }),
        1 => Just(Step::Reopen),
        1 => Just(Step::Kill),
        1 => (0..=256_usize, 0..100_usize).prop_map(|(keep, zeros)| Step::PowerLoss { keep, zeros }),
        1 => prop::collection::vec(any::<u8>(), 1..200).prop_map(|bytes| Step::Garbage { bytes }),
        1 => Just(Step::Flush),
        1 => Just(Step::FailedFlush),
        1 => Just(Step::MakeGood),
        1 => (0..=100_i64).prop_map(|percent| Step::DeleteBefore { percent }),
        1 => Just(Step::RetainSize),
        4 => (-5..=105_i64, 0..4000_u32, 0..=110_i64)
            .prop_map(|(percent, max_bytes, upper_percent)| Step::Read { percent, max_bytes, upper_percent }),
        2 => (-10..5010_i64).prop_map(|ago| Step::Find { ago }),
    ]
}

/// A batch that the log must have.
#[derive(Debug, Clone)]
struct Known {
    rows: Vec<Row>,
    bytes: Vec<u8>,
    /// Producer and first sequence.
    producer: Option<(i64, i32)>,
}

impl Known {
    fn next_offset(&self) -> i64 {
        self.rows.last().unwrap().offset + 1
    }
}

struct World {
    disk: MemoryDisk,
    log: Log<MemoryDisk>,
    batches: Vec<Known>,
    start: i64,
    written: u8,
    /// Offsets up to which records were lost, and are not given out again.
    lost_to: i64,
    /// The id that each of the three producers uses now.
    ids: [i64; 3],
    /// A sync has failed, and the file that says so to the next process is there.
    marked: bool,
}

fn config() -> LogConfig {
    LogConfig { retention_bytes: 6000, ..small() }
}

impl World {
    fn end(&self) -> i64 {
        self.batches.last().map_or(0, Known::next_offset).max(self.start).max(self.lost_to)
    }

    fn rows(&self) -> Vec<Row> {
        let all = self.batches.iter().flat_map(|batch| &batch.rows);
        all.filter(|row| row.offset >= self.start).cloned().collect()
    }

    fn next_sequence(&self, id: i64) -> i32 {
        let last = self.batches.iter().rev().find(|b| b.producer.is_some_and(|(known, _)| known == id));
        last.map_or(0, |b| b.producer.unwrap().1 + i32::try_from(b.rows.len()).unwrap())
    }

    fn append(&mut self, count: usize, bytes: usize, ago: i64, codec: Codec, producer: Option<i64>) {
        let producer = producer.map(|id| (id, self.next_sequence(id)));
        let records: Vec<_> = (0..count)
            .map(|n| {
                self.written = self.written.wrapping_add(1);
                let step = if n % 2 == 0 { 3 } else { -2 };
                (WALL_MS - ago + i64::try_from(n).unwrap() * step, vec![self.written; bytes])
            })
            .collect();
        let stamp = producer.map_or_else(Default::default, |(id, sequence)| stamp(id, 0, sequence));
        let batch = batch_of(&records, stamp, codec);
        let base = self.end();
        match self.log.append(at(0), &batch, CLIENT) {
            Err(AppendError::Offline) => assert!(self.log.is_offline()),
            Ok(appended) => {
                assert_eq!((appended.base_offset, appended.duplicate), (base, false));
                let row = |(n, (timestamp, value)): (usize, (i64, Vec<u8>))| Row {
                    offset: base + i64::try_from(n).unwrap(),
                    timestamp,
                    value,
                };
                let rows = records.into_iter().enumerate().map(row).collect();
                self.batches.push(Known { rows, bytes: batch, producer });
            }
            Err(AppendError::Disk(error)) => assert!(error.is_full(), "{error}"),
            Err(other) => panic!("{other}"),
        }
    }

    fn repeat(&mut self, id: i64, back: usize) {
        let of = self.batches.iter().rev().filter(|b| b.producer.is_some_and(|(known, _)| known == id));
        let Some(batch) = of.clone().nth(back).cloned() else { return };
        let result = self.log.append(at(0), &batch.bytes, CLIENT);
        if self.log.is_offline() {
            assert_eq!(result.unwrap_err().code(), 56);
        } else if back < 5 {
            let again = result.unwrap();
            assert_eq!((again.duplicate, again.base_offset), (true, batch.rows[0].offset));
        } else {
            assert_eq!(result.unwrap_err().code(), 45);
        }
    }

    fn open(&mut self, disk: MemoryDisk, clean: bool) -> Recovery {
        let start = Start {
            clean,
            recovery_point: self.log.recovery_point(),
            start_offset: self.log.start_offset(),
            ..Start::default()
        };
        let (log, recovery) = open(&disk, &config(), start);
        if clean {
            assert!(recovery.is_clean(), "{recovery:?}");
        }
        (self.disk, self.log) = (disk, log);
        self.marked &= !clean;
        if self.marked {
            self.log.distrust(at(0));
        }
        recovery
    }

    fn power_loss(&mut self, keep: usize, zeros: usize) {
        let durable = self.log.recovery_point();
        let disk = self.disk.after_power_loss(|_, synced, all| (all.len() - synced.len()) * keep / 256);
        for path in
            disk.file_paths().iter().filter(|p| p.extension().is_some_and(|e| e == "log")).rev().take(1)
        {
            let torn = [disk.contents(path).unwrap(), vec![0; zeros]].concat();
            disk.put(path, &torn);
        }
        // What reads show is what the disk has.
        self.marked = false;
        let findings = self.open(disk, false).findings;
        let end = self.log.end_offset();
        assert!(end >= durable, "{end} is less than was durable, {durable}");
        // What is gone was lost from the end, or reported as a hole.
        let there = read_all(&self.log, 700);
        let holes = findings.into_iter().filter(|found| found.kind == FindingKind::Hole);
        let holes: Vec<_> = holes.map(|found| found.start_offset..found.end_offset.unwrap()).collect();
        self.batches.retain(|batch| {
            let kept = batch.rows.iter().all(|row| row.offset < self.start || there.contains(row));
            let first = batch.rows[0].offset;
            assert!(
                kept || batch.next_offset() > end || holes.iter().any(|hole| hole.contains(&first)),
                "{first}: {holes:?}"
            );
            kept && batch.next_offset() <= end
        });
        self.lost_to = end;
        if !holes.is_empty() {
            // Batches before the start may be in them, and nobody can read those.
            self.ids.iter_mut().for_each(|id| *id += 3);
        }
        self.start = self.start.max(self.log.start_offset());
        if self.batches.is_empty() {
            self.start = end;
        }
        // Without a flush nothing promises that a producer is remembered whose batches were deleted.
        let first = self.log_files().remove(0).file_stem().unwrap().to_str().unwrap().parse().unwrap();
        for batch in self.batches.iter().filter(|batch| batch.rows[0].offset < first) {
            if let Some((id, _)) = batch.producer {
                self.ids.iter_mut().filter(|known| **known == id).for_each(|known| *known += 3);
            }
        }
    }

    fn log_files(&self) -> Vec<std::path::PathBuf> {
        self.disk.file_paths().into_iter().filter(|p| p.extension().is_some_and(|e| e == "log")).collect()
    }

    fn read(&self, percent: i64, max_bytes: u32, upper_percent: i64) {
        let span = self.end() - self.start;
        let offset = self.start + span * percent / 100 + if percent < 0 { -1 } else { 0 };
        let upper = self.start + span * upper_percent / 100;
        let result = self.log.read(offset, max_bytes, false, upper);
        if offset < self.start || offset > self.end() {
            result.unwrap_err();
            return;
        }
        let slice = result.unwrap();
        assert!(slice.len <= max_bytes);
        let rows = rows_of(&slice.file.bytes(slice.position, slice.len as usize));
        let Some(last) = rows.last() else { return };
        assert!(last.offset < upper && last.offset >= offset);
        let first = rows[0].offset;
        let batch = self.batches.iter().find(|b| b.next_offset() > offset).unwrap();
        assert_eq!(first, batch.rows[0].offset);
        let expected: Vec<_> = self.batches.iter().flat_map(|b| b.rows.clone()).collect();
        let from = expected.iter().position(|row| row.offset == first).unwrap();
        assert_eq!(rows, expected[from..][..rows.len()]);
    }

    fn check(&mut self) {
        let start = self.log.start_offset();
        if self.rows().first().is_none_or(|row| row.offset >= start) {
            // The log may begin behind offsets that were lost.
            self.start = self.start.max(start.min(self.end()));
        }
        assert_eq!((self.log.start_offset(), self.log.end_offset()), (self.start, self.end()));
        assert_eq!(read_all(&self.log, 700), self.rows());
        let largest = self.rows().into_iter().rev().max_by_key(|row| row.timestamp);
        let found = self.log.max_timestamp().unwrap();
        assert_eq!(found.map(|f| (f.offset, f.timestamp)), largest.map(|row| (row.offset, row.timestamp)));
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Append { count, bytes, ago, codec, producer } => {
                let producer = producer.map(|at| self.ids[at]);
                self.append(count, bytes, ago, Codec::ALL[codec], producer);
            }
            Step::AppendToFullDisk { room, count, bytes } => {
                self.disk.set_room(Some(room));
                self.append(count, bytes, 0, Codec::None, None);
                self.disk.set_room(None);
            }
            Step::Repeat { producer, back } => self.repeat(self.ids[producer], back),
            Step::Reopen => {
                self.log.close(at(0)).unwrap();
                drop(self.open(self.disk.after_power_loss(|_, _, _| 0), true));
            }
            Step::Kill => drop(self.open(self.disk.after_kill(), false)),
            Step::PowerLoss { keep, zeros } => self.power_loss(keep, zeros),
            Step::Garbage { bytes } => {
                let disk = self.disk.after_kill();
                let path = self.log_files().pop().unwrap();
                let tail = [disk.contents(&path).unwrap(), bytes].concat();
                disk.put(&path, &tail);
                drop(self.open(disk, false));
            }
            Step::FailedFlush => {
                let Some(first) = self.log.begin_flush().unwrap() else { return };
                self.append(1, 10, 0, Codec::None, None);
                let second = self.log.begin_flush().unwrap();
                self.disk.set_sync_fault(SyncFault::Fails);
                first.files.iter().for_each(|file| drop(self.disk.sync(file)));
                self.disk.set_sync_fault(SyncFault::None);
                assert!(!self.log.end_flush(at(0), &first, false));
                if let Some(second) = second {
                    second.files.iter().for_each(|file| self.disk.sync(file).unwrap());
                    assert!(
                        !self.log.end_flush(at(0), &second, true),
                        "the first has dropped what it was to write"
                    );
                }
                assert!(self.log.is_offline());
                self.marked = true;
            }
            Step::MakeGood => self.log.write_again().unwrap(),
            Step::Flush => {
                if let Some(work) = self.log.begin_flush().unwrap() {
                    work.files.iter().for_each(|file| self.disk.sync(file).unwrap());
                    assert!(self.log.end_flush(at(0), &work, true));
                    self.marked = false;
                }
                assert!(self.log.is_offline() || self.log.recovery_point() == self.end());
            }
            Step::DeleteBefore { percent } => {
                let offset = self.start + (self.end() - self.start) * percent / 100;
                delete_before(&mut self.log, offset);
                self.start = offset;
            }
            Step::RetainSize => {
                self.log.retire(at(0), i64::MAX).unwrap();
                let start = self.log.start_offset();
                assert!(start >= self.start);
                self.log.delete_some(usize::MAX).unwrap();
                assert_eq!(self.log.start_offset(), start);
                self.start = start;
            }
            Step::Read { percent, max_bytes, upper_percent } => self.read(percent, max_bytes, upper_percent),
            Step::Find { ago } => {
                let found = self.log.offset_for_timestamp(WALL_MS - ago).unwrap();
                let expected = self.rows().into_iter().find(|row| row.timestamp >= WALL_MS - ago);
                assert_eq!(found.map(|f| (f.offset, f.timestamp)), expected.map(|r| (r.offset, r.timestamp)));
            }
        }
    }
}

fn run(steps: Vec<Step>) {
    let (disk, log) = fresh(&config());
    let mut world = World {
        disk,
        log,
        batches: Vec::new(),
        start: 0,
        written: 0,
        lost_to: 0,
        ids: [0, 1, 2],
        marked: false,
    };
    for step in steps {
        world.run(step);
        world.check();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 2000, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn the_log_is_a_list_of_batches(steps in prop::collection::vec(step(), 1..80)) {
        run(steps);
    }
}

/// The snapshot of a killed process was written, and perhaps never synced: a producer whose batches were deleted must
/// not be lost with it, however the log was stopped then.
#[test]
fn a_snapshot_of_a_killed_process_becomes_durable() {
    let append = |bytes, producer| Step::Append { count: 2, bytes, ago: 0, codec: 0, producer };
    for end in [vec![Step::Reopen], vec![append(5, None), Step::Flush, Step::PowerLoss { keep: 0, zeros: 0 }]]
    {
        let mut steps =
            vec![append(300, None), append(300, Some(2)), append(300, None), Step::Kill, Step::Flush];
        steps.push(Step::DeleteBefore { percent: 90 });
        steps.extend(end);
        steps.push(Step::Repeat { producer: 2, back: 0 });
        run(steps);
    }
}
