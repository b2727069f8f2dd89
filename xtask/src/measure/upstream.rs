//! The API behind the measured gateway. It holds each response until the measurement lets it go, so that the two
//! directions of a request can be profiled apart.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// An API that responds to each request with 201 and a short body. It runs until this process ends.
pub(super) struct HeldUpstream {
    pub(super) address: SocketAddr,
    arrived: Receiver<()>,
    release: Sender<()>,
}

/// The ends of the two channels that the API's connections use.
struct Turnstile {
    arrived: Sender<()>,
    release: Mutex<Receiver<()>>,
}

impl HeldUpstream {
    pub(super) fn start() -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let ((arrive, arrived), (release, released)) = (mpsc::channel(), mpsc::channel());
        let turnstile = Arc::new(Turnstile { arrived: arrive, release: Mutex::new(released) });
        thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let turnstile = Arc::clone(&turnstile);
                thread::spawn(move || turnstile.respond(&connection));
            }
        });
        Ok(Self { address, arrived, release })
    }

    /// Waits until a whole request has arrived.
    pub(super) fn wait_for_request(&self, limit: Duration) -> io::Result<()> {
        self.arrived.recv_timeout(limit).map_err(|_| io::Error::other("no request reached the API"))
    }

    /// Sends the response to one request.
    pub(super) fn release_response(&self) -> io::Result<()> {
        self.release.send(()).map_err(|_| io::Error::other("the API has ended"))
    }
}

impl Turnstile {
    fn respond(&self, mut connection: &TcpStream) -> io::Result<()> {
        let mut reader = BufReader::new(connection);
        while let Some(length) = read_head(&mut reader)? {
            io::copy(&mut reader.by_ref().take(length), &mut io::sink())?;
            let release = self.release.lock().map_err(|_| io::Error::other("another connection panicked"))?;
            if self.arrived.send(()).is_err() || release.recv().is_err() {
                break;
            }
            connection.write_all(b"HTTP/1.1 201 Created\r\nContent-Length: 8\r\n\r\ncharge 1")?;
        }
        Ok(())
    }
}

/// Reads a request head. Returns the length of the body, or nothing at the end of the connection.
fn read_head(reader: &mut impl BufRead) -> io::Result<Option<u64>> {
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        match line.trim_end().split_once(':') {
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                length = value.trim().parse().unwrap_or(0);
            }
            None if line.trim_end().is_empty() => return Ok(Some(length)),
            Some(_) | None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_ends_with_an_empty_line() {
        let mut bytes: &[u8] = b"POST / HTTP/1.1\r\nHost: a:1\r\ncontent-length: 5\r\n\r\nhello";
        assert_eq!(read_head(&mut bytes).expect("it is in memory"), Some(5));
        assert_eq!(bytes, b"hello");
        assert_eq!(read_head(&mut bytes).expect("it is in memory"), None);
    }
}
