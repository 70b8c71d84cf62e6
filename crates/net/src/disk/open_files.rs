//! Files that are open only while they are used: a log has three for each segment, and a process may have few descriptors.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};

use headrace_log::{EntryKind, OpenMode};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors that a process asks for at most: enough for 300,000 segments.
const DESCRIPTORS_MAX: u64 = 1 << 20;
/// Files that may be open at once however few descriptors there are.
const FILES_MIN: usize = 8;

/// Raises the process's soft limit of descriptors to its hard one, as the JVM does.
pub(crate) fn raise_descriptor_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let Some(current) = current else { return };
    let mut wanted = maximum.unwrap_or(DESCRIPTORS_MAX).min(DESCRIPTORS_MAX);
    // macOS allows fewer than its hard limit says. One that cannot be raised is lived with.
    while current < wanted && setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum }).is_err()
    {
        wanted /= 2;
    }
}

/// The files of a disk, of which the least recently used are closed when there are too many.
#[derive(Debug)]
pub(super) struct OpenFiles {
    max: usize,
    count: AtomicUsize,
    /// Files that answers hold until they are sent, and which nothing can close before.
    shared: Arc<AtomicUsize>,
    /// Those that are open, and some that are not any more; what was used comes behind what was not, by and by.
    list: Mutex<VecDeque<Weak<Shared>>>,
    /// Files are synced before they are closed with unsynced bytes.
    syncs: bool,
}

/// One file, open or not.
#[derive(Debug)]
pub(super) struct Shared {
    path: PathBuf,
    mode: OpenMode,
    files: Arc<OpenFiles>,
    open: Mutex<Option<Arc<File>>>,
    /// Since it was last looked at for closing.
    used: AtomicBool,
    /// Changes made, and how many of them a sync has covered. Once it is closed nobody learns whether the system could
    /// write them.
    changes: AtomicU64,
    synced: AtomicU64,
    /// A sync before it was closed has failed, which the next sync says.
    failed: AtomicBool,
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl OpenFiles {
    /// Half of the process's descriptors at most are for files, the other half is for connections.
    pub(super) fn new(syncs: bool) -> Self {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(DESCRIPTORS_MAX).min(DESCRIPTORS_MAX);
        let max = usize::try_from(limit / 2).unwrap_or(usize::MAX).max(FILES_MIN);
        Self { max, count: AtomicUsize::new(0), shared: Arc::default(), list: Mutex::default(), syncs }
    }

    /// Opens a file, which stays open while it is used.
    pub(super) fn open(self: &Arc<Self>, path: &Path, mode: OpenMode) -> io::Result<Arc<Shared>> {
        let file = Arc::new(self.try_open(path, mode)?);
        let shared = Arc::new(Shared {
            path: path.to_owned(),
            mode,
            files: self.clone(),
            open: Mutex::new(Some(file)),
            used: AtomicBool::new(true),
            changes: AtomicU64::new(0),
            synced: AtomicU64::new(0),
            failed: AtomicBool::new(false),
        });
        self.add(&shared);
        Ok(shared)
    }

    fn try_open(&self, path: &Path, mode: OpenMode) -> io::Result<File> {
        let mut options = File::options();
        let kind = if mode == OpenMode::Directory { EntryKind::Directory } else { EntryKind::File };
        match mode {
            OpenMode::Read | OpenMode::Directory => options.read(true),
            OpenMode::Write => options.read(true).write(true),
            OpenMode::Create => options.read(true).write(true).create(true),
            OpenMode::Truncate => options.read(true).write(true).create(true).truncate(true),
        };
        loop {
            match open_kind(&options, path, kind) {
                Err(e) if is_out_of_descriptors(&e) && self.close_one() => {}
                opened => return opened,
            }
        }
    }

    fn add(&self, shared: &Arc<Shared>) {
        held(&self.list).push_back(Arc::downgrade(shared));
        self.count.fetch_add(1, Ordering::Relaxed);
        while self.count.load(Ordering::Relaxed) > self.max && self.close_one() {}
    }

    /// Closes the file that was not used for longest, rather one without unsynced bytes. `false`: none can be.
    fn close_one(&self) -> bool {
        let mut list = held(&self.list);
        let mut dirty = None;
        for _ in 0..2 * list.len() {
            let Some(shared) = list.pop_front().and_then(|weak| weak.upgrade()) else { continue };
            let mut open = match shared.open.try_lock() {
                Ok(open) => open,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => {
                    list.push_back(Arc::downgrade(&shared));
                    continue;
                }
            };
            if open.is_none() {
                continue;
            }
            if !shared.used.swap(false, Ordering::Relaxed) {
                if !self.syncs || !shared.is_dirty() {
                    *open = None;
                    self.count.fetch_sub(1, Ordering::Relaxed);
                    return true;
                }
                dirty.get_or_insert_with(|| Arc::downgrade(&shared));
            }
            drop(open);
            list.push_back(Arc::downgrade(&shared));
        }
        drop(list);
        dirty.and_then(|weak| weak.upgrade()).is_some_and(|shared| shared.sync_and_close())
    }
}

/// An open file that is held until this goes.
#[derive(Debug)]
pub struct OpenFile {
    file: Arc<File>,
    count: Arc<AtomicUsize>,
}

impl OpenFile {
    /// A file of no disk.
    #[cfg(test)]
    pub(crate) fn alone(file: File) -> Self {
        Self { file: Arc::new(file), count: Arc::new(AtomicUsize::new(1)) }
    }

