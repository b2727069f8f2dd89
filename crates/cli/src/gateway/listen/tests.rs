//! The limits in time, made short: the same server as in the binary, in front of a service that reads every body to its end.

use std::net::SocketAddr;
use std::time::Instant;

use hapax::http::{IdempotencyLayer, RequestBody, Tenant, TenantScope};
use hapax::store::Memory;
use hapax::{Gate, Identity, Settings};
use http_body_util::{BodyExt, Full};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use tower_layer::Layer;

use super::*;

const SHORT: Duration = Duration::from_millis(200);
const LONG: Duration = Duration::from_secs(600);

const PATIENT: Limits = Limits { connections: 100, idle: LONG, handshake: LONG, body: LONG, stall: LONG };

async fn served(limits: Limits) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let store = Memory::new();
    let gate = Gate::builder(Arc::new(store), Settings::default()).build().unwrap();
    let scope = TenantScope::new("test", Tenant::None, Identity::plain()).unwrap();
    let service = IdempotencyLayer::new(gate).scope(scope).layer(tower::service_fn(read_all));
    let server = GatewayServer::new([(Handle::current(), service)], ProtectedFields::with(None), limits);
    tokio::spawn(async move { server.until(std::future::pending(), listener, LONG).await });
    address
}

/// 16 MiB for whoever sent a body that came whole.
async fn read_all(mut request: Request<RequestBody<ClientBody>>) -> Result<Response<Full<Bytes>>, Infallible> {
    if let RequestBody::Streaming(body) = request.body_mut() {
        let _ = body.as_mut().get_mut().streams();
    }
    let answer = match request.into_body().collect().await {
        Ok(_) => Response::new(Full::from(vec![b'x'; 16 << 20])),
        Err(error) => Response::builder().status(400).body(Full::from(error.to_string())).unwrap(),
    };
    Ok(answer)
}

