//! A proxy that reads the frames of AMQP which pass through it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What the client says first.
const GREETING: usize = 8;

/// The kind, the channel and the length of a frame.
const HEAD: usize = 7;

/// A frame with a method.
const METHOD: u8 = 1;

/// The class and the methods of a delivery and an acknowledgement.
const BASIC: u16 = 60;
const DELIVER: u16 = 60;
const ACK: u16 = 80;

/// Deliveries that passed, and what was acknowledged of them.
#[derive(Default)]
struct PassedFrames {
    /// The place of a message, by connection, channel and tag.
    delivered: BTreeMap<(u64, u16, u64), usize>,
    finished: BTreeSet<usize>,
}

/// A proxy before a broker.
pub(super) struct Observer {
    address: SocketAddr,
    passed: Arc<Mutex<PassedFrames>>,
    cut: watch::Sender<u64>,
}

impl Observer {
    pub(super) async fn start(broker: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (cut, cuts) = watch::channel(0);
        let (address, passed) = (listener.local_addr().unwrap(), Arc::default());
        tokio::spawn(accept(listener, broker, Arc::clone(&passed), cuts));
        Self { address, passed, cut }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The places of the messages that are acknowledged and were not delivered again.
    pub(super) fn finished(&self) -> BTreeSet<usize> {
        self.passed.lock().finished.clone()
    }

    /// Ends all connections.
    pub(super) fn cut(&self) {
        self.cut.send_modify(|cuts| *cuts += 1);
    }
}

async fn accept(
    listener: TcpListener,
    broker: SocketAddr,
    passed: Arc<Mutex<PassedFrames>>,
    cuts: watch::Receiver<u64>,
) {
    for number in 0.. {
        let Ok((client, _)) = listener.accept().await else { return };
        // The broker may be down: the client then sees the end of its connection.
        let Ok(broker) = TcpStream::connect(broker).await else { continue };
        let (passed, mut cuts) = (Arc::clone(&passed), cuts.clone());
        cuts.mark_unchanged();
        tokio::spawn(async move {
            let (from_client, to_client) = client.into_split();
            let (from_broker, to_broker) = broker.into_split();
            tokio::select! {
                () = pass(from_client, to_broker, GREETING, number, &passed) => {}
                () = pass(from_broker, to_client, 0, number, &passed) => {}
                _ = cuts.changed() => {}
            }
        });
    }
}

/// Passes frames on, after it has noted them, until one end is gone.
async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut skipped: usize,
    connection: u64,
    passed: &Mutex<PassedFrames>,
) {
    let (mut unread, mut piece) = (Vec::new(), vec![0; 65_536]);
    loop {
        let length = match from.read(&mut piece).await {
            Ok(0) | Err(_) => return,
            Ok(length) => length,
        };
        unread.extend_from_slice(&piece[..length]);
        let greeting = skipped.min(unread.len());
        unread.drain(..greeting);
        skipped -= greeting;
        while let Some(end) = frame_end(&unread) {
            let frame: Vec<u8> = unread.drain(..end).collect();
            note(&frame, connection, &mut passed.lock());
        }
        if to.write_all(&piece[..length]).await.is_err() {
            return;
        }
    }
}

fn frame_end(bytes: &[u8]) -> Option<usize> {
    let length = u32::from_be_bytes(bytes.get(3..HEAD)?.try_into().unwrap());
    let end = HEAD + usize::try_from(length).unwrap() + 1;
    (bytes.len() >= end).then_some(end)
}

fn note(frame: &[u8], connection: u64, passed: &mut PassedFrames) {
    if frame[0] != METHOD {
        return;
    }
    let short = |at: usize| u16::from_be_bytes(frame[at..at + 2].try_into().unwrap());
    let long = |at: usize| u64::from_be_bytes(frame[at..at + 8].try_into().unwrap());
    let (channel, class, method) = (short(1), short(HEAD), short(HEAD + 2));
    let arguments = HEAD + 4;
    if (class, method) == (BASIC, ACK) {
        assert_eq!(frame[arguments + 8] & 1, 0, "an acknowledgement covers one delivery");
        let place = passed.delivered.remove(&(connection, channel, long(arguments)));
        passed.finished.insert(place.expect("a delivery is acknowledged once"));
    } else if (class, method) == (BASIC, DELIVER) {
        // The tag of the consumer, the tag of the delivery, whether it is a redelivery, the exchange, the routing key.
        let tag = arguments + 1 + usize::from(frame[arguments]);
        let exchange = tag + 9;
        let key = exchange + 1 + usize::from(frame[exchange]);
        let text = &frame[key + 1..key + 1 + usize::from(frame[key])];
        let place = String::from_utf8_lossy(text).parse().unwrap();
        passed.finished.remove(&place);
        passed.delivered.insert((connection, channel, long(tag)), place);
    }
}
