//! The version of HTTP that a client speaks on a connection without TLS.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

/// The bytes with which a client begins HTTP/2 (RFC 9113, 3.4). No request of HTTP/1 begins with them.
const PREFACE: [u8; 24] = *b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A stream of which the first bytes were read already. It returns them first.
#[derive(Debug)]
pub(crate) struct StartedStream<I> {
    start: [u8; PREFACE.len()],
    /// How many bytes of `start` were read from the client.
    filled: usize,
    /// How many of them are returned.
    returned: usize,
    stream: I,
}

impl<I: AsyncRead + Unpin> StartedStream<I> {
    /// Reads until it is certain which version of HTTP the client speaks: a few bytes for HTTP/1, and the preface for
    /// HTTP/2.
    ///
    /// # Cancel safety
    /// If dropped, the bytes that were read are lost.
    pub(crate) async fn read_start(stream: I) -> io::Result<Self> {
        let mut started = Self { start: [0; PREFACE.len()], filled: 0, returned: 0, stream };
        while started.is_start_of_preface() && !started.begins_http2() {
            let count = started.stream.read(&mut started.start[started.filled..]).await?;
            started.filled += count;
            if count == 0 {
                break;
            }
        }
        Ok(started)
    }

    pub(crate) fn begins_http2(&self) -> bool {
        self.filled == PREFACE.len() && self.is_start_of_preface()
    }

    fn is_start_of_preface(&self) -> bool {
        PREFACE.starts_with(&self.start[..self.filled])
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for StartedStream<I> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { start, filled, returned, stream } = &mut *self;
        if returned == filled {
            return Pin::new(stream).poll_read(cx, buffer);
        }
        let count = buffer.remaining().min(*filled - *returned);
        buffer.put_slice(&start[*returned..*returned + count]);
        *returned += count;
        Poll::Ready(Ok(()))
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for StartedStream<I> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
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
    use tokio::io::{AsyncWriteExt, duplex};

    #[tokio::test]
    async fn all_bytes_arrive_whatever_the_version_is() {
        let preface = String::from_utf8(PREFACE.to_vec()).unwrap();
        for (sent, is_http2) in [
            ("", false),
            ("P", false),
            ("POST / HTTP/1.1\r\n\r\n", false),
            ("PRI * HTTP/1.1\r\nhost: a\r\n\r\n", false),
            (preface.as_str(), true),
            (&(preface.clone() + "more"), true),
            (&preface[..23], false),
        ] {
            // One byte at a time, so that each read takes one.
            let (mut client, server) = duplex(1);
            let write = async {
                client.write_all(sent.as_bytes()).await.unwrap();
                drop(client);
            };
            let read = async {
                let mut started = StartedStream::read_start(server).await.unwrap();
                let mut received = String::new();
                let is_http2 = started.begins_http2();
                started.read_to_string(&mut received).await.unwrap();
                (received, is_http2)
            };
            let ((), received) = tokio::join!(write, read);
            assert_eq!(received, (sent.to_owned(), is_http2));
        }
    }

    #[tokio::test]
    async fn http1_is_known_from_its_first_byte() {
        let (mut client, server) = duplex(100);
        client.write_all(b"G").await.unwrap();
        assert!(!StartedStream::read_start(server).await.unwrap().begins_http2());
    }
}