/// Sends this, then a byte of `drip` at a time, until the other side closes or `LONG` is over; what it said.
async fn dripping(address: SocketAddr, start: &str, drip: &[u8]) -> String {
    let (mut reader, mut writer) = TcpStream::connect(address).await.unwrap().into_split();
    writer.write_all(start.as_bytes()).await.unwrap();
    let mut said = Vec::new();
    let drips = async {
        for piece in drip.iter().cycle() {
            tokio::time::sleep(SHORT / 20).await;
            if writer.write_all(&[*piece]).await.is_err() {
                break;
            }
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        read = reader.read_to_end(&mut said) => drop(read),
        () = drips => {}
        () = tokio::time::sleep(LONG) => panic!("it is never closed"),
    }
    String::from_utf8(said).unwrap()
}

const POST: &str = "POST / HTTP/1.1\r\nhost: a\r\nidempotency-key: k\r\ncontent-length: 100000\r\n\r\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_drips_is_cut_off() {
    let address = served(Limits { idle: SHORT, ..PATIENT }).await;
    for start in ["", "POST / HTTP/1.1\r\nhost: a\r\nx-slow: "] {
        dripping(address, start, b"x").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_connection_is_closed() {
    let address = served(Limits { idle: SHORT, ..PATIENT }).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"POST / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).await.unwrap();
    assert!(said.contains("key-missing"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_drips_is_408_and_nothing_is_recorded_h11() {
    let address = served(Limits { body: SHORT, ..PATIENT }).await;
    let said = dripping(address, POST, b"x").await;
    assert!(said.starts_with("HTTP/1.1 408") && said.contains("#body-timeout"), "{said}");
    let said =
        dripping(address, &POST.replace("100000", "0").replace("host: a", "host: a\r\nconnection: close"), b"").await;
    assert!(said.starts_with("HTTP/1.1 200"), "the key is free: {said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_streams_may_take_its_time_but_not_stop() {
    let address = served(Limits { body: SHORT, stall: SHORT, ..PATIENT }).await;
    let began = Instant::now();
    let put = "PUT / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 60\r\n\r\n";
    let said = dripping(address, put, b"x").await;
    assert!(said.starts_with("HTTP/1.1 200") && began.elapsed() > SHORT * 2, "{}", &said[..80]);
    let said = dripping(address, put, b"").await;
    assert!(said.starts_with("HTTP/1.1 400") && said.contains("timed out"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_take_its_answer_is_let_go() {
    let address = served(Limits { stall: SHORT, connections: 1, ..PATIENT }).await;
    let mut greedy = TcpStream::connect(address).await.unwrap();
    greedy.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    // There is room for one connection: the next is served when the first has been let go.
    let said = dripping(address, "GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n", b"").await;
    assert!(said.starts_with("HTTP/1.1 200"), "{}", &said[..80]);
    let mut taken = Vec::new();
    drop(greedy.read_to_end(&mut taken).await);
    assert!(taken.len() < 16 << 20, "the first was cut off: {}", taken.len());
}

#[tokio::test]
async fn each_core_has_as_many_connections() {
    let service = || tower::service_fn(|_| async { Ok(Response::new(Full::<Bytes>::default())) });
    let services = (0..3).map(|_| (Handle::current(), service()));
    let server = GatewayServer::new(services, ProtectedFields::with(None), PATIENT);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let clients = async {
        let mut streams = Vec::new();
        for count in 1..=9 {
            streams.push(TcpStream::connect(address).await.unwrap());
            while server.cores.iter().map(|core| core.connections.len()).sum::<usize>() < count {
                tokio::task::yield_now().await;
            }
        }
        streams
    };
    let _streams = tokio::select! {
        streams = clients => streams,
        () = server.accept(&listener) => panic!("it takes connections"),
    };
    assert_eq!(server.cores.iter().map(|core| core.connections.len()).collect::<Vec<_>>(), [3, 3, 3]);
}

const FIELD: HeaderName = HeaderName::from_static("x-tenant");

/// Sends all of these requests at once, on a connection of their own from this address.
async fn at_once(address: SocketAddr, from: [u8; 4], tenant: &str, count: usize) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((from, 0).into()).unwrap();
    let mut stream = socket.connect(address).await.unwrap();
    let request = format!("GET / HTTP/1.1\r\nhost: a\r\nx-tenant: {tenant}\r\n\r\n");
    stream.write_all(request.repeat(count).as_bytes()).await.unwrap();
    stream
}

/// How many requests of a flood of 1,000 are served before another that comes last, where callers are told apart by this field.
async fn before_the_other(field: Option<HeaderName>, from: [u8; 4]) -> usize {
    let served = Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = Arc::clone(&served);
    let service = tower::service_fn(move |request: Request<ClientBody>| {
        seen.lock().unwrap().push(request.headers()[FIELD].clone());
        std::future::ready(Ok(Response::new(Full::<Bytes>::default())))
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut flood = Vec::new();
    for _ in 0..50 {
        flood.push(at_once(address, [127, 0, 0, 1], "one", 20).await);
    }
    let mut other = at_once(address, from, "other", 1).await;
    let server = GatewayServer::new([(Handle::current(), service)], ProtectedFields::with(None), PATIENT).tenant(field);
    tokio::select! {
        answer = other.read_u8() => assert_eq!(answer.unwrap(), b'H'),
        () = server.accept(&listener) => panic!("it takes connections"),
    }
    served.lock().unwrap().iter().position(|tenant| tenant == "other").unwrap()
}

#[tokio::test]
async fn a_flood_of_one_tenant_waits_behind_itself_and_others_do_not() {
    let before = before_the_other(Some(FIELD), [127, 0, 0, 1]).await;
    assert!(before < 250, "{before}");
}

#[tokio::test]
async fn a_flood_from_one_address_waits_behind_itself_and_others_do_not() {
    let before = before_the_other(None, [127, 0, 0, 2]).await;
    assert!(before < 20, "{before}");
    let same = before_the_other(None, [127, 0, 0, 1]).await;
    assert!(same > before, "{same} and {before}: those who look the same share their turns");
}
