//! The tunnel of a connection that has switched to WebSocket.

use std::future::Future;
use std::io;
use std::time::Duration;

use futures_util::future::try_join;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncWriteExt, copy_bidirectional_with_sizes};
use tokio::time::sleep;

use crate::gateway::listen::capped_reads::{CappedReads, Traffic};
use crate::upstream::websocket::Tunnel;

/// The bytes that wait in each direction of a tunnel.
const TUNNEL_BUFFER: usize = 8 << 10;

/// Passes bytes on in both directions until both sides have closed, or no byte has arrived for the limit, or for
/// up to twice as long. Returns why it ended.
pub(crate) async fn run(tunnel: Tunnel, idle: Duration) -> &'static str {
    // The rest of the tunnel lives until the end: it occupies the room of a connection.
    let Tunnel { client, api, .. } = &tunnel;
    let Ok(Ok((client, api))) = tokio::time::timeout(idle, try_join(client.clone(), api.clone())).await else {
        return "a side could not be switched";
    };
    let (mut client, mut api) = (side(client), side(api));
    let traffic = [client.traffic(), api.traffic()];
    tokio::select! {
        copied = copy_bidirectional_with_sizes(&mut client, &mut api, TUNNEL_BUFFER, TUNNEL_BUFFER) => match copied {
            Ok(_) => "both sides have closed it",
            Err(error) if error.kind() == io::ErrorKind::TimedOut => "the client took no byte in time",
            Err(error) => {
                tracing::debug!(%error, "a WebSocket failed");
                "a side has failed"
            }
        },
        () = wait_until_silent(traffic, idle) => "no byte has passed in time",
    }
}

/// Ends a connection that has not switched, as hyper ends one on which no request has a field `Upgrade`.
pub(crate) async fn close(client: OnUpgrade, limit: Duration) {
    // hyper has fulfilled it already, or has dropped it together with a connection that failed.
    let Ok(Ok(client)) = tokio::time::timeout(limit, client).await else { return };
    if let Err(error) = TokioIo::new(client).shutdown().await {
        tracing::debug!(%error, "a client connection failed at its end");
    }
}

fn side(upgraded: Upgraded) -> CappedReads<TokioIo<Upgraded>> {
    CappedReads::new(TokioIo::new(upgraded), u64::MAX)
}

/// Waits until no byte has arrived for the limit. It polls by timer, so that bytes need not wake it.
fn wait_until_silent(traffic: [Traffic; 2], limit: Duration) -> impl Future<Output = ()> {
    let received = move || traffic.iter().map(Traffic::received).sum::<u64>();
    async move {
        let mut before = received();
        loop {
            sleep(limit).await;
            let now = received();
            if now == before {
                return;
            }
            before = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use tokio::io::{AsyncReadExt, duplex};
    use tokio::time::advance;

    #[tokio::test(start_paused = true)]
    async fn a_tunnel_is_silent_after_a_whole_limit_without_a_byte_in_either_direction() {
        let (limit, (mut client, server)) = (Duration::from_secs(10), duplex(10));
        let (mut server, other) = (CappedReads::new(server, 8), CappedReads::new(&[][..], 8));
        let mut silent = Box::pin(wait_until_silent([other.traffic(), server.traffic()], limit));
        for _ in 0..5 {
            assert!(silent.as_mut().now_or_never().is_none());
            client.write_all(b"x").await.unwrap();
            server.read_u8().await.unwrap();
            advance(limit).await;
        }
        assert!(silent.as_mut().now_or_never().is_none());
        advance(limit).await;
        assert!(silent.as_mut().now_or_never().is_some());
    }
}
