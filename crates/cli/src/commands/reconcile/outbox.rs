//! Looks for what the relays do not publish: parked keys, rows that wait for too long, and buckets that are stuck.

use std::time::Duration;

use anyhow::anyhow;
use hapax::outbox::{BUCKETS, OpenRow, ParkedKey, ReadRequest, ReadStart, RowId};
use hapax::relay::bucket_records;
use hapax::store::RecordStatus;
use hapax::{ErrorKind, RecordKey};
use hapax_systems::{OpenedOutbox, OpenedStore};

use super::discrepancy::{Discrepancy, DiscrepancyKind, DiscrepancySubject, ReconcileReport};
use crate::admin::api::ordering_key::OrderingKey;
use crate::serve::exit::{CommandError, request};

/// How many parked keys one request returns.
const PAGE: usize = 200;

/// Counting reads each row that it counts.
const MAX_COUNTED: u64 = 1_000_000;

/// Enough for one event of each bucket.
const PAYLOADS: usize = 64 << 20;

pub(super) struct OutboxComparison {
    pub(super) outbox: OpenedOutbox,
    /// The claims of the relays. None if no relay was ever there.
    pub(super) claims: Option<OpenedStore>,
    pub(super) unpublished_after: Duration,
}

/// How long a relay that holds a bucket has for its first row before the bucket is stuck, if it needs that long.
const LONGEST_LOOK: Duration = Duration::from_secs(5);

/// How often it is looked at meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What the record of a bucket says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BucketHolder {
    /// A relay holds the lease.
    Relay,
    /// The next relay can claim it.
    Nobody,
    /// No relay can claim it.
    Unusable,
}

impl OutboxComparison {
    pub(super) async fn run(&self, report: &mut ReconcileReport) -> Result<(), CommandError> {
        self.report_parked(report).await?;
        let waiting = self.first_rows().await?;
        let mut held = Vec::new();
        let mut unclaimed = 0_usize;
        for (bucket, holder) in (0..BUCKETS).zip(self.holders().await?) {
            let first = waiting.iter().find(|row| row.bucket == bucket);
            match (holder, first) {
                (BucketHolder::Unusable, _) => report.add(&unusable(bucket)?)?,
                (BucketHolder::Relay, Some(row)) => held.push((bucket, row.id)),
                (BucketHolder::Nobody, Some(_)) => unclaimed += 1,
                (BucketHolder::Relay | BucketHolder::Nobody, None) => {}
            }
        }
        for bucket in self.unmoved(held).await? {
            report.add(&stuck(bucket, self.unpublished_after))?;
        }
        self.report_unpublished(unclaimed, report).await
    }

    /// Those of the held buckets whose first row stays the same. An old row alone shows no relay that hangs: the row
    /// may have been published again or resumed, and its relay is working on it.
    async fn unmoved(&self, mut held: Vec<(u8, RowId)>) -> Result<Vec<u8>, CommandError> {
        let begun = tokio::time::Instant::now();
        let looks_for = self.unpublished_after.min(LONGEST_LOOK);
        while !held.is_empty() && begun.elapsed() < looks_for {
            tokio::time::sleep(LOOK_EVERY.min(looks_for)).await;
            let waiting = self.first_rows().await?;
            held.retain(|(bucket, id)| waiting.iter().any(|row| row.bucket == *bucket && row.id == *id));
        }
        Ok(held.into_iter().map(|(bucket, _)| bucket).collect())
    }

    async fn report_parked(&self, report: &mut ReconcileReport) -> Result<(), CommandError> {
        let mut last: Option<ParkedKey> = None;
        loop {
            let mut page = request(self.outbox.upkeep.parked(last.as_ref(), PAGE)).await?;
            for parked in &page {
                let key = OrderingKey::new(parked.key.clone()).to_string();
                report.add(&Discrepancy {
                    kind: DiscrepancyKind::KeyParked,
                    message: format!("its event {} was refused: {}", parked.event, parked.reason),
                    advice: format!("remove the cause, then `hapax outbox resume '{key}' --database URL`"),
                    subject: DiscrepancySubject::Key(key),
                    is_repaired: false,
                })?;
            }
            last = page.pop();
            if last.is_none() {
                return Ok(());
            }
        }
    }

