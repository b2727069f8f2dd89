//! Compares the records with the ledger, and asks the processor of the effect.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use hapax::ledger::{CommittedRow, LedgerRows};
use hapax::machine::{Resolved, Verdict};
use hapax::relay::{bucket_records, member_records};
use hapax::runtime::{Runtime, Tokio};
use hapax::store::{Protocol, RecordStatus, Scan, Scanned};
use hapax::{Identity, Key, OperationId, RecordKey, Rule, Scope, Seconds, Settings, State, Timestamp};

use super::ReconcileArgs;
use super::discrepancy::{Discrepancy, DiscrepancyKind, DiscrepancySubject, ReconcileReport};
use super::probe::{ASKED, EffectProbe};
use super::sample::RecordSample;
use crate::commands::{CommandError, request};
use crate::store::checks::TRIAL_RETENTION;
use crate::store::wiring::OpenedStore;

/// How many records one request reads. Each may have an answer of 1 MiB.
const CHUNK: usize = 100;

/// Only the record that ties a namespace to its secret lives longer.
const LONGEST_RETENTION: Duration = Duration::from_secs(2 * 366 * 24 * 3600);

pub(super) struct RecordComparison {
    records: OpenedStore,
    ledger: Arc<dyn LedgerRows>,
    probe: Option<EffectProbe>,
    /// The namespaces of workers whose messages have the operation as their key.
    worker_scopes: Vec<Scope>,
    /// The records of relays are compared with the outbox.
    of_relays: HashSet<RecordKey>,
    since: Timestamp,
    longest_transaction: Duration,
    sample: RecordSample,
    is_fixing: bool,
}

/// What the ledger says about a record.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Judgement {
    Fits,
    Committed { namespace: String },
    OtherPayload { namespace: String },
    Unknown,
    NoRow,
}

impl RecordComparison {
    pub(super) fn new(
        records: OpenedStore,
        ledger: Arc<dyn LedgerRows>,
        probe: Option<EffectProbe>,
        args: &ReconcileArgs,
    ) -> Result<Self, CommandError> {
        let scopes = args.worker_namespace.iter().map(|namespace| Scope::untenanted(namespace));
        let of_relays = [bucket_records(), member_records()].into_iter().collect::<hapax::Result<Vec<_>>>();
        let mut center = [0; 8];
        Tokio::current().fill_random(&mut center);
        Ok(Self {
            records,
            ledger,
            probe,
            worker_scopes: scopes.collect::<Result<_, _>>().map_err(CommandError::usage)?,
            of_relays: of_relays.map_err(CommandError::usage)?.into_iter().flatten().collect(),
            since: args.since.unwrap_or_default(),
            longest_transaction: args.longest_transaction,
            sample: RecordSample::new(args.sample, u64::from_be_bytes(center)),
            is_fixing: args.fix,
        })
    }

    pub(super) async fn run(mut self, report: &mut ReconcileReport) -> Result<(), CommandError> {
        let statuses = [RecordStatus::Lapsed, RecordStatus::Indeterminate, RecordStatus::Completed];
        let mut scan = Scan::new(CHUNK).only(&statuses).idle_for(self.longest_transaction);
        loop {
            let chunk = request(self.records.inspect.scan(&scan)).await?;
            for rk in chunk.damaged {
                report.add(&damaged(rk))?;
            }
            let records: Vec<_> = chunk.records.into_iter().filter(|found| self.is_compared(found)).collect();
            self.compare(&records, report).await?;
            let Some(next) = chunk.next else { break };
            scan = scan.from(next);
        }
        self.ask_about_sample(report).await
    }

    /// Whether the record is old enough, and not one of Hapax itself.
    fn is_compared(&self, found: &Scanned) -> bool {
        let lease = found.record.state.holding().map_or(Duration::ZERO, |holding| holding.lease.into());
        // A first token is the clock of the store, and a later one is larger.
        let is_since = found.record.token.0 >= self.since.0;
        let is_old = found.idle >= lease + self.longest_transaction;
        is_since && is_old && !is_of_a_gateway(found) && !self.of_relays.contains(&found.rk)
    }

