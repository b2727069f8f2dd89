//! What two calls of one key are compared by.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, ErrorKind};

/// The number of the rule that selects the parts of a payload for a fingerprint. The caller assigns the numbers, and
/// gives a changed rule a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rule(pub u8);

impl Rule {
    /// The rule of calls whose payload is not compared.
    pub const NONE: Self = Self(0);
}

/// A 96-bit hash of a payload, and the rule that selected its parts.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint {
    rule: Rule,
    bytes: [u8; Self::LEN],
}

impl Fingerprint {
    /// The length in bytes.
    pub const LEN: usize = 12;

    /// The fingerprint of calls whose payload is not compared.
    pub const NONE: Self = Self { rule: Rule::NONE, bytes: [0; Self::LEN] };

    /// The fingerprint with this rule and these bytes, which were computed before.
    pub const fn from_parts(rule: Rule, bytes: [u8; Self::LEN]) -> Self {
        Self { rule, bytes }
    }

    /// The rule that selected the parts.
    pub const fn rule(&self) -> Rule {
        self.rule
    }

    /// The 12 bytes.
    pub const fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.bytes
    }
}

/// Prints the rule and the first 8 hexadecimal digits.
impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.rule.0)?;
        self.bytes[..4].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The whole fingerprint, for the field `Hapax-Fingerprint`: the rule in decimal, a colon, and 24 hexadecimal digits.
impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.rule.0)?;
        self.bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Reads what `Display` prints.
impl FromStr for Fingerprint {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let read = || {
            let (rule, digits) = text.split_once(':')?;
            let mut bytes = [0; Self::LEN];
            if digits.len() != 2 * bytes.len() || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return None;
            }
            for (byte, pair) in bytes.iter_mut().zip(digits.as_bytes().chunks(2)) {
                *byte = u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok()?;
            }
            Some(Self { rule: Rule(rule.parse().ok()?), bytes })
        };
        read().ok_or_else(|| Error::new(ErrorKind::Invalid, "a fingerprint is RULE:HEX with 24 hexadecimal digits"))
    }
}
