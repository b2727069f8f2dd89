//! How the tests run an example: as a process that listens on a port of its own, over plain connections.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A program that runs, killed when dropped.
pub(crate) struct Program {
    child: Child,
    address: String,
}

/// What it answered.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: String,
    head: String,
}

/// After this a test has failed, however slow the machine.
const DEADLINE: Duration = Duration::from_secs(60);

impl Program {
    /// Starts it and waits until it says where it listens.
    pub(crate) fn start(path: &str, arguments: &[&str]) -> Self {
        let mut child = Command::new(path).args(arguments).stdout(Stdio::piped()).spawn().expect("it starts");
        let mut said = String::new();
        BufReader::new(child.stdout.take().expect("it is piped")).read_line(&mut said).expect("it prints text");
        let address = said.trim_end().strip_prefix("listening on http://").expect("it says where it listens");
        Self { address: address.into(), child }
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.send(&format!("GET {path}"), "", "")
    }

    /// A protected request of one caller.
    pub(crate) fn post(&self, path: &str, key: &str, body: &str) -> Answer {
        self.send(&format!("POST {path}"), &format!("Authorization: Bearer me\r\nIdempotency-Key: {key}\r\n"), body)
    }

    /// Sends method and path, further fields, and a body.
    pub(crate) fn send(&self, what: &str, fields: &str, body: &str) -> Answer {
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        stream.set_read_timeout(Some(DEADLINE)).expect("a timeout can be set");
        let (address, length) = (&self.address, body.len());
        let request = format!(
            "{what} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {length}\r\n{fields}\r\n{body}"
        );
        stream.write_all(request.as_bytes()).expect("it takes the request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        let (head, body) = answer.split_once("\r\n\r\n").expect("an answer has a head");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("an answer has a status");
        Answer { status, body: body.into(), head: head.to_ascii_lowercase() }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.child.kill().expect("it is ours");
        self.child.wait().expect("it is ours");
    }
}

impl Answer {
    pub(crate) fn replayed(&self) -> bool {
        self.head.contains("\r\nidempotent-replayed: true")
    }
}
