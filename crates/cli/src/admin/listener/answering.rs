//! Whether a connection is answering a request. The answer ends when the system has taken all of its bytes.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// How far a connection has come with its present request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum AnswerState {
    /// No request waits for its response.
    #[default]
    Idle,
    /// The response is being computed.
    Computing,
    /// The response is being written.
    Writing,
}

/// The state of one connection, shared between its service, its stream and the list of connections.
#[derive(Clone, Debug, Default)]
pub(super) struct Answering(Arc<Mutex<AnswerState>>);

impl Answering {
    /// A request has arrived.
    pub(super) fn begin(&self) {
        *self.0.lock() = AnswerState::Computing;
    }

    /// The connection has the whole response and writes it.
    pub(super) fn write(&self) {
        *self.0.lock() = AnswerState::Writing;
    }

    pub(super) fn is_idle(&self) -> bool {
        *self.0.lock() == AnswerState::Idle
    }

    fn end_if_written(&self) {
        let mut state = self.0.lock();
        if *state == AnswerState::Writing {
            *state = AnswerState::Idle;
        }
    }
}

/// A stream that ends the answer when it is flushed: hyper flushes the stream after it has written all that it holds.
#[derive(Debug)]
pub(super) struct AnsweringStream<S> {
    stream: S,
    answering: Answering,
}

impl<S> AnsweringStream<S> {
    pub(super) fn new(stream: S, answering: Answering) -> Self {
        Self { stream, answering }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for AnsweringStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for AnsweringStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        self.answering.end_if_written();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
