//! The statements of a runner that its connections keep prepared, so that the server does not read their texts again.
//!
//! They are calls of functions, which plan by themselves, and insertions of given rows: no plan of theirs depends on
//! the size of a table. Everything is prepared before BEGIN, and only where no pooler is in between.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use hapax_core::ledger::{Fault, FaultKind};
use hapax_core::store::{Finding, Severity};
use hapax_core::telemetry;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error, Row, Statement};

use super::columns::{EventColumns, FinishedColumns};
use super::statements::Sql;
use crate::postgres::call_error::PostgresCallError;
use crate::postgres::pool::{Parameter, UnansweredCall};

/// Whether the runners of a ledger use prepared statements. They stop for good when a server has lost one.
#[derive(Debug, Default)]
pub(super) struct Preparation {
    is_off: AtomicBool,
}

impl Preparation {
    /// Prepares the statements of a runner on this connection, all at once, unless it has them.
    ///
    /// # Errors
    /// As for every statement. A name that is taken is no error: the statements are then sent unnamed.
    ///
    /// # Cancel safety
    /// If dropped, the connection is replaced.
    pub(super) async fn prepare(&self, call: &mut UnansweredCall<'_>, sql: &Sql) -> Result<(), PostgresCallError> {
        if self.is_off() || !call.prepares_statements() || !call.prepared().is_empty() {
            return Ok(());
        }
        match call.prepare_all(&statements(sql)).await {
            Err(PostgresCallError::Sent(error)) if is_lost(&error) => {
                self.turn_off(&error);
                Ok(())
            }
            prepared => prepared,
        }
    }

    fn is_off(&self) -> bool {
        self.is_off.load(Ordering::Relaxed)
    }

    fn turn_off(&self, error: &Error) {
        if !self.is_off.swap(true, Ordering::Relaxed) {
            telemetry::ledger_statement_lost(error);
        }
    }

    /// The warning for an operator, if the statements are sent unnamed because one was lost.
    pub(super) fn finding(&self) -> Option<Finding> {
        self.is_off().then(|| Finding { severity: Severity::Warn, message: LOST.to_owned() })
    }
}

const LOST: &str = "the server did not know a prepared statement of the ledger, had another one under its name, or did \
    not run it because a migration has changed its result; the ledger sends its statements unnamed until the process \
    ends, which takes the server longer. Let no handler run DEALLOCATE ALL or DISCARD ALL, use no pooler that greets \
    its clients with the number of a server process, and start the process again after a migration";

/// The statements of a runner with the types of their parameters.
fn statements(sql: &Sql) -> [(&str, Vec<Type>); 6] {
    let types = |parameters: &[Parameter<'_>]| parameters.iter().map(|(_, kind)| kind.clone()).collect::<Vec<_>>();
    let guard = [Type::TEXT, Type::TEXT];
    let one = [Type::UUID, Type::INT2, Type::INT2, Type::BYTEA, Type::BYTEA];
    let many = types(&FinishedColumns::of(&[]).parameters());
    let events = types(&EventColumns::of(&[]).parameters());
    [
        (&sql.claim, vec![Type::TEXT, Type::UUID_ARRAY]),
        (&sql.claim_one, vec![Type::TEXT, Type::UUID]),
        (&sql.order, vec![Type::BYTEA_ARRAY]),
        (&sql.finish_one, [&guard[..], &one].concat()),
        (&sql.finish, [&guard[..], &many].concat()),
        (&sql.finish_emit, [&guard[..], &many, &events].concat()),
    ]
}

/// Whether the error means that the server has no such prepared statement, or another one, or one whose result has
/// changed.
fn is_lost(error: &Error) -> bool {
    error.as_db_error().is_some_and(|reply| {
        let is_changed = || reply.routine() == Some("RevalidateCachedQuery");
        [SqlState::INVALID_SQL_STATEMENT_NAME, SqlState::DUPLICATE_PSTATEMENT].contains(reply.code()) || is_changed()
    })
}

/// Sends statements on a connection: by name if the connection has prepared them, otherwise unnamed.
#[derive(Clone, Copy)]
pub(super) struct StatementSender<'t> {
    pub(super) client: &'t Client,
    prepared: Option<(&'t Preparation, &'t HashMap<String, Statement>)>,
}

impl<'t> StatementSender<'t> {
    /// Sends all statements unnamed.
    pub(super) fn unnamed(client: &'t Client) -> Self {
        Self { client, prepared: None }
    }

    /// Sends on the connection of a runner.
    pub(super) fn of_runner(call: &'t UnansweredCall<'_>, preparation: &'t Preparation) -> Self {
        Self { client: call.client(), prepared: (!preparation.is_off()).then(|| (preparation, call.prepared())) }
    }

    pub(super) async fn query(&self, sql: &str, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, Error> {
        match self.prepared.and_then(|(_, statements)| statements.get(sql)) {
            None => self.client.query_typed(sql, parameters).await,
            Some(statement) => {
                let values: Vec<&(dyn ToSql + Sync)> = parameters.iter().map(|(value, _)| *value).collect();
                self.client.query(statement, &values).await
            }
        }
    }

    /// The fault of a statement. If the server has lost a prepared statement, the transaction can run again.
    pub(super) fn fault(&self, error: Error, fault: fn(Error) -> Fault) -> Fault {
        match self.prepared.filter(|_| is_lost(&error)) {
            None => fault(error),
            Some((preparation, _)) => {
                preparation.turn_off(&error);
                Fault { kind: FaultKind::Conflict, ..fault(error) }
            }
        }
    }
}
