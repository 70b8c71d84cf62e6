//! What we need of the binary interface of libibverbs (its version 1.1, which has not changed since 2006 but by additions):
//! structures, constants, and the types of functions. A test compares each with the system's headers.
//!
//! Where only the first members of a structure are ours to read it ends with them here: such structures are made by the
//! library alone and never copied.

#![expect(
    clippy::struct_field_names,
    reason = "the names are the headers', and the test finds them by these"
)]

use std::ffi::{c_char, c_int, c_uint, c_void};

/// A device that can be opened.
#[repr(C)]
pub(super) struct Device {
    _opaque: [u8; 0],
}

/// An opened device. The calls of the data path go through `ops`, as in the inline functions of the headers.
#[repr(C)]
pub(super) struct Context {
    pub(super) device: *mut Device,
    pub(super) ops: Ops,
    pub(super) cmd_fd: c_int,
    pub(super) async_fd: c_int,
}

/// What a provider implements itself; the other members are the headers' own business.
#[repr(C)]
pub(super) struct Ops {
    before_poll: [*mut c_void; 11],
    pub(super) poll_cq: Option<unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int>,
    pub(super) req_notify_cq: Option<unsafe extern "C" fn(*mut Cq, c_int) -> c_int>,
    between: [*mut c_void; 12],
    pub(super) post_send: Option<unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int>,
    pub(super) post_recv: Option<unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int>,
    after_post: [*mut c_void; 5],
}

/// A protection domain: its queue pairs reach its memory regions alone.
#[repr(C)]
pub(super) struct Pd {
    pub(super) context: *mut Context,
}

/// A registered piece of memory.
#[repr(C)]
pub(super) struct Mr {
    pub(super) context: *mut Context,
    pub(super) pd: *mut Pd,
    pub(super) addr: *mut c_void,
    pub(super) length: usize,
    pub(super) handle: u32,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
}

/// What tells that completions have come.
#[repr(C)]
pub(super) struct CompChannel {
    pub(super) context: *mut Context,
    pub(super) fd: c_int,
}

/// A completion queue.
#[repr(C)]
pub(super) struct Cq {
    pub(super) context: *mut Context,
    pub(super) channel: *mut CompChannel,
    pub(super) cq_context: *mut c_void,
    pub(super) handle: u32,
    pub(super) cqe: c_int,
}

/// A queue pair.
#[repr(C)]
pub(super) struct Qp {
    pub(super) context: *mut Context,
    pub(super) qp_context: *mut c_void,
    pub(super) pd: *mut Pd,
    pub(super) send_cq: *mut Cq,
    pub(super) recv_cq: *mut Cq,
    pub(super) srq: *mut c_void,
    pub(super) handle: u32,
    pub(super) qp_num: u32,
}

/// What a device can do.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct DeviceAttr {
    pub(super) fw_ver: [c_char; 64],
    pub(super) node_guid: u64,
    pub(super) sys_image_guid: u64,
    pub(super) max_mr_size: u64,
    pub(super) page_size_cap: u64,
    pub(super) vendor_id: u32,
    pub(super) vendor_part_id: u32,
    pub(super) hw_ver: u32,
    pub(super) max_qp: c_int,
    pub(super) max_qp_wr: c_int,
    pub(super) device_cap_flags: c_uint,
    pub(super) max_sge: c_int,
    pub(super) max_sge_rd: c_int,
    pub(super) max_cq: c_int,
    pub(super) max_cqe: c_int,
    pub(super) max_mr: c_int,
    pub(super) max_pd: c_int,
    pub(super) max_qp_rd_atom: c_int,
    pub(super) max_ee_rd_atom: c_int,
    pub(super) max_res_rd_atom: c_int,
    pub(super) max_qp_init_rd_atom: c_int,
    pub(super) max_ee_init_rd_atom: c_int,
    pub(super) atomic_cap: c_uint,
    pub(super) max_ee: c_int,
    pub(super) max_rdd: c_int,
    pub(super) max_mw: c_int,
    pub(super) max_raw_ipv6_qp: c_int,
    pub(super) max_raw_ethy_qp: c_int,
    pub(super) max_mcast_grp: c_int,
    pub(super) max_mcast_qp_attach: c_int,
    pub(super) max_total_mcast_qp_attach: c_int,
    pub(super) max_ah: c_int,
    pub(super) max_fmr: c_int,
    pub(super) max_map_per_fmr: c_int,
    pub(super) max_srq: c_int,
    pub(super) max_srq_wr: c_int,
    pub(super) max_srq_sge: c_int,
    pub(super) max_pkeys: u16,
    pub(super) local_ca_ack_delay: u8,
    pub(super) phys_port_cnt: u8,
}

