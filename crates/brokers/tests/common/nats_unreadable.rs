//! Messages whose headers no client of NATS would write, sent without a driver.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use hapax_brokers::{NatsSource, NatsUrl};
use hapax_core::broker::{Event, Position, Settlement, Source as _};
use hapax_testkit::proxy::{Direction, NetworkFault, Proxy};
use hapax_testkit::servers::NatsServer;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::Fixture;
use crate::common::{DEADLINE, room, runtime, settle, some, take, text, texts};

/// Sends a message with these bytes as its headers.
async fn send_raw(server: &NatsServer, subject: &str, headers: &[u8], payload: &str) {
    let mut stream = BufReader::new(TcpStream::connect(server.address()).await.unwrap());
    let mut sent = br#"CONNECT {"verbose":false,"headers":true}"#.to_vec();
    let (head, all) = (headers.len(), headers.len() + payload.len());
    sent.extend(format!("\r\nHPUB {subject} {head} {all}\r\n").bytes());
    sent.extend([headers, payload.as_bytes(), b"\r\nPING\r\n"].concat());
    stream.write_all(&sent).await.unwrap();
    let mut line = String::new();
    while line != "PONG\r\n" {
        line.clear();
        assert!(stream.read_line(&mut line).await.unwrap() > 0 && !line.starts_with("-ERR"), "{line}");
    }
}

/// Headers that the driver cannot read. At the first ones it panics, at the others it drops the connection.
pub(crate) const BROKEN: [&[u8]; 12] = [
    b"NATS/1.0\r\nname: a\rb\r\n\r\n",
    b"NATS/1.0\r\nname: folded\r\n a\rb\r\n\r\n",
    b"NATS/1.0\r\nname: na\xefve\r\n\r\n",
    b"NATS/1.0\r\nna\xefme: value\r\n\r\n",
    b"NATS/2.0\r\nname: value\r\n\r\n",
    b"\r\n\r\n",
    b"NATS/1.0 4\r\n\r\n",
    b"NATS/1.0 abc\r\n\r\n",
    b"NATS/1.0\r\nname\r\n\r\n",
    b"NATS/1.0\r\nna me: value\r\n\r\n",
    b"NATS/1.0\r\nna\x01me: value\r\n\r\n",
    b"NATS/1.0\r\n folded: value\r\n\r\n",
];

/// Takes and acknowledges everything, until the server has nothing left. Returns the payloads that can be read, and
/// those that cannot.
async fn take_all(fixture: &Fixture, parameters: &str) -> [BTreeSet<String>; 2] {
    let mut source = fixture.source(parameters).await;
    let (settler, begun) = (source.settler(), Instant::now());
    let mut arrived = [BTreeSet::new(), BTreeSet::new()];
    while settler.lag().await.ok() != Some(Some(0)) {
        assert!(begun.elapsed() < DEADLINE, "{arrived:?}");
        let Ok(event) = timeout(Duration::from_secs(1), source.next(room(100))).await else { continue };
        let Ok(Event::Deliveries(deliveries)) = event else { continue };
        for delivery in deliveries {
            arrived[usize::from(delivery.message.damage.is_some())].insert(text(&delivery));
            // A lost connection may take the acknowledgement with it. Then the message arrives again.
            drop(settler.settle(vec![(delivery.id, Settlement::Ack)]).await);
        }
    }
    arrived
}

pub(crate) async fn a_message_that_the_driver_cannot_read_arrives_as_damaged() {
    let server = NatsServer::shared().await.unwrap();
    for (name, parameters) in [("unreadable", "&ack-wait=2"), ("unreadable-ordered", "&ack-wait=2&order=header:Order")]
    {
        let fixture = Fixture::new(name).await;
        let (mut readable, mut damaged) = (BTreeSet::new(), BTreeSet::new());
        for (number, headers) in BROKEN.iter().enumerate() {
            send_raw(&server, &format!("{name}.x"), headers, &format!("broken {number}")).await;
            fixture.send(format!("sound {number}")).await;
            readable.insert(format!("sound {number}"));
            damaged.insert(format!("broken {number}"));
        }
        // Only a suspect: the driver can read it.
        send_raw(&server, &format!("{name}.x"), b"NATS/1.0\r\nname: value\r\r\n\r\n", "suspect").await;
        readable.insert("suspect".to_owned());
        assert_eq!(take_all(&fixture, parameters).await, [readable, damaged], "{name}");
    }
}

