//! The socket of a client.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Notes that a response on a connection has a body without a length, for a client of HTTP/1.0. The body ends with the
/// connection, which carries no other response.
#[derive(Clone, Debug, Default)]
pub(crate) struct CloseDelimited(Arc<AtomicBool>);

impl CloseDelimited {
    pub(crate) fn begin(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_begun(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The socket of a client.
///
/// A close-delimited body that is cut must not look complete. So from its first byte on, the system resets the
/// connection when the socket is closed, also if the process is killed. hyper shuts the socket down only after a
/// complete body; that restores the normal end.
#[derive(Debug)]
pub(crate) struct ClientSocket {
    stream: TcpStream,
    close_delimited: CloseDelimited,
    /// Whether the system resets the connection when the socket is closed.
    resets: bool,
}

impl ClientSocket {
    pub(crate) fn new(stream: TcpStream, close_delimited: CloseDelimited) -> Self {
        Self { stream, close_delimited, resets: false }
    }

    fn before_write(&mut self) -> io::Result<()> {
        if !self.resets && self.close_delimited.is_begun() {
            self.stream.set_zero_linger()?;
            self.resets = true;
        }
        Ok(())
    }

    fn before_shutdown(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.resets) {
            #[expect(deprecated, reason = "without a time, the close of the socket does not block")]
            self.stream.set_linger(None)?;
        }
        Ok(())
    }
}

impl AsyncRead for ClientSocket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for ClientSocket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.before_write()?;
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.before_shutdown()?;
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.before_write()?;
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
