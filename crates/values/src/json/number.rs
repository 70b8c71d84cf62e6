//! Numbers from their text in JSON.

use std::str;

use super::cursor::Cursor;
use crate::error::{Failure, Result, RowErrorKind};

/// So many digits fit into 64 bits, whatever they are.
const WHOLE_DIGITS: usize = 18;
/// A float is exact with so many digits, and so is the power of ten by which it is divided.
const FLOAT_DIGITS: usize = 15;
/// Powers of ten.
const TENS: [u64; WHOLE_DIGITS + 1] = {
    let mut tens = [1; WHOLE_DIGITS + 1];
    let mut at = 1;
    while at < tens.len() {
        tens[at] = tens[at - 1] * 10;
        at += 1;
    }
    tens
};
const ZEROS: u64 = 0x3030_3030_3030_3030;
/// The largest exponent of ten in 128 bits.
const POWER_MAX: usize = 38;

#[cold]
fn beyond(text: &[u8], wanted: &'static str) -> Failure {
    // As much of it as one can read.
    let shown = String::from_utf8_lossy(text.get(..40).unwrap_or(text)).into_owned();
    RowErrorKind::Range(shown, wanted).into()
}

/// The digits at the front of eight bytes, as a number, and how many they are.
#[inline]
fn eight(word: u64) -> (u64, usize) {
    let digits = word ^ ZEROS;
    // The high bit of each byte that is no digit, up to the first of them at least.
    let others = (digits.wrapping_add(0x7676_7676_7676_7676) | digits) & 0x8080_8080_8080_8080;
    let count = others.trailing_zeros() / 8;
    // They are moved to the end of the word, which leaves zeros in front; then pairs, fours and eights are joined.
    let digits = digits.checked_shl(64 - 8 * count).unwrap_or(0);
    let pairs = digits.wrapping_mul(10).wrapping_add(digits >> 8);
    let fours = (pairs & 0x0000_00ff_0000_00ff).wrapping_mul(0x000f_4240_0000_0064);
    let eights = (pairs >> 16 & 0x0000_00ff_0000_00ff).wrapping_mul(0x0000_2710_0000_0001);
    (fours.wrapping_add(eights) >> 32, count as usize)
}

/// The digits at the front, up to 24 of them, and how many they are. The number is right if they are no more than
/// [`WHOLE_DIGITS`].
#[inline]
fn digits(bytes: &[u8]) -> (u64, usize) {
    let mut rest = bytes;
    let (mut number, mut count) = (0_u64, 0);
    while let Some((chunk, behind)) = rest.split_first_chunk()
        && count < 24
    {
        let (more, found) = eight(u64::from_le_bytes(*chunk));
        number = number.wrapping_mul(TENS.get(found).copied().unwrap_or(0)).wrapping_add(more);
        count += found;
        if found < 8 {
            return (number, count);
        }
        rest = behind;
    }
    for byte in rest.iter().take_while(|byte| byte.is_ascii_digit()).take(8) {
        number = number.wrapping_mul(10).wrapping_add(u64::from(byte - b'0'));
        count += 1;
    }
    (number, count)
}

/// A number that one would write, in the usual way: its sign, its digits as one number, how many of them are behind the
/// point, how many there are, and how many bytes it has.
#[derive(Debug, Clone, Copy)]
struct Plain {
    negative: bool,
    digits: u64,
    behind: usize,
    count: usize,
    len: usize,
}

/// The number that is next, if it has no exponent and few digits.
#[inline]
fn plain(bytes: &[u8]) -> Option<Plain> {
    let negative = bytes.first() == Some(&b'-');
    let start = usize::from(negative);
    let unsigned = bytes.get(start..)?;
    let (before, count) = digits(unsigned);
    if count == 0 || count > WHOLE_DIGITS || (count > 1 && unsigned.first() == Some(&b'0')) {
        return None;
    }
    match unsigned.get(count) {
        Some(b'.') => {
            let (fraction, behind) = digits(unsigned.get(count + 1..)?);
            let all = count + behind;
            if behind == 0 || all > WHOLE_DIGITS || matches!(unsigned.get(all + 1), Some(b'e' | b'E')) {
                return None;
            }
            let digits = before.wrapping_mul(TENS.get(behind).copied()?).wrapping_add(fraction);
            Some(Plain { negative, digits, behind, count: all, len: start + all + 1 })
        }
        Some(b'e' | b'E') => None,
        _ => Some(Plain { negative, digits: before, behind: 0, count, len: start + count }),
    }
}

