//! A message that the driver of NATS cannot read.

use std::collections::BTreeSet;
use std::time::Instant;

use hapax_core::broker::{Settlement, Source as _};
use hapax_testkit::servers::NatsServer;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::Fixture;
use crate::common::{DEADLINE, room, some, text};

/// Sends a message whose headers are not UTF-8, which the driver does not write.
async fn send_unreadable(server: &NatsServer, subject: &str) {
    let mut stream = BufReader::new(TcpStream::connect(server.address()).await.unwrap());
    let mut text = br#"CONNECT {"verbose":false,"headers":true}"#.to_vec();
    text.extend(format!("\r\nHPUB {subject} 25 25\r\n").bytes());
    text.extend(b"NATS/1.0\r\nname: na\xefve\r\n\r\n\r\nPING\r\n");
    stream.write_all(&text).await.unwrap();
    let mut line = String::new();
    while line != "PONG\r\n" {
        line.clear();
        assert!(stream.read_line(&mut line).await.unwrap() > 0 && !line.starts_with("-ERR"), "{line}");
    }
}

pub(crate) async fn the_neighbours_of_a_message_that_cannot_be_read_arrive() {
    let fixture = Fixture::new("unreadable").await;
    fixture.send("before").await;
    send_unreadable(&NatsServer::shared().await.unwrap(), "unreadable.x").await;
    for number in 0..5 {
        fixture.send(number.to_string()).await;
    }
    let mut source = fixture.source("&ack-wait=1").await;
    let (settler, begun) = (source.settler(), Instant::now());
    let mut arrived = BTreeSet::new();
    while arrived.len() < 6 {
        // The request during which the connection is lost first stays open for ten seconds.
        assert!(begun.elapsed() < DEADLINE, "{arrived:?}");
        for delivery in some(&mut source, room(100)).await {
            arrived.insert(text(&delivery));
            // A lost connection may take the acknowledgement with it. Then the message arrives again.
            drop(settler.settle(vec![(delivery.id, Settlement::Ack)]).await);
        }
    }
    assert_eq!(arrived, ["0", "1", "2", "3", "4", "before"].map(str::to_owned).into());
}
