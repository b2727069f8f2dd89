use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use hapax_testkit::servers::PostgresServer;

use crate::order::{ACCOUNTS, BALANCE, WorkerOrder};

/// What an audit found, as text, and the number of effects beyond the first of an operation.
#[derive(Debug, Default)]
pub(crate) struct WorkerAudit {
    pub(crate) damages: Vec<String>,
    pub(crate) duplicates: u32,
    has_order: bool,
}

/// The operations whose effect has committed.
pub(crate) async fn finished(database: &PostgresServer) -> Result<BTreeSet<String>> {
    let rows = database.client().await?.query("select operation from transfer", &[]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// The number of operations whose effect has committed.
pub(crate) async fn count_finished(database: &PostgresServer) -> Result<usize> {
    let count = "select count(distinct operation) from transfer";
    let count: i64 = database.client().await?.query_one(count, &[]).await?.get(0);
    Ok(usize::try_from(count)?)
}

/// What an audit looks at beside effects and balances.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AuditScope {
    pub(crate) has_ledger: bool,
    /// Whether the transfers of a payer must have happened in their order.
    pub(crate) has_order: bool,
}

impl WorkerAudit {
    /// Compares the database with the journal.
    pub(crate) async fn run(database: &PostgresServer, orders: &[WorkerOrder], scope: AuditScope) -> Result<Self> {
        let mut audit = Self { has_order: scope.has_order, ..Self::default() };
        audit.check_effects(database, orders).await?;
        audit.check_balances(database, orders).await?;
        if scope.has_ledger {
            audit.check_ledger(database, orders).await?;
        }
        Ok(audit)
    }

    /// Each transfer has one effect, its own, and those of a payer have the order of the producer.
    async fn check_effects(&mut self, database: &PostgresServer, orders: &[WorkerOrder]) -> Result<()> {
        let numbers: BTreeMap<&str, usize> =
            orders.iter().enumerate().map(|(number, order)| (order.operation.as_str(), number)).collect();
        let mut effects = vec![0; orders.len()];
        let mut last: BTreeMap<String, usize> = BTreeMap::new();
        let read = "select operation, concat_ws(' ', payer, payee, amount), payer from transfer order by number";
        for row in database.client().await?.query(read, &[]).await? {
            let Some(&number) = numbers.get(row.get::<_, &str>(0)) else {
                self.damages.push(format!("nobody ordered the operation {}", row.get::<_, &str>(0)));
                continue;
            };
            effects[number] += 1;
            if orders[number].payload() != row.get::<_, &str>(1) {
                self.damages.push(format!("transfer {number} moved other money"));
            }
            let earlier = last.insert(row.get(2), number);
            if self.has_order && effects[number] == 1 && earlier.is_some_and(|earlier| earlier > number) {
                self.damages.push(format!("transfer {number} came after a later one of its payer"));
            }
        }
        for (number, effects) in effects.into_iter().enumerate().filter(|(_, effects)| *effects != 1) {
            self.damages.push(format!("transfer {number} has {effects} effects"));
            self.duplicates += u32::saturating_sub(effects, 1);
        }
        Ok(())
    }

    async fn check_balances(&mut self, database: &PostgresServer, orders: &[WorkerOrder]) -> Result<()> {
        let mut expected: BTreeMap<String, i64> = (0..ACCOUNTS).map(|n| (format!("account-{n}"), BALANCE)).collect();
        for order in orders {
            *expected.entry(order.payer.clone()).or_default() -= order.amount;
            *expected.entry(order.payee.clone()).or_default() += order.amount;
        }
        let rows = database.client().await?.query("select name, balance from account", &[]).await?;
        let found: BTreeMap<String, i64> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        for (name, balance) in expected {
            if found.get(&name) != Some(&balance) {
                self.damages.push(format!("{name} has {:?} instead of {balance}", found.get(&name)));
            }
        }
        Ok(())
    }

    /// Each operation has one row and one event, and no message is a dead letter.
    async fn check_ledger(&mut self, database: &PostgresServer, orders: &[WorkerOrder]) -> Result<()> {
        let client = database.client().await?;
        let expected: BTreeSet<&str> = orders.iter().map(|order| order.operation.as_str()).collect();
        for table in ["hapax_ledger", "hapax_outbox"] {
            let rows = client.query(&format!("select operation::text from {table}"), &[]).await?;
            let found: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
            let distinct: BTreeSet<&str> = found.iter().map(String::as_str).collect();
            if found.len() != orders.len() || distinct != expected {
                self.damages.push(format!("{table} has {} rows of {} operations", found.len(), distinct.len()));
            }
        }
        let dead: i64 = client.query_one("select count(*) from hapax_dead", &[]).await?.get(0);
        if dead > 0 {
            self.damages.push(format!("{dead} dead letters"));
        }
        Ok(())
    }
}
