//! A client of HTTP/1.1 that can hang up in the middle of a request.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// A connection to the gateway, opened when it is needed.
#[derive(Debug)]
pub(crate) struct HttpSession {
    address: SocketAddr,
    stream: Option<BufReader<TcpStream>>,
}

/// A whole answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WholeAnswer {
    pub(crate) status: u16,
    pub(crate) is_replay: bool,
    pub(crate) body: String,
}

/// When the client hangs up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manners {
    /// It waits for the answer.
    Waits,
    /// In the middle of its request.
    CutsRequest,
    /// This long after its request, unless the answer was there before.
    Leaves(Duration),
}

impl HttpSession {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self { address, stream: None }
    }

    /// Sends a request and reads its answer. Without an answer, the next request has a new connection.
    pub(crate) async fn send(&mut self, request: &[u8], manners: Manners) -> io::Result<WholeAnswer> {
        let (patience, request) = match manners {
            Manners::Waits => (PATIENCE, request),
            Manners::CutsRequest => (Duration::from_millis(5), &request[..request.len() - 4]),
            Manners::Leaves(after) => (after, request),
        };
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => BufReader::new(TcpStream::connect(self.address).await?),
        };
        let exchange = async {
            stream.get_mut().write_all(request).await?;
            read_answer(&mut stream).await
        };
        let (answer, stays) = timeout(patience, exchange).await.map_err(io::Error::from)??;
        self.stream = stays.then_some(stream);
        Ok(answer)
    }
}

/// Reads an answer, and whether the connection stays open after it. An answer that is cut is an error.
async fn read_answer(stream: &mut BufReader<TcpStream>) -> io::Result<(WholeAnswer, bool)> {
    let line = read_line(stream).await?;
    let status = line.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(|| unreadable(&line))?;
    let (mut length, mut is_replay, mut stays) = (None, false, true);
    loop {
        let line = read_line(stream).await?.to_ascii_lowercase();
        match line.split_once(':').map(|(name, value)| (name, value.trim())) {
            Some(("content-length", value)) => length = value.parse().ok(),
            Some(("idempotent-replayed", value)) => is_replay = value == "true",
            Some(("connection", value)) => stays = value != "close",
            Some(_) => {}
            None if line.is_empty() => break,
            None => return Err(unreadable(&line)),
        }
    }
    let length = length.ok_or_else(|| unreadable("no content-length"))?;
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    let body = String::from_utf8_lossy(&body).into_owned();
    Ok((WholeAnswer { status, is_replay, body }, stays))
}

async fn read_line(stream: &mut BufReader<TcpStream>) -> io::Result<String> {
    let mut line = String::new();
    stream.read_line(&mut line).await?;
    let whole = line.strip_suffix("\r\n").map(str::to_owned);
    whole.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

fn unreadable(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not an answer: {what}"))
}
