//! Where choices come from: the bytes of an input, or a seed that is part of it.

/// What is left of an input. Behind its end all is 0.
pub(super) struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub(super) fn new(data: &'a [u8]) -> Self {
        Self(data)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// A number below `limit`, which is at most 65,536 and not 0.
    pub(super) fn below(&mut self, limit: usize) -> usize {
        let high = if limit > 256 { usize::from(self.byte()) << 8 } else { 0 };
        (high | usize::from(self.byte())) % limit
    }

    /// So many bytes, or as many as there are.
    pub(super) fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (found, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        found
    }
}

/// Numbers from a seed, by `SplitMix64`.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    pub(super) fn is_one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    /// Small and large numbers of both signs, and those at which types end.
    pub(super) fn number(&mut self) -> i64 {
        let all = self.next();
        match self.below(8) {
            0 => 0,
            1 => i64::MAX >> (all % 64),
            2 => i64::MIN >> (all % 64),
            _ => (all as i64) >> (all % 64),
        }
    }

    /// No infinities and no NaN.
    pub(super) fn float(&mut self) -> f64 {
        let found = f64::from_bits(self.next());
        if found.is_finite() && !self.is_one_in(3) { found } else { self.number() as f64 / 4.0 }
    }

    /// One with characters of one to four bytes, and those that JSON escapes.
    pub(super) fn text(&mut self) -> String {
        const PIECES: [&str; 10] = ["a", "bc", "ä", "€", "\u{1f600}", "\"", "\\", "\n", "\u{1}", "field"];
        let pieces = if self.is_one_in(20) { 100 } else { self.below(5) };
        (0..pieces).map(|_| PIECES[self.below(PIECES.len())]).collect()
    }
}
