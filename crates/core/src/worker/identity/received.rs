use crate::broker::{DeadReason, Message};
use crate::key::{Fingerprint, OperationId, Rule};
use crate::ledger::Call;
use crate::worker::identity::key_rule::one_header;

/// The call in the headers `Hapax-Operation` and `Hapax-Fingerprint`. None without an operation.
pub(super) fn call(message: &Message) -> Result<Option<Call>, DeadReason> {
    let Some(operation) = one_header(message, &["hapax-operation"])? else {
        return Ok(None);
    };
    let operation: OperationId = text(operation)?.parse().map_err(|_| DeadReason::KeyMalformed)?;
    let mut call = Call::new(operation);
    if let Some(fingerprints) = one_header(message, &["hapax-fingerprint"])? {
        let mut fingerprints = text(fingerprints)?.split(',').map(|part| fingerprint(part.trim()));
        let newest = fingerprints.next().flatten().ok_or(DeadReason::KeyMalformed)?;
        call = call.fingerprint(newest);
        if let Some(older) = fingerprints.next() {
            call = call.or_older(older.ok_or(DeadReason::KeyMalformed)?);
        }
        if fingerprints.next().is_some() {
            return Err(DeadReason::KeyMalformed);
        }
    }
    Ok(Some(call))
}

/// `rule:hex`, the rule in decimal.
fn fingerprint(text: &str) -> Option<Fingerprint> {
    let (rule, digits) = text.split_once(':')?;
    let mut bytes = [0; Fingerprint::LEN];
    if digits.len() != 2 * bytes.len() || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(Fingerprint::from_parts(Rule(rule.parse().ok()?), bytes))
}

fn text(value: &[u8]) -> Result<&str, DeadReason> {
    str::from_utf8(value).map_err(|_| DeadReason::KeyMalformed)
}
