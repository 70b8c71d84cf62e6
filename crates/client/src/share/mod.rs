//! Share groups (KIP-932): consumers that take records one by one and tell the broker what became of each.

#[expect(dead_code, reason = "the engine that asks it comes next")]
mod scheduler;