/// What a port can do. The headers append to it: `later` is room for that.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct PortAttr {
    pub(super) state: c_uint,
    pub(super) max_mtu: c_uint,
    pub(super) active_mtu: c_uint,
    pub(super) gid_tbl_len: c_int,
    pub(super) port_cap_flags: u32,
    pub(super) max_msg_sz: u32,
    pub(super) bad_pkey_cntr: u32,
    pub(super) qkey_viol_cntr: u32,
    pub(super) pkey_tbl_len: u16,
    pub(super) lid: u16,
    pub(super) sm_lid: u16,
    pub(super) lmc: u8,
    pub(super) max_vl_num: u8,
    pub(super) sm_sl: u8,
    pub(super) subnet_timeout: u8,
    pub(super) init_type_reply: u8,
    pub(super) active_width: u8,
    pub(super) active_speed: u8,
    pub(super) phys_state: u8,
    pub(super) link_layer: u8,
    pub(super) flags: u8,
    pub(super) port_cap_flags2: u16,
    pub(super) later: [u32; 16],
}

/// An address of a port, in the order of the network.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default)]
pub(super) struct Gid {
    pub(super) raw: [u8; 16],
}

/// A row of a port's table of addresses.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct GidEntry {
    pub(super) gid: Gid,
    pub(super) gid_index: u32,
    pub(super) port_num: u32,
    pub(super) gid_type: u32,
    pub(super) ndev_ifindex: u32,
}

/// How much a queue pair holds.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct QpCap {
    pub(super) max_send_wr: u32,
    pub(super) max_recv_wr: u32,
    pub(super) max_send_sge: u32,
    pub(super) max_recv_sge: u32,
    pub(super) max_inline_data: u32,
}

/// What a queue pair is made of.
#[repr(C)]
pub(super) struct QpInitAttr {
    pub(super) qp_context: *mut c_void,
    pub(super) send_cq: *mut Cq,
    pub(super) recv_cq: *mut Cq,
    pub(super) srq: *mut c_void,
    pub(super) cap: QpCap,
    pub(super) qp_type: c_uint,
    pub(super) sq_sig_all: c_int,
}

/// The way to another subnet, and over RoCE to any peer.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct GlobalRoute {
    pub(super) dgid: Gid,
    pub(super) flow_label: u32,
    pub(super) sgid_index: u8,
    pub(super) hop_limit: u8,
    pub(super) traffic_class: u8,
}

/// The way to a peer.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct AhAttr {
    pub(super) grh: GlobalRoute,
    pub(super) dlid: u16,
    pub(super) sl: u8,
    pub(super) src_path_bits: u8,
    pub(super) static_rate: u8,
    pub(super) is_global: u8,
    pub(super) port_num: u8,
}

/// What is changed of a queue pair.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct QpAttr {
    pub(super) qp_state: c_uint,
    pub(super) cur_qp_state: c_uint,
    pub(super) path_mtu: c_uint,
    pub(super) path_mig_state: c_uint,
    pub(super) qkey: u32,
    pub(super) rq_psn: u32,
    pub(super) sq_psn: u32,
    pub(super) dest_qp_num: u32,
    pub(super) qp_access_flags: c_uint,
    pub(super) cap: QpCap,
    pub(super) ah_attr: AhAttr,
    pub(super) alt_ah_attr: AhAttr,
    pub(super) pkey_index: u16,
    pub(super) alt_pkey_index: u16,
    pub(super) en_sqd_async_notify: u8,
    pub(super) sq_draining: u8,
    pub(super) max_rd_atomic: u8,
    pub(super) max_dest_rd_atomic: u8,
    pub(super) min_rnr_timer: u8,
    pub(super) port_num: u8,
    pub(super) timeout: u8,
    pub(super) retry_cnt: u8,
    pub(super) rnr_retry: u8,
    pub(super) alt_port_num: u8,
    pub(super) alt_timeout: u8,
    pub(super) rate_limit: u32,
}

