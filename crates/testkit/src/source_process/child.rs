use std::env;
use std::future::Future;
use std::pin::Pin;
use std::process::exit;
use std::sync::Arc;

use hapax_core::broker::{Event, Room, Settle, Source};
use hapax_core::runtime::{Runtime, Tokio};
use hapax_core::{Error, Result};
use rustix::process::{Signal, set_parent_process_death_signal};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::wire::{Ask, SentError, SentEvent, Tell, room, settlements};
use super::{SOCKET, TARGET};

/// A source that is being opened.
pub type OpenedSource = Pin<Box<dyn Future<Output = Result<Box<dyn Source>>> + Send>>;

/// In a child process of a [`SourceProcess`](super::SourceProcess): opens the source of its target, serves it, and does
/// not return. Otherwise does nothing. A test binary calls it first.
///
/// # Panics
/// If the process has no runtime, or the source cannot be opened.
pub fn serve_source(open: impl Fn(String) -> OpenedSource) {
    let (Ok(socket), Ok(target)) = (env::var(SOCKET), env::var(TARGET)) else { return };
    // A process that is stopped does not see that its parent is gone.
    set_parent_process_death_signal(Some(Signal::KILL)).expect("the system can kill this process");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let stream = UnixStream::connect(socket).await.expect("the parent process listens");
        serve(open(target).await.expect("a source"), stream).await;
    });
    exit(0);
}

async fn serve(source: Box<dyn Source>, stream: UnixStream) {
    let (input, output) = stream.into_split();
    let (asks, answers) = (read(input), unbounded_channel());
    let written = write(output, answers.1);
    let server = Server { settler: source.settler(), answers: answers.0, runtime: Arc::new(Tokio::current()) };
    server.tell(&Tell::Opened { name: source.name().to_string(), capability: source.capability().into() });
    server.run(source, asks).await;
    drop(server);
    // The parent may be gone.
    let _ = written.await;
}

struct Server {
    settler: Arc<dyn Settle>,
    answers: UnboundedSender<Vec<u8>>,
    runtime: Arc<Tokio>,
}

impl Server {
    fn tell(&self, told: &Tell) {
        // The parent may be gone.
        let _ = self.answers.send(told.line());
    }

    async fn run(&self, mut source: Box<dyn Source>, mut asks: UnboundedReceiver<Ask>) {
        let mut asked: Option<Room> = None;
        loop {
            let next = async {
                match &asked {
                    Some(room) => source.next(room.clone()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                ask = asks.recv() => match ask {
                    Some(Ask::Next(wanted)) => asked = Some(room(wanted)),
                    Some(Ask::Stop(number)) => {
                        source.stop_reading().await;
                        self.tell(&Tell::Done(number, Ok(())));
                    }
                    Some(Ask::Close(number)) => {
                        let closed = source.close().await.map_err(SentError::from);
                        return self.tell(&Tell::Done(number, closed));
                    }
                    Some(ask) => self.answer(ask),
                    None => return,
                },
                event = next => {
                    asked = None;
                    self.tell(&Tell::Event(sent(event)));
                }
            }
        }
    }

    /// Answers in a task of its own, so that the source is polled meanwhile.
    fn answer(&self, ask: Ask) {
        let (settler, answers) = (Arc::clone(&self.settler), self.answers.clone());
        self.runtime.spawn(Box::pin(async move {
            let told = match ask {
                Ask::Settle(number, sent) => {
                    let results = settler.settle(settlements(sent)).await;
                    Tell::Settled(number, results.into_iter().map(|result| result.map_err(SentError::from)).collect())
                }
                Ask::Leave(number, lanes) => {
                    let lanes: Vec<_> = lanes.into_iter().map(Into::into).collect();
                    Tell::Done(number, settler.leave(&lanes).await.map_err(SentError::from))
                }
                Ask::Lag(number) => Tell::Lag(number, settler.lag().await.map_err(SentError::from)),
                Ask::Next(_) | Ask::Stop(_) | Ask::Close(_) => return,
            };
            let _ = answers.send(told.line());
        }));
    }
}

fn sent(event: Result<Event, Error>) -> Result<SentEvent, SentError> {
    event.map(SentEvent::from).map_err(SentError::from)
}

/// The lines that arrive.
fn read(input: OwnedReadHalf) -> UnboundedReceiver<Ask> {
    let (sender, receiver) = unbounded_channel();
    Tokio::current().spawn(Box::pin(async move {
        let mut lines = BufReader::new(input).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            let ask = serde_json::from_str(&line).expect("the parent process sends what is agreed");
            if sender.send(ask).is_err() {
                break;
            }
        }
    }));
    receiver
}

/// Writes lines until their sender is gone. What it returns ends with it.
pub(super) fn write(
    mut output: OwnedWriteHalf,
    mut lines: UnboundedReceiver<Vec<u8>>,
) -> tokio::sync::oneshot::Receiver<()> {
    let (end, ended) = tokio::sync::oneshot::channel();
    Tokio::current().spawn(Box::pin(async move {
        while let Some(line) = lines.recv().await {
            if output.write_all(&line).await.is_err() {
                break;
            }
        }
        let _ = end.send(());
    }));
    ended
}
