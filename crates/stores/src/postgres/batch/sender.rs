//! Sends the waiting calls of a queue.

use std::collections::{HashMap, HashSet};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::{Either, select};
use hapax_core::{RecordKey, Result};
use tokio_postgres::Row;

use super::columns::Column;
use super::{BatchCall, BatchQueue, WaitingCall};
use crate::postgres::call_error::{PostgresCallError, SharedCallError};
use crate::postgres::clock::SendingTime;
use crate::postgres::pool::{Parameter, UnansweredCall};
use crate::postgres::row::{self, RecordReply};
use crate::postgres::statements::CallStatements;

/// One of the tasks that send the calls of a queue. It ends when no call waits.
pub(super) struct BatchSender<C: BatchCall> {
    queue: Arc<BatchQueue<C>>,
    /// Parts of batches that the server refused.
    refused: Vec<Vec<WaitingCall<C>>>,
    is_done: bool,
}

impl<C: BatchCall> BatchSender<C> {
    pub(super) fn new(queue: Arc<BatchQueue<C>>) -> Self {
        Self { queue, refused: Vec::new(), is_done: false }
    }

    pub(super) async fn send_waiting(mut self) {
        let queue = Arc::clone(&self.queue);
        while self.has_work() {
            // Before the calls are taken: others may come while all connections are in use.
            let connection = queue.pool.begin_call().await;
            let batch = self.next_batch();
            match connection {
                Ok(mut connection) if batch.is_empty() => connection.end(),
                Ok(connection) => self.send(connection, batch).await,
                Err(error) => fail(batch, error),
            }
        }
    }

    /// Whether calls wait. If none does, this sender no longer counts, and the next call starts another one.
    fn has_work(&mut self) -> bool {
        let mut state = self.queue.state.lock();
        let has_work = !self.refused.is_empty() || !state.waiting.is_empty();
        if !has_work {
            state.senders -= 1;
            self.is_done = true;
        }
        has_work
    }

    fn next_batch(&mut self) -> Vec<WaitingCall<C>> {
        while let Some(mut part) = self.refused.pop() {
            part.retain(|waiting| !waiting.reply.is_closed());
            if !part.is_empty() {
                return part;
            }
        }
        self.queue.state.lock().take_batch()
    }

    /// Sends the calls in one statement, and the replies to their callers.
    async fn send(&mut self, connection: UnansweredCall<'_>, mut batch: Vec<WaitingCall<C>>) {
        let shared = &self.queue.shared;
        batch.iter_mut().for_each(|waiting| waiting.call.prepare(&shared.clock));
        let sending = shared.clock.sending();
        match query(connection, C::statements(&shared.statements), &mut batch).await {
            None => {}
            Some(Ok(rows)) => self.reply(batch, &sending, &rows),
            Some(Err(error)) if batch.len() > 1 && error.may_be_of_one_row() => {
                let second_half = batch.split_off(batch.len() / 2);
                self.refused.extend([second_half, batch]);
            }
            Some(Err(error)) => fail(batch, error),
        }
    }

    fn reply(&self, batch: Vec<WaitingCall<C>>, sending: &SendingTime, rows: &[Row]) {
        let row_of: HashMap<&[u8], &Row> = rows.iter().map(|row| (row.get("asked_rk"), row)).collect();
        let mut has_replied = HashSet::new();
        for WaitingCall { call, reply, .. } in batch {
            let rk = *call.key();
            let row = row_of.get(&rk.as_bytes()[..]).copied();
            // If several calls share the row, it is that of the first one.
            let is_written = match row {
                Some(row) if has_replied.insert(rk) => row::is_written(row),
                Some(_) | None => Ok(false),
            };
            let read = is_written.and_then(|is_written| row::reply(row, &rk, is_written));
            // A failed send means that the caller has given up.
            let _ = reply.send(read.map(|read| {
                self.learn(&call, sending, &read);
                (call, read)
            }));
        }
    }
}

impl<C: BatchCall> BatchSender<C> {
    fn learn(&self, call: &C, sending: &SendingTime, read: &RecordReply) {
        let shared = &self.queue.shared;
        shared.clock.learn(sending, &read.seen);
        if let Some(written) = call.written().filter(|_| read.is_written) {
            shared.monitor.note_write(written);
        }
    }
}

impl<C: BatchCall> Drop for BatchSender<C> {
    /// The runtime has ended if a sender is dropped before it is done. No other would send the calls that wait.
    fn drop(&mut self) {
        if !self.is_done {
            let mut state = self.queue.state.lock();
            state.senders -= 1;
            if state.senders == 0 {
                state.waiting.clear();
            }
        }
    }
}

/// Runs the statement. `None` if all callers have given up; then the connection is replaced.
async fn query<C: BatchCall>(
    mut connection: UnansweredCall<'_>,
    statements: &CallStatements,
    batch: &mut [WaitingCall<C>],
) -> Option<Result<Vec<Row>, PostgresCallError>> {
    let (calls, mut replies): (Vec<_>, Vec<_>) =
        batch.iter_mut().map(|waiting| (&waiting.call, &mut waiting.reply)).unzip();
    let mut keys: HashSet<&RecordKey> = HashSet::new();
    let first_calls: Vec<&C> = calls.into_iter().filter(|call| keys.insert(call.key())).collect();
    let columns = C::columns(&first_calls);
    let rows = async {
        if first_calls.len() > 1 {
            let arrays: Vec<Parameter<'_>> = columns.iter().map(Column::as_array).collect();
            return connection.query(&statements.skipping, &arrays).await;
        }
        if connection.prepares_statements() {
            let values: Vec<Parameter<'_>> = columns.iter().map(Column::as_value).collect();
            return connection.query_prepared(&statements.single, &values).await;
        }
        let arrays: Vec<Parameter<'_>> = columns.iter().map(Column::as_array).collect();
        connection.query(&statements.waiting, &arrays).await
    };
    let all_gone = poll_fn(|context: &mut Context<'_>| {
        let are_gone = replies.iter_mut().all(|reply| reply.poll_closed(context).is_ready());
        if are_gone { Poll::Ready(()) } else { Poll::Pending }
    });
    match select(pin!(rows), pin!(all_gone)).await {
        Either::Left((rows, _)) => Some(rows),
        Either::Right(((), _)) => None,
    }
}

fn fail<C>(batch: Vec<WaitingCall<C>>, error: PostgresCallError) {
    let error = SharedCallError::from(error);
    for waiting in batch {
        // A failed send means that the caller has given up.
        let _ = waiting.reply.send(Err(error.for_caller()));
    }
}
