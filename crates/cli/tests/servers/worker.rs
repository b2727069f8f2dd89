//! `hapax worker` on NATS JetStream.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Stdio};

use hapax_testkit::servers::{self, NatsServer, Trial};

use crate::harness::{Api, DEADLINE, free_address, hapax, until};

pub(crate) fn tests() -> Vec<Trial> {
    vec![servers::test("each_message_of_a_stream_reaches_the_service_once", "nats", stream)]
}

async fn stream() {
    let (server, api) = (NatsServer::shared().await.unwrap(), Api::start().await);
    let directory = tempfile::tempdir().unwrap();
    let mut nats = NatsClient::connect(server.address());
    nats.request("$JS.API.STREAM.CREATE.cli-orders", "", r#"{"name":"cli-orders","subjects":["cli-orders.>"]}"#);
    for key in ["order-1", "order-2", "order-1"] {
        nats.request("cli-orders.new", &format!("NATS/1.0\r\nIdempotency-Key: {key}\r\n\r\n"), "five");
    }
    let store = format!("sqlite://{}", directory.path().join("records.db").display());
    let source = format!("nats://{}/cli-orders?durable=billing", server.address());
    let mut command = hapax();
    command.args(["worker", "--source", &source, "--target", &format!("http://{}/transfers", api.address)]);
    command.args(["--store", &store, "--admin", &free_address().to_string()]);
    let worker = RunningWorker(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    until("every message is acknowledged", async || {
        let info = nats.request("$JS.API.CONSUMER.INFO.cli-orders.billing", "", "");
        let info: serde_json::Value = serde_json::from_str(info.trim()).unwrap();
        info["ack_floor"]["stream_seq"] == 3
    })
    .await;
    drop(worker);
    assert_eq!(api.count(), 2);
}

/// A worker process, killed when dropped.
struct RunningWorker(Child);

impl Drop for RunningWorker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// As much of the protocol of NATS as a request needs.
struct NatsClient(BufReader<TcpStream>);

impl NatsClient {
    fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        let mut client = Self(BufReader::new(stream));
        client.line();
        client.send("CONNECT {\"verbose\":false,\"headers\":true}\r\nSUB _INBOX.cli 1\r\n");
        client
    }

    /// Sends a request with these headers, which may be empty, and returns the reply.
    fn request(&mut self, subject: &str, headers: &str, body: &str) -> String {
        let (head, all) = (headers.len(), headers.len() + body.len());
        self.send(&match head {
            0 => format!("PUB {subject} _INBOX.cli {all}\r\n{body}\r\n"),
            _ => format!("HPUB {subject} _INBOX.cli {head} {all}\r\n{headers}{body}\r\n"),
        });
        loop {
            let line = self.line();
            if line.starts_with("PING") {
                self.send("PONG\r\n");
            } else if line.starts_with("MSG") || line.starts_with("HMSG") {
                let length: usize = line.split_whitespace().last().unwrap().parse().unwrap();
                let mut reply = vec![0; length + 2];
                self.0.read_exact(&mut reply).unwrap();
                return String::from_utf8(reply).unwrap();
            }
        }
    }

    fn send(&mut self, text: &str) {
        self.0.get_mut().write_all(text.as_bytes()).unwrap();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "the server has closed the connection");
        line
    }
}
