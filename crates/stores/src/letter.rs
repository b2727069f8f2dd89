//! A dead letter as the columns that every database keeps.

use std::sync::Arc;

use bytes::Bytes;
use hapax_core::broker::{
    Coordinates, DeadCause, DeadLetter, DeadLetterId, DeadReason, KeptLetter, ListedReason, MarkedLetter, Message,
    Position, SeenLetter,
};
use hapax_core::{Error, ErrorKind, Fingerprint, OperationId, Result, Rule, Timestamp};
use serde_json::{Map, Value, json};

use crate::headers;

/// The latest time that every database can store: the end of the year 9999.
pub(crate) const LATEST: Timestamp = Timestamp(253_402_300_799_999_999);

/// The names of what is kept beside the headers, because no column has it.
const CAUSE: &str = "cause";
const SENT_AT: &str = "sent_at";

/// What is kept beside the headers: the cause, and a time of the message behind [`LATEST`], which may be a part of its
/// key.
fn extras(letter: &DeadLetter) -> Option<Value> {
    let cause = letter.cause.as_ref().map(|cause| (CAUSE.to_owned(), json!(cause.as_str())));
    let sent_at = letter.message.timestamp.filter(|at| *at > LATEST).map(|at| (SENT_AT.to_owned(), json!(at.0)));
    let extras: Map<String, Value> = cause.into_iter().chain(sent_at).collect();
    (!extras.is_empty()).then_some(Value::Object(extras))
}

/// A stored text, which another program may have written in another encoding, and whether it is UTF-8.
#[cfg(any(feature = "redis", feature = "sqlite"))]
pub(crate) fn readable_text(stored: &[u8]) -> (String, bool) {
    (String::from_utf8_lossy(stored).into_owned(), std::str::from_utf8(stored).is_ok())
}

/// The columns of a letter. Numbers without a sign keep their 64 bits.
#[derive(Debug)]
pub(crate) struct LetterColumns {
    pub(crate) id: [u8; 16],
    pub(crate) reason: String,
    pub(crate) attempts: i64,
    pub(crate) namespace: String,
    pub(crate) source: String,
    pub(crate) operation: Option<[u8; 16]>,
    pub(crate) rule: i16,
    pub(crate) fingerprint: [u8; Fingerprint::LEN],
    pub(crate) at: i64,
    pub(crate) origin: Option<String>,
    pub(crate) partition: Option<i64>,
    pub(crate) position: Option<i64>,
    pub(crate) position_id: Option<Bytes>,
    pub(crate) sent_at: Option<i64>,
    pub(crate) ordering_key: Option<Bytes>,
    /// The headers of the message, and the cause of the letter.
    pub(crate) headers: String,
    pub(crate) payload: Bytes,
}

impl LetterColumns {
    pub(crate) fn of(letter: &DeadLetter) -> Self {
        let message = &letter.message;
        let coordinates = message.coordinates.as_ref();
        let (position, position_id) = match coordinates.map(|coordinates| &coordinates.position) {
            Some(Position::Number(number)) => (Some(number.cast_signed()), None),
            Some(Position::Id(id)) => (None, Some(id.clone())),
            None => (None, None),
        };
        Self {
            id: *letter.id.as_bytes(),
            reason: letter.reason.as_str().to_owned(),
            attempts: letter.attempts.into(),
            namespace: letter.namespace.to_string(),
            source: letter.source.to_string(),
            operation: letter.operation.map(|operation| *operation.as_bytes()),
            rule: letter.fingerprint.rule().0.into(),
            fingerprint: *letter.fingerprint.as_bytes(),
            at: letter.at.0.cast_signed(),
            origin: coordinates.map(|coordinates| coordinates.origin.to_string()),
            partition: coordinates.map(|coordinates| coordinates.partition.into()),
            position,
            position_id,
            sent_at: message.timestamp.map(|sent_at| sent_at.0.cast_signed()),
            ordering_key: message.ordering_key.clone(),
            headers: headers::encode_with(&message.headers, extras(letter)),
            payload: message.payload.clone(),
        }
    }

