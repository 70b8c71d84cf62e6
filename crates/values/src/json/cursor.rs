//! A JSON text, read from the front (RFC 8259).

use crate::error::{Failure, Result, RowErrorKind, fail};

/// How deep values may be nested in what is skipped.
const SKIP_DEPTH_MAX: usize = 500;

/// What is left of a row, whose bytes are UTF-8.
#[derive(Debug)]
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// What stands between the quotes of a string.
#[derive(Debug, Clone, Copy)]
pub(super) struct Quoted<'a> {
    /// From its first byte to the end of the row.
    pub(super) from: &'a [u8],
    pub(super) len: usize,
    /// Whether something is escaped in it.
    pub(super) escaped: bool,
}

const LOW: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = 0x8080_8080_8080_8080;

/// The high bit of each byte that is 0, up to the first at least.
const fn zeros(word: u64) -> u64 {
    word.wrapping_sub(LOW) & !word & HIGH
}

/// Whether two texts of one length, which are short, are the same: a call of the system's comparison would take longer.
#[inline]
fn is_same(one: &[u8], other: &[u8]) -> bool {
    let (words, rest) = one.as_chunks::<8>();
    let (other_words, other_rest) = other.as_chunks::<8>();
    let same = |(a, b): (&[u8; 8], &[u8; 8])| u64::from_le_bytes(*a) == u64::from_le_bytes(*b);
    words.iter().zip(other_words).all(same) && rest.iter().zip(other_rest).all(|(a, b)| a == b)
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// How far it has come.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// The bytes that are left.
    #[inline]
    pub(super) fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    /// Goes on so many bytes.
    #[inline]
    pub(super) fn advance(&mut self, bytes: usize) {
        self.at += bytes;
    }

    #[cold]
    pub(super) fn wrong<T>(&self, what: &'static str) -> Result<T> {
        if self.at >= self.bytes.len() {
            return fail(RowErrorKind::Truncated);
        }
        fail(RowErrorKind::Json { at: self.at, what })
    }

    /// The next byte that is no white space; 0 at the end, which nothing begins with.
    #[inline]
    pub(super) fn peek(&mut self) -> u8 {
        loop {
            match self.bytes.get(self.at) {
                Some(b' ' | b'\n' | b'\r' | b'\t') => self.at += 1,
                Some(byte) => return *byte,
                None => return 0,
            }
        }
    }

    #[inline]
    pub(super) fn expect(&mut self, byte: u8, what: &'static str) -> Result<()> {
        if self.peek() != byte {
            return self.wrong(what);
        }
        self.at += 1;
        Ok(())
    }

    /// Goes behind `bytes`, if they are next.
    #[inline]
    pub(super) fn take(&mut self, bytes: &[u8]) -> bool {
        let found = self.bytes.get(self.at..self.at + bytes.len()).is_some_and(|next| is_same(next, bytes));
        self.at += if found { bytes.len() } else { 0 };
        found
    }

    /// A word such as `true`, whose first byte is next.
    pub(super) fn word(&mut self, word: &'static [u8]) -> Result<()> {
        let end = self.at + word.len();
        if self.bytes.get(self.at..end) != Some(word) {
            return self.wrong("it is no value");
        }
        self.at = end;
        Ok(())
    }

    /// A boolean, if one is next.
    #[inline]
    pub(super) fn boolean(&mut self) -> Result<bool> {
        let value = self.bytes.get(self.at) == Some(&b't');
        self.word(if value { b"true" } else { b"false" })?;
        Ok(value)
    }

    /// Ends a row, of which nothing but white space may be left.
    pub(super) fn end(&mut self) -> Result<()> {
        self.peek();
        match self.bytes.len() - self.at.min(self.bytes.len()) {
            0 => Ok(()),
            left => fail(RowErrorKind::Trailing(left)),
        }
    }

    /// A string, whose quote is next.
    #[inline]
    pub(super) fn string(&mut self) -> Result<Quoted<'a>> {
        self.at += 1;
        let (start, mut escaped) = (self.at, false);
        loop {
            self.skip_plain();
            match self.bytes.get(self.at) {
                Some(b'"') => {
                    let (from, len) = (self.bytes.get(start..).unwrap_or_default(), self.at - start);
                    self.at += 1;
                    return Ok(Quoted { from, len, escaped });
                }
                Some(b'\\') => {
                    escaped = true;
                    self.escape()?;
                }
                _ => return self.wrong("a control character stands in a string"),
            }
        }
    }

    /// Goes to the next quote, backslash or control character.
    #[inline]
    fn skip_plain(&mut self) {
        while let Some(Ok(word)) = self.bytes.get(self.at..self.at + 8).map(<[u8; 8]>::try_from) {
            let word = u64::from_le_bytes(word);
            let quotes = zeros(word ^ (LOW * u64::from(b'"'))) | zeros(word ^ (LOW * u64::from(b'\\')));
            let controls = word.wrapping_sub(LOW * 0x20) & !word & HIGH;
            let found = quotes | controls;
            if found != 0 {
                self.at += found.trailing_zeros() as usize / 8;
                return;
            }
            self.at += 8;
        }
        while self.bytes.get(self.at).is_some_and(|byte| !matches!(byte, b'"' | b'\\' | 0..0x20)) {
            self.at += 1;
        }
    }

    /// Goes behind an escape, whose backslash is next.
    fn escape(&mut self) -> Result<()> {
        match self.bytes.get(self.at + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 2,
            Some(b'u')
                if self
                    .bytes
                    .get(self.at + 2..self.at + 6)
                    .is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit)) =>
            {
                self.at += 6;
            }
            _ => return self.wrong("a backslash is followed by none of \"\\/bfnrtu, or by no four digits"),
        }
        Ok(())
    }

    /// The text of a number, whose first byte is next.
    pub(super) fn number(&mut self) -> Result<&'a [u8]> {
        let start = self.at;
        if self.bytes.get(self.at) == Some(&b'-') {
            self.at += 1;
        }
        let first = self.at;
        let digits = self.digits();
        if digits == 0 {
            return self.wrong("a number has no digits");
        }
        if digits > 1 && self.bytes.get(first) == Some(&b'0') {
            self.at = first;
            return self.wrong("a number begins with a 0");
        }
        if self.bytes.get(self.at) == Some(&b'.') {
            self.at += 1;
            if self.digits() == 0 {
                return self.wrong("a fraction has no digits");
            }
        }
        if let Some(b'e' | b'E') = self.bytes.get(self.at) {
            self.at += 1;
            if let Some(b'+' | b'-') = self.bytes.get(self.at) {
                self.at += 1;
            }
            if self.digits() == 0 {
                return self.wrong("an exponent has no digits");
            }
        }
        Ok(self.bytes.get(start..self.at).unwrap_or_default())
    }

    #[inline]
    fn digits(&mut self) -> usize {
        let start = self.at;
        while self.bytes.get(self.at).is_some_and(u8::is_ascii_digit) {
            self.at += 1;
        }
        self.at - start
    }

    /// Skips a value of any kind.
    pub(super) fn skip(&mut self, depth: usize) -> Result<()> {
        if depth > SKIP_DEPTH_MAX {
            return fail(RowErrorKind::Depth(SKIP_DEPTH_MAX));
        }
        match self.peek() {
            b'"' => self.string().map(drop),
            b'{' => self.members(|cursor| {
                if cursor.peek() != b'"' {
                    return cursor.wrong("a name of an object should stand here");
                }
                cursor.string()?;
                cursor.expect(b':', "a colon should stand here")?;
                cursor.skip(depth + 1)
            }),
            b'[' => self.items(|cursor| cursor.skip(depth + 1)),
            b't' => self.word(b"true"),
            b'f' => self.word(b"false"),
            b'n' => self.word(b"null"),
            b'-' | b'0'..=b'9' => self.number().map(drop),
            _ => self.wrong("it is no value"),
        }
    }

    /// The members of an object, whose brace is next.
    #[inline]
    pub(super) fn members(&mut self, member: impl FnMut(&mut Self) -> Result<()>) -> Result<()> {
        self.separated(b'}', member, "a comma or a closing brace should stand here")
    }

    /// The items of an array, whose bracket is next.
    #[inline]
    pub(super) fn items(&mut self, item: impl FnMut(&mut Self) -> Result<()>) -> Result<()> {
        self.separated(b']', item, "a comma or a closing bracket should stand here")
    }

    #[inline]
    fn separated(
        &mut self,
        close: u8,
        mut each: impl FnMut(&mut Self) -> Result<()>,
        what: &'static str,
    ) -> Result<()> {
        self.at += 1;
        if self.peek() == close {
            self.at += 1;
            return Ok(());
        }
        loop {
            each(self)?;
            match self.peek() {
                b',' => self.at += 1,
                byte if byte == close => {
                    self.at += 1;
                    return Ok(());
                }
                _ => return self.wrong(what),
            }
        }
    }
}

