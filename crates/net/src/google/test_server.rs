//! A server that gives tokens.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use hapax_core::runtime::{Runtime, Tokio};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// A server that gives tokens, or refuses to, and notes what it is asked.
pub(super) struct TokenServer {
    pub(super) address: String,
    /// The head and the body of each request.
    asked: Arc<Mutex<Vec<(String, String)>>>,
}

impl TokenServer {
    /// Gives these answers, one after the other, and the last one again and again.
    pub(super) async fn start(answers: &[(u16, Value)]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let asked: Arc<Mutex<Vec<(String, String)>>> = Arc::default();
        let (noted, answers) = (Arc::clone(&asked), answers.to_vec());
        Tokio::current().spawn(Box::pin(async move {
            for place in 0.. {
                let Ok((mut stream, _)) = listener.accept().await else { return };
                let (status, body) = &answers[place.min(answers.len() - 1)];
                let mut read = Vec::new();
                let (head, length) = loop {
                    if let Some(found) = head_of(&read) {
                        break found;
                    }
                    if stream.read_buf(&mut read).await.unwrap() == 0 {
                        return;
                    }
                };
                while read.len() < head + length {
                    stream.read_buf(&mut read).await.unwrap();
                }
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                noted.lock().push((text(&read[..head]), text(&read[head..])));
                let body = body.to_string();
                let head = format!(
                    "HTTP/1.1 {status} X\r\nmetadata-flavor: Google\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                    body.len()
                );
                stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
            }
        }));
        Self { address, asked }
    }

    pub(super) fn asked(&self) -> Vec<(String, String)> {
        self.asked.lock().clone()
    }
}

/// Where the body begins, and its length.
fn head_of(read: &[u8]) -> Option<(usize, usize)> {
    let end = read.windows(4).position(|bytes| bytes == b"\r\n\r\n")? + 4;
    let head = String::from_utf8_lossy(&read[..end]).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
    Some((end, length.unwrap_or(0)))
}

pub(super) fn token(text: &str) -> (u16, Value) {
    (200, json!({ "access_token": text, "expires_in": 3599, "token_type": "Bearer" }))
}

/// Writes a file that only its owner may read.
pub(super) fn write(file: &Path, content: &Value) {
    std::fs::write(file, content.to_string()).unwrap();
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o600)).unwrap();
}
