//! What has happened, so that a run that exercised nothing fails.

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        #[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
        pub(super) struct Counts {
            $($(#[$doc])* pub(super) $name: u64,)*
        }

        impl Counts {
            pub(super) fn add(&mut self, other: Self) {
                $(self.$name += other.$name;)*
            }

            pub(super) fn all(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }
        }
    };
}

counts! {
    acknowledged,
    kills,
    stops,
    power_losses,
    /// Several brokers killed at once.
    racks,
    /// Brokers cut off from each other, and from the store.
    cuts,
    lost,
    pauses,
    /// What brokers that were paused took before they looked at their clocks again.
    stale,
    full_disks,
    /// Ways between two brokers, and watches, on which nothing came for a while.
    slow_ways,
    late_watches,
    silent_watches,
    compactions,
    store_restarts,
    lost_answers,
    relapses,
    relays,
    /// Times at which it was looked who leads.
    looks,
    elections,
    /// What only the leader had acknowledged, and was cut off.
    cut_off,
    pushed,
    over_verbs,
    read,
    read_in_memory,
    read_from_followers,
    /// Replicas that were asked for, and how often a topic has others in the end.
    moves,
    moved,
}
