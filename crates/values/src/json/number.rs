//! Numbers from their text in JSON.

use std::str;

use crate::error::{Failure, Result, RowErrorKind};

/// So many digits fit into 64 bits, whatever they are.
const SHORT_DIGITS: usize = 18;
/// The largest exponent of ten in 128 bits.
const POWER_MAX: usize = 38;

#[cold]
fn beyond(text: &[u8], wanted: &'static str) -> Failure {
    // As much of it as one can read.
    let shown = String::from_utf8_lossy(text.get(..40).unwrap_or(text)).into_owned();
    RowErrorKind::Range(shown, wanted).into()
}

/// A whole number; one with a fraction or an exponent may be one too, such as `1.0` and `1e2`.
#[inline]
pub(super) fn whole(text: &[u8], broken: bool, wanted: &'static str) -> Result<i64> {
    if !broken && text.len() <= SHORT_DIGITS {
        let (negative, digits) = match text {
            [b'-', digits @ ..] => (true, digits),
            digits => (false, digits),
        };
        let number = digits.iter().fold(0_i64, |number, digit| number * 10 + i64::from(digit - b'0'));
        return Ok(if negative { -number } else { number });
    }
    scaled(text, 0).and_then(|number| i64::try_from(number).ok()).ok_or_else(|| beyond(text, wanted))
}

/// A number as the nearest float.
#[inline]
pub(super) fn float(text: &[u8], broken: bool) -> Result<f64> {
    if !broken && text.len() <= 15 {
        // Exact in 53 bits.
        #[expect(clippy::cast_precision_loss, reason = "it has at most 15 digits")]
        let number = whole(text, false, "double")? as f64;
        return Ok(if text.first() == Some(&b'-') { -number.abs() } else { number });
    }
    let number = str::from_utf8(text).ok().and_then(|text| text.parse::<f64>().ok());
    number.filter(|number| number.is_finite()).ok_or_else(|| beyond(text, "double"))
}

/// A number as the nearest float of 32 bits.
pub(super) fn short_float(text: &[u8]) -> Result<f32> {
    let number = str::from_utf8(text).ok().and_then(|text| text.parse::<f32>().ok());
    number.filter(|number| number.is_finite()).ok_or_else(|| beyond(text, "float"))
}

/// A decimal of so many digits, of which so many stand behind the point.
pub(super) fn decimal(text: &[u8], precision: u8, scale: i8) -> Result<i128> {
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
