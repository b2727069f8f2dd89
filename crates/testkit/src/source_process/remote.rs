use std::collections::BTreeMap;
use std::fmt;
use std::future::pending;
use std::os::unix::net::UnixStream as StdStream;
use std::sync::Arc;

use async_trait::async_trait;
use hapax_core::broker::{Capability, DeliveryId, Event, Lane, Room, Settle, Settlement, Source};
use hapax_core::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use super::child::write;
use super::executor::Executor;
use super::wire::{Ask, SentError, SentEvent, Tell, sent_room, sent_settlements};

/// The source of a child process.
pub(super) struct RemoteSource {
    name: Arc<str>,
    capability: Capability,
    events: UnboundedReceiver<Result<SentEvent, SentError>>,
    /// The room that the child process was told last, unless it has answered.
    asked: Option<Room>,
    calls: Arc<RemoteCalls>,
}

/// The calls to the child process that have no answer.
struct RemoteCalls {
    asks: UnboundedSender<Vec<u8>>,
    waiting: Mutex<BTreeMap<u64, oneshot::Sender<Tell>>>,
    last: Mutex<u64>,
}

impl RemoteSource {
    /// Waits until the child process has opened its source.
    pub(super) async fn open(stream: StdStream, executor: &Executor) -> Self {
        let (opened, is_open) = oneshot::channel();
        let (asks, lines) = unbounded_channel();
        let calls = Arc::new(RemoteCalls { asks, waiting: Mutex::default(), last: Mutex::default() });
        let (sender, events) = unbounded_channel();
        let tasks = Arc::clone(&calls);
        executor.runtime().spawn(Box::pin(async move {
            let (input, output) = UnixStream::from_std(stream).expect("a socket").into_split();
            drop(write(output, lines));
            read(input, opened, sender, &tasks).await;
        }));
        let (name, capability) = is_open.await.expect("the child process opens its source");
        Self { name, capability, events, asked: None, calls }
    }
}

async fn read(
    input: OwnedReadHalf,
    opened: oneshot::Sender<(Arc<str>, Capability)>,
    events: UnboundedSender<Result<SentEvent, SentError>>,
    calls: &RemoteCalls,
) {
    let (mut lines, mut opened) = (BufReader::new(input).lines(), Some(opened));
    while let Ok(Some(line)) = lines.next_line().await {
        let told: Tell = serde_json::from_str(&line).expect("the child process sends what is agreed");
        // Whoever waited may be gone.
        match told {
            Tell::Opened { name, capability } => {
                let _ = opened.take().map(|opened| opened.send((name.into(), capability.into())));
            }
            Tell::Event(event) => _ = events.send(event),
            Tell::Settled(number, _) | Tell::Done(number, _) | Tell::Lag(number, _) => {
                let caller = calls.waiting.lock().remove(&number);
                let _ = caller.map(|caller| caller.send(told));
            }
        }
    }
}

impl RemoteCalls {
    /// Never returns if the child process is gone: this process is gone, too.
    async fn call(&self, ask: impl FnOnce(u64) -> Ask) -> Tell {
        let (sender, answer) = oneshot::channel();
        let number = {
            let mut last = self.last.lock();
            *last += 1;
            *last
        };
        self.waiting.lock().insert(number, sender);
        let _ = self.asks.send(ask(number).line());
        match answer.await {
            Ok(told) => told,
            Err(_) => pending().await,
        }
    }
}

fn confused() -> Error {
    Error::new(ErrorKind::Unusable, "the child process answers another question")
}

#[async_trait]
impl Source for RemoteSource {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn capability(&self) -> Capability {
        self.capability
    }

    fn settler(&self) -> Arc<dyn Settle> {
        Arc::clone(&self.calls) as Arc<dyn Settle>
    }

    async fn next(&mut self, room: Room) -> Result<Event> {
        if self.asked.as_ref() != Some(&room) {
            let _ = self.calls.asks.send(Ask::Next(sent_room(&room)).line());
            self.asked = Some(room);
        }
        match self.events.recv().await {
            Some(event) => {
                self.asked = None;
                event.map(Event::from).map_err(Error::from)
            }
            None => pending().await,
        }
    }

    async fn stop_reading(&mut self) {
        self.calls.call(Ask::Stop).await;
    }

    async fn close(&mut self) -> Result<()> {
        match self.calls.call(Ask::Close).await {
            Tell::Done(_, result) => result.map_err(Error::from),
            Tell::Opened { .. } | Tell::Event(_) | Tell::Settled(..) | Tell::Lag(..) => Err(confused()),
        }
    }
}

#[async_trait]
impl Settle for RemoteCalls {
    async fn settle(&self, settlements: Vec<(DeliveryId, Settlement)>) -> Vec<Result<()>> {
        match self.call(|number| Ask::Settle(number, sent_settlements(settlements))).await {
            Tell::Settled(_, results) => results.into_iter().map(|result| result.map_err(Error::from)).collect(),
            Tell::Opened { .. } | Tell::Event(_) | Tell::Done(..) | Tell::Lag(..) => Vec::new(),
        }
    }

    async fn leave(&self, lanes: &[Lane]) -> Result<()> {
        let lanes = lanes.iter().cloned().map(Into::into).collect();
        match self.call(|number| Ask::Leave(number, lanes)).await {
            Tell::Done(_, result) => result.map_err(Error::from),
            Tell::Opened { .. } | Tell::Event(_) | Tell::Settled(..) | Tell::Lag(..) => Err(confused()),
        }
    }

    async fn lag(&self) -> Result<Option<u64>> {
        match self.call(Ask::Lag).await {
            Tell::Lag(_, result) => result.map_err(Error::from),
            Tell::Opened { .. } | Tell::Event(_) | Tell::Settled(..) | Tell::Done(..) => Err(confused()),
        }
    }
}

impl fmt::Debug for RemoteCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RemoteCalls")
    }
}

impl fmt::Debug for RemoteSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteSource({})", self.name)
    }
}
