//! Which fields of a record have come.

/// Fields by number, of which the first 64 cost no memory.
pub(crate) struct Seen {
    first: u64,
    others: Vec<bool>,
    pub(crate) count: usize,
}

impl Seen {
    #[inline]
    pub(crate) fn new(fields: usize) -> Self {
        Self { first: 0, others: vec![false; fields.saturating_sub(64)], count: 0 }
    }

    /// Whether it has not come before.
    #[inline]
    pub(crate) fn insert(&mut self, field: usize) -> bool {
        let new = !self.contains(field);
        self.count += usize::from(new);
        if field < 64 {
            self.first |= 1 << field;
        } else if let Some(seen) = self.others.get_mut(field - 64) {
            *seen = true;
        }
        new
    }

    #[inline]
    pub(crate) fn contains(&self, field: usize) -> bool {
        if field < 64 { self.first >> field & 1 == 1 } else { self.others.get(field - 64) == Some(&true) }
    }
}
