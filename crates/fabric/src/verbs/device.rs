//! Devices, and protection domains.

#![expect(unsafe_code, reason = "calls of libibverbs")]

use std::ffi::{CStr, c_int};
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use super::library::{Library, library};
use super::sys::{self, DeviceAttr, Gid, GidEntry, PortAttr};
use super::{Result, VerbsError, check, last};

/// Rows of a port's table of addresses that are looked at.
const GIDS_MAX: u32 = 1024;

/// Which device: what is not said is chosen.
#[derive(Clone, Debug, Default)]
pub struct Want {
    /// Its name, as `rdma link` shows it; else the first one that has an active port.
    pub device: Option<String>,
    /// Of that device, from 1; else the first that is active.
    pub port: Option<u8>,
    /// The row in the port's table of addresses; else the best one: RoCE version 2 with an IP address that is not of the
    /// link alone.
    pub gid_index: Option<u8>,
}

/// What a device's atomic operations are atomic to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomics {
    /// It has none.
    None,
    /// The same device's.
    Device,
    /// All of the machine, the CPU's too.
    Machine,
}

/// What a device has room for.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Pieces of one operation; of a read some devices take fewer.
    pub pieces: u32,
    /// Operations of a queue pair at once.
    pub work: u32,
    /// Completions that wait in one queue.
    pub completions: u32,
    /// Reads and fetch-and-adds under way that a queue pair may answer.
    pub answers: u8,
    /// Reads and fetch-and-adds under way that a queue pair may ask for.
    pub questions: u8,
    /// Bytes of one operation.
    pub message: u32,
    /// Registrations.
    pub registrations: u32,
}

/// An opened device, one port and one address of it.
pub struct Device {
    pub(super) library: &'static Library,
    pub(super) context: NonNull<sys::Context>,
    name: String,
    limits: Limits,
    atomics: Atomics,
    pub(super) port: u8,
    pub(super) gid_index: u8,
    pub(super) gid: [u8; 16],
    pub(super) lid: u16,
    pub(super) mtu: u8,
}

// SAFETY: libibverbs may be called from any thread, and locks where it must.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Device { name, port, gid_index, limits, atomics, .. } = self;
        let mut shown = f.debug_struct("Device");
        shown.field("name", name).field("port", port).field("gid_index", gid_index);
        shown.field("limits", limits).field("atomics", atomics).finish_non_exhaustive()
    }
}

/// The names of the machine's devices.
///
/// # Errors
/// [`VerbsError::NoLibrary`], [`VerbsError::OldLibrary`], [`VerbsError::NoDevice`].
pub fn devices() -> Result<Vec<String>> {
    Ok(List::new(library()?)?.devices().map(|(name, _)| name).collect())
}

/// The library's list of devices, given back when it is dropped.
struct List {
    library: &'static Library,
    first: NonNull<*mut sys::Device>,
    count: usize,
}

impl List {
    fn new(library: &'static Library) -> Result<List> {
        let mut count: c_int = 0;
        // SAFETY: `count` is written by the call, and the list is ours until `drop` gives it back.
        let first = unsafe { (library.get_device_list)(&raw mut count) };
        // No list: the kernel has no RDMA at all.
        let first = NonNull::new(first).ok_or(VerbsError::NoDevice)?;
        let list = List { library, first, count: usize::try_from(count).unwrap_or(0) };
        if list.count == 0 { Err(VerbsError::NoDevice) } else { Ok(list) }
    }

    fn devices(&self) -> impl Iterator<Item = (String, *mut sys::Device)> {
        (0..self.count).map(|number| {
            // SAFETY: the list has `count` devices.
            let device = unsafe { *self.first.as_ptr().wrapping_add(number) };
            // SAFETY: the device is of the list, which still is.
            let name = unsafe { (self.library.get_device_name)(device) };
            // SAFETY: the name is a part of the device, and ends with a zero.
            let name = unsafe { CStr::from_ptr(name) };
            (name.to_string_lossy().into_owned(), device)
        })
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: it was not given back before; devices that were opened stay.
        unsafe { (self.library.free_device_list)(self.first.as_ptr()) };
    }
}

