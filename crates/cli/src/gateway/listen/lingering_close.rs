//! The close of a connection whose client may still send the rest of a body.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// How long a client that is still sending may pause before its connection is closed.
const PAUSE: Duration = Duration::from_secs(5);

/// How long the rest of a body is discarded in all.
const LONGEST: Duration = Duration::from_secs(30);

/// How many bytes are discarded at once. They lie on the stack.
const PIECE: usize = 8 << 10;

/// Notes that the gateway does not read the rest of the last body on a connection of HTTP/1.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnreadRest(Arc<AtomicBool>);

impl UnreadRest {
    pub(crate) fn set(&self, is_unread: bool) {
        self.0.store(is_unread, Ordering::Release);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// A stream that is closed only after its client has stopped sending.
///
/// The system resets a connection that is closed while bytes are unread. The client then fails to send the rest of its
/// body, and may lose the response that was sent before. So the shutdown sends the end of the response first, and then
/// discards what arrives until the client closes its side, pauses for too long, or the gateway stops.
#[derive(Debug)]
pub(crate) struct LingeringClose<I> {
    stream: I,
    unread: UnreadRest,
    stop: CancellationToken,
    /// Set once the end of the response is sent.
    discard: Option<Pin<Box<DiscardLimits>>>,
}

/// What ends the wait for a client.
#[derive(Debug)]
struct DiscardLimits {
    all: Pin<Box<Sleep>>,
    pause: Pin<Box<Sleep>>,
    stopped: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl DiscardLimits {
    fn new(stop: CancellationToken) -> Self {
        let stopped = Box::pin(stop.cancelled_owned());
        Self { all: Box::pin(sleep(LONGEST)), pause: Box::pin(sleep(PAUSE)), stopped }
    }

    /// Discards what has arrived. Is ready once the stream can be closed.
    fn poll_discard<I: AsyncRead + Unpin>(&mut self, stream: &mut I, cx: &mut Context<'_>) -> Poll<()> {
        let mut piece = [0; PIECE];
        loop {
            if self.stopped.as_mut().poll(cx).is_ready() || self.all.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            let mut buffer = ReadBuf::new(&mut piece);
            match Pin::new(&mut *stream).poll_read(cx, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => self.pause.as_mut().reset(Instant::now() + PAUSE),
                // The client has closed its side, or the connection has failed.
                Poll::Ready(Ok(()) | Err(_)) => return Poll::Ready(()),
                Poll::Pending => return self.pause.as_mut().poll(cx),
            }
        }
    }
}

impl<I> LingeringClose<I> {
    pub(crate) fn new(stream: I, unread: UnreadRest, stop: CancellationToken) -> Self {
        Self { stream, unread, stop, discard: None }
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for LingeringClose<I> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<I: AsyncRead + AsyncWrite + Unpin> AsyncWrite for LingeringClose<I> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { stream, unread, stop, discard } = &mut *self;
        if discard.is_none() {
            ready!(Pin::new(&mut *stream).poll_shutdown(cx))?;
            if !unread.is_set() {
                return Poll::Ready(Ok(()));
            }
        }
        let limits = discard.get_or_insert_with(|| Box::pin(DiscardLimits::new(stop.clone())));
        limits.poll_discard(stream, cx).map(Ok)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::time::advance;

    /// A connection whose last body was not read, and its client.
    fn connection(is_unread: bool) -> (LingeringClose<DuplexStream>, DuplexStream, CancellationToken) {
        let (client, server) = duplex(1 << 10);
        let (unread, stop) = (UnreadRest::default(), CancellationToken::new());
        unread.set(is_unread);
        (LingeringClose::new(server, unread, stop.clone()), client, stop)
    }

    #[tokio::test(start_paused = true)]
    async fn the_rest_of_a_body_is_discarded_until_its_client_closes_h11() {
        let (mut server, mut client, _stop) = connection(true);
        let upload = async {
            client.write_all(&vec![b'x'; 1 << 20]).await.unwrap();
            let mut received = Vec::new();
            client.read_to_end(&mut received).await.unwrap();
            drop(client);
            received
        };
        let answer = async {
            server.write_all(b"413").await.unwrap();
            server.shutdown().await.unwrap();
        };
        let (received, ()) = tokio::join!(upload, answer);
        assert_eq!(received, b"413");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_pauses_or_drips_is_not_awaited_forever_h11() {
        let (mut server, mut client, _stop) = connection(true);
        let mut close = Box::pin(server.shutdown());
        for (pause, is_closed) in [(PAUSE * 3 / 4, false), (PAUSE * 3 / 4, false), (PAUSE, true)] {
            client.write_all(b"x").await.unwrap();
            assert!(close.as_mut().now_or_never().is_none());
            advance(pause).await;
            assert_eq!(close.as_mut().now_or_never().is_some(), is_closed);
        }
        let (mut server, mut client, _stop) = connection(true);
        let mut close = Box::pin(server.shutdown());
        for _ in 0..LONGEST.as_secs() {
            assert!(close.as_mut().now_or_never().is_none());
            client.write_all(b"x").await.unwrap();
            advance(Duration::from_secs(1)).await;
        }
        assert!(close.as_mut().now_or_never().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_ends_the_wait_h11() {
        let (mut server, _client, stop) = connection(true);
        let mut close = Box::pin(server.shutdown());
        assert!(close.as_mut().now_or_never().is_none());
        stop.cancel();
        assert!(close.as_mut().now_or_never().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_whose_bodies_were_read_is_closed_at_once() {
        let (mut server, _client, _stop) = connection(false);
        assert!(server.shutdown().now_or_never().is_some());
    }
}
