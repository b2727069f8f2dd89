//! A sink that is no case of the suite.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::jetstream::{self, stream};
use hapax_brokers::{NatsSink, NatsSinkConfig};
use hapax_core::EventId;
use hapax_core::outbox::{OutgoingEvent, Published, Sink as _};
use hapax_testkit::servers::NatsServer;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::Fixture;
use crate::common::{DEADLINE, runtime};
use crate::unreadable::BROKEN;

/// A reply that has not disturbed by then will not.
const SOON: Duration = Duration::from_secs(1);

/// Replies to the first message on the subject before the server does, with headers at which the driver panics.
async fn reply_badly(server: &NatsServer, subject: &str) -> JoinHandle<()> {
    let mut stream = BufReader::new(TcpStream::connect(server.address()).await.unwrap());
    let hello = format!("CONNECT {{\"verbose\":false,\"headers\":true}}\r\nSUB {subject} 1\r\nPING\r\n");
    stream.write_all(hello.as_bytes()).await.unwrap();
    let mut line = String::new();
    while line != "PONG\r\n" {
        line.clear();
        assert!(stream.read_line(&mut line).await.unwrap() > 0, "the server has closed the connection");
    }
    tokio::spawn(async move {
        while !line.contains("MSG ") {
            line.clear();
            assert!(stream.read_line(&mut line).await.unwrap() > 0, "the server has closed the connection");
        }
        let inbox = line.split_whitespace().nth(3).unwrap();
        let headers = str::from_utf8(BROKEN[0]).unwrap();
        let reply = format!("HPUB {inbox} {0} {0}\r\n{headers}\r\n", headers.len());
        stream.write_all(reply.as_bytes()).await.unwrap();
        // Until the server has read it.
        stream.write_all(b"PING\r\n").await.unwrap();
        while line != "PONG\r\n" {
            line.clear();
            assert!(stream.read_line(&mut line).await.unwrap() > 0, "the server has closed the connection");
        }
    })
}

pub(crate) async fn a_sink_whose_driver_has_died_publishes_again() {
    let _fixture = Fixture::new("died").await;
    let server = NatsServer::shared().await.unwrap();
    let config: NatsSinkConfig = format!("{}/{{topic}}?timeout=1", server.url()).parse().unwrap();
    let sink = NatsSink::open(config, runtime()).await.unwrap();
    let replied = reply_badly(&server, "died.x").await;
    let begun = Instant::now();
    let event = Arc::new(OutgoingEvent::new(EventId::from_bytes([7; 16]), "died.x", "payload"));
    loop {
        match sink.publish(&event).await {
            Published::Yes { .. } if replied.is_finished() && begun.elapsed() > SOON => break,
            Published::Yes { .. } => {}
            failed @ (Published::Unknown(_) | Published::NotPublished { .. }) => {
                assert!(begun.elapsed() < DEADLINE, "{failed:?}");
            }
            refused @ Published::Refused(_) => panic!("{refused:?}"),
        }
    }
    assert!(sink.check().await.is_ok());
    sink.close().await;
}

pub(crate) async fn the_window_of_a_sink_is_the_shortest_of_its_streams() {
    let server = NatsServer::start(&[]).await.unwrap();
    let context = jetstream::new(async_nats::connect(server.url()).await.unwrap());
    for (name, seconds) in [("long", 300), ("short", 30), ("other", 7)] {
        let (subjects, duplicate_window) = (vec![format!("{name}.>")], Duration::from_secs(seconds));
        let config = stream::Config { name: name.into(), subjects, duplicate_window, ..Default::default() };
        context.create_stream(config).await.unwrap();
    }
    let window = async |subject: &str| {
        let config: NatsSinkConfig = format!("{}/{subject}", server.url()).parse().unwrap();
        NatsSink::open(config, runtime()).await.unwrap().window()
    };
    assert_eq!(window("long.x").await, Some(Duration::from_secs(300)));
    assert_eq!(window("{topic}").await, Some(Duration::from_secs(7)), "any of them may take an event");
    let config: NatsSinkConfig = format!("{}/long.{{topic}}", server.url()).parse().unwrap();
    let sink = NatsSink::open(config, runtime()).await.unwrap();
    assert_eq!(sink.window(), Some(Duration::from_secs(300)));
}
