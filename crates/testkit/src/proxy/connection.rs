//! Forwards one connection: the bytes between two sockets, with the faults that apply.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy, sink};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use super::fault::Direction;
use super::rules::{ConnectionEnd, DirectionState, FaultRules, PiecePlan};

/// The largest number of bytes that is read at once.
const PIECE: usize = 16 * 1024;

/// How many scheduled writes may wait in one direction.
const MAX_SCHEDULED: usize = 1024;

/// A write at a given time, or the end of the connection. Their order is kept.
enum ScheduledWrite {
    Bytes(Instant, Vec<u8>),
    End(ConnectionEnd),
}

/// Forwards a connection until it ends.
pub(super) async fn forward(
    mut client: TcpStream,
    target: SocketAddr,
    rules: Arc<FaultRules>,
    mut resets: watch::Receiver<()>,
) {
    // Earlier resets do not apply to this connection.
    resets.mark_unchanged();
    if rules.should_reject() {
        return reset(&client);
    }
    let server = TcpStream::connect(target).await;
    let Ok(mut server) = server.inspect_err(|_| rules.count(|counts| counts.unreachable += 1)) else {
        return reset(&client);
    };
    let ending = tokio::select! {
        biased;
        _ = resets.changed() => {
            rules.count(|counts| counts.resets += 1);
            ConnectionEnd::Reset
        }
        ending = exchange(&rules, &mut client, &mut server) => ending,
    };
    close(ending, client, server, resets).await;
}

async fn close(ending: ConnectionEnd, client: TcpStream, mut server: TcpStream, mut resets: watch::Receiver<()>) {
    match ending {
        ConnectionEnd::Closed => {}
        ConnectionEnd::Reset => {
            reset(&client);
            reset(&server);
        }
        ConnectionEnd::ClientReset => {
            reset(&client);
            drop(client);
            // Close the server's socket only after the server has read everything: closing it discards unread bytes.
            tokio::select! {
                biased;
                _ = resets.changed() => {}
                _ = drain(&mut server) => {}
            }
        }
    }
}

/// Makes the socket send a reset when it is closed.
fn reset(stream: &TcpStream) {
    // If this fails, the socket is already closed.
    let _ = stream.set_zero_linger();
}

async fn drain(server: &mut TcpStream) -> io::Result<u64> {
    server.shutdown().await?;
    copy(server, &mut sink()).await
}

async fn exchange(rules: &FaultRules, client: &mut TcpStream, server: &mut TcpStream) -> ConnectionEnd {
    // Pieces must arrive as they were cut. A failure means that the socket is already closed.
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let is_reply_lost = AtomicBool::new(false);
    let state = |direction| DirectionState::new(rules, direction, &is_reply_lost);
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    let both = tokio::try_join!(
        forward_direction(from_client, to_server, state(Direction::ToServer)),
        forward_direction(from_server, to_client, state(Direction::ToClient)),
    );
    both.err().unwrap_or(ConnectionEnd::Closed)
}

async fn forward_direction(
    from: ReadHalf<'_>,
    to: WriteHalf<'_>,
    state: DirectionState<'_>,
) -> Result<(), ConnectionEnd> {
    let (writes, scheduled) = mpsc::channel(MAX_SCHEDULED);
    tokio::try_join!(read(from, writes, state), write(to, scheduled)).map(drop)
}

/// Reads pieces while earlier ones are delayed, so that delays do not add up.
async fn read(
    mut from: ReadHalf<'_>,
    writes: mpsc::Sender<ScheduledWrite>,
    mut state: DirectionState<'_>,
) -> Result<(), ConnectionEnd> {
    let mut buffer = vec![0; PIECE];
    let mut last_due = Instant::now();
    loop {
        let length = from.read(&mut buffer).await.map_err(|_| ConnectionEnd::Reset)?;
        if length == 0 {
            // A half-open connection loses the close as well, so the other side must not see one.
            return if state.drops_bytes() { std::future::pending().await } else { Ok(()) };
        }
        let plan = state.plan_piece(&buffer[..length]);
        let bytes = [&plan.ahead, &buffer[..plan.bytes]].concat();
        for write in schedule(&plan, &bytes, &mut last_due) {
            writes.send(write).await.map_err(|_| ConnectionEnd::Reset)?;
        }
        if plan.end.is_some() {
            // The writer ends the connection when it reaches this entry.
            return std::future::pending().await;
        }
    }
}

fn schedule(plan: &PiecePlan, bytes: &[u8], last_due: &mut Instant) -> Vec<ScheduledWrite> {
    // Never before an earlier piece: jitter must not change the order.
    *last_due = (*last_due).max(Instant::now() + plan.delay);
    let (size, every) = plan.portions.unwrap_or((PIECE, std::time::Duration::ZERO));
    let portions = bytes.chunks(size).map(|portion| {
        *last_due += every;
        ScheduledWrite::Bytes(*last_due, portion.to_owned())
    });
    portions.chain(plan.end.map(ScheduledWrite::End)).collect()
}

async fn write(mut to: WriteHalf<'_>, mut scheduled: mpsc::Receiver<ScheduledWrite>) -> Result<(), ConnectionEnd> {
    while let Some(write) = scheduled.recv().await {
        match write {
            ScheduledWrite::Bytes(due, bytes) => {
                if due > Instant::now() {
                    sleep_until(due).await;
                }
                to.write_all(&bytes).await.map_err(|_| ConnectionEnd::Reset)?;
            }
            ScheduledWrite::End(ending) => return Err(ending),
        }
    }
    // A failed shutdown means that the peer has already closed the connection.
    let _ = to.shutdown().await;
    Ok(())
}
