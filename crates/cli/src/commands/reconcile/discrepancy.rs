//! What a comparison found, and how it is printed.

use std::process::ExitCode;

use hapax::RecordKey;
use serde_json::{Map, Value, json};

use crate::commands::print::line;
use crate::serve::exit::CommandError;
use crate::serve::logs::escape_controls;

/// Something that does not fit together.
#[derive(Debug)]
pub(super) struct Discrepancy {
    pub(super) kind: DiscrepancyKind,
    pub(super) subject: DiscrepancySubject,
    /// What was found.
    pub(super) message: String,
    /// What helps.
    pub(super) advice: String,
    pub(super) is_repaired: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DiscrepancyKind {
    /// The outcome in the record is unknown, and the ledger has the effect.
    EffectCommitted,
    /// The outcome in the record is unknown, and the ledger has refused the operation.
    RefusalCommitted,
    /// The outcome in the record is unknown, and the ledger has no row.
    OutcomeUnknown,
    /// The ledger has the outcome of another payload.
    PayloadDiffers,
    /// The record is completed, and the ledger has no row.
    NoLedgerRow,
    /// The record cannot be read.
    RecordDamaged,
    /// The processor has the effect, and the record does not say so.
    EffectWithoutRecord,
    /// The record is completed, and the processor does not have the effect.
    RecordWithoutEffect,
    /// No relay can publish a bucket, or the one that has it does not.
    BucketStuck,
    /// A key of the outbox waits for an operator.
    KeyParked,
    /// Rows of the outbox wait for too long.
    RowsUnpublished,
}

impl DiscrepancyKind {
    /// Its name in the output.
    const fn as_str(self) -> &'static str {
        match self {
            Self::EffectCommitted => "effect-committed",
            Self::RefusalCommitted => "refusal-committed",
            Self::OutcomeUnknown => "outcome-unknown",
            Self::PayloadDiffers => "payload-differs",
            Self::NoLedgerRow => "no-ledger-row",
            Self::RecordDamaged => "record-damaged",
            Self::EffectWithoutRecord => "effect-without-record",
            Self::RecordWithoutEffect => "record-without-effect",
            Self::BucketStuck => "bucket-stuck",
            Self::KeyParked => "key-parked",
            Self::RowsUnpublished => "rows-unpublished",
        }
    }
}

/// What a discrepancy is about.
#[derive(Debug)]
pub(super) enum DiscrepancySubject {
    Record(RecordKey),
    Bucket(u8),
    /// An ordering key, as `hapax outbox` prints it.
    Key(String),
    Outbox,
}

impl DiscrepancySubject {
    fn text(&self) -> String {
        match self {
            Self::Record(rk) => format!("urn:hapax:record:{rk} (operation {})", rk.operation()),
            Self::Bucket(bucket) => format!("bucket {bucket}"),
            Self::Key(key) => format!("key {key}"),
            Self::Outbox => "outbox".to_owned(),
        }
    }

    fn fields(&self) -> Map<String, Value> {
        let fields: Vec<(&str, Value)> = match self {
            Self::Record(rk) => vec![
                ("record", json!(format!("urn:hapax:record:{rk}"))),
                ("operation", json!(rk.operation().to_string())),
            ],
            Self::Bucket(bucket) => vec![("bucket", json!(bucket))],
            Self::Key(key) => vec![("key", json!(key))],
            Self::Outbox => Vec::new(),
        };
        fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

/// Prints each discrepancy at once, and counts them.
#[derive(Debug)]
pub(super) struct ReconcileReport {
    as_json: bool,
    pub(super) compared: u64,
    repaired: u64,
    left: u64,
}

impl ReconcileReport {
    pub(super) fn new(as_json: bool) -> Self {
        Self { as_json, compared: 0, repaired: 0, left: 0 }
    }

    pub(super) fn add(&mut self, found: &Discrepancy) -> Result<(), CommandError> {
        *(if found.is_repaired { &mut self.repaired } else { &mut self.left }) += 1;
        // The comparison goes on also if nobody reads what is printed: it may repair.
        line(&if self.as_json { object(found) } else { text(found) }).map(drop)
    }

    /// Prints the summary. The exit code is 1 if something is left.
    pub(super) fn finish(self) -> Result<ExitCode, CommandError> {
        let Self { compared, repaired, left, as_json } = self;
        line(&if as_json {
            json!({ "compared": compared, "repaired": repaired, "left": left }).to_string()
        } else {
            format!("records compared: {compared}; repaired: {repaired}; findings left: {left}")
        })?;
        Ok(if left > 0 { ExitCode::from(1) } else { ExitCode::SUCCESS })
    }
}

fn text(found: &Discrepancy) -> String {
    let (message, advice) = (escape_controls(&found.message), escape_controls(&found.advice));
    let then = if found.is_repaired { "repaired".into() } else { advice };
    format!("{}  {}  {message}; {then}", found.kind.as_str(), found.subject.text())
}

fn object(found: &Discrepancy) -> String {
    let mut fields = found.subject.fields();
    fields.insert("finding".into(), json!(found.kind.as_str()));
    fields.insert("message".into(), json!(found.message));
    fields.insert("advice".into(), json!(found.advice));
    fields.insert("repaired".into(), json!(found.is_repaired));
    Value::Object(fields).to_string()
}