/// A server with a user `worker` that may not look at stored messages.
async fn server_with_a_blind_worker(folder: &TempDir) -> NatsServer {
    let rights = r#"permissions: { publish: { deny: ["$JS.API.STREAM.MSG.GET.>"] } }"#;
    let users = format!("{{ user: worker, password: open, {rights} }}, {{ user: me, password: open }}");
    let configuration = folder.path().join("nats.conf");
    fs::write(&configuration, format!("authorization {{ users: [ {users} ] }}\nno_auth_user: me\n")).unwrap();
    NatsServer::start(&["-c", &configuration.display().to_string()]).await.unwrap()
}

/// Takes and acknowledges until this number has arrived. Adds the numbers to `first` in the order of their first
/// arrival.
async fn take_up_to(last: usize, source: &mut NatsSource, first: &mut Vec<usize>) {
    let (settler, begun) = (source.settler(), Instant::now());
    while !first.contains(&last) {
        assert!(begun.elapsed() < DEADLINE, "{first:?}");
        let Ok(event) = timeout(Duration::from_secs(1), source.next(room(100))).await else { continue };
        let Ok(Event::Deliveries(deliveries)) = event else { continue };
        for delivery in deliveries {
            let number = text(&delivery).parse().unwrap();
            if !first.contains(&number) {
                first.push(number);
            }
            drop(settler.settle(vec![(delivery.id, Settlement::Ack)]).await);
        }
    }
}

pub(crate) async fn a_message_that_may_not_be_looked_at_keeps_no_others_back() {
    let folder = tempfile::tempdir().unwrap();
    let server = server_with_a_blind_worker(&folder).await;
    let cases = [(0, "blind-0"), (2, "blind-2"), (4, "blind-4"), (8, "blind-8")].map(async |(broken, name)| {
        let fixture = Fixture::on(&server.url(), name, 1).await;
        let proxy = Proxy::start(server.address()).await.unwrap();
        for numbers in [0..10, 10..20, 20..30] {
            fixture.send_ordered(numbers.clone()).await;
            if numbers.end < 30 {
                send_raw(&server, &format!("{name}.x"), BROKEN[broken], "broken").await;
            }
        }
        let url = format!("nats://worker:open@{}/{name}?durable=d&ack-wait=2&order=header:Order", proxy.address());
        let mut source = NatsSource::connect(&url.parse::<NatsUrl>().unwrap(), runtime()).await.unwrap();
        let mut first = Vec::new();
        take_up_to(29, &mut source, &mut first).await;
        // The order still holds when others are lost, too.
        let reset = NetworkFault::ResetAfter { direction: Direction::ToClient, bytes: 2_000 };
        proxy.inject(reset.times(1));
        fixture.send_ordered(30..90).await;
        take_up_to(89, &mut source, &mut first).await;
        assert_eq!(first, (0..90).collect::<Vec<_>>(), "{name}");
    });
    join_all(cases).await;
}

pub(crate) async fn an_unreadable_message_shows_its_place_and_its_bytes() {
    let fixture = Fixture::new("shown").await;
    let server = NatsServer::shared().await.unwrap();
    fixture.send("before").await;
    send_raw(&server, "shown.x", b"NATS/1.0\r\nname: a\rb\xef\r\n\r\n", "payload").await;
    let mut source = fixture.source("").await;
    let message = loop {
        let found = some(&mut source, room(1)).await.remove(0).message;
        if found.damage.is_some() {
            break found;
        }
    };
    assert_eq!(&message.payload[..], b"payload");
    assert_eq!(message.coordinates.as_ref().unwrap().position, Position::Number(2));
    assert!(message.coordinates.as_ref().unwrap().origin.starts_with("nats/shown/") && message.timestamp.is_some());
    let shown: Vec<_> = message.headers.all("Hapax-Unreadable-Headers").collect();
    assert_eq!(shown, [r"NATS/1.0\r\nname: a\rb\xef\r\n\r\n"]);
}

pub(crate) async fn a_stored_message_with_a_status_line_is_a_delivery() {
    let fixture = Fixture::new("status").await;
    let server = NatsServer::shared().await.unwrap();
    let lines = [
        "404 No Messages",
        "503",
        "408 Request Timeout",
        "409 Consumer Deleted",
        "409 Message Size Exceeds MaxBytes",
        "409 Leadership Change",
        "423 Nats-Wrong-Pin-Id",
        "100 Idle Heartbeat",
        "200 OK",
    ];
    for line in lines {
        send_raw(&server, "status.x", format!("NATS/1.0 {line}\r\nname: value\r\n\r\n").as_bytes(), line).await;
    }
    let mut source = fixture.source("").await;
    let arrived = take(&mut source, lines.len()).await;
    assert_eq!(texts(&arrived), lines);
    for delivery in arrived {
        assert_eq!(delivery.message.headers.all("name").count(), 1, "{delivery:?}");
        settle(&source.settler(), &delivery.id, Settlement::Ack).await;
    }
    assert_eq!(source.settler().lag().await.unwrap(), Some(0));
}