    /// # Errors
    /// `Damaged` if the columns are not those of a letter. `Unusable` if a newer release has written them.
    pub(crate) fn letter(self) -> Result<DeadLetter> {
        let id = DeadLetterId::from_bytes(self.id);
        let named = |error: Error| Error::new(error.kind(), format!("the dead letter {id}")).caused_by(error);
        self.decode().map_err(named)
    }

    fn decode(self) -> Result<DeadLetter> {
        let reason = reason(&self.reason)?;
        let (headers, extras) = headers::decode_with(&self.headers)?;
        let extra = |name: &str| extras.as_ref().and_then(|extras| extras.get(name));
        let message = Message {
            headers,
            coordinates: self.coordinates()?,
            payload: self.payload,
            ordering_key: self.ordering_key,
            timestamp: extra(SENT_AT).and_then(Value::as_u64).map(Timestamp).or(self.sent_at.map(time)),
            damage: (reason == DeadReason::Unreadable).then(|| "the message was unreadable at its broker".into()),
        };
        Ok(DeadLetter {
            id: DeadLetterId::from_bytes(self.id),
            reason,
            attempts: number(self.attempts)?,
            cause: extra(CAUSE).and_then(Value::as_str).and_then(DeadCause::new),
            namespace: self.namespace.into(),
            source: self.source.into(),
            operation: self.operation.map(OperationId::from_bytes),
            fingerprint: Fingerprint::from_parts(Rule(number(self.rule)?), self.fingerprint),
            message: Arc::new(message),
            at: time(self.at),
        })
    }

    fn coordinates(&self) -> Result<Option<Coordinates>> {
        let Some(origin) = &self.origin else { return Ok(None) };
        let position = match (self.position, &self.position_id) {
            (Some(number), _) => Position::Number(number.cast_unsigned()),
            (None, Some(id)) => Position::Id(id.clone()),
            (None, None) => return Err(damaged()),
        };
        let partition = number(self.partition.unwrap_or_default())?;
        Ok(Some(Coordinates { origin: origin.as_str().into(), partition, position }))
    }
}

/// # Errors
/// `Unusable` if a newer release has written the reason.
fn reason(name: &str) -> Result<DeadReason> {
    let unknown = || {
        let message = format!("a dead letter has the unknown reason {name:?}; use the release that wrote it");
        Error::new(ErrorKind::Unusable, message)
    };
    DeadReason::from_name(name).ok_or_else(unknown)
}

/// The reason and the attempts of a letter in a list.
pub(crate) fn listed(reason: String, attempts: i64) -> (ListedReason, u32) {
    u32::try_from(attempts).map_or((ListedReason::Damaged, 0), |attempts| (ListedReason::from_name(reason), attempts))
}

/// The version of a letter that a write must name: the number of the letter, its time and the time of its mark. The
/// number alone is not enough, because a sequence that a restore set back draws it again.
pub(crate) fn seen(number: i64, at: Timestamp, marked_at: Option<Timestamp>) -> SeenLetter {
    SeenLetter { written: format!("{number}-{}", at.0), marked_at }
}

pub(crate) fn time(stored: i64) -> Timestamp {
    Timestamp(stored.cast_unsigned())
}

fn number<S, T: TryFrom<S>>(stored: S) -> Result<T> {
    T::try_from(stored).map_err(|_| damaged())
}

/// The letters that were taken for a redrive, and the ids of those that cannot be decoded. These are logged: they must
/// not keep the others back.
pub(crate) fn readable(
    taken: impl IntoIterator<Item = (DeadLetterId, Result<KeptLetter>)>,
) -> (Vec<MarkedLetter>, Vec<DeadLetterId>) {
    let (mut marked, mut left_out) = (Vec::new(), Vec::new());
    let decode = |kept: Result<KeptLetter>| {
        let kept = kept?;
        Ok(MarkedLetter { letter: kept.letter, marked_at: kept.marked_at.ok_or_else(damaged)? })
    };
    for (id, kept) in taken {
        let log =
            |error: &Error| tracing::error!(?error, "a marked dead letter cannot be decoded; the others are redriven");
        match decode(kept).inspect_err(log) {
            Ok(letter) => marked.push(letter),
            Err(_) => left_out.push(id),
        }
    }
    (marked, left_out)
}

pub(crate) fn damaged() -> Error {
    Error::new(ErrorKind::Damaged, "a dead letter cannot be decoded; restore it from a backup, or delete it")
}
