use crate::broker::{DeadReason, Message};
use crate::key::{Fingerprint, OperationId};
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
        let read = text(fingerprints)?.split(',').map(|part| part.trim().parse::<Fingerprint>());
        let read: Vec<_> = read.collect::<Result<_, _>>().map_err(|_| DeadReason::KeyMalformed)?;
        call = match read[..] {
            [only] => call.fingerprint(only),
            [newest, older] => call.fingerprint(newest).or_older(older),
            _ => return Err(DeadReason::KeyMalformed),
        };
    }
    Ok(Some(call))
}

fn text(value: &[u8]) -> Result<&str, DeadReason> {
    str::from_utf8(value).map_err(|_| DeadReason::KeyMalformed)
}
