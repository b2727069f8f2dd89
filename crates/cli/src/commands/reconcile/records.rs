//! Compares the records with the ledger, and asks the processor of the effect.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use hapax::ledger::{CommittedRow, LedgerRows};
use hapax::machine::{Resolved, Verdict};
use hapax::relay::{bucket_records, member_records};
use hapax::runtime::{Runtime, Tokio};
use hapax::store::{Protocol, RecordStatus, Scan, Scanned};
use hapax::{Identity, Key, OperationId, RecordKey, Scope, Seconds, Settings, Timestamp};
use hapax_systems::OpenedStore;

use super::ReconcileArgs;
use super::discrepancy::ReconcileReport;
use super::judgement::{
    Judgement, LedgerOutcome, committed, damaged, is_final_refusal, is_of_a_gateway, judge, record_without_effect,
    undecided,
};
use super::probe::{Effect, EffectProbe, KnownEffects};
use super::sample::RecordSample;
use crate::admin::api::values::timestamp;
use crate::commands::progress::CommandProgress;
use crate::config::secret_identity;
use crate::serve::exit::{CommandError, request};

/// How many records one request reads. Each may have an answer of 1 MiB.
const CHUNK: usize = 100;

pub(super) struct RecordComparison {
    records: OpenedStore,
    ledger: Arc<dyn LedgerRows>,
    probe: Option<EffectProbe>,
    /// The namespaces of workers whose messages have the operation as their key.
    worker_scopes: Vec<Scope>,
    /// What the workers derive their operations with.
    worker_identity: Identity,
    /// The records of relays are compared with the outbox.
    of_relays: HashSet<RecordKey>,
    since: Timestamp,
    longest_transaction: Duration,
    sample: RecordSample,
    has_ledger: bool,
    is_fixing: bool,
}

impl RecordComparison {
    pub(super) fn new(
        records: OpenedStore,
        ledger: Arc<dyn LedgerRows>,
        probe: Option<EffectProbe>,
        args: &ReconcileArgs,
    ) -> Result<Self, CommandError> {
        let scopes = args.worker_namespace.iter().map(|namespace| Scope::untenanted(namespace));
        let identity = args.secrets.as_deref().map(secret_identity).transpose();
        let identity = identity.map_err(|error| CommandError::usage(error.context("--secrets")))?;
        let of_relays = [bucket_records(), member_records()].into_iter().collect::<hapax::Result<Vec<_>>>();
        let mut center = [0; 8];
        Tokio::current().fill_random(&mut center);
        Ok(Self {
            records,
            ledger,
            probe,
            worker_scopes: scopes.collect::<Result<_, _>>().map_err(CommandError::usage)?,
            worker_identity: identity.unwrap_or_else(Identity::plain),
            of_relays: of_relays.map_err(CommandError::usage)?.into_iter().flatten().collect(),
            since: args.since.map_or(Timestamp(0), |since| timestamp(*since)),
            longest_transaction: args.longest_transaction,
            sample: RecordSample::new(args.sample, u64::from_be_bytes(center)),
            has_ledger: !args.no_ledger,
            is_fixing: args.fix,
        })
    }

    pub(super) async fn run(mut self, report: &mut ReconcileReport) -> Result<(), CommandError> {
        let statuses = [RecordStatus::Lapsed, RecordStatus::Indeterminate, RecordStatus::Completed];
        let mut scan = Scan::new(CHUNK).only(&statuses).idle_for(self.longest_transaction);
        let mut looked = CommandProgress::of("records looked at");
        loop {
            let chunk = request(self.records.inspect.scan(&scan)).await?;
            looked.add(chunk.records.len());
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
        let mut left = Vec::new();
        for found in records {
            let rows: Vec<_> = self.operations(&found.rk).iter().filter_map(|id| rows.get(id)).flatten().collect();
            self.sample_completed(found);
            match judge(found, &rows) {
                Judgement::Fits => {}
                Judgement::NoRow if !self.has_ledger => {}
                Judgement::Committed(outcome) => self.repair_or_report(found, &outcome, report).await?,
                judgement @ (Judgement::OtherPayload { .. } | Judgement::Unknown | Judgement::NoRow) => {
                    left.push((found, judgement));
                }
            }
        }
        self.report_undecided(&left, report).await
    }

    /// The operation of the record, and those that workers derive from it.
    fn operations(&self, rk: &RecordKey) -> Vec<OperationId> {
        let operation = rk.operation();
        let key = Key::new(operation.to_string()).expect("a UUID is a valid key");
        let of_worker = |scope: &Scope| self.worker_identity.record_key(scope, &key).operation();
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
        outcome: &LedgerOutcome,
        report: &mut ReconcileReport,
    ) -> Result<(), CommandError> {
        let is_repaired = self.is_fixing && self.release(found).await?;
        if !is_repaired && !self.is_unchanged(found).await? {
            return Ok(());
        }
        report.add(&committed(found, outcome, is_repaired))
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

    /// Reports what the ledger does not decide, and asks the processor about each unknown outcome.
    async fn report_undecided(
        &self,
        left: &[(&Scanned, Judgement)],
        report: &mut ReconcileReport,
    ) -> Result<(), CommandError> {
        let unknown = left.iter().filter(|(found, _)| found.status != RecordStatus::Completed);
        let known = self.ask(unknown.map(|(found, _)| found.rk)).await?;
        for (found, judgement) in left {
            // It may have changed since it was compared.
            if self.is_unchanged(found).await? {
                report.add(&undecided(found, judgement, known.of(&self.operations(&found.rk))))?;
            }
        }
        Ok(())
    }

    async fn ask(&self, records: impl Iterator<Item = RecordKey>) -> Result<KnownEffects, CommandError> {
        let Some(probe) = &self.probe else { return Ok(KnownEffects::default()) };
        let operations: Vec<_> = records.flat_map(|rk| self.operations(&rk)).collect();
        probe.ask(&operations).await
    }

    /// Whether the record is as it was found. A renewal changes only the lease, which is a part of the status.
    async fn is_unchanged(&self, found: &Scanned) -> Result<bool, CommandError> {
        let seen = request(self.records.store.read(&found.rk)).await?;
        Ok(seen.live() == Some(&found.record) && RecordStatus::of(&seen) == Some(found.status))
    }

    async fn ask_about_sample(&mut self, report: &mut ReconcileReport) -> Result<(), CommandError> {
        let sample = self.sample.take();
        let known = self.ask(sample.iter().copied()).await?;
        for rk in sample {
            if known.of(&self.operations(&rk)) == Effect::NotDone {
                report.add(&record_without_effect(rk))?;
            }
        }
        Ok(())
    }
}