impl Device {
    /// Opens one.
    ///
    /// # Errors
    /// What is missing, by name: [`VerbsError`].
    pub fn open(want: &Want) -> Result<Arc<Device>> {
        let library = library()?;
        let list = List::new(library)?;
        let mut known = Vec::new();
        let mut refused = None;
        for (name, device) in list.devices() {
            if want.device.as_ref().is_none_or(|wanted| *wanted == name) {
                match Self::open_one(library, device, &name, want) {
                    Ok(device) => return Ok(Arc::new(device)),
                    Err(why) => refused = refused.or(Some(why)),
                }
            }
            known.push(name);
        }
        let unknown = || VerbsError::UnknownDevice {
            name: want.device.clone().unwrap_or_default(),
            known: known.join(", "),
        };
        Err(refused.unwrap_or_else(unknown))
    }

    fn open_one(
        library: &'static Library,
        device: *mut sys::Device,
        name: &str,
        want: &Want,
    ) -> Result<Device> {
        // SAFETY: the device is of a list that still is.
        let opened = unsafe { (library.open_device)(device) };
        let Some(context) = NonNull::new(opened) else {
            let source = io::Error::last_os_error();
            return Err(VerbsError::NotPermitted { device: name.into(), source });
        };
        // From here on dropping it closes the context.
        let mut device = Device {
            library,
            context,
            name: name.into(),
            limits: Limits::NONE,
            atomics: Atomics::None,
            port: 0,
            gid_index: 0,
            gid: [0; 16],
            lid: 0,
            mtu: 0,
        };
        let attributes = device.attributes()?;
        device.atomics = Atomics::of(attributes.atomic_cap);
        let ports = attributes.phys_port_cnt;
        let no_port = || VerbsError::NoPort { device: name.into() };
        let wanted = |port: &u8| want.port.is_none_or(|wanted| wanted == *port);
        let active = |port| Some((port, device.port_attributes(port)?));
        let (port, found) = (1..=ports).filter(wanted).find_map(active).ok_or_else(no_port)?;
        device.limits = Limits::of(&attributes, &found);
        device.port = port;
        device.lid = found.lid;
        device.mtu = u8::try_from(found.active_mtu).unwrap_or(0);
        (device.gid_index, device.gid) = device.choose_gid(&found, want.gid_index)?;
        Ok(device)
    }

    fn attributes(&self) -> Result<DeviceAttr> {
        // SAFETY: it is made of numbers alone, for which zeros are values.
        let mut found: DeviceAttr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open; the call fills the structure.
        let answer = unsafe { (self.library.query_device)(self.context.as_ptr(), &raw mut found) };
        check("ask a device what it can do", answer)?;
        Ok(found)
    }

    /// Of a port that is active.
    fn port_attributes(&self, port: u8) -> Option<PortAttr> {
        // SAFETY: it is made of numbers alone, for which zeros are values.
        let mut found: PortAttr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open; the call fills the structure, which has room for later versions of it.
        let answer = unsafe { (self.library.query_port)(self.context.as_ptr(), port, &raw mut found) };
        (answer == 0 && found.state == sys::PORT_ACTIVE).then_some(found)
    }

    fn choose_gid(&self, port: &PortAttr, wanted: Option<u8>) -> Result<(u8, [u8; 16])> {
        let rows = u32::try_from(port.gid_tbl_len).unwrap_or(0).min(GIDS_MAX);
        let rows = (0..rows).filter_map(|row| self.gid(u8::try_from(row).ok()?));
        let fits = |row: &GidEntry| wanted.is_none_or(|wanted| u32::from(wanted) == row.gid_index);
        let best = rows.filter(fits).max_by_key(|row| (rank(row), std::cmp::Reverse(row.gid_index)));
        let found = best.and_then(|row| Some((u8::try_from(row.gid_index).ok()?, row.gid.raw)));
        found.ok_or_else(|| VerbsError::NoAddress { device: self.name.clone(), port: self.port })
    }

