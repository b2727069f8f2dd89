//! HTTP/2 frames written by hand: libraries refuse to send malformed or unusual ones.

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The connection preface of a client.
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;

/// A flag of DATA and HEADERS. In SETTINGS the same bit is ACK.
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const ACK: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

pub(crate) const NO_ERROR: u32 = 0;
pub(crate) const INTERNAL_ERROR: u32 = 2;
pub(crate) const REFUSED_STREAM: u32 = 7;
pub(crate) const CANCEL: u32 = 8;

#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

impl Frame {
    pub(crate) fn new(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Self {
        Self { kind, flags, stream, payload: payload.to_vec() }
    }

    /// Creates the SETTINGS of a client that lets this many bytes of each response come.
    pub(crate) fn window(bytes: u32) -> Self {
        const INITIAL_WINDOW_SIZE: [u8; 2] = [0, 4];
        Self::new(SETTINGS, 0, 0, &[&INITIAL_WINDOW_SIZE[..], &bytes.to_be_bytes()].concat())
    }

    pub(crate) fn reset(stream: u32, reason: u32) -> Self {
        Self::new(RST_STREAM, 0, stream, &reason.to_be_bytes())
    }

    /// Creates a GOAWAY: the sender has processed no stream after `last`.
    pub(crate) fn go_away(last: u32, reason: u32) -> Self {
        Self::new(GOAWAY, 0, 0, &[last.to_be_bytes(), reason.to_be_bytes()].concat())
    }

    pub(crate) fn ends_stream(&self) -> bool {
        matches!(self.kind, DATA | HEADERS) && self.flags & END_STREAM != 0
    }

    /// Returns None if the connection is closed.
    pub(crate) async fn read(wire: &mut (impl AsyncRead + Unpin)) -> Option<Self> {
        let mut head = [0; 9];
        wire.read_exact(&mut head).await.ok()?;
        let number = |bytes: &[u8]| bytes.iter().fold(0_u32, |number, byte| number << 8 | u32::from(*byte));
        let mut payload = vec![0; usize::try_from(number(&head[..3])).unwrap()];
        wire.read_exact(&mut payload).await.ok()?;
        Some(Self { kind: head[3], flags: head[4], stream: number(&head[5..]), payload })
    }

    pub(crate) async fn write(&self, wire: &mut (impl AsyncWrite + Unpin)) -> Option<()> {
        let length = u32::try_from(self.payload.len()).unwrap().to_be_bytes();
        let head = [&length[1..], &[self.kind, self.flags], &self.stream.to_be_bytes()].concat();
        wire.write_all(&[head, self.payload.clone()].concat()).await.ok()?;
        wire.flush().await.ok()
    }
}

/// Encodes a field for HEADERS in HPACK without compression.
pub(crate) fn field(name: &str, value: &str) -> Vec<u8> {
    let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    [vec![0], text(name), text(value)].concat()
}
