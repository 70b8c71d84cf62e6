//! What it costs a broker to take a batch out of a ring, check it in memory of its own and write it to the log's file,
//! beside the paper's way: check it where its writer has put it, the log's own segment, which the writer can still
//! change. `in_place BATCHES` prints a JSON line for each way and size of batch.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a program that measures")]
#![allow(clippy::disallowed_methods, reason = "a bench reads the clock and its arguments")]
#![allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "figures are small")]

use std::io::{self, IoSlice};
use std::path::Path;
use std::time::Instant;

use headrace_fabric::{Memory, Region};
use headrace_log::{AppendOrigin, DirEntry, Disk, Log, LogConfig, OpenMode, Start};
use headrace_net::disk::{FileDisk, FileHandle};
use headrace_wire::compression::Codec;
use headrace_wire::records::{BatchBuilder, NO_HEADERS, ProducerStamp};
use headrace_wire::time::Now;

const NOW: Now = Now { mono_ms: 0, wall_ms: 1_700_000_000_000 };
const ORIGIN: AppendOrigin = AppendOrigin { leader_epoch: 0, client: true };
const VALUE: [u8; 100] = [b'x'; 100];

/// A disk where what is to be written lies already: all but the writing is done.
#[derive(Clone)]
struct Lies(FileDisk);

impl Disk for Lies {
    type File = FileHandle;
    type Lock = <FileDisk as Disk>::Lock;

    fn write_at(&self, _: &FileHandle, buffers: &[IoSlice<'_>], _: u64) -> io::Result<usize> {
        Ok(buffers.iter().map(|buffer| buffer.len()).sum())
    }
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.0.create_dir_all(path)
    }
    fn read_dir(&self, path: &Path) -> io::Result<Vec<DirEntry>> {
        self.0.read_dir(path)
    }
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<FileHandle> {
        self.0.open(path, mode)
    }
    fn len(&self, file: &FileHandle) -> io::Result<u64> {
        self.0.len(file)
    }
    fn read_at(&self, file: &FileHandle, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        self.0.read_at(file, buffer, position)
    }
    fn truncate(&self, file: &FileHandle, len: u64) -> io::Result<()> {
        self.0.truncate(file, len)
    }
    fn sync(&self, file: &FileHandle) -> io::Result<()> {
        self.0.sync(file)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.0.rename(from, to)
    }
    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.0.remove_file(path)
    }
    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        self.0.remove_dir_all(path)
    }
    fn lock(&self, path: &Path) -> io::Result<Option<Self::Lock>> {
        self.0.lock(path)
    }
}

fn median(mut us: Vec<f64>) -> f64 {
    us.sort_by(f64::total_cmp);
    us[us.len() / 2]
}

fn timed(act: impl FnOnce()) -> f64 {
    let since = Instant::now();
    act();
    since.elapsed().as_secs_f64() * 1e6
}

/// Both ways in turns.
fn compare(dir: &Path, bytes: usize, batches: usize) {
    let mut builder = BatchBuilder::new(bytes);
    while builder.append(NOW.wall_ms, None, Some(&VALUE), NO_HEADERS.iter().copied()).is_ok() {}
    let batch = builder.finish(ProducerStamp::NONE, Codec::None, None).unwrap().to_vec();
    let (mut checked, _) =
        Log::open(&FileDisk::durable(), &dir.join("checked"), LogConfig::default(), Start::default(), NOW)
            .unwrap();
    let lies = Lies(FileDisk::durable());
    let (mut placed, _) =
        Log::open(&lies, &dir.join("placed"), LogConfig::default(), Start::default(), NOW).unwrap();
    let ring = Region::whole(Memory::sealed("ring", 4 << 20).unwrap());
    let (mut copy, mut segment) = (vec![0; batch.len()], vec![0; 4 << 20]);
    let (mut out, mut in_place) = (Vec::with_capacity(batches), Vec::with_capacity(batches));
    for number in 0..batches {
        let at = (number * batch.len().next_multiple_of(64)) % ((4 << 20) - batch.len());
        // By its writer, who is not measured.
        ring.write(at, &batch).unwrap();
        let lies = &mut segment[at..at + batch.len()];
        lies.copy_from_slice(&batch);
        out.push(timed(|| {
            ring.read(at, &mut copy).unwrap();
            checked.append(NOW, &copy, ORIGIN).unwrap();
        }));
        in_place.push(timed(|| {
            placed.append(NOW, lies, ORIGIN).unwrap();
        }));
    }
    checked.delete().unwrap();
    placed.delete().unwrap();
    let kind = if bytes > 1024 { "64 KiB" } else { "one record" };
    for (way, us) in [("copied out", out), ("in place", in_place)] {
        println!("{{\"name\": \"{kind}, {way}\", \"p50_us\": {:.3}}}", median(us));
    }
}

fn main() {
    let Some(Ok(batches)) = std::env::args().nth(1).map(|word| word.parse::<usize>()) else {
        eprintln!("in_place BATCHES");
        std::process::exit(2);
    };
    let dir = std::env::temp_dir().join(format!("headrace-in-place-{}", std::process::id()));
    compare(&dir, 64 << 10, batches);
    compare(&dir, 176, batches);
    std::fs::remove_dir_all(dir).unwrap();
}
