//! The connections against an API that sends given bytes on each connection.

use http_body_util::Full;
use hyper_rustls::HttpsConnectorBuilder;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, oneshot};

use super::*;
use crate::tls;

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

type UnreadResponse = (Response<Incoming>, ResponseConnection<Full<Bytes>>);

/// Reads the whole body of a response.
async fn read_body((response, mut connection): UnreadResponse) -> hyper::Result<Vec<u8>> {
    let (mut body, mut read) = (response.into_body(), Vec::new());
    while let Some(frame) = poll_fn(|context| connection.poll_frame(&mut body, context)).await {
        read.extend(frame?.into_data().expect("no trailers"));
    }
    Ok(read)
}

struct Api {
    listener: TcpListener,
    http1: Http1<Full<Bytes>>,
}

impl Api {
    async fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let connector = HttpsConnectorBuilder::new().with_tls_config(tls::unused_config().unwrap()).https_or_http();
        let target = format!("http://{}/", listener.local_addr().unwrap()).parse().unwrap();
        let http1 = Http1::new(connector.enable_http1().build(), target, Duration::from_secs(10));
        Self { listener, http1 }
    }

    async fn send(&self) -> Result<UnreadResponse, SendError> {
        let request = Request::get("/").header("host", "a").body(RequestBody::Whole(Bytes::new()));
        self.http1.send(request.unwrap()).await
    }

    /// The whole body of a response.
    async fn body(&self) -> String {
        String::from_utf8(read_body(self.send().await.unwrap()).await.unwrap()).unwrap()
    }

    async fn accept(&self) -> TcpStream {
        self.listener.accept().await.unwrap().0
    }
}

/// Reads the head of a request.
async fn head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.expect("a head that ends"));
    }
    String::from_utf8(head).unwrap()
}

/// Reads a request, then sends these pieces one by one.
async fn respond(stream: &mut TcpStream, pieces: &[&str]) {
    head(stream).await;
    for piece in pieces {
        stream.write_all(piece.as_bytes()).await.unwrap();
        tokio::task::yield_now().await;
    }
}

/// Whether the client has closed its side.
async fn is_closed(stream: &mut TcpStream) -> bool {
    matches!(stream.read(&mut [0]).await, Ok(0) | Err(_))
}

#[tokio::test]
async fn a_connection_carries_one_request_after_another() {
    let api = Api::new().await;
    let chunks = ["HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\no", "k\r\n", "0\r\n", "\r\n"];
    let empty = "HTTP/1.1 204 No Content\r\n\r\n";
    let serve = async {
        let mut stream = api.accept().await;
        respond(&mut stream, &[OK]).await;
        respond(&mut stream, &["HTTP/1.1 200 OK\r\ncontent-le", "ngth: 2\r\n\r\n", "o", "k"]).await;
        respond(&mut stream, &chunks).await;
        respond(&mut stream, &[empty]).await;
        respond(&mut stream, &["HTTP/1.1 103 Early Hints\r\n\r\n", OK]).await;
        stream
    };
    let bodies = async { [api.body().await, api.body().await, api.body().await, api.body().await, api.body().await] };
    let (_stream, bodies) = tokio::join!(serve, bodies);
    assert_eq!(bodies, ["ok", "ok", "ok", "", "ok"]);
}

#[tokio::test]
async fn concurrent_requests_use_separate_connections() {
    let api = Api::new().await;
    let serve = async {
        let (mut one, mut other) = (api.accept().await, api.accept().await);
        tokio::join!(respond(&mut one, &[OK]), respond(&mut other, &[OK]));
        (one, other)
    };
    let (_streams, one, other) = tokio::join!(serve, api.body(), api.body());
    assert_eq!((one.as_str(), other.as_str()), ("ok", "ok"));
}

#[tokio::test]
async fn a_connection_that_the_api_has_closed_is_not_reused() {
    let api = Api::new().await;
    let closed = Notify::new();
    let close = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok";
    let until_end = "HTTP/1.1 200 OK\r\n\r\nok";
    let serve = async {
        // Closed without notice, with `connection: close`, with a body that ends the connection, and after surplus
        // bytes.
        for response in [OK, close, until_end, &format!("{OK}more")] {
            respond(&mut api.accept().await, &[response]).await;
            closed.notify_one();
        }
        respond(&mut api.accept().await, &[OK]).await;
    };
    let ask = async {
        for _ in 0..4 {
            assert_eq!(api.body().await, "ok");
            closed.notified().await;
            // Lets the runtime see that the socket is closed.
            tokio::task::yield_now().await;
        }
        assert_eq!(api.body().await, "ok");
    };
    tokio::join!(serve, ask);
}

