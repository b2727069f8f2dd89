use std::collections::HashMap;
use std::sync::Arc;

use futures_util::future::join_all;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row, Statement};

use super::{ConnectionPool, Parameter, PooledConnection, Session};
use crate::postgres::call_error::PostgresCallError;

/// A call in progress. If it is dropped before its reply, or its connection broke, the pool opens another connection in
/// the background. Otherwise callers whose timeout is shorter than a connect and a call would never get a reply.
pub(crate) struct UnansweredCall<'a> {
    pub(super) connection: Option<PooledConnection>,
    pub(super) pool: &'a ConnectionPool,
}

impl UnansweredCall<'_> {
    fn session(&self) -> &Session {
        &self.connection.as_ref().expect("the call has its connection until its reply").0
    }

    pub(crate) fn client(&self) -> &Client {
        &self.session().client
    }

    fn session_mut(&mut self) -> &mut Session {
        &mut self.connection.as_mut().expect("the call has its connection until its reply").0
    }

    pub(crate) fn client_mut(&mut self) -> &mut Client {
        self.connection.as_mut().expect("the call has its connection until its reply")
    }

    /// Runs one statement in a transaction of its own and returns its rows.
    ///
    /// # Cancel safety
    /// As [`ConnectionPool::query`].
    pub(crate) async fn query(
        mut self,
        statement: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, PostgresCallError> {
        let rows = self.client().query_typed(statement, parameters).await.map_err(PostgresCallError::Sent);
        match &rows {
            Ok(_) => self.end(),
            Err(error) => self.end_after(error),
        }
        rows
    }

    /// Whether the server keeps statements that are prepared on this connection.
    pub(crate) fn prepares_statements(&mut self) -> bool {
        self.session_mut().is_direct
    }

    /// Runs one statement as [`UnansweredCall::query`] does, and keeps it prepared on its connection.
    ///
    /// # Cancel safety
    /// As [`ConnectionPool::query`].
    pub(crate) async fn query_prepared(
        mut self,
        statement: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, PostgresCallError> {
        let session = self.session_mut();
        let prepared = match session.prepared.get(statement) {
            Some(prepared) => prepared.clone(),
            None => {
                let types: Vec<Type> = parameters.iter().map(|(_, kind)| kind.clone()).collect();
                let prepared =
                    session.client.prepare_typed(statement, &types).await.map_err(PostgresCallError::Sent)?;
                session.prepared.insert(statement.to_owned(), prepared.clone());
                prepared
            }
        };
        let values: Vec<&(dyn ToSql + Sync)> = parameters.iter().map(|(value, _)| *value).collect();
        let rows = session.client.query(&prepared, &values).await.map_err(PostgresCallError::Sent);
        match &rows {
            Ok(_) => self.end(),
            Err(error) => {
                // It is prepared again: a migration may have made its plan invalid.
                session.prepared.remove(statement);
                self.end_after(error);
            }
        }
        rows
    }

    /// Prepares these statements, each with the types of its parameters, all at once. If one fails, the connection
    /// keeps none of them.
    ///
    /// # Cancel safety
    /// As [`ConnectionPool::query`].
    pub(crate) async fn prepare_all(&mut self, statements: &[(&str, Vec<Type>)]) -> Result<(), PostgresCallError> {
        let Session { client, prepared, .. } = self.session_mut();
        let client = &*client;
        let added = statements.iter().map(|(sql, types)| async move {
            client.prepare_typed(sql, types).await.map(|statement| ((*sql).to_owned(), statement))
        });
        // All of them are awaited: a statement that is dropped is closed on the server.
        let added: Result<Vec<_>, _> = join_all(added).await.into_iter().collect();
        prepared.extend(added.map_err(PostgresCallError::Sent)?);
        Ok(())
    }

    /// The statements that are prepared on the connection.
    pub(crate) fn prepared(&self) -> &HashMap<String, Statement> {
        &self.session().prepared
    }

    /// Returns the connection to the pool: the server has answered, and no transaction is open.
    pub(crate) fn end(&mut self) {
        self.connection = None;
    }

    /// Returns the connection to the pool if the server has answered with this error and no transaction is open, unless
    /// the server takes no writes: the same host name may lead to another server by now.
    pub(crate) fn end_after(&mut self, error: &PostgresCallError) {
        if error.is_rolled_back() && !error.is_read_only() {
            self.end();
        }
    }
}

impl Drop for UnansweredCall<'_> {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            connection.discard();
            Arc::clone(&self.pool.connector).open_spare();
        }
    }
}
