use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf, Take};

/// A stream from which each read takes at most a fixed number of bytes.
///
/// For HTTP/1, hyper enlarges the read buffer of a connection each time that a read fills it, up to the limit of a head
/// or twice that, and never shrinks it. A thousand clients with long bodies would occupy most of the memory. Reads that
/// never fill the first buffer keep it small.
#[derive(Debug)]
pub(crate) struct CappedReads<I> {
    stream: Take<I>,
    cap: u64,
}

impl<I: AsyncRead + Unpin> CappedReads<I> {
    pub(crate) fn new(stream: I, cap: u64) -> Self {
        Self { stream: stream.take(cap), cap }
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for CappedReads<I> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let cap = self.cap;
        // `Take` counts over all reads, so each read gets the limit anew.
        self.stream.set_limit(cap);
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
    async fn all_bytes_arrive_in_capped_reads() {
        let all: Vec<u8> = (0..=255).cycle().take(1000).collect();
        let mut reads = CappedReads::new(&all[..], 300);
        let (mut read, mut buffer) = (Vec::new(), [0; 500]);
        let mut sizes = Vec::new();
        while let count @ 1.. = reads.read(&mut buffer).await.unwrap() {
            read.extend_from_slice(&buffer[..count]);
            sizes.push(count);
        }
        assert_eq!((read, sizes), (all, vec![300, 300, 300, 100]));
    }
}