    async fn compare(&mut self, records: &[Scanned], report: &mut ReconcileReport) -> Result<(), CommandError> {
        report.compared += u64::try_from(records.len()).unwrap_or(u64::MAX);
        let operations: Vec<_> = records.iter().flat_map(|found| self.operations(&found.rk)).collect();
        let mut rows: HashMap<OperationId, Vec<CommittedRow>> = HashMap::new();
        if !operations.is_empty() {
            for row in request(self.ledger.rows_of(&operations)).await? {
                rows.entry(row.operation).or_default().push(row);
            }
        }
        let mut undecided = Vec::new();
        for found in records {
            let rows: Vec<_> = self.operations(&found.rk).iter().filter_map(|id| rows.get(id)).flatten().collect();
            match judge(found, &rows) {
                Judgement::Fits => self.sample_completed(found),
                Judgement::Committed { namespace } => self.repair_or_report(found, &namespace, report).await?,
                judgement @ (Judgement::OtherPayload { .. } | Judgement::Unknown | Judgement::NoRow) => {
                    undecided.push((found, judgement));
                }
            }
        }
        self.report_undecided(&undecided, report).await
    }

    /// The operation of the record, and those that workers derive from it.
    fn operations(&self, rk: &RecordKey) -> Vec<OperationId> {
        let operation = rk.operation();
        let key = Key::new(operation.to_string()).expect("a UUID is a valid key");
        let of_worker = |scope: &Scope| Identity::plain().record_key(scope, &key).operation();
        [operation].into_iter().chain(self.worker_scopes.iter().map(of_worker)).collect()
    }

    fn sample_completed(&mut self, found: &Scanned) {
        if self.probe.is_some() && found.status == RecordStatus::Completed && !is_final_refusal(&found.record.state) {
            self.sample.add(found.rk);
        }
    }

    async fn repair_or_report(
        &self,
        found: &Scanned,
        namespace: &str,
        report: &mut ReconcileReport,
    ) -> Result<(), CommandError> {
        let is_repaired = self.is_fixing && self.release(found).await?;
        if !is_repaired && !self.is_unchanged(found).await? {
            return Ok(());
        }
        report.add(&Discrepancy {
            kind: DiscrepancyKind::EffectCommitted,
            subject: DiscrepancySubject::Record(found.rk),
            message: format!("{}, and the ledger {namespace} has its effect", outcome(found.status)),
            advice: "run this command with --fix; the next retry then gets the answer of the ledger".into(),
            is_repaired,
        })
    }

    /// Lets the next retry run the handler, which finds the row of the ledger. Returns false if the record has changed.
    async fn release(&self, found: &Scanned) -> Result<bool, CommandError> {
        let (protocol, token) = (Protocol::over(&*self.records.store), found.record.token);
        if let (RecordStatus::Lapsed, Some(holding)) = (found.status, found.record.state.holding())
            && request(protocol.hold(&found.rk, token, holding.lifetime)).await? == Resolved::Stale
        {
            return Ok(false);
        }
        let lifetime = Seconds(u32::try_from(Settings::default().policy.released_retention.as_secs()).unwrap_or(600));
        let resolved = request(protocol.resolve(&found.rk, token, &Verdict::NotDone { lifetime })).await?;
        Ok(resolved == Resolved::Yes)
    }

    /// Reports what the ledger does not decide, and asks the processor about it.
    async fn report_undecided(
        &self,
        undecided: &[(&Scanned, Judgement)],
        report: &mut ReconcileReport,
    ) -> Result<(), CommandError> {
        for undecided in undecided.chunks(ASKED) {
            let unknown = undecided.iter().filter(|(found, _)| found.status != RecordStatus::Completed);
            let unknown: Vec<_> = unknown.map(|(found, _)| found.rk).collect();
            let done = match &self.probe {
                Some(probe) => probe.ask(&unknown).await?.done,
                None => HashSet::new(),
            };
            for (found, judgement) in undecided {
                // It may have changed since it was compared.
                if self.is_unchanged(found).await? {
                    let is_done = done.contains(&found.rk.operation());
                    report.add(&if is_done { effect_without_record(found) } else { undecided_by(found, judgement) })?;
                }
            }
        }
        Ok(())
    }

    async fn is_unchanged(&self, found: &Scanned) -> Result<bool, CommandError> {
        let seen = request(self.records.store.read(&found.rk)).await?;
        Ok(seen.live() == Some(&found.record))
    }

    async fn ask_about_sample(self, report: &mut ReconcileReport) -> Result<(), CommandError> {
        let Some(probe) = self.probe else { return Ok(()) };
        for records in self.sample.into_keys().chunks(ASKED) {
            let known = probe.ask(records).await?;
            for rk in records.iter().filter(|rk| known.not_done.contains(&rk.operation())) {
                report.add(&Discrepancy {
                    kind: DiscrepancyKind::RecordWithoutEffect,
                    subject: DiscrepancySubject::Record(*rk),
                    message: "the answer is recorded, and the processor says that the effect did not happen".into(),
                    advice: "compare both by hand: the client was told that it happened".into(),
                    is_repaired: false,
                })?;
            }
        }
        Ok(())
    }
}