    /// The first open row of each bucket, if it has waited for too long and its key is not parked.
    async fn first_rows(&self) -> Result<Vec<OpenRow>, CommandError> {
        let Some(claims) = &self.claims else { return Ok(Vec::new()) };
        // Of no record: only the clock of the database matters.
        let now = request(claims.store.read(&RecordKey::from_bytes([0; 16]))).await?.now;
        let first = ReadRequest::all_buckets(ReadStart::FIRST, 1, PAYLOADS);
        let mut rows = request(self.outbox.outbox.read(&first)).await?.rows;
        let is_late = |row: &OpenRow| now.since(row.event.created_at) >= self.unpublished_after;
        rows.retain(|row| !row.is_parked && is_late(row));
        Ok(rows)
    }

    async fn holders(&self) -> Result<Vec<BucketHolder>, CommandError> {
        let Some(claims) = &self.claims else { return Ok(Vec::new()) };
        let mut holders = Vec::new();
        for rk in bucket_records().map_err(CommandError::usage)? {
            let seen = tokio::time::timeout(crate::serve::exit::DEADLINE, claims.store.read(&rk)).await;
            let seen = seen.map_err(|_| CommandError::cannot_start(anyhow!("the database does not reply")))?;
            holders.push(match seen {
                Ok(seen) => match RecordStatus::of(&seen) {
                    Some(RecordStatus::Running) => BucketHolder::Relay,
                    None | Some(RecordStatus::Lapsed | RecordStatus::Released) => BucketHolder::Nobody,
                    Some(RecordStatus::Completed | RecordStatus::Indeterminate | RecordStatus::Dead) => {
                        BucketHolder::Unusable
                    }
                },
                Err(error) if error.kind() == ErrorKind::Damaged => BucketHolder::Unusable,
                Err(error) => return Err(CommandError::cannot_start(error)),
            });
        }
        Ok(holders)
    }

    async fn report_unpublished(&self, unclaimed: usize, report: &mut ReconcileReport) -> Result<(), CommandError> {
        let counts = request(self.outbox.upkeep.counts(MAX_COUNTED)).await?;
        let Some(oldest) = counts.oldest.filter(|oldest| *oldest >= self.unpublished_after) else { return Ok(()) };
        let oldest = humantime::format_duration(Duration::from_secs(oldest.as_secs()));
        let unclaimed = match (&self.claims, unclaimed) {
            (None, _) => "; no relay was ever there".to_owned(),
            (Some(_), 0) => String::new(),
            (Some(_), buckets) => format!("; no relay has {buckets} of their buckets"),
        };
        report.add(&Discrepancy {
            kind: DiscrepancyKind::RowsUnpublished,
            subject: DiscrepancySubject::Outbox,
            message: format!("the oldest of {} open rows waits for {oldest}{unclaimed}", counts.open),
            advice: "start `hapax relay --database URL --sink URL`, or look at its log and at /readyz".into(),
            is_repaired: false,
        })
    }
}

fn stuck(bucket: u8, waits: Duration) -> Discrepancy {
    Discrepancy {
        kind: DiscrepancyKind::BucketStuck,
        subject: DiscrepancySubject::Bucket(bucket),
        message: format!(
            "a relay holds it and does not publish its first row, which waits for more than {}",
            humantime::format_duration(waits)
        ),
        advice: "look at the log of the relays and at the sink; end a relay that hangs, and another one takes over"
            .into(),
        is_repaired: false,
    }
}

fn unusable(bucket: u8) -> Result<Discrepancy, CommandError> {
    let records = bucket_records().map_err(CommandError::usage)?;
    let rk = records[usize::from(bucket)];
    Ok(Discrepancy {
        kind: DiscrepancyKind::BucketStuck,
        subject: DiscrepancySubject::Bucket(bucket),
        message: "its claim is no claim of a relay, so that no relay can take it".into(),
        advice: format!(
            "remove the row of hapax_record in the database whose rk is {rk}; relays then claim the bucket"
        ),
        is_repaired: false,
    })
}