impl<'a> Quoted<'a> {
    pub(super) fn raw(&self) -> &'a [u8] {
        self.from.get(..self.len).unwrap_or_default()
    }

    /// What it means, in `text`.
    ///
    /// # Errors
    /// Half of a surrogate pair stands alone, which is no character.
    pub(super) fn unescape(self, text: &mut Vec<u8>) -> Result<()> {
        text.clear();
        let mut rest = self.raw();
        while let Some((byte, behind)) = rest.split_first() {
            if *byte != b'\\' {
                let plain = rest.iter().position(|byte| *byte == b'\\').unwrap_or(rest.len());
                let (plain, behind) = rest.split_at(plain);
                text.extend_from_slice(plain);
                rest = behind;
                continue;
            }
            let Some((kind, behind)) = behind.split_first() else { return fail(RowErrorKind::Internal) };
            rest = behind;
            let plain = match kind {
                b'b' => 8,
                b'f' => 12,
                b'n' => b'\n',
                b'r' => b'\r',
                b't' => b'\t',
                b'u' => {
                    rest = unicode(rest, text)?;
                    continue;
                }
                other => *other,
            };
            text.push(plain);
        }
        Ok(())
    }
}

/// A character by its number in four hexadecimal digits, or of two such halves; what is left behind it.
fn unicode<'a>(bytes: &'a [u8], text: &mut Vec<u8>) -> Result<&'a [u8]> {
    let alone = || Failure::from(RowErrorKind::Surrogate);
    let (first, mut rest) = bytes.split_at_checked(4).ok_or_else(alone)?;
    let mut number = hex(first);
    if (0xd800..0xdc00).contains(&number) {
        let (second, behind) = rest.split_at_checked(6).ok_or_else(alone)?;
        let low = second.strip_prefix(b"\\u").map(hex).filter(|low| (0xdc00..0xe000).contains(low));
        number = 0x1_0000 + ((number - 0xd800) << 10) + (low.ok_or_else(alone)? - 0xdc00);
        rest = behind;
    }
    let character = char::from_u32(number).ok_or_else(alone)?;
    text.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
    Ok(rest)
}

fn hex(digits: &[u8]) -> u32 {
    digits.iter().fold(0, |number, digit| number * 16 + char::from(*digit).to_digit(16).unwrap_or(0))
}
