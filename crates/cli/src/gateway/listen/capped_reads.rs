use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf, Take};

/// A stream from which each read takes at most a fixed number of bytes. It counts all of them, and notes whether a
/// write waits.
///
/// For HTTP/1, hyper enlarges the read buffer of a connection each time that a read fills it, up to the limit of a head
/// or twice that, and never shrinks it. A thousand clients with long bodies would occupy most of the memory. Reads that
/// never fill the first buffer keep it small.
#[derive(Debug)]
pub(crate) struct CappedReads<I> {
    stream: Take<I>,
    cap: u64,
    traffic: Traffic,
}

/// The number of bytes that a client has sent on a connection, and whether it takes what the gateway sends.
#[derive(Clone, Debug, Default)]
pub(crate) struct Traffic(Arc<TrafficState>);

#[derive(Debug, Default)]
struct TrafficState {
    received: AtomicU64,
    is_write_waiting: AtomicBool,
}

impl Traffic {
    /// The bytes that the client has sent.
    pub(crate) fn received(&self) -> u64 {
        self.0.received.load(Ordering::Relaxed)
    }

    /// Whether bytes wait until the client has read earlier ones.
    pub(crate) fn is_write_waiting(&self) -> bool {
        self.0.is_write_waiting.load(Ordering::Relaxed)
    }

    fn note_write<T>(&self, written: Poll<T>) -> Poll<T> {
        self.0.is_write_waiting.store(written.is_pending(), Ordering::Relaxed);
        written
    }
}

impl<I: AsyncRead + Unpin> CappedReads<I> {
    pub(crate) fn new(stream: I, cap: u64) -> Self {
        Self { stream: stream.take(cap), cap, traffic: Traffic::default() }
    }

    pub(crate) fn traffic(&self) -> Traffic {
        self.traffic.clone()
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
        self.traffic.0.received.fetch_add(read, Ordering::Relaxed);
        polled
    }
}

impl<I: AsyncRead + AsyncWrite + Unpin> AsyncWrite for CappedReads<I> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(self.stream.get_mut()).poll_write(cx, bytes);
        self.traffic.note_write(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(self.stream.get_mut()).poll_flush(cx);
        self.traffic.note_write(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.stream.get_mut()).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(self.stream.get_mut()).poll_write_vectored(cx, slices);
        self.traffic.note_write(written)
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
        let traffic = reads.traffic();
        while let count @ 1.. = reads.read(&mut buffer).await.unwrap() {
            read.extend_from_slice(&buffer[..count]);
            sizes.push(count);
        }
        assert_eq!(traffic.received(), 1000);
        assert_eq!((read, sizes), (all, vec![300, 300, 300, 100]));
    }
}