/// A piece of registered memory.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Sge {
    pub(super) addr: u64,
    pub(super) length: u32,
    pub(super) lkey: u32,
}

/// Where a write or a read goes.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct RdmaWr {
    pub(super) remote_addr: u64,
    pub(super) rkey: u32,
}

/// Where an atomic operation goes, and what it does.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct AtomicWr {
    pub(super) remote_addr: u64,
    pub(super) compare_add: u64,
    pub(super) swap: u64,
    pub(super) rkey: u32,
}

/// One of the two.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) union Wr {
    pub(super) rdma: RdmaWr,
    pub(super) atomic: AtomicWr,
}

/// Work for the sending side. What is left out after `wr` is for kinds of queue pairs and work that we do not have.
#[repr(C)]
pub(super) struct SendWr {
    pub(super) wr_id: u64,
    pub(super) next: *mut SendWr,
    pub(super) sg_list: *mut Sge,
    pub(super) num_sge: c_int,
    pub(super) opcode: c_uint,
    pub(super) send_flags: c_uint,
    /// In the order of the network.
    pub(super) imm_data: u32,
    pub(super) wr: Wr,
    pub(super) unused: [u64; 7],
}

/// Memory for what the peer sends.
#[repr(C)]
pub(super) struct RecvWr {
    pub(super) wr_id: u64,
    pub(super) next: *mut RecvWr,
    pub(super) sg_list: *mut Sge,
    pub(super) num_sge: c_int,
}

/// A completion.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Wc {
    pub(super) wr_id: u64,
    pub(super) status: c_uint,
    pub(super) opcode: c_uint,
    pub(super) vendor_err: u32,
    pub(super) byte_len: u32,
    /// In the order of the network.
    pub(super) imm_data: u32,
    pub(super) qp_num: u32,
    pub(super) src_qp: u32,
    pub(super) wc_flags: c_uint,
    pub(super) pkey_index: u16,
    pub(super) slid: u16,
    pub(super) sl: u8,
    pub(super) dlid_path_bits: u8,
}

/// The constants that we use, each with its name in the headers for the test.
macro_rules! constants {
    ($($ours:ident = $theirs:ident: $value:expr;)*) => {
        $(pub(super) const $ours: c_uint = $value;)*
        #[cfg(test)]
        const CONSTANTS: &[(&str, c_uint)] = &[$((stringify!($theirs), $value)),*];
    };
}

