use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf, Take};

/// A stream from which each read takes at most a fixed number of bytes. It counts all of them.
///
/// For HTTP/1, hyper enlarges the read buffer of a connection each time that a read fills it, up to the limit of a head
/// or twice that, and never shrinks it. A thousand clients with long bodies would occupy most of the memory. Reads that
/// never fill the first buffer keep it small.
#[derive(Debug)]
pub(crate) struct CappedReads<I> {
    stream: Take<I>,
    cap: u64,
    received: ReceivedBytes,
}

/// How many bytes a client has sent on a connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReceivedBytes(Arc<AtomicU64>);

impl ReceivedBytes {
    pub(crate) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl<I: AsyncRead + Unpin> CappedReads<I> {
    pub(crate) fn new(stream: I, cap: u64) -> Self {
        Self { stream: stream.take(cap), cap, received: ReceivedBytes::default() }
    }

    pub(crate) fn received(&self) -> ReceivedBytes {
        self.received.clone()
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for CappedReads<I> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let cap = self.cap;
        // `Take` counts over all reads, so each read gets the limit anew.
        self.stream.set_limit(cap);
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        let read = u64::try_from(buffer.filled().len() - before).unwrap_or(u64::MAX);
        self.received.0.fetch_add(read, Ordering::Relaxed);
        polled
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
        let received = reads.received();
        while let count @ 1.. = reads.read(&mut buffer).await.unwrap() {
            read.extend_from_slice(&buffer[..count]);
            sizes.push(count);
        }
        assert_eq!(received.count(), 1000);
        assert_eq!((read, sizes), (all, vec![300, 300, 300, 100]));
    }
}