    /// The file.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Opens what is of this kind. Of another one it is an error: opening a FIFO would wait for somebody to open its other end,
/// and a device has no end, or takes what is written to it.
pub(super) fn open_kind(options: &OpenOptions, path: &Path, kind: EntryKind) -> io::Result<File> {
    let file = match options.clone().custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(path) {
        // A FIFO that nobody reads, or a socket.
        Err(e) if e.raw_os_error() == Some(Errno::NXIO.raw_os_error()) => return Err(no_file()),
        opened => opened?,
    };
    let found = file.metadata()?.file_type();
    match kind {
        EntryKind::Directory if !found.is_dir() => return Err(io::ErrorKind::NotADirectory.into()),
        EntryKind::File if found.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
        EntryKind::File if !found.is_file() => return Err(no_file()),
        _ => {}
    }
    // It was for opening alone.
    fcntl_setfl(&file, OFlags::empty())?;
    Ok(file)
}

fn no_file() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file, but a device, a FIFO or a socket")
}

fn is_out_of_descriptors(error: &io::Error) -> bool {
    let code = error.raw_os_error();
    code == Some(Errno::MFILE.raw_os_error()) || code == Some(Errno::NFILE.raw_os_error())
}

impl Shared {
    /// The open file.
    pub(super) fn get(self: &Arc<Self>) -> io::Result<Arc<File>> {
        self.used.store(true, Ordering::Relaxed);
        let mut open = held(&self.open);
        if let Some(file) = &*open {
            return Ok(file.clone());
        }
        let mode = match self.mode {
            OpenMode::Create | OpenMode::Truncate => OpenMode::Write,
            other => other,
        };
        let file = Arc::new(self.files.try_open(&self.path, mode)?);
        *open = Some(file.clone());
        drop(open);
        self.files.add(self);
        Ok(file)
    }

    /// The open file, for as long as the caller wishes; `None` when others hold half of all files: whoever reads slowly
    /// must not have all of them.
    pub(super) fn share(self: &Arc<Self>) -> io::Result<Option<OpenFile>> {
        let count = &self.files.shared;
        if count.load(Ordering::Relaxed) >= self.files.max / 2 {
            return Ok(None);
        }
        let file = self.get()?;
        count.fetch_add(1, Ordering::Relaxed);
        Ok(Some(OpenFile { file, count: count.clone() }))
    }