constants! {
    ATOMIC_NONE = IBV_ATOMIC_NONE: 0;
    ATOMIC_GLOB = IBV_ATOMIC_GLOB: 2;
    PORT_ACTIVE = IBV_PORT_ACTIVE: 4;
    MTU_256 = IBV_MTU_256: 1;
    MTU_4096 = IBV_MTU_4096: 5;
    GID_TYPE_ROCE_V2 = IBV_GID_TYPE_ROCE_V2: 2;
    ACCESS_LOCAL_WRITE = IBV_ACCESS_LOCAL_WRITE: 1;
    ACCESS_REMOTE_WRITE = IBV_ACCESS_REMOTE_WRITE: 2;
    ACCESS_REMOTE_READ = IBV_ACCESS_REMOTE_READ: 4;
    ACCESS_REMOTE_ATOMIC = IBV_ACCESS_REMOTE_ATOMIC: 8;
    QPT_RC = IBV_QPT_RC: 2;
    QPS_INIT = IBV_QPS_INIT: 1;
    QPS_RTR = IBV_QPS_RTR: 2;
    QPS_RTS = IBV_QPS_RTS: 3;
    QPS_ERR = IBV_QPS_ERR: 6;
    QP_STATE = IBV_QP_STATE: 1;
    QP_ACCESS_FLAGS = IBV_QP_ACCESS_FLAGS: 1 << 3;
    QP_PKEY_INDEX = IBV_QP_PKEY_INDEX: 1 << 4;
    QP_PORT = IBV_QP_PORT: 1 << 5;
    QP_AV = IBV_QP_AV: 1 << 7;
    QP_PATH_MTU = IBV_QP_PATH_MTU: 1 << 8;
    QP_TIMEOUT = IBV_QP_TIMEOUT: 1 << 9;
    QP_RETRY_CNT = IBV_QP_RETRY_CNT: 1 << 10;
    QP_RNR_RETRY = IBV_QP_RNR_RETRY: 1 << 11;
    QP_RQ_PSN = IBV_QP_RQ_PSN: 1 << 12;
    QP_MAX_QP_RD_ATOMIC = IBV_QP_MAX_QP_RD_ATOMIC: 1 << 13;
    QP_MIN_RNR_TIMER = IBV_QP_MIN_RNR_TIMER: 1 << 15;
    QP_SQ_PSN = IBV_QP_SQ_PSN: 1 << 16;
    QP_MAX_DEST_RD_ATOMIC = IBV_QP_MAX_DEST_RD_ATOMIC: 1 << 17;
    QP_DEST_QPN = IBV_QP_DEST_QPN: 1 << 20;
    WR_RDMA_WRITE = IBV_WR_RDMA_WRITE: 0;
    WR_RDMA_WRITE_WITH_IMM = IBV_WR_RDMA_WRITE_WITH_IMM: 1;
    WR_SEND = IBV_WR_SEND: 2;
    WR_RDMA_READ = IBV_WR_RDMA_READ: 4;
    WR_ATOMIC_FETCH_AND_ADD = IBV_WR_ATOMIC_FETCH_AND_ADD: 6;
    SEND_SIGNALED = IBV_SEND_SIGNALED: 2;
    WC_SUCCESS = IBV_WC_SUCCESS: 0;
    WC_LOC_PROT_ERR = IBV_WC_LOC_PROT_ERR: 4;
    WC_WR_FLUSH_ERR = IBV_WC_WR_FLUSH_ERR: 5;
    WC_REM_INV_REQ_ERR = IBV_WC_REM_INV_REQ_ERR: 9;
    WC_REM_ACCESS_ERR = IBV_WC_REM_ACCESS_ERR: 10;
    WC_REM_OP_ERR = IBV_WC_REM_OP_ERR: 11;
    WC_RETRY_EXC_ERR = IBV_WC_RETRY_EXC_ERR: 12;
    WC_RNR_RETRY_EXC_ERR = IBV_WC_RNR_RETRY_EXC_ERR: 13;
    WC_RECV = IBV_WC_RECV: 128;
    WC_RECV_RDMA_WITH_IMM = IBV_WC_RECV_RDMA_WITH_IMM: 129;
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::mem::offset_of;
    use std::process::Command;

    use super::*;

    /// Lines of C that print what the headers say, and the lines that we expect.
    struct Compared {
        program: String,
        expected: String,
    }

    impl Compared {
        fn line(&mut self, what: &str, expression: &str, ours: usize) {
            writeln!(self.program, "printf(\"{what} %zu\\n\", (size_t)({expression}));").unwrap();
            writeln!(self.expected, "{what} {ours}").unwrap();
        }
    }

    macro_rules! same {
        ($compared:ident, $ours:ident = $theirs:literal, whole, { $($field:ident),* }) => {
            $compared.line($theirs, concat!("sizeof(struct ", $theirs, ")"), size_of::<$ours>());
            same!($compared, $ours = $theirs, { $($field),* });
        };
        ($compared:ident, $ours:ident = $theirs:literal, { $($field:ident),* }) => {
            $($compared.line(
                concat!($theirs, ".", stringify!($field)),
                concat!("offsetof(struct ", $theirs, ", ", stringify!($field), ")"),
                offset_of!($ours, $field),
            );)*
        };
    }

    fn structures(of: &mut Compared) {
        same!(of, Context = "ibv_context", { device, ops, cmd_fd, async_fd });
        same!(of, Ops = "ibv_context_ops", whole, { poll_cq, req_notify_cq, post_send, post_recv });
        same!(of, Pd = "ibv_pd", { context });
        same!(of, Mr = "ibv_mr", whole, { context, pd, addr, length, handle, lkey, rkey });
        same!(of, CompChannel = "ibv_comp_channel", { context, fd });
        same!(of, Cq = "ibv_cq", { context, channel, cq_context, handle, cqe });
        same!(of, Qp = "ibv_qp", { context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num });
        same!(of, DeviceAttr = "ibv_device_attr", whole, {
            fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id, vendor_part_id, hw_ver, max_qp,
            max_qp_wr, device_cap_flags, max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom,
            max_ee_rd_atom, max_res_rd_atom, max_qp_init_rd_atom, max_ee_init_rd_atom, atomic_cap, max_ee, max_rdd,
            max_mw, max_raw_ipv6_qp, max_raw_ethy_qp, max_mcast_grp, max_mcast_qp_attach, max_total_mcast_qp_attach,
            max_ah, max_fmr, max_map_per_fmr, max_srq, max_srq_wr, max_srq_sge, max_pkeys, local_ca_ack_delay,
            phys_port_cnt
        });
        same!(of, PortAttr = "ibv_port_attr", {
            state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr,
            pkey_tbl_len, lid, sm_lid, lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply, active_width,
            active_speed, phys_state, link_layer, flags, port_cap_flags2
        });
        same!(of, GidEntry = "ibv_gid_entry", whole, { gid, gid_index, port_num, gid_type, ndev_ifindex });
        same!(of, QpCap = "ibv_qp_cap", whole, {
            max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data
        });
        same!(of, QpInitAttr = "ibv_qp_init_attr", whole, {
            qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all
        });
        same!(of, GlobalRoute = "ibv_global_route", whole, {
            dgid, flow_label, sgid_index, hop_limit, traffic_class
        });
        same!(of, AhAttr = "ibv_ah_attr", whole, {
            grh, dlid, sl, src_path_bits, static_rate, is_global, port_num
        });
        same!(of, QpAttr = "ibv_qp_attr", whole, {
            qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags, cap,
            ah_attr, alt_ah_attr, pkey_index, alt_pkey_index, en_sqd_async_notify, sq_draining, max_rd_atomic,
            max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout,
            rate_limit
        });
        same!(of, Sge = "ibv_sge", whole, { addr, length, lkey });
        same!(of, SendWr = "ibv_send_wr", whole, {
            wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data, wr
        });
        same!(of, RecvWr = "ibv_recv_wr", whole, { wr_id, next, sg_list, num_sge });
        same!(of, Wc = "ibv_wc", whole, {
            wr_id, status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags, pkey_index, slid, sl,
            dlid_path_bits
        });
    }

    #[test]
    #[ignore = "needs cc and the headers of libibverbs (libibverbs-dev); tests/rdma has both, and runs it"]
    fn layouts_and_constants_are_those_of_the_systems_headers() {
        let mut of = Compared { program: String::new(), expected: String::new() };
        structures(&mut of);
        let wr = offset_of!(SendWr, wr);
        of.line("rdma.addr", "offsetof(struct ibv_send_wr, wr.rdma.remote_addr)", wr);
        of.line("rdma.rkey", "offsetof(struct ibv_send_wr, wr.rdma.rkey)", wr + offset_of!(RdmaWr, rkey));
        for (name, at) in [
            ("remote_addr", offset_of!(AtomicWr, remote_addr)),
            ("compare_add", offset_of!(AtomicWr, compare_add)),
            ("swap", offset_of!(AtomicWr, swap)),
            ("rkey", offset_of!(AtomicWr, rkey)),
        ] {
            of.line(name, &format!("offsetof(struct ibv_send_wr, wr.atomic.{name})"), wr + at);
        }
        of.line("room", &format!("sizeof(struct ibv_port_attr) <= {}", size_of::<PortAttr>()), 1);
        for (name, value) in CONSTANTS {
            of.line(name, name, usize::try_from(*value).unwrap());
        }
        let folder = std::env::temp_dir().join(format!("headrace-layouts-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let (source, program) = (folder.join("layouts.c"), folder.join("layouts"));
        let head = "#include <stddef.h>\n#include <stdio.h>\n#include <infiniband/verbs.h>\n";
        std::fs::write(&source, format!("{head}int main(void) {{\n{}return 0; }}\n", of.program)).unwrap();
        let compiled = Command::new("cc").arg("-o").arg(&program).arg(&source).output().unwrap();
        let printed = compiled.status.success().then(|| Command::new(&program).output().unwrap());
        std::fs::remove_dir_all(&folder).unwrap();
        let reported = String::from_utf8_lossy(&compiled.stderr);
        let printed =
            printed.unwrap_or_else(|| panic!("the headers do not say all that is asked: {reported}"));
        let theirs = String::from_utf8(printed.stdout).unwrap();
        for (theirs, ours) in theirs.lines().zip(of.expected.lines()) {
            assert_eq!(theirs, ours, "left: the headers; right: ours");
        }
        assert_eq!(theirs.lines().count(), of.expected.lines().count());
    }
}
