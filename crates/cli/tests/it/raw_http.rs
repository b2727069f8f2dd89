//! A client and an API that send arbitrary bytes, which no HTTP library does.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// A test fails after this time, also on a slow machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// A connection on which a test sends arbitrary bytes.
pub(crate) struct RawConnection(BufReader<TcpStream>);

/// A response as it was received.
#[derive(Clone, Debug)]
pub(crate) struct RawResponse {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: Vec<u8>,
}

impl RawResponse {
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (field, value) = line.split_once(':')?;
            field.eq_ignore_ascii_case(name).then_some(value.trim())
        })
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl RawConnection {
    pub(crate) async fn to(address: SocketAddr) -> Self {
        Self(BufReader::new(TcpStream::connect(address).await.unwrap()))
    }

    /// Connects from this address, for instance one of 127.0.0.0/8.
    pub(crate) async fn from(source: [u8; 4], address: SocketAddr) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((source, 0).into()).unwrap();
        Self(BufReader::new(socket.connect(address).await.unwrap()))
    }

    /// Connects with a small receive buffer, so that unread data blocks the sender soon.
    pub(crate) async fn with_small_buffer(address: SocketAddr) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        Self(BufReader::new(socket.connect(address).await.unwrap()))
    }

    /// Sends bytes and ignores a closed connection, since its last response can still be read.
    pub(crate) async fn send_bytes(&mut self, bytes: &[u8]) {
        let sent =
            tokio::time::timeout(DEADLINE, self.0.write_all(bytes)).await.expect("the bytes must be read in time");
        drop(sent);
    }

    /// Reads the next response to a request with this method; None if the connection is closed instead.
    pub(crate) async fn read_response_to(&mut self, method: &str) -> Option<RawResponse> {
        tokio::time::timeout(DEADLINE, self.read(method)).await.expect("a response or the end must arrive in time")
    }

    pub(crate) async fn read_response(&mut self) -> Option<RawResponse> {
        self.read_response_to("POST").await
    }

    async fn read(&mut self, method: &str) -> Option<RawResponse> {
        let head = self.head().await?;
        let status = head.split(' ').nth(1)?.parse().unwrap();
        let mut answer = RawResponse { status, head, body: Vec::new() };
        // These never have a body, whatever their fields announce (RFC 9112, section 6.3).
        let has_none = method == "HEAD" || matches!(status, 100..200 | 204 | 304);
        if let Some(length) = answer.field("content-length").filter(|_| !has_none) {
            answer.body = vec![0; length.parse().unwrap()];
            self.0.read_exact(&mut answer.body).await.ok()?;
        } else if answer.field("transfer-encoding").is_some() && !has_none {
            answer.body = self.chunks().await?;
        }
        Some(answer)
    }

    async fn head(&mut self) -> Option<String> {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            let read = self.0.read_line(&mut head).await.ok()?;
            if read == 0 {
                return None;
            }
        }
        Some(head)
    }

    /// Reads a chunked body; None if it is incomplete.
    async fn chunks(&mut self) -> Option<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let mut size = String::new();
            self.0.read_line(&mut size).await.ok()?;
            let size = usize::from_str_radix(size.trim(), 16).ok()?;
            let mut chunk = vec![0; size + 2];
            self.0.read_exact(&mut chunk).await.ok()?;
            if size == 0 {
                return Some(body);
            }
            body.extend_from_slice(&chunk[..size]);
        }
    }

    /// Reads until this text has arrived; false if the connection is closed before.
    pub(crate) async fn read_until(&mut self, text: &str) -> bool {
        let mut received = String::new();
        while !received.contains(text) {
            let byte = tokio::time::timeout(DEADLINE, self.0.read_u8()).await.expect("the text must arrive in time");
            let Ok(byte) = byte else { return false };
            received.push(char::from(byte));
        }
        true
    }

    /// Closes the sending half of the connection. Responses can still be read.
    pub(crate) async fn close_sending(&mut self) {
        self.0.shutdown().await.unwrap();
    }

    /// Resets the connection, as the system does for a killed process with unread data.
    pub(crate) fn reset(self) {
        let stream = self.0.into_inner();
        stream.set_zero_linger().unwrap();
        drop(stream);
    }
}

/// An API that responds to each path with fixed bytes and closes the connection.
#[derive(Clone)]
pub(crate) struct ScriptedApi {
    pub(crate) address: SocketAddr,
    answers: Arc<HashMap<&'static str, Vec<u8>>>,
    seen: Arc<Mutex<Vec<String>>>,
}

impl ScriptedApi {
    /// A path that gets no response, on a connection that stays open.
    pub(crate) const NEVER: &str = "/never";

    pub(crate) async fn start(answers: &[(&'static str, Vec<u8>)]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let script = Self { address, answers: Arc::new(answers.iter().cloned().collect()), seen: Arc::default() };
        let serving = script.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serving.clone().answer(stream));
            }
        });
        script
    }

    async fn answer(self, stream: TcpStream) -> Option<()> {
        let mut wire = RawConnection(BufReader::new(stream));
        let head = wire.head().await?;
        let request = RawResponse { status: 0, head, body: Vec::new() };
        let length = request.field("content-length").map_or(0, |length| length.parse().unwrap());
        wire.0.read_exact(&mut vec![0; length]).await.ok()?;
        let path = request.head.split(' ').nth(1)?.to_owned();
        self.seen.lock().unwrap().push(request.head);
        if path == Self::NEVER {
            std::future::pending::<()>().await;
        }
        // Any other path gets no response.
        wire.send_bytes(self.answers.get(path.as_str())?).await;
        Some(())
    }

    /// Returns the number of requests for this path.
    pub(crate) fn count(&self, path: &str) -> usize {
        self.seen.lock().unwrap().iter().filter(|head| head.split(' ').nth(1) == Some(path)).count()
    }
}
