//! A receiver that answers as a test says, and keeps what it got.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::{HeaderMap, HeaderName, HeaderValue};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

/// What the receiver does with a request.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    /// It answers with this status and these lines of the head.
    Answer(u16, Vec<String>),
    /// It waits for [`Receiver::release`] and answers 200.
    Late,
    /// It never answers.
    Silence,
    /// It reads the request and closes the connection.
    Close,
    /// It closes the connection in the middle of its answer's head.
    CloseInAnswer,
}

/// A request as it came.
#[derive(Clone, Debug)]
pub(crate) struct Got {
    pub(crate) target: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

impl Got {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

/// Decides what happens to a request, by its number from 0.
type Script = Box<dyn Fn(usize, &Got) -> Act + Send + Sync>;

#[derive(Default)]
struct Shared {
    got: Mutex<Vec<Got>>,
    connections: AtomicUsize,
    running: AtomicUsize,
    most_running: AtomicUsize,
    release: Notify,
}

pub(crate) struct Receiver {
    pub(crate) port: u16,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Receiver {
    /// Listens on a free port of this address.
    pub(crate) async fn start(address: &str, script: impl Fn(usize, &Got) -> Act + Send + Sync + 'static) -> Self {
        Self::accept(TcpListener::bind(address).await.unwrap(), None, Box::new(script))
    }

    /// The same over TLS.
    pub(crate) fn start_tls(
        listener: TcpListener,
        tls: TlsAcceptor,
        script: impl Fn(usize, &Got) -> Act + Send + Sync + 'static,
    ) -> Self {
        Self::accept(listener, Some(tls), Box::new(script))
    }

    fn accept(listener: TcpListener, tls: Option<TlsAcceptor>, script: Script) -> Self {
        let port = listener.local_addr().unwrap().port();
        let (shared, script) = (Arc::<Shared>::default(), Arc::new(script));
        let accepting = Arc::clone(&shared);
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                accepting.connections.fetch_add(1, Ordering::SeqCst);
                let (shared, script, tls) = (Arc::clone(&accepting), Arc::clone(&script), tls.clone());
                tokio::spawn(async move {
                    match tls {
                        None => serve(stream, shared, script).await,
                        Some(tls) => {
                            // A client that does not trust the certificate ends the handshake.
                            let Ok(stream) = tls.accept(stream).await else { return };
                            serve(stream, shared, script).await;
                        }
                    }
                });
            }
        });
        Self { port, shared, task }
    }

    /// Answers every request with this status.
    pub(crate) async fn answering(status: u16) -> Self {
        Self::start("127.0.0.1:0", move |_, _| Act::Answer(status, Vec::new())).await
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}/hook?tenant=7", self.port)
    }

    pub(crate) fn got(&self) -> Vec<Got> {
        self.shared.got.lock().clone()
    }

    /// The number of connections so far.
    pub(crate) fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// The largest number of requests that ran at once.
    pub(crate) fn most_running(&self) -> usize {
        self.shared.most_running.load(Ordering::SeqCst)
    }

    /// Lets the requests be answered that wait in [`Act::Late`].
    pub(crate) fn release(&self) {
        self.shared.release.notify_waiters();
    }
}

/// Serves one connection: one request after the other.
async fn serve<S>(mut stream: S, shared: Arc<Shared>, script: Arc<Script>)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    while let Some(got) = read(&mut stream).await {
        let released = shared.release.notified();
        let number = {
            let mut all = shared.got.lock();
            all.push(got.clone());
            all.len() - 1
        };
        let running = shared.running.fetch_add(1, Ordering::SeqCst) + 1;
        shared.most_running.fetch_max(running, Ordering::SeqCst);
        let act = script(number, &got);
        let answer = match act {
            Act::Answer(status, lines) => head(status, &lines),
            Act::Late => {
                released.await;
                head(200, &[])
            }
            Act::Silence => pending().await,
            Act::Close => return,
            Act::CloseInAnswer => "HTTP/1.1 200 OK\r\ncontent-le".to_owned(),
        };
        shared.running.fetch_sub(1, Ordering::SeqCst);
        if stream.write_all(answer.as_bytes()).await.is_err() || !answer.ends_with("\r\n\r\n") {
            return;
        }
    }
}

fn head(status: u16, lines: &[String]) -> String {
    let lines: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
    format!("HTTP/1.1 {status} Answer\r\ncontent-length: 0\r\n{lines}\r\n")
}

/// Reads a request with a whole body. None at the end of the connection.
async fn read(stream: &mut (impl AsyncRead + Unpin)) -> Option<Got> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).unwrap();
    let (first, lines) = head.trim_end().split_once("\r\n").unwrap();
    let mut headers = HeaderMap::new();
    for line in lines.split("\r\n") {
        let (name, value) = line.split_once(": ").unwrap();
        headers.append(HeaderName::try_from(name).unwrap(), HeaderValue::try_from(value).unwrap());
    }
    let len = headers["content-length"].to_str().unwrap().parse().unwrap();
    let mut body = vec![0; len];
    stream.read_exact(&mut body).await.ok()?;
    Some(Got { target: first.to_owned(), headers, body })
}
