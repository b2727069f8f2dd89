//! A client and an API that write bytes, as no library would.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// After this a test has failed, however slow the machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// A connection on which anything may be said.
pub(crate) struct Wire(BufReader<TcpStream>);

/// An answer as it came over the wire.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
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

impl Wire {
    pub(crate) async fn to(address: SocketAddr) -> Self {
        Self(BufReader::new(TcpStream::connect(address).await.unwrap()))
    }

    /// Of what is sent to it and not read, the system keeps little.
    pub(crate) async fn with_little_room(address: SocketAddr) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        Self(BufReader::new(socket.connect(address).await.unwrap()))
    }

    /// The other side may have closed by now: then what it said before can be read.
    pub(crate) async fn say(&mut self, bytes: &[u8]) {
        let said = tokio::time::timeout(DEADLINE, self.0.write_all(bytes)).await.expect("it is read in time");
        drop(said);
    }

    /// The next answer to a request with this method; none when the connection is closed instead.
    pub(crate) async fn answer_to(&mut self, method: &str) -> Option<Answer> {
        tokio::time::timeout(DEADLINE, self.read(method)).await.expect("an answer or the end comes in time")
    }

    pub(crate) async fn answer(&mut self) -> Option<Answer> {
        self.answer_to("POST").await
    }

    async fn read(&mut self, method: &str) -> Option<Answer> {
        let head = self.head().await?;
        let status = head.split(' ').nth(1)?.parse().unwrap();
        let mut answer = Answer { status, head, body: Vec::new() };
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

    /// Nothing when it was cut off.
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

    /// Reads until this has come; false when the connection is over before.
    pub(crate) async fn reads_until(&mut self, text: &str) -> bool {
        let mut said = String::new();
        while !said.contains(text) {
            let byte = tokio::time::timeout(DEADLINE, self.0.read_u8()).await.expect("it comes in time");
            let Ok(byte) = byte else { return false };
            said.push(char::from(byte));
        }
        true
    }

    /// Goes away with a reset, as a process that is killed does with unread data.
    pub(crate) fn reset(self) {
        let stream = self.0.into_inner();
        stream.set_zero_linger().unwrap();
        drop(stream);
    }
}

/// An API that answers each path with the same bytes, and then closes.
#[derive(Clone)]
pub(crate) struct Script {
    pub(crate) address: SocketAddr,
    answers: Arc<HashMap<&'static str, Vec<u8>>>,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Script {
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
        let mut wire = Wire(BufReader::new(stream));
        let head = wire.head().await?;
        let request = Answer { status: 0, head, body: Vec::new() };
        let length = request.field("content-length").map_or(0, |length| length.parse().unwrap());
        wire.0.read_exact(&mut vec![0; length]).await.ok()?;
        let path = request.head.split(' ').nth(1)?.to_owned();
        self.seen.lock().unwrap().push(request.head);
        // To any other it closes without a word.
        wire.say(self.answers.get(path.as_str())?).await;
        Some(())
    }

    /// How many requests for this path came.
    pub(crate) fn count(&self, path: &str) -> usize {
        self.seen.lock().unwrap().iter().filter(|head| head.split(' ').nth(1) == Some(path)).count()
    }
}
