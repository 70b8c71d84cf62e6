//! Sockets, clocks, threads and disks: the loops that drive client and broker.
