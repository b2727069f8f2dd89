//! The listener with short time limits, in front of a service that reads every body to its end.

use std::net::SocketAddr;
use std::time::Instant;

use hapax::http::{IdempotencyLayer, Tenant};
use hapax::store::Memory;
use hapax::{Gate, Settings};
use http::HeaderName;
use http_body_util::{BodyExt, Full};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;

use super::*;
use crate::gateway::ingress::field_names::ProtectedFields;
use crate::gateway::limits::Limits;
use crate::gateway::routing::Routes;
use crate::upstream::forward::StreamedBody;

const SHORT: Duration = Duration::from_millis(200);
/// Longer than any test: a limit of this length never ends.
const LONG: Duration = Duration::from_secs(600);

const PATIENT: Limits = Limits {
    connections: 100,
    idle: LONG,
    handshake: LONG,
    body: LONG,
    stall: LONG,
    upload_rate: 0,
    answer_memory: 64 << 20,
    address_share: 100,
    in_flight: 100,
};

/// The rules of a gateway without routes of its own, with these limits.
fn rules(limits: Limits) -> IngressRules {
    let store = Memory::new();
    let gate = Gate::builder(Arc::new(store), Settings::default()).build().unwrap();
    let routes = Routes::new(Vec::new(), IdempotencyLayer::new(gate).tenant("test", Tenant::None).unwrap());
    IngressRules::new(routes, ProtectedFields::with(None), limits)
}

/// Starts a server with these limits and returns its address.
async fn start_server(limits: Limits) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = GatewayServer::new([(Handle::current(), tower::service_fn(read_all))], rules(limits));
    tokio::spawn(async move { server.serve_until(std::future::pending(), listener, LONG).await });
    address
}

/// Answers with 16 MiB if the body arrived whole.
async fn read_all(mut request: Request<RequestBody<ClientBody>>) -> Result<Response<Full<Bytes>>, Infallible> {
    if let RequestBody::Streaming(body) = request.body_mut() {
        let _ = body.as_mut().get_mut().start_streaming();
    }
    let answer = match request.into_body().collect().await {
        Ok(_) => Response::new(Full::from(vec![b'x'; 16 << 20])),
        Err(error) => Response::builder().status(400).body(Full::from(error.to_string())).unwrap(),
    };
    Ok(answer)
}

