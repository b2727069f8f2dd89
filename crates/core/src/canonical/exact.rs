//! Numbers in JSON that a double cannot hold. Without these checks, two different numbers could become one key.

use serde_json::Number;

/// A double holds every integer up to 2^53.
const LARGEST_INTEGER: u128 = 1 << 53;
const LARGEST: f64 = 9_007_199_254_740_992.0;
/// Replaces a number that loses digits. Both checks refuse it because it is larger than [`LARGEST`].
const REFUSED: &[u8] = b"1e308";
/// A double holds every number with this many digits, if it has no exponent.
const ALWAYS_HELD: usize = 15;

/// Whether a double holds this number. Then its canonical form has the same value.
pub(crate) fn is_held_by_double(number: &Number) -> bool {
    match number.as_i128() {
        Some(integer) => integer.unsigned_abs() <= LARGEST_INTEGER,
        None => number.as_f64().is_some_and(|double| double.abs() <= LARGEST),
    }
}

/// Whether the text that this number prints has its value: each integer of 64 bits, and all that a double holds.
#[cfg(feature = "worker")]
pub(crate) fn is_printed_exactly(number: &Number) -> bool {
    number.is_i64() || number.is_u64() || is_held_by_double(number)
}

/// The JSON with another number, which both checks refuse, for each number that loses digits when it is parsed. None if
/// there is no such number. The JSON must be valid.
pub(crate) fn mark_lost_digits(json: &[u8]) -> Option<Vec<u8>> {
    let (mut marked, mut copied, mut at) = (Vec::new(), 0, 0);
    while let Some(&byte) = json.get(at) {
        let rest = &json[at..];
        match byte {
            b'"' => at += string_length(rest),
            b'-' | b'0'..=b'9' => {
                let length = rest.iter().position(|byte| !is_of_number(*byte)).unwrap_or(rest.len());
                if loses_digits(&rest[..length]) {
                    marked.extend_from_slice(&json[copied..at]);
                    marked.extend_from_slice(REFUSED);
                    copied = at + length;
                }
                at += length;
            }
            _ => at += 1,
        }
    }
    if copied == 0 {
        return None;
    }
    marked.extend_from_slice(&json[copied..]);
    Some(marked)
}

/// The length of the string at the start of this JSON, with both quotes.
pub(super) fn string_length(json: &[u8]) -> usize {
    let mut at = 1;
    while let Some(byte) = json.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    json.len()
}

const fn is_of_number(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E')
}

/// Whether a number is neither an integer of 64 bits nor equal to the shortest text of its double.
fn loses_digits(number: &[u8]) -> bool {
    let Ok(text) = str::from_utf8(number) else { return false };
    let has_exponent = text.contains(['e', 'E']);
    if (text.len() <= ALWAYS_HELD && !has_exponent) || text.parse::<i64>().is_ok() || text.parse::<u64>().is_ok() {
        return false;
    }
    text.parse::<f64>().is_ok_and(|double| decimal(text) != decimal(&format!("{double:e}")))
}

/// The value of a number without its sign, as digits with no zeros around them, and the power of ten of the last digit.
/// The power is None if it does not fit.
fn decimal(number: &str) -> (String, Option<i64>) {
    let (mantissa, exponent) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
    let mantissa = mantissa.trim_start_matches('-');
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{whole}{fraction}");
    let significant = digits.trim_end_matches('0');
    let power = power_of_ten(exponent, digits.len() - significant.len(), fraction.len());
    match significant.trim_start_matches('0') {
        "" => (String::new(), Some(0)),
        significant => (significant.to_owned(), power),
    }
}

fn power_of_ten(exponent: &str, trimmed_zeros: usize, fraction: usize) -> Option<i64> {
    let exponent: i64 = exponent.parse().ok()?;
    exponent.checked_add(i64::try_from(trimmed_zeros).ok()?)?.checked_sub(i64::try_from(fraction).ok()?)
}