    /// A row of the port's table, if there is anything in it.
    fn gid(&self, row: u8) -> Option<GidEntry> {
        let mut entry = GidEntry { gid_index: row.into(), ..GidEntry::default() };
        let context = self.context.as_ptr();
        let answer = if let Some(query) = self.library.query_gid_ex {
            let size = size_of::<GidEntry>();
            // SAFETY: the context is open; the call fills as much as it is told that there is.
            unsafe { query(context, self.port.into(), row.into(), &raw mut entry, 0, size) }
        } else {
            let mut gid = Gid::default();
            // SAFETY: the context is open; the call fills the address.
            let answer = unsafe { (self.library.query_gid)(context, self.port, row.into(), &raw mut gid) };
            entry.gid = gid;
            answer
        };
        (answer == 0 && entry.gid.raw != [0; 16]).then_some(entry)
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it has room for.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// What its atomic operations are atomic to.
    #[must_use]
    pub fn atomics(&self) -> Atomics {
        self.atomics
    }

    /// A new protection domain.
    ///
    /// # Errors
    /// [`VerbsError::System`].
    pub fn domain(self: &Arc<Self>) -> Result<Arc<Domain>> {
        // SAFETY: the context is open, and the domain keeps it so.
        let made = unsafe { (self.library.alloc_pd)(self.context.as_ptr()) };
        let raw = NonNull::new(made).ok_or_else(|| last("make a protection domain"))?;
        Ok(Arc::new(Domain { raw, device: self.clone() }))
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: whoever uses the context holds this, so nobody does any more.
        let _ = unsafe { (self.library.close_device)(self.context.as_ptr()) };
    }
}

impl Atomics {
    fn of(reported: u32) -> Atomics {
        match reported {
            sys::ATOMIC_NONE => Atomics::None,
            sys::ATOMIC_GLOB => Atomics::Machine,
            // Number 1; later ones would be more, and are not less.
            _ => Atomics::Device,
        }
    }

    /// Whether memory can be registered to be added to.
    pub(super) fn needed(self, device: &str) -> Result<()> {
        if self == Atomics::None { Err(VerbsError::NoAtomics { device: device.into() }) } else { Ok(()) }
    }
}

impl Limits {
    const NONE: Limits =
        Limits { pieces: 0, work: 0, completions: 0, answers: 0, questions: 0, message: 0, registrations: 0 };

    fn of(device: &DeviceAttr, port: &PortAttr) -> Limits {
        let count = |number: c_int| u32::try_from(number).unwrap_or(0);
        // As many as the protocol's field holds.
        let few = |number: c_int| u8::try_from(count(number)).unwrap_or(u8::MAX);
        Limits {
            pieces: count(device.max_sge),
            work: count(device.max_qp_wr),
            completions: count(device.max_cqe),
            answers: few(device.max_qp_rd_atom),
            questions: few(device.max_qp_init_rd_atom),
            message: port.max_msg_sz,
            registrations: count(device.max_mr),
        }
    }
}

/// Which address is the better one. `::ffff:a.b.c.d` is how version 4 is written in these; `fe80::` is of the link alone.
fn rank(row: &GidEntry) -> (bool, bool, bool) {
    let routed = !row.gid.raw.starts_with(&[0xfe, 0x80]);
    let version_4 = row.gid.raw.starts_with(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
    (row.gid_type == sys::GID_TYPE_ROCE_V2, routed, version_4)
}

/// A protection domain: its queue pairs reach what is registered in it. A domain for each peer keeps one peer from what
/// was registered for another, whatever keys it guesses.
pub struct Domain {
    pub(super) raw: NonNull<sys::Pd>,
    pub(super) device: Arc<Device>,
}

// SAFETY: libibverbs may be called from any thread, and locks where it must.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl std::fmt::Debug for Domain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Domain").field("device", &self.device.name).finish_non_exhaustive()
    }
}

impl Domain {
    /// The device that it is of.
    #[must_use]
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: what is in it holds it, so nothing is.
        let _ = unsafe { (self.device.library.dealloc_pd)(self.raw.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(gid_type: u32, start: &[u8]) -> GidEntry {
        let mut entry = GidEntry { gid_type, ..GidEntry::default() };
        entry.gid.raw[..start.len()].copy_from_slice(start);
        entry
    }

    #[test]
    fn the_address_that_can_be_routed_is_the_better_one() {
        let version_4 = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1];
        let worse_to_better = [
            row(1, &[0xfe, 0x80]),
            row(1, &version_4),
            row(2, &[0xfe, 0x80]),
            row(2, &[0x20, 0x01]),
            row(2, &version_4),
        ];
        assert!(worse_to_better.windows(2).all(|pair| rank(&pair[0]) < rank(&pair[1])));
    }

    #[test]
    fn a_device_without_atomic_operations_says_so() {
        let reported = Atomics::of(sys::ATOMIC_NONE).needed("siw0").unwrap_err().to_string();
        for word in ["siw0", "no atomic operations", "headrace.datapath"] {
            assert!(reported.contains(word), "{reported}");
        }
        Atomics::of(1).needed("rxe0").unwrap();
        assert_eq!(Atomics::of(sys::ATOMIC_GLOB), Atomics::Machine);
        assert_eq!(Atomics::of(9), Atomics::Device);
    }
}
