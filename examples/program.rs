//! Runs an example as a process that listens on a port of its own, and sends it requests over plain connections.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A running program, killed when dropped.
pub(crate) struct Program {
    child: Child,
    address: String,
}

/// A response of the program.
pub(crate) struct HttpResponse {
    pub(crate) status: u16,
    pub(crate) body: String,
    head: String,
}

/// The longest time that a test waits for a response.
const DEADLINE: Duration = Duration::from_secs(60);

impl Program {
    /// Starts the program and waits until it prints its address.
    pub(crate) fn start(path: &str, arguments: &[&str]) -> Self {
        let mut child = Command::new(path).args(arguments).stdout(Stdio::piped()).spawn().expect("the program starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("stdout is piped"))
            .read_line(&mut line)
            .expect("the program prints text");
        let address = line.trim_end().strip_prefix("listening on http://").expect("the program prints its address");
        Self { address: address.into(), child }
    }

    pub(crate) fn get(&self, path: &str) -> HttpResponse {
        self.send(&format!("GET {path}"), "", "")
    }

    /// Sends a protected request of the caller `Bearer me`.
    pub(crate) fn post(&self, path: &str, key: &str, body: &str) -> HttpResponse {
        self.send(&format!("POST {path}"), &format!("Authorization: Bearer me\r\nIdempotency-Key: {key}\r\n"), body)
    }

    /// Sends a request: method and path, additional fields, and a body.
    pub(crate) fn send(&self, method_and_path: &str, fields: &str, body: &str) -> HttpResponse {
        let mut stream = TcpStream::connect(&self.address).expect("the program listens");
        stream.set_read_timeout(Some(DEADLINE)).expect("a timeout can be set");
        let length = body.len();
        // The host is a part of the payload, and a restarted program has another port.
        let request = format!(
            "{method_and_path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Content-Length: {length}\r\n{fields}\r\n{body}"
        );
        stream.write_all(request.as_bytes()).expect("the program reads the request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("the program answers");
        let (head, body) = answer.split_once("\r\n\r\n").expect("an answer has a head");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("an answer has a status");
        HttpResponse { status, body: body.into(), head: head.to_ascii_lowercase() }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // A kill, not an orderly end: what the next process finds must already be on disk.
        self.child.kill().expect("the process is a child of the test");
        self.child.wait().expect("the process is a child of the test");
    }
}

impl HttpResponse {
    pub(crate) fn is_replay(&self) -> bool {
        self.head.contains("\r\nidempotent-replayed: true")
    }
}