/// Whether a gateway made the record for itself: the one that ties a namespace to its secret, or the trial record of a
/// start, which lives for a minute. Both are completed without an answer, which no response is.
fn is_of_a_gateway(found: &Scanned) -> bool {
    let has_no_answer = matches!(&found.record.state, State::Completed(completion) if completion.answer.is_empty());
    let trial = Duration::from(TRIAL_RETENTION);
    has_no_answer && (found.life_left <= trial || found.life_left > LONGEST_RETENTION)
}

/// What the rows of its operations say about a record.
fn judge(found: &Scanned, rows: &[&CommittedRow]) -> Judgement {
    let own = found.rk.operation();
    let recorded = found.record.fingerprint;
    // A worker fingerprints the message, not the request.
    let is_other = |row: &&&CommittedRow| {
        let is_comparable =
            row.operation == own && row.fingerprint.rule() == recorded.rule() && recorded.rule() != Rule(0);
        is_comparable && row.fingerprint != recorded
    };
    match found.status {
        RecordStatus::Completed if rows.is_empty() && !is_final_refusal(&found.record.state) => Judgement::NoRow,
        RecordStatus::Completed | RecordStatus::Running | RecordStatus::Released | RecordStatus::Dead => {
            Judgement::Fits
        }
        RecordStatus::Lapsed | RecordStatus::Indeterminate => {
            match (rows.iter().find(|row| !is_other(row)), rows.first()) {
                (Some(row), _) => Judgement::Committed { namespace: row.namespace.clone() },
                (None, Some(row)) => Judgement::OtherPayload { namespace: row.namespace.clone() },
                (None, None) => Judgement::Unknown,
            }
        }
    }
}

/// Whether the recorded answer is a response with a status that says that nothing was applied. Its stored form begins
/// with 1 and the status.
fn is_final_refusal(state: &State) -> bool {
    match state {
        State::Completed(completion) => match completion.answer[..] {
            [1, high, low, ..] => (400..500).contains(&u16::from_be_bytes([high, low])),
            [..] => false,
        },
        State::Open(..) => false,
    }
}

fn outcome(status: RecordStatus) -> &'static str {
    match status {
        RecordStatus::Lapsed => "the lease has expired without an outcome",
        RecordStatus::Indeterminate => "the outcome is held as unknown",
        RecordStatus::Completed => "the answer is recorded",
        RecordStatus::Running | RecordStatus::Released | RecordStatus::Dead => "the record is in another state",
    }
}

fn undecided_by(found: &Scanned, judgement: &Judgement) -> Discrepancy {
    let state = outcome(found.status);
    let (kind, message, advice) = match judgement {
        Judgement::NoRow => (
            DiscrepancyKind::NoLedgerRow,
            format!("{state}, and no ledger has a row for it"),
            "if the route uses the ledger, the database has lost a commit, or the answer was not the handler's: look \
             at the effect by hand",
        ),
        Judgement::OtherPayload { namespace } => (
            DiscrepancyKind::PayloadDiffers,
            format!("{state}, and the ledger {namespace} has the effect of another payload"),
            "the record was lost and its key used again for another request: look at both by hand",
        ),
        Judgement::Unknown | Judgement::Fits | Judgement::Committed { .. } => (
            DiscrepancyKind::OutcomeUnknown,
            format!("{state}, and no ledger has a row for it"),
            "nothing was applied if the route uses the ledger; otherwise look at the effect by hand, or name its \
             processor with --probe",
        ),
    };
    Discrepancy {
        kind,
        subject: DiscrepancySubject::Record(found.rk),
        message,
        advice: advice.into(),
        is_repaired: false,
    }
}

fn effect_without_record(found: &Scanned) -> Discrepancy {
    Discrepancy {
        kind: DiscrepancyKind::EffectWithoutRecord,
        subject: DiscrepancySubject::Record(found.rk),
        message: format!("{}, and the processor says that the effect happened", outcome(found.status)),
        advice: "record the answer: the client must not send it under another key".into(),
        is_repaired: false,
    }
}

fn damaged(rk: RecordKey) -> Discrepancy {
    Discrepancy {
        kind: DiscrepancyKind::RecordDamaged,
        subject: DiscrepancySubject::Record(rk),
        message: "the record cannot be read: it was altered, or another release wrote it".into(),
        advice: "find out who writes to the store; the key stays closed until the record is restored or removed".into(),
        is_repaired: false,
    }
}
