//! A minimal client of the Redis protocol, for an operator's commands.

use std::io;

use bytes::Bytes;
use futures_util::FutureExt as _;
use hapax_core::runtime::BoxFuture;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

/// A value in the Redis protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RespValue {
    /// A status, such as `OK`.
    Status(String),
    /// An error, with its code in front.
    Error(String),
    /// A number.
    Integer(i64),
    /// Bytes.
    Bulk(Bytes),
    /// The nil value.
    Nil,
    /// A list of values.
    Array(Vec<Self>),
}

impl RespValue {
    /// The value as text. Empty for a list and for nil.
    pub fn text(&self) -> String {
        match self {
            Self::Status(text) | Self::Error(text) => text.clone(),
            Self::Integer(number) => number.to_string(),
            Self::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            Self::Nil | Self::Array(_) => String::new(),
        }
    }
}

/// One connection.
pub(super) struct RespConnection(BufReader<UnixStream>);

impl RespConnection {
    pub(super) fn new(stream: UnixStream) -> Self {
        Self(BufReader::new(stream))
    }

    pub(super) async fn command<W: AsRef<[u8]>>(&mut self, words: &[W]) -> io::Result<RespValue> {
        let mut request = format!("*{}\r\n", words.len()).into_bytes();
        for word in words.iter().map(AsRef::as_ref) {
            request.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            request.extend_from_slice(word);
            request.extend_from_slice(b"\r\n");
        }
        self.0.write_all(&request).await?;
        self.reply().await
    }

    fn reply(&mut self) -> BoxFuture<'_, io::Result<RespValue>> {
        async {
            let line = self.line().await?;
            let (kind, rest) = line.split_at_checked(1).unwrap_or_default();
            // A negative length means nil.
            Ok(match kind {
                "+" => RespValue::Status(rest.to_owned()),
                "-" => RespValue::Error(rest.to_owned()),
                ":" => RespValue::Integer(number(rest)?),
                "$" => match usize::try_from(number(rest)?) {
                    Ok(length) => self.bulk(length).await?,
                    Err(_) => RespValue::Nil,
                },
                "*" => match usize::try_from(number(rest)?) {
                    Ok(length) => self.array(length).await?,
                    Err(_) => RespValue::Nil,
                },
                _ => return Err(invalid(&line)),
            })
        }
        .boxed()
    }

    async fn bulk(&mut self, length: usize) -> io::Result<RespValue> {
        // CR and LF follow the bytes.
        let mut bytes = vec![0; length + 2];
        self.0.read_exact(&mut bytes).await?;
        bytes.truncate(length);
        Ok(RespValue::Bulk(bytes.into()))
    }

    async fn array(&mut self, length: usize) -> io::Result<RespValue> {
        let mut replies = Vec::new();
        for _ in 0..length {
            replies.push(self.reply().await?);
        }
        Ok(RespValue::Array(replies))
    }

    async fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.0.read_line(&mut line).await?;
        let line = line.strip_suffix("\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
        Ok(line.to_owned())
    }
}

fn number(text: &str) -> io::Result<i64> {
    text.parse().map_err(|_| invalid(text))
}

fn invalid(line: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("unexpected reply {line:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(answer: &[u8]) -> io::Result<RespValue> {
        let (ours, mut theirs) = UnixStream::pair()?;
        theirs.write_all(answer).await?;
        theirs.shutdown().await?;
        RespConnection::new(ours).reply().await
    }

    #[tokio::test]
    async fn every_form_of_reply_is_read() {
        let answer = b"*6\r\n+OK\r\n-ERR no\r\n:-7\r\n$4\r\na\r\nb\r\n$-1\r\n*-1\r\n";
        let expected = [
            RespValue::Status("OK".into()),
            RespValue::Error("ERR no".into()),
            RespValue::Integer(-7),
            RespValue::Bulk("a\r\nb".into()),
            RespValue::Nil,
            RespValue::Nil,
        ];
        assert_eq!(read(answer).await.unwrap(), RespValue::Array(expected.into()));
    }

    #[tokio::test]
    async fn a_truncated_or_invalid_reply_is_an_error() {
        for answer in [&b"+OK"[..], b"", b"$4\r\na", b"*2\r\n:1\r\n", b":x\r\n", b"?\r\n"] {
            assert!(read(answer).await.is_err(), "{answer:?}");
        }
    }
}
