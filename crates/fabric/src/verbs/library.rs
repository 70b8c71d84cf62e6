//! libibverbs, found when it is wanted and not before: its providers register with the very copy that loads them, so it
//! cannot come with us, and a machine without it has no use for it.

#![expect(
    unsafe_code,
    reason = "a shared library's functions are what their types say only because we say so"
)]

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use libloading::Library as Shared;

use super::sys::{CompChannel, Context, Cq, Device, DeviceAttr, Gid, GidEntry, Mr, Pd, PortAttr};
use super::sys::{Qp, QpAttr, QpInitAttr};
use super::{Result, VerbsError};

/// The name under which all systems have it; the number is of its binary interface.
const NAME: &str = "libibverbs.so.1";

/// Functions by name, as the headers declare them.
macro_rules! functions {
    ($($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions that we call; those of the data path are members of [`Context`].
        pub(super) struct Library {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            /// Missing in libraries from before 2020.
            pub(super) query_gid_ex: Option<QueryGidEx>,
            /// The functions above are its; it is never unloaded.
            _shared: Shared,
        }

        impl Library {
            fn of(shared: Shared) -> Result<Library> {
                Ok(Library {
                    $($name: {
                        // SAFETY: the type is that of the headers for this name, in the version that is the default.
                        let found = unsafe { shared.get(concat!("ibv_", stringify!($name), "\0").as_bytes()) };
                        *found.map_err(|_| VerbsError::OldLibrary { symbol: concat!("ibv_", stringify!($name)) })?
                    },)*
                    query_gid_ex: {
                        // SAFETY: as above.
                        let found = unsafe { shared.get(b"_ibv_query_gid_ex\0") };
                        found.ok().map(|found| *found)
                    },
                    _shared: shared,
                })
            }
        }
    };
}

type QueryGidEx = unsafe extern "C" fn(*mut Context, u32, u32, *mut GidEntry, u32, usize) -> c_int;

functions! {
    fork_init: fn() -> c_int;
    get_device_list: fn(*mut c_int) -> *mut *mut Device;
    free_device_list: fn(*mut *mut Device);
    get_device_name: fn(*mut Device) -> *const c_char;
    open_device: fn(*mut Device) -> *mut Context;
    close_device: fn(*mut Context) -> c_int;
    query_device: fn(*mut Context, *mut DeviceAttr) -> c_int;
    query_port: fn(*mut Context, u8, *mut PortAttr) -> c_int;
    query_gid: fn(*mut Context, u8, c_int, *mut Gid) -> c_int;
    alloc_pd: fn(*mut Context) -> *mut Pd;
    dealloc_pd: fn(*mut Pd) -> c_int;
    reg_mr: fn(*mut Pd, *mut c_void, usize, c_int) -> *mut Mr;
    dereg_mr: fn(*mut Mr) -> c_int;
    create_comp_channel: fn(*mut Context) -> *mut CompChannel;
    destroy_comp_channel: fn(*mut CompChannel) -> c_int;
    create_cq: fn(*mut Context, c_int, *mut c_void, *mut CompChannel, c_int) -> *mut Cq;
    destroy_cq: fn(*mut Cq) -> c_int;
    get_cq_event: fn(*mut CompChannel, *mut *mut Cq, *mut *mut c_void) -> c_int;
    ack_cq_events: fn(*mut Cq, c_uint);
    create_qp: fn(*mut Pd, *mut QpInitAttr) -> *mut Qp;
    modify_qp: fn(*mut Qp, *mut QpAttr, c_int) -> c_int;
    destroy_qp: fn(*mut Qp) -> c_int;
}

/// The machine's library.
///
/// # Errors
/// [`VerbsError::NotLinux`], [`VerbsError::NoLibrary`], [`VerbsError::OldLibrary`].
pub(super) fn library() -> Result<&'static Library> {
    static LOADED: OnceLock<Library> = OnceLock::new();
    if !cfg!(target_os = "linux") {
        return Err(VerbsError::NotLinux);
    }
    if let Some(library) = LOADED.get() {
        return Ok(library);
    }
    let library = open(NAME)?;
    Ok(LOADED.get_or_init(|| library))
}

fn open(name: &str) -> Result<Library> {
    // SAFETY: what the library does when it is loaded is to make its own tables.
    let shared = unsafe { Shared::new(name) };
    let library = Library::of(shared.map_err(|cause| VerbsError::NoLibrary { name: name.into(), cause })?)?;
    // A process that forks without `exec` would leave the queues to the child's copy of their pages; on kernels since
    // 5.12 this has nothing to do. It fails only where memory has been registered before, by others: then as they like.
    // SAFETY: it takes no arguments, and we have registered nothing yet.
    let _ = unsafe { (library.fork_init)() };
    Ok(library)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_or_not_it_is_an_answer() {
        let reported = |name| open(name).err().unwrap().to_string();
        let absent = reported("libno-such-verbs.so.1");
        for word in ["libno-such-verbs.so.1", "headrace.datapath", "rdma-core"] {
            assert!(absent.contains(word), "{absent}");
        }
        let other = reported("libc.so.6");
        assert!(other.contains("ibv_fork_init") && other.contains("headrace.datapath"), "{other}");
    }
}