    /// To be called before each change.
    pub(super) fn changes(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    fn is_dirty(&self) -> bool {
        self.synced.load(Ordering::Acquire) < self.changes.load(Ordering::Acquire)
    }

    pub(super) fn sync(self: &Arc<Self>) -> io::Result<()> {
        if self.failed.swap(false, Ordering::AcqRel) {
            return Err(io::Error::other(
                "a sync of the file has failed before it was closed for want of descriptors",
            ));
        }
        // It was synced when it was closed, and may have another name since. A directory has no changes that are counted.
        if self.mode != OpenMode::Directory && !self.is_dirty() && held(&self.open).is_none() {
            return Ok(());
        }
        let changes = self.changes.load(Ordering::Acquire);
        self.get()?.sync_data()?;
        self.synced.fetch_max(changes, Ordering::AcqRel);
        Ok(())
    }

    fn sync_and_close(&self) -> bool {
        let mut open = held(&self.open);
        let Some(file) = open.take() else { return true };
        let changes = self.changes.load(Ordering::Acquire);
        if file.sync_data().is_err() {
            self.failed.store(true, Ordering::Release);
        }
        self.synced.fetch_max(changes, Ordering::AcqRel);
        self.files.count.fetch_sub(1, Ordering::Relaxed);
        true
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.open.get_mut().unwrap_or_else(PoisonError::into_inner).is_some() {
            self.files.count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;
    use std::path::Path;
    use std::process::Command;

    use headrace_log::{AppendOrigin, Checkpoint, Disk, Identity, LogConfig, LogDir, LogError, OpenMode};
    use headrace_wire::compression::Codec;
    use headrace_wire::records::{BatchBuilder, NO_HEADERS, ProducerStamp};
    use headrace_wire::time::Now;
    use headrace_wire::uuid::Uuid;

    use crate::disk::FileDisk;

    const NOW: Now = Now { mono_ms: 0, wall_ms: 1_700_000_000_000 };

    /// Runs the ignored test in a process with so few descriptors.
    fn with_descriptors(limit: u32, partitions: u32, segments: u32) {
        let this = std::env::current_exe().unwrap();
        let script =
            format!("ulimit -n {limit} && exec \"$0\" --exact disk::open_files::tests::few --ignored");
        let mut command = Command::new("sh");
        command.arg("-c").arg(script).arg(this);
        command.env("HEADRACE_PARTITIONS", partitions.to_string());
        let ended = command.env("HEADRACE_SEGMENTS", segments.to_string()).output().unwrap();
        assert!(ended.status.success(), "{ended:?}");
        assert!(String::from_utf8_lossy(&ended.stdout).contains("1 passed"), "{ended:?}");
    }

    #[test]
    fn a_file_that_was_closed_and_renamed_needs_no_other_sync() {
        let dir = std::env::temp_dir().join(format!("headrace-renamed-{}", std::process::id()));
        let (draft, path) = (dir.join("draft"), dir.join("file"));
        let disk = FileDisk::durable();
        disk.create_dir_all(&dir).unwrap();
        let file = disk.open(&draft, OpenMode::Truncate).unwrap();
        disk.write_at(&file, &[IoSlice::new(b"abc")], 0).unwrap();
        assert!(disk.files.close_one(), "there is one that can be closed");
        disk.rename(&draft, &path).unwrap();
        disk.sync(&file).unwrap();
        std::fs::remove_dir_all(dir).unwrap();
    }

    /// A log in a folder, closed cleanly or not.
    fn closed_log(path: &Path, clean: bool) {
        let disk = FileDisk::durable();
        let mut dir = LogDir::open(disk, path, &identity()).unwrap();
        dir.begin().unwrap();
        let mut log = dir.create_log("t", 0, Uuid([3; 16]), LogConfig::default(), NOW).unwrap();
        let mut builder = BatchBuilder::new(1 << 16);
        builder.append(NOW.wall_ms, None, Some(&[7; 100]), NO_HEADERS.iter().copied()).unwrap();
        let batch = builder
            .finish(
                ProducerStamp { producer_id: 5, epoch: 0, base_sequence: 0, transactional: false },
                Codec::None,
                None,
            )
            .unwrap()
            .to_vec();
        log.append(NOW, &batch, AppendOrigin { leader_epoch: 0, client: true }).unwrap();
        log.close(NOW).unwrap();
        if clean {
            dir.close(&[Checkpoint::of("t", 0, &log)]).unwrap();
        }
    }

    fn open_all(path: &Path) -> Result<(), LogError> {
        let mut dir = LogDir::open(FileDisk::durable(), path, &identity())?;
        dir.begin()?;
        for place in dir.partitions()? {
            dir.open_log(&place, LogConfig::default(), NOW)?;
        }
        Ok(())
    }

    type Make = fn(&Path);

    /// Opening a FIFO would wait for ever, and a device has no end.
    #[test]
    fn what_is_no_file_is_refused_by_name_whichever_it_replaces() {
        let root = std::env::temp_dir().join(format!("headrace-kinds-{}", std::process::id()));
        let mut names = Vec::new();
        closed_log(&root, true);
        for folder in [&root, &root.join("t-0")] {
            let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
            names.extend(entries.filter(|p| p.is_file()).map(|p| p.strip_prefix(&root).unwrap().to_owned()));
        }
        assert!(names.len() >= 9, "{names:?}");
        let kinds: [(&str, Make); 4] = [
            ("directory", |path| std::fs::create_dir(path).unwrap()),
            ("FIFO", |path| assert!(Command::new("mkfifo").arg(path).status().unwrap().success())),
            ("socket", |path| drop(std::os::unix::net::UnixListener::bind(path).unwrap())),
            ("device", |path| std::os::unix::fs::symlink("/dev/zero", path).unwrap()),
        ];
        for name in &names {
            for (kind, make) in &kinds {
                std::fs::remove_dir_all(&root).unwrap();
                closed_log(&root, true);
                let path = root.join(name);
                std::fs::remove_file(&path).unwrap();
                make(&path);
                let error = open_all(&root).expect_err(&format!("a {kind} in place of {}", name.display()));
                let text = error.to_string();
                assert!(text.contains(path.to_str().unwrap()), "{kind}: {text}");
            }
        }
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_partition_behind_a_symbolic_link_is_found() {
        let root = std::env::temp_dir().join(format!("headrace-linked-{}", std::process::id()));
        let data = root.join("data");
        closed_log(&data, false);
        std::fs::rename(data.join("t-0"), root.join("elsewhere")).unwrap();
        std::os::unix::fs::symlink(root.join("elsewhere"), data.join("t-0")).unwrap();
        let dir = LogDir::open(FileDisk::durable(), &data, &identity()).unwrap();
        let [found] = &dir.partitions().unwrap()[..] else { panic!("not found") };
        let (log, recovery) = dir.open_log(found, LogConfig::default(), NOW).unwrap();
        assert_eq!((log.end_offset(), recovery.findings), (1, vec![]));
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn many_partitions_and_segments_need_few_descriptors() {
        with_descriptors(64, 100, 60);
    }

    #[test]
    #[ignore = "takes minutes: cargo test -p headrace-net --lib ten_thousand -- --ignored"]
    fn ten_thousand_partitions_and_five_thousand_segments() {
        with_descriptors(1024, 10_000, 5000);
    }

    fn identity() -> Identity {
        Identity {
            node_id: 1,
            cluster_id: None,
            new_cluster_id: Uuid([1; 16]),
            new_directory_id: Uuid([2; 16]),
        }
    }

    fn number(name: &str) -> i32 {
        std::env::var(name).unwrap().parse().unwrap()
    }

    #[test]
    #[ignore = "for a process with few descriptors, which the tests above start"]
    fn few() {
        let (partitions, segments) = (number("HEADRACE_PARTITIONS"), number("HEADRACE_SEGMENTS"));
        let path = std::env::temp_dir().join(format!("headrace-descriptors-{}", std::process::id()));
        let identity = identity();
        let config = LogConfig { segment_bytes: 200, ..LogConfig::default() };
        let mut builder = BatchBuilder::new(1 << 16);
        builder.append(NOW.wall_ms, None, Some(&[7; 100]), NO_HEADERS.iter().copied()).unwrap();
        let batch = builder.finish(ProducerStamp::NONE, Codec::None, None).unwrap().to_vec();
        let origin = AppendOrigin { leader_epoch: 0, client: true };
        let disk = FileDisk::durable();
        let mut dir = LogDir::open(disk.clone(), &path, &identity).unwrap();
        dir.begin().unwrap();
        let mut logs: Vec<_> = (0..partitions)
            .map(|n| dir.create_log("t", n, Uuid([3; 16]), config.clone(), NOW).unwrap())
            .collect();
        for log in &mut logs {
            log.append(NOW, &batch, origin).unwrap();
        }
        for _ in 0..segments {
            logs[0].append(NOW, &batch, origin).unwrap();
        }
        for life in 0..2 {
            for offset in (0..=i64::from(segments)).step_by(7) {
                assert!(
                    logs[0].read(offset, 1, true, i64::MAX).unwrap().len > 0,
                    "life {life}, offset {offset}"
                );
            }
            assert_eq!(logs[0].segment_count(), usize::try_from(segments).unwrap() + 1);
            for log in &mut logs {
                log.close(NOW).unwrap();
            }
            let checkpoints: Vec<_> = (0..).zip(&logs).map(|(n, log)| Checkpoint::of("t", n, log)).collect();
            dir.close(&checkpoints).unwrap();
            dir = LogDir::open(disk.clone(), &path, &identity).unwrap();
            assert!(dir.was_clean());
            dir.begin().unwrap();
            let found = dir.partitions().unwrap();
            logs = found.iter().map(|place| dir.open_log(place, config.clone(), NOW).unwrap().0).collect();
            assert_eq!(logs.len(), usize::try_from(partitions).unwrap());
        }
        std::fs::remove_dir_all(path).unwrap();
    }
}