/// A whole number; one with a fraction or an exponent may be one too, such as `1.0` and `1e2`.
#[inline]
pub(super) fn whole(cursor: &mut Cursor<'_>, wanted: &'static str) -> Result<i64> {
    if let Some(plain) = plain(cursor.rest())
        && plain.behind == 0
        && let Ok(number) = i64::try_from(plain.digits)
    {
        cursor.advance(plain.len);
        return Ok(if plain.negative { -number } else { number });
    }
    let text = cursor.number()?;
    scaled(text, 0).and_then(|number| i64::try_from(number).ok()).ok_or_else(|| beyond(text, wanted))
}

/// A whole number of 32 bits.
#[inline]
pub(super) fn short(cursor: &mut Cursor<'_>, wanted: &'static str) -> Result<i32> {
    let number = whole(cursor, wanted)?;
    i32::try_from(number).map_err(|_| RowErrorKind::Range(number.to_string(), wanted).into())
}

/// A number as the nearest float.
#[inline]
pub(super) fn float(cursor: &mut Cursor<'_>) -> Result<f64> {
    if let Some(plain) = plain(cursor.rest())
        && plain.count <= FLOAT_DIGITS
    {
        cursor.advance(plain.len);
        let power = TENS.get(plain.behind).copied().unwrap_or(1);
        // Both are exact, so what one division makes of them is the nearest (Clinger 1990).
        #[expect(clippy::cast_precision_loss, reason = "they have at most 15 digits")]
        let number = plain.digits as f64 / power as f64;
        return Ok(if plain.negative { -number } else { number });
    }
    let text = cursor.number()?;
    let number = str::from_utf8(text).ok().and_then(|text| text.parse::<f64>().ok());
    number.filter(|number| number.is_finite()).ok_or_else(|| beyond(text, "double"))
}

/// A number as the nearest float of 32 bits.
pub(super) fn short_float(cursor: &mut Cursor<'_>) -> Result<f32> {
    let text = cursor.number()?;
    let number = str::from_utf8(text).ok().and_then(|text| text.parse::<f32>().ok());
    number.filter(|number| number.is_finite()).ok_or_else(|| beyond(text, "float"))
}

/// A decimal of so many digits, of which so many stand behind the point.
pub(super) fn decimal(cursor: &mut Cursor<'_>, precision: u8, scale: i8) -> Result<i128> {
    let text = cursor.number()?;
    let below = 10_u128.checked_pow(u32::from(precision));
    scaled(text, i64::from(scale))
        .filter(|number| below.is_none_or(|below| number.unsigned_abs() < below))
        .ok_or_else(|| beyond(text, "decimal"))
}

/// A number times ten to the power of `scale`, if that is whole and fits.
fn scaled(text: &[u8], scale: i64) -> Option<i128> {
    let (negative, text) = match text {
        [b'-', text @ ..] => (true, text),
        text => (false, text),
    };
    let exponent_at = text.iter().position(|byte| matches!(byte, b'e' | b'E')).unwrap_or(text.len());
    let (mantissa, exponent) = text.split_at(exponent_at);
    let point = mantissa.iter().position(|byte| *byte == b'.').unwrap_or(mantissa.len());
    let behind = i64::try_from(mantissa.len().saturating_sub(point + 1)).ok()?;
    let digits = || mantissa.iter().filter(|byte| **byte != b'.');
    // Zeros at both ends count for nothing.
    let leading = digits().take_while(|digit| **digit == b'0').count();
    let all = digits().count();
    if leading == all {
        return Some(0);
    }
    let exponent: i64 = match exponent.get(1..) {
        None => 0,
        Some(text) => str::from_utf8(text).ok()?.parse().ok()?,
    };
    let trailing =
        mantissa.iter().rev().filter(|byte| **byte != b'.').take_while(|digit| **digit == b'0').count();
    let kept = all - leading - trailing;
    let power =
        scale.checked_add(exponent)?.checked_sub(behind)?.checked_add(i64::try_from(trailing).ok()?)?;
    // A digit is left behind the last place, or there are more places than fit.
    let power = usize::try_from(power).ok()?;
    if kept + power > POWER_MAX + 1 {
        return None;
    }
    let number = digits().skip(leading).take(kept).try_fold(0_i128, |number, digit| {
        number.checked_mul(10)?.checked_add(i128::from(digit.checked_sub(b'0')?))
    })?;
    let number = number.checked_mul(10_i128.checked_pow(u32::try_from(power).ok()?)?)?;
    Some(if negative { -number } else { number })
}
