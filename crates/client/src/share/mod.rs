//! Share groups (KIP-932): consumers that take records one by one and tell the broker what became of each.

mod scheduler;
