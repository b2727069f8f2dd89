//! Gathers concurrent calls into one statement for many records.
//!
//! ```text
//! calls ──► BatchQueue ──► BatchSender, with a connection ──► one statement ──► a reply for each caller
//! ```
//!
//! While fewer senders run than the store has connections, a call starts a sender and is sent at once. Otherwise it
//! waits for the next sender that is free, which takes all waiting calls up to a limit. So a lone call never waits for
//! others, and batches grow with the number of concurrent calls.
//!
//! A sender runs in a task of its own: a caller that gives up disturbs no other call of its batch. A statement is
//! cancelled only if all its callers have given up.

mod begin;
mod columns;
mod complete;
mod renew;
mod sender;
mod swap;

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use hapax_core::{Error, ErrorKind, RecordKey, Result};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::Shared;
use super::clock::ServerClock;
use super::pool::ConnectionPool;
use super::row::RecordReply;
use super::statements::{CallStatements, Statements};
use super::timeline::WrittenRecord;

pub(super) use begin::BeginCall;
use columns::Column;
pub(super) use complete::CompleteCall;
pub(super) use renew::RenewCall;
use sender::BatchSender;
pub(super) use swap::SwapCall;

/// The largest number of calls in one statement.
const CALLS: usize = 256;

/// The largest size of all answers in one statement, in bytes. A statement of one call may have a larger one.
const BYTES: usize = 1 << 20;

/// A call that can share its statement with others of its kind.
pub(super) trait BatchCall: Send + Sync + 'static {
    /// Whether several calls with the same key fit in one batch. The statement has one row for them, which is that of
    /// the first call; the others did not write.
    const SHARES_ROWS: bool;

    fn statements(statements: &Statements) -> &CallStatements;

    fn key(&self) -> &RecordKey;

    /// The size of the answers that are sent with the call, in bytes.
    fn bytes(&self) -> usize;

    /// Prepares the call to be sent now.
    fn prepare(&mut self, clock: &ServerClock);

    /// What the call has written, once the server has confirmed it. `None` for a write whose loss loses no record.
    fn written(&self) -> Option<WrittenRecord>;

    /// The parameters of the statements for these calls.
    fn columns<'a>(calls: &[&'a Self]) -> Vec<Column<'a>>;
}

/// What a caller gets: its call, as it was sent, and the reply.
pub(super) type Carried<C> = (C, RecordReply);

/// The calls of one kind.
pub(super) struct BatchQueue<C> {
    state: Mutex<BatchQueueState<C>>,
    most_senders: usize,
    shared: Arc<Shared>,
    pool: ConnectionPool,
}

struct BatchQueueState<C> {
    waiting: VecDeque<WaitingCall<C>>,
    senders: usize,
}

struct WaitingCall<C> {
    call: C,
    is_alone: bool,
    reply: oneshot::Sender<Result<Carried<C>>>,
}

impl<C: BatchCall> BatchQueue<C> {
    pub(super) fn new(shared: &Arc<Shared>, pool: &ConnectionPool, connections: usize) -> Arc<Self> {
        let state = Mutex::new(BatchQueueState { waiting: VecDeque::new(), senders: 0 });
        Arc::new(Self { state, most_senders: connections, shared: Arc::clone(shared), pool: pool.clone() })
    }

    /// Carries out a call in one statement with others.
    ///
    /// # Errors
    /// As the statement. If the server refuses a statement, its calls are sent again in smaller batches, so that one
    /// call does not make others fail.
    ///
    /// # Cancel safety
    /// If the future is dropped, the call may or may not be carried out.
    pub(super) async fn carry_out(self: &Arc<Self>, call: C) -> Result<Carried<C>> {
        self.enqueue(call, false).await
    }

    /// Carries out a call in a statement of its own, which waits if another transaction has locked the record.
    ///
    /// # Errors
    /// # Cancel safety
    /// As [`BatchQueue::carry_out`].
    pub(super) async fn carry_out_alone(self: &Arc<Self>, call: C) -> Result<Carried<C>> {
        self.enqueue(call, true).await
    }

    async fn enqueue(self: &Arc<Self>, call: C, is_alone: bool) -> Result<Carried<C>> {
        let (reply, replied) = oneshot::channel();
        let needs_sender = {
            let mut state = self.state.lock();
            state.waiting.push_back(WaitingCall { call, is_alone, reply });
            let needs_sender = state.senders < self.most_senders;
            state.senders += usize::from(needs_sender);
            needs_sender
        };
        if needs_sender {
            self.shared.runtime.spawn(Box::pin(BatchSender::new(Arc::clone(self)).send_waiting()));
        }
        let ended = || Error::new(ErrorKind::Unknown, "the runtime of the store ended during the call");
        replied.await.unwrap_or_else(|_| Err(ended()))
    }
}

impl<C: BatchCall> BatchQueueState<C> {
    /// Takes the next calls that fit in one statement.
    fn take_batch(&mut self) -> Vec<WaitingCall<C>> {
        let (mut batch, mut keys, mut bytes) = (Vec::new(), HashSet::new(), 0);
        while let Some(next) = self.waiting.front() {
            let is_gone = next.reply.is_closed();
            let has_room = batch.len() < CALLS && bytes + next.call.bytes() <= BYTES && !next.is_alone;
            let fits = has_room && (C::SHARES_ROWS || !keys.contains(next.call.key()));
            if !is_gone && !fits && !batch.is_empty() {
                break;
            }
            let Some(next) = self.waiting.pop_front().filter(|_| !is_gone) else { continue };
            keys.insert(*next.call.key());
            bytes += next.call.bytes();
            let is_alone = next.is_alone;
            batch.push(next);
            if is_alone {
                break;
            }
        }
        batch
    }
}