/// Sends `start`, then the bytes of `drip` one at a time, until the server closes. Returns what the server sent.
async fn send_slowly(address: SocketAddr, start: &str, drip: &[u8]) -> String {
    let (mut reader, mut writer) = TcpStream::connect(address).await.unwrap().into_split();
    writer.write_all(start.as_bytes()).await.unwrap();
    let mut received = Vec::new();
    let drips = async {
        for piece in drip.iter().cycle() {
            // Often enough that no pause is a stall, but too slow for a whole body within `SHORT`.
            tokio::time::sleep(SHORT / 20).await;
            if writer.write_all(&[*piece]).await.is_err() {
                break;
            }
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        read = reader.read_to_end(&mut received) => drop(read),
        () = drips => {}
        () = tokio::time::sleep(LONG) => panic!("the server never closes"),
    }
    String::from_utf8(received).unwrap()
}

const POST: &str = "POST / HTTP/1.1\r\nhost: a\r\nidempotency-key: k\r\ncontent-length: 100000\r\n\r\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_with_a_slow_head_is_closed() {
    let address = start_server(Limits { idle: SHORT, ..PATIENT }).await;
    for start in ["", "P", "PRI * HTTP/2.0\r", "POST / HTTP/1.1\r\nhost: a\r\nx-slow: "] {
        send_slowly(address, start, b"x").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_may_wait_with_its_first_request() {
    let address = start_server(Limits { handshake: SHORT, ..PATIENT }).await;
    let mut spare = TcpStream::connect(address).await.unwrap();
    tokio::time::sleep(SHORT * 3).await;
    spare.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await.unwrap();
    assert_eq!(spare.read_u8().await.unwrap(), b'H');
}

/// Its connection counts as idle once hyper has the whole answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_pauses_while_it_reads_gets_its_whole_answer() {
    let address = start_server(Limits { idle: SHORT, handshake: SHORT, ..PATIENT }).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    tokio::time::sleep(SHORT * 5).await;
    let mut received = Vec::new();
    drop(stream.read_to_end(&mut received).await);
    assert!(received.len() > 16 << 20, "{} bytes", received.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_connection_is_closed() {
    let address = start_server(Limits { idle: SHORT, ..PATIENT }).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"POST / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    let mut received = String::new();
    stream.read_to_string(&mut received).await.unwrap();
    assert!(received.contains("key-missing"), "{received}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_body_is_408_and_nothing_is_recorded_h11() {
    let address = start_server(Limits { body: SHORT, ..PATIENT }).await;
    let received = send_slowly(address, POST, b"x").await;
    assert!(received.starts_with("HTTP/1.1 408") && received.contains("#body-timeout"), "{received}");
    let received =
        send_slowly(address, &POST.replace("100000", "0").replace("host: a", "host: a\r\nconnection: close"), b"")
            .await;
    assert!(received.starts_with("HTTP/1.1 200"), "the key is free: {received}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_streamed_body_may_be_slow_but_must_not_stall() {
    let address = start_server(Limits { body: SHORT, stall: SHORT, ..PATIENT }).await;
    let started_at = Instant::now();
    let put = "PUT / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 60\r\n\r\n";
    let received = send_slowly(address, put, b"x").await;
    assert!(received.starts_with("HTTP/1.1 200") && started_at.elapsed() > SHORT * 2, "{}", &received[..80]);
    let received = send_slowly(address, put, b"").await;
    assert!(received.starts_with("HTTP/1.1 400") && received.contains("timed out"), "{received}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_its_response_is_disconnected() {
    let address = start_server(Limits { stall: SHORT, connections: 1, ..PATIENT }).await;
    let mut slow = TcpStream::connect(address).await.unwrap();
    slow.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    // One connection is allowed: the second one is served after the first was closed.
    let received = send_slowly(address, "GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n", b"").await;
    assert!(received.starts_with("HTTP/1.1 200"), "{}", &received[..80]);
    let mut received = Vec::new();
    drop(slow.read_to_end(&mut received).await);
    assert!(received.len() < 16 << 20, "the first response must be cut off: {} bytes", received.len());
}

#[tokio::test]
async fn connections_are_spread_evenly_over_the_executors() {
    let service = || tower::service_fn(|_| async { Ok(Response::new(Full::<Bytes>::default())) });
    let services = (0..3).map(|_| (Handle::current(), service()));
    let server = GatewayServer::new(services, rules(PATIENT));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let clients = async {
        let mut streams = Vec::new();
        for count in 1..=9 {
            streams.push(TcpStream::connect(address).await.unwrap());
            while server.executors.iter().map(|executor| executor.connections.len()).sum::<usize>() < count {
                tokio::task::yield_now().await;
            }
        }
        streams
    };
    let _streams = tokio::select! {
        streams = clients => streams,
        () = server.accept(&listener) => panic!("accept returned"),
    };
    assert_eq!(server.executors.iter().map(|executor| executor.connections.len()).collect::<Vec<_>>(), [3, 3, 3]);
}

const FIELD: HeaderName = HeaderName::from_static("x-tenant");

/// Sends `count` requests at once on a new connection from this address.
async fn send_at_once(address: SocketAddr, from: [u8; 4], tenant: &str, count: usize) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((from, 0).into()).unwrap();
    let mut stream = socket.connect(address).await.unwrap();
    let request = format!("GET / HTTP/1.1\r\nhost: a\r\nx-tenant: {tenant}\r\n\r\n");
    stream.write_all(request.repeat(count).as_bytes()).await.unwrap();
    stream
}

/// How many requests of a flood of 1,000 start before another caller's request that arrives last. The field names the
/// tenant.
async fn started_before_other(field: Option<HeaderName>, from: [u8; 4]) -> usize {
    let served = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let seen = Arc::clone(&served);
    let service = tower::service_fn(move |request: Request<RequestBody<ClientBody>>| {
        seen.lock().push(request.headers()[FIELD].clone());
        std::future::ready(Ok(Response::new(Full::<Bytes>::default())))
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut flood = Vec::new();
    for _ in 0..50 {
        flood.push(send_at_once(address, [127, 0, 0, 1], "one", 20).await);
    }
    let mut other = send_at_once(address, from, "other", 1).await;
    let mut rules = rules(PATIENT);
    rules.tenant = field;
    let server = GatewayServer::new([(Handle::current(), service)], rules);
    tokio::select! {
        answer = other.read_u8() => assert_eq!(answer.unwrap(), b'H'),
        () = server.accept(&listener) => panic!("accept returned"),
    }
    served.lock().iter().position(|tenant| tenant == "other").unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn one_address_gets_its_share_of_the_connections() {
    let address = start_server(Limits { connections: 4, address_share: 50, ..PATIENT }).await;
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut stream = send_at_once(address, [127, 0, 0, 1], "one", 1).await;
        assert_eq!(stream.read_u8().await.unwrap(), b'H');
        held.push(stream);
    }
    let mut third = send_at_once(address, [127, 0, 0, 1], "one", 1).await;
    assert!(third.read_u8().await.is_err(), "it is closed without a response");
    let mut other = send_at_once(address, [127, 0, 0, 2], "other", 1).await;
    assert_eq!(other.read_u8().await.unwrap(), b'H');
}

#[tokio::test]
async fn a_flood_of_one_tenant_does_not_delay_other_tenants() {
    let before = started_before_other(Some(FIELD), [127, 0, 0, 1]).await;
    // Less than a quarter: its connection waits behind the 50 of the flood, and their first requests start meanwhile.
    assert!(before < 250, "{before}");
}

#[tokio::test]
async fn a_flood_from_one_address_does_not_delay_other_addresses() {
    let before = started_before_other(None, [127, 0, 0, 2]).await;
    // Its connection takes turns with those of the other address, so it does not wait behind all of them.
    assert!(before < 20, "{before}");
    let same = started_before_other(None, [127, 0, 0, 1]).await;
    assert!(same > before, "{same} and {before}: requests from one address share its turns");
}
