//! Servers of DynamoDB Local, which speaks the protocol of AWS DynamoDB.

use std::io;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::process::{DEADLINE, PORTS, ServiceProcess, poll};
use super::skew::SkewFile;
use crate::ports;
use crate::setup::ClockStep;

/// A server of DynamoDB Local on a free loopback port. Its tables are in memory.
#[derive(Debug)]
pub struct DynamoDbServer {
    address: SocketAddr,
    process: ServiceProcess,
    skew: SkewFile,
}

/// The servers that no test uses now.
static IDLE: Mutex<Vec<DynamoDbServer>> = Mutex::new(Vec::new());

/// An empty table for records on a server that no other test uses meanwhile, because a test may step its clock. When it
/// is dropped, the next test gets the server.
#[derive(Debug)]
pub struct DynamoDbTable {
    server: Option<DynamoDbServer>,
    name: String,
}

impl DynamoDbServer {
    /// Starts a server and waits until it replies.
    ///
    /// # Errors
    ///
    /// If the server did not start. The error contains its log.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the server is killed.
    pub async fn start() -> io::Result<Self> {
        let process = ServiceProcess::new("dynamodb")?;
        let skew = SkewFile::create(process.folder())?;
        let mut server = Self { address: ports::free()?, process, skew };
        // Another process may have taken the port since `ports::free` looked: try another one.
        for _ in 1..PORTS {
            match server.launch().await {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => server.address = ports::free()?,
                launched => return launched.map(|()| server),
            }
        }
        server.launch().await.map(|()| server)
    }

    /// An empty table on a server of its own, which is an idle one if there is any.
    ///
    /// # Errors
    ///
    /// If no server starts, or it does not make the table.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the server is killed.
    pub async fn table() -> io::Result<DynamoDbTable> {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let idle = IDLE.lock().pop();
        let server = match idle {
            Some(server) => server,
            None => Self::start().await?,
        };
        let name = format!("records-{}", NUMBERS.fetch_add(1, Ordering::Relaxed));
        server.create_table(&name).await?;
        Ok(DynamoDbTable { server: Some(server), name })
    }

    /// The TCP address on which the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL of a table.
    pub fn url(&self, table: &str) -> String {
        format!("dynamodb://eu-west-1/{table}?endpoint=http://{}", self.address)
    }

    /// Makes a table for records, without a TTL.
    ///
    /// # Errors
    ///
    /// If there is no reply, or the server refuses.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the server may or may not make the table.
    pub async fn create_table(&self, name: &str) -> io::Result<()> {
        let body = json!({
            "TableName": name,
            "AttributeDefinitions": [{ "AttributeName": "k", "AttributeType": "B" }],
            "KeySchema": [{ "AttributeName": "k", "KeyType": "HASH" }],
            "BillingMode": "PAY_PER_REQUEST",
        });
        self.call("CreateTable", &body).await.map(drop)
    }

    /// Makes a call, as an operator would.
    ///
    /// # Errors
    ///
    /// If there is no reply, or the server refuses. The error has its reason.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the server may or may not have done it.
    pub async fn call(&self, operation: &str, body: &Value) -> io::Result<Value> {
        timeout(DEADLINE, self.exchange(operation, &body.to_string())).await.map_err(io::Error::from)?
    }

    async fn exchange(&self, operation: &str, body: &str) -> io::Result<Value> {
        let (address, length) = (self.address, body.len());
        // It checks no signature, and takes the tables from the key and the region.
        let credential =
            "Credential=hapax/20260101/eu-west-1/dynamodb/aws4_request, SignedHeaders=host, Signature=none";
        let head = format!(
            "POST / HTTP/1.1\r\nhost: {address}\r\nx-amz-target: DynamoDB_20120810.{operation}\r\ncontent-type: \
             application/x-amz-json-1.0\r\nauthorization: AWS4-HMAC-SHA256 {credential}\r\ncontent-length: \
             {length}\r\nconnection: close\r\n\r\n"
        );
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(format!("{head}{body}").as_bytes()).await?;
        let mut reply = Vec::new();
        stream.read_to_end(&mut reply).await?;
        let end = reply.windows(4).position(|bytes| bytes == b"\r\n\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
        let body = &reply[end + 4..];
        if !reply.starts_with(b"HTTP/1.1 200") {
            return Err(io::Error::other(String::from_utf8_lossy(body).into_owned()));
        }
        Ok(serde_json::from_slice(body)?)
    }

    /// The wall clock of the server, since the Unix epoch.
    pub fn clock(&self) -> Duration {
        let machine = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let micros = i64::try_from(machine.as_micros()).unwrap_or(i64::MAX).saturating_add(self.skew.ahead());
        Duration::from_micros(micros.try_into().unwrap_or_default())
    }

    /// Steps the server's wall clock.
    ///
    /// # Errors
    ///
    /// If the step in microseconds exceeds 64 bits.
    pub fn step_clock(&self, step: ClockStep) -> io::Result<()> {
        self.skew.step(step)
    }

    /// Kills the server (SIGKILL). Its tables are gone.
    pub fn kill(&self) {
        self.process.kill();
    }

    /// Pauses the server (SIGSTOP): the kernel still accepts connections, and the server does not reply.
    ///
    /// # Errors
    ///
    /// If it is not running.
    pub fn pause(&self) -> io::Result<()> {
        self.process.pause()
    }

    /// Resumes the server (SIGCONT).
    ///
    /// # Errors
    ///
    /// If it is not running.
    pub fn resume(&self) -> io::Result<()> {
        self.process.resume()
    }

    /// Ends the servers that no test uses.
    pub(super) fn end_idle() {
        IDLE.lock().clear();
    }

    async fn launch(&self) -> io::Result<()> {
        let configure = |command: &mut Command| {
            command.args(["--bind", "127.0.0.1", "--port", &self.address.port().to_string(), "--dir"]);
            command.arg(self.process.folder()).env("HAPAX_SKEW", self.skew.path());
        };
        self.process.launch(configure, self.wait_until_up()).await
    }

    async fn wait_until_up(&self) {
        let mut poll = poll();
        loop {
            poll.tick().await;
            if self.call("ListTables", &json!({})).await.is_ok() {
                return;
            }
        }
    }
}

impl DynamoDbTable {
    /// The server that has the table.
    pub fn server(&self) -> &DynamoDbServer {
        self.server.as_ref().expect("the server goes back only when the table is dropped")
    }

    /// The name of the table.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The URL of the table.
    pub fn url(&self) -> String {
        self.server().url(&self.name)
    }
}

impl Drop for DynamoDbTable {
    fn drop(&mut self) {
        // A server that was killed has nothing left.
        IDLE.lock().extend(self.server.take().filter(|server| server.process.pid().is_some()));
    }
}
