//! One connection: two sockets, and the bytes between them.

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
use super::rules::{Course, Ending, Rules, Verdict};

/// The largest piece that is read at once.
const PIECE: usize = 16 * 1024;

/// How many portions may be on their way in one direction.
const UNDER_WAY: usize = 1024;

/// What is on its way, in order.
enum Order {
    Bytes(Instant, Vec<u8>),
    End(Ending),
}

/// Carries a connection to its end.
pub(super) async fn carry(
    mut client: TcpStream,
    target: SocketAddr,
    rules: Arc<Rules>,
    mut resets: watch::Receiver<()>,
) {
    // Only what is told from now on is about this connection.
    resets.mark_unchanged();
    if rules.rejects() {
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
            Ending::Reset
        }
        ending = exchange(&rules, &mut client, &mut server) => ending,
    };
    match ending {
        Ending::Closed => {}
        Ending::Reset => {
            reset(&client);
            reset(&server);
        }
        Ending::ClientReset => {
            reset(&client);
            drop(client);
            // The server's socket is not closed before the server has read everything: unread bytes would be thrown away.
            tokio::select! {
                biased;
                _ = resets.changed() => {}
                _ = drain(&mut server) => {}
            }
        }
    }
}

/// Makes a socket that is closed next send a reset.
fn reset(stream: &TcpStream) {
    // A socket that cannot be reset has ended in another way.
    let _ = stream.set_zero_linger();
}

async fn drain(server: &mut TcpStream) -> io::Result<u64> {
    server.shutdown().await?;
    copy(server, &mut sink()).await
}

async fn exchange(rules: &Rules, client: &mut TcpStream, server: &mut TcpStream) -> Ending {
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let answer_is_lost = AtomicBool::new(false);
    let course = |direction| Course::new(rules, direction, &answer_is_lost);
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    let both = tokio::try_join!(
        hand_on(from_client, to_server, course(Direction::ToServer)),
        hand_on(from_server, to_client, course(Direction::ToClient)),
    );
    both.err().unwrap_or(Ending::Closed)
}

async fn hand_on(from: ReadHalf<'_>, to: WriteHalf<'_>, course: Course<'_>) -> Result<(), Ending> {
    let (orders, received) = mpsc::channel(UNDER_WAY);
    tokio::try_join!(read(from, orders, course), write(to, received)).map(drop)
}

/// Reads on while earlier pieces are held up: what is late does not make what follows later still.
async fn read(mut from: ReadHalf<'_>, orders: mpsc::Sender<Order>, mut course: Course<'_>) -> Result<(), Ending> {
    let mut buffer = vec![0; PIECE];
    let mut last_due = Instant::now();
    loop {
        let length = from.read(&mut buffer).await.map_err(|_| Ending::Reset)?;
        if length == 0 {
            return if course.is_deaf() { std::future::pending().await } else { Ok(()) };
        }
        let verdict = course.judge(&buffer[..length]);
        let bytes = [&verdict.ahead, &buffer[..verdict.bytes]].concat();
        for order in timetable(&verdict, &bytes, &mut last_due) {
            orders.send(order).await.map_err(|_| Ending::Reset)?;
        }
        if verdict.end.is_some() {
            // The other end of the orders ends the connection, once it has come there.
            return std::future::pending().await;
        }
    }
}

fn timetable(verdict: &Verdict, bytes: &[u8], last_due: &mut Instant) -> Vec<Order> {
    *last_due = (*last_due).max(Instant::now() + verdict.delay);
    let (size, every) = verdict.portions.unwrap_or((PIECE, std::time::Duration::ZERO));
    let portions = bytes.chunks(size).map(|portion| {
        *last_due += every;
        Order::Bytes(*last_due, portion.to_owned())
    });
    portions.chain(verdict.end.map(Order::End)).collect()
}

async fn write(mut to: WriteHalf<'_>, mut orders: mpsc::Receiver<Order>) -> Result<(), Ending> {
    while let Some(order) = orders.recv().await {
        match order {
            Order::Bytes(due, bytes) => {
                if due > Instant::now() {
                    sleep_until(due).await;
                }
                to.write_all(&bytes).await.map_err(|_| Ending::Reset)?;
            }
            Order::End(ending) => return Err(ending),
        }
    }
    // A peer that has gone needs no end.
    let _ = to.shutdown().await;
    Ok(())
}
