use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf, Take};

/// A connection of which no more than a sip is read at once.
///
/// For HTTP/1, hyper gives a connection whose client sends faster than it is read a larger buffer each time, up to the longest head and
/// sometimes twice of it, and the connection keeps that. A thousand clients with long bodies would have most of the memory; with sips
/// that never fill the first buffer, it stays as small as it was.
#[derive(Debug)]
pub(crate) struct CappedReads<I> {
    stream: Take<I>,
    sip: u64,
}

impl<I: AsyncRead + Unpin> CappedReads<I> {
    pub(crate) fn of(stream: I, sip: u64) -> Self {
        Self { stream: stream.take(sip), sip }
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for CappedReads<I> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let sip = self.sip;
        self.stream.set_limit(sip);
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<I: AsyncRead + AsyncWrite + Unpin> AsyncWrite for CappedReads<I> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(self.stream.get_mut()).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.stream.get_mut()).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.stream.get_mut()).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(self.stream.get_mut()).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.get_ref().is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_stream_comes_whole_in_sips() {
        let all: Vec<u8> = (0..=255).cycle().take(1000).collect();
        let mut sips = CappedReads::of(&all[..], 300);
        let (mut read, mut buffer) = (Vec::new(), [0; 500]);
        let mut sizes = Vec::new();
        while let count @ 1.. = sips.read(&mut buffer).await.unwrap() {
            read.extend_from_slice(&buffer[..count]);
            sizes.push(count);
        }
        assert_eq!((read, sizes), (all, vec![300, 300, 300, 100]));
    }
}
