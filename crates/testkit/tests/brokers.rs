//! Real brokers follow the commands of a test, alone and in clusters.

#![expect(clippy::unwrap_used, reason = "a panic fails the test, also in a helper")]

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use hapax_testkit::servers::{self, BrokerKind, BrokerServer, ElasticMq, Kafka, Minio, Nats, RabbitMq, Trial};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[path = "brokers/rabbitmq.rs"]
mod rabbitmq;

fn main() -> ExitCode {
    let restarts = [tests::<Nats>(), tests::<Kafka>(), tests::<RabbitMq>(), tests::<ElasticMq>(), tests::<Minio>()];
    servers::main(restarts.into_iter().flatten().chain(rabbitmq::tests()).chain([
        servers::test("a_paused_server_does_not_reply_until_it_is_resumed", Nats::NAME, pause),
        servers::test("three_servers_form_a_cluster", Nats::NAME, form_cluster::<Nats>),
    ]))
}

fn tests<K: BrokerKind>() -> [Trial; 1] {
    [servers::test("a_killed_server_is_down_until_it_is_restarted", K::NAME, kill::<K>)]
}

fn refuses(address: SocketAddr) -> bool {
    TcpStream::connect(address).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

async fn kill<K: BrokerKind>() {
    let begun = Instant::now();
    let server = BrokerServer::<K>::start(&[]).await.unwrap();
    println!("{} is ready after {:?}", K::NAME, begun.elapsed());
    let (address, first) = (server.address(), server.pid());
    assert!(server.url().ends_with(&format!("://{address}")));
    assert!(TcpStream::connect(address).is_ok());
    server.kill();
    assert!(refuses(address));
    assert_eq!(server.pid(), None);
    let begun = Instant::now();
    server.restart().await.unwrap();
    println!("{} is ready again after {:?}", K::NAME, begun.elapsed());
    assert_eq!(server.address(), address);
    assert_ne!(server.pid(), first);
    assert!(TcpStream::connect(address).is_ok());
    server.terminate().await.unwrap();
    assert!(refuses(address));
    assert_eq!(server.terminate().await.unwrap_err().kind(), io::ErrorKind::NotConnected);
}

/// What a NATS server says first to a client.
async fn greeting(address: SocketAddr) -> io::Result<String> {
    let mut connection = tokio::net::TcpStream::connect(address).await?;
    connection.write_all(b"CONNECT {}\r\nPING\r\n").await?;
    let mut said = vec![0; 4096];
    let length = connection.read(&mut said).await?;
    Ok(String::from_utf8_lossy(&said[..length]).into_owned())
}

async fn pause() {
    let server = BrokerServer::<Nats>::start(&[]).await.unwrap();
    assert!(greeting(server.address()).await.unwrap().starts_with("INFO "));
    server.pause().unwrap();
    let answer = tokio::time::timeout(Duration::from_millis(100), greeting(server.address())).await;
    assert!(answer.is_err(), "{answer:?}");
    server.resume().unwrap();
    assert!(greeting(server.address()).await.unwrap().starts_with("INFO "));
}

async fn form_cluster<K: BrokerKind>() {
    let servers = BrokerServer::<K>::start_cluster(3).await.unwrap();
    let begun = Instant::now();
    // A member knows the others once they have connected to it.
    let knows = async |server: &BrokerServer<K>| {
        let said = greeting(server.address()).await.unwrap();
        servers.iter().all(|other| said.contains(&other.address().to_string()))
    };
    for server in &servers {
        while !knows(server).await {
            assert!(begun.elapsed() < Duration::from_secs(60), "the members do not find each other");
            hapax_testkit::pause().await;
        }
    }
}