#[tokio::test]
async fn a_request_succeeds_after_all_idle_connections_were_closed() {
    let api = Api::new().await;
    let (closed, all_closed) = oneshot::channel();
    let serve = async {
        let mut streams = Vec::new();
        for _ in 0..=TRIES {
            streams.push(api.accept().await);
        }
        for mut stream in streams {
            respond(&mut stream, &[OK]).await;
        }
        closed.send(()).unwrap();
        respond(&mut api.accept().await, &[OK]).await;
    };
    let ask = async {
        let bodies = futures_util::future::join_all((0..=TRIES).map(|_| api.body())).await;
        assert_eq!(bodies, ["ok"; TRIES + 1]);
        assert_eq!(api.http1.idle.0.lock().connections.len(), TRIES + 1);
        all_closed.await.unwrap();
        // Lets the runtime see that the sockets are closed.
        tokio::task::yield_now().await;
        assert_eq!(api.body().await, "ok");
    };
    tokio::join!(serve, ask);
}

#[tokio::test]
async fn a_cut_response_is_an_error_and_only_a_failed_connect_is_unsent() {
    let api = Api::new().await;
    for response in ["", "HTTP/1.1 2", "HTTP/1.1 200 OK\r\nx: ", "no HTTP at all\r\n\r\n"] {
        let serve = async { respond(&mut api.accept().await, &[response]).await };
        let ((), sent) = tokio::join!(serve, api.send());
        assert!(matches!(sent, Err(SendError::Cut(_))), "{response}");
    }
    let half = "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok";
    let serve = async { respond(&mut api.accept().await, &[half]).await };
    let ((), sent) = tokio::join!(serve, api.send());
    assert!(read_body(sent.unwrap()).await.is_err());
    let Api { listener, http1 } = api;
    drop(listener);
    let request = Request::get("/").body(RequestBody::Whole(Bytes::new())).unwrap();
    assert!(matches!(http1.send(request).await, Err(SendError::Unsent(_))));
}

#[tokio::test]
async fn a_connection_with_an_unread_response_is_closed() {
    let api = Api::new().await;
    // The response body is dropped before its end.
    let serve = async {
        let mut stream = api.accept().await;
        respond(&mut stream, &["HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok"]).await;
        assert!(is_closed(&mut stream).await);
    };
    let ask = async { drop(api.send().await.unwrap()) };
    tokio::join!(serve, ask);
    assert!(api.http1.idle.take().is_none());
}

#[tokio::test]
async fn an_idle_connection_is_closed_after_the_timeout() {
    let api = Api::new().await;
    let serve = async {
        let mut stream = api.accept().await;
        respond(&mut stream, &[OK]).await;
        stream
    };
    let (mut stream, _) = tokio::join!(serve, api.body());
    assert_eq!(api.http1.idle.0.lock().connections.len(), 1);
    tokio::time::pause();
    tokio::time::sleep(IDLE_TIMEOUT * 2).await;
    tokio::time::resume();
    assert!(!api.http1.idle.0.lock().has_cleaner);
    assert!(is_closed(&mut stream).await);
}

const LONG: usize = 16 << 20;

#[tokio::test]
async fn an_api_that_answers_early_gets_the_rest_of_the_request() {
    let api = Api::new().await;
    let serve = async {
        let mut stream = api.accept().await;
        respond(&mut stream, &[OK]).await;
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest.len(), LONG);
    };
    let ask = async {
        let body = RequestBody::Whole(vec![b'x'; LONG].into());
        let request = Request::post("/").header("host", "a").header("content-length", LONG).body(body).unwrap();
        let response = api.http1.send(request).await.unwrap();
        assert_eq!(read_body(response).await.unwrap(), b"ok");
    };
    tokio::join!(serve, ask);
}

#[tokio::test]
async fn a_response_arrives_after_the_task_has_used_up_its_cooperative_budget() {
    let api = Api::new().await;
    let close = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok";
    let Api { listener, http1 } = api;
    tokio::spawn(async move { respond(&mut listener.accept().await.unwrap().0, &[close]).await });
    let request = Request::get("/").header("host", "a").body(RequestBody::Whole(Bytes::new())).unwrap();
    let mut sent = pin!(http1.send(request));
    let polled = poll_fn(|context| {
        // Leaves one unit of the budget for the socket.
        for _ in 0..127 {
            if let Poll::Ready(progress) = tokio::task::coop::poll_proceed(context) {
                progress.made_progress();
            }
        }
        sent.as_mut().poll(context)
    });
    let response = tokio::select! {
        biased;
        () = tokio::time::sleep(Duration::from_secs(20)) => panic!("no waker was woken"),
        response = polled => response,
    };
    assert_eq!(response.unwrap().0.status(), 200);
}
