//! An API that says these bytes, connection by connection.

use http_body_util::BodyExt;
use hyper_rustls::HttpsConnectorBuilder;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::{Notify, oneshot};

use super::*;
use crate::tls;

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

struct Api {
    listener: TcpListener,
    http1: Http1,
}

impl Api {
    async fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let connector = HttpsConnectorBuilder::new().with_tls_config(tls::unused().unwrap()).https_or_http();
        let target = format!("http://{}/", listener.local_addr().unwrap()).parse().unwrap();
        let http1 = Http1::new(connector.enable_http1().build(), target, Duration::from_secs(10));
        Self { listener, http1 }
    }

    /// The answer to a request for which nothing else is waited for.
    async fn send(&self) -> Result<Response<Http1ResponseBody>, SendError> {
        let request = Request::get("/").header("host", "a").body(RequestBody::Whole(Bytes::new()));
        self.http1.send(request.unwrap()).await
    }

    /// What is said of the body.
    async fn body(&self) -> String {
        let body = self.send().await.unwrap().into_body().collect().await.unwrap();
        String::from_utf8(body.to_bytes().into()).unwrap()
    }

    /// The next connection.
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

/// Answers a request with this, in pieces that come one by one.
async fn answer(stream: &mut TcpStream, pieces: &[&str]) {
    head(stream).await;
    for piece in pieces {
        stream.write_all(piece.as_bytes()).await.unwrap();
        tokio::task::yield_now().await;
    }
}

/// Whether the gateway has closed its side.
async fn is_closed(stream: &mut TcpStream) -> bool {
    matches!(stream.read(&mut [0]).await, Ok(0) | Err(_))
}

#[tokio::test]
async fn a_connection_carries_one_request_after_the_other() {
    let api = Api::new().await;
    let chunks = ["HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\no", "k\r\n", "0\r\n", "\r\n"];
    let empty = "HTTP/1.1 204 No Content\r\n\r\n";
    let serve = async {
        let mut stream = api.accept().await;
        answer(&mut stream, &[OK]).await;
        answer(&mut stream, &["HTTP/1.1 200 OK\r\ncontent-le", "ngth: 2\r\n\r\n", "o", "k"]).await;
        answer(&mut stream, &chunks).await;
        answer(&mut stream, &[empty]).await;
        answer(&mut stream, &["HTTP/1.1 103 Early Hints\r\n\r\n", OK]).await;
        stream
    };
    let bodies = async { [api.body().await, api.body().await, api.body().await, api.body().await, api.body().await] };
    let (_stream, bodies) = tokio::join!(serve, bodies);
    assert_eq!(bodies, ["ok", "ok", "ok", "", "ok"]);
}

#[tokio::test]
async fn requests_at_once_have_connections_of_their_own() {
    let api = Api::new().await;
    let serve = async {
        let (mut one, mut other) = (api.accept().await, api.accept().await);
        tokio::join!(answer(&mut one, &[OK]), answer(&mut other, &[OK]));
        (one, other)
    };
    let (_streams, one, other) = tokio::join!(serve, api.body(), api.body());
    assert_eq!((one.as_str(), other.as_str()), ("ok", "ok"));
}

#[tokio::test]
async fn a_connection_that_the_api_has_closed_is_not_used_again() {
    let api = Api::new().await;
    let closed = Notify::new();
    let close = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok";
    let until_end = "HTTP/1.1 200 OK\r\n\r\nok";
    let serve = async {
        // With and without a word, and with one too many.
        for said in [OK, close, until_end, &format!("{OK}more")] {
            answer(&mut api.accept().await, &[said]).await;
            closed.notify_one();
        }
        answer(&mut api.accept().await, &[OK]).await;
    };
    let ask = async {
        for _ in 0..4 {
            assert_eq!(api.body().await, "ok");
            closed.notified().await;
            // The system's word of it is heard.
            tokio::task::yield_now().await;
        }
        assert_eq!(api.body().await, "ok");
    };
    tokio::join!(serve, ask);
}

#[tokio::test]
async fn all_of_them_may_have_been_closed() {
    let api = Api::new().await;
    let (closed, all_closed) = oneshot::channel();
    let serve = async {
        let mut streams = Vec::new();
        for _ in 0..=TRIES {
            streams.push(api.accept().await);
        }
        for mut stream in streams {
            answer(&mut stream, &[OK]).await;
        }
        closed.send(()).unwrap();
        answer(&mut api.accept().await, &[OK]).await;
    };
    let ask = async {
        let bodies = futures_util::future::join_all((0..=TRIES).map(|_| api.body())).await;
        assert_eq!(bodies, ["ok"; TRIES + 1]);
        assert_eq!(api.http1.idle.resting().lines.len(), TRIES + 1);
        all_closed.await.unwrap();
        // The system's word of it is heard.
        tokio::task::yield_now().await;
        assert_eq!(api.body().await, "ok");
    };
    tokio::join!(serve, ask);
}

#[tokio::test]
async fn what_is_cut_off_is_an_error_and_unsent_only_without_a_connection() {
    let api = Api::new().await;
    for said in ["", "HTTP/1.1 2", "HTTP/1.1 200 OK\r\nx: ", "no HTTP at all\r\n\r\n"] {
        let serve = async { answer(&mut api.accept().await, &[said]).await };
        let ((), sent) = tokio::join!(serve, api.send());
        assert!(matches!(sent, Err(SendError::Cut(_))), "{said}");
    }
    let half = "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok";
    let serve = async { answer(&mut api.accept().await, &[half]).await };
    let ((), sent) = tokio::join!(serve, api.send());
    assert!(sent.unwrap().into_body().collect().await.is_err());
    let Api { listener, http1 } = api;
    drop(listener);
    let request = Request::get("/").body(RequestBody::Whole(Bytes::new())).unwrap();
    assert!(matches!(http1.send(request).await, Err(SendError::Unsent(_))));
}

#[tokio::test]
async fn a_connection_with_something_left_on_it_is_closed() {
    let api = Api::new().await;
    // An answer of which nobody wants the rest.
    let serve = async {
        let mut stream = api.accept().await;
        answer(&mut stream, &["HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok"]).await;
        assert!(is_closed(&mut stream).await);
    };
    let ask = async { drop(api.send().await.unwrap()) };
    tokio::join!(serve, ask);
    assert!(api.http1.idle.take().is_none());
}

#[tokio::test]
async fn a_connection_that_nobody_uses_is_closed_in_time() {
    let api = Api::new().await;
    let serve = async {
        let mut stream = api.accept().await;
        answer(&mut stream, &[OK]).await;
        stream
    };
    let (mut stream, _) = tokio::join!(serve, api.body());
    assert_eq!(api.http1.idle.resting().lines.len(), 1);
    tokio::time::pause();
    tokio::time::sleep(IDLE_TIMEOUT * 2).await;
    tokio::time::resume();
    assert!(!api.http1.idle.resting().is_watched);
    assert!(is_closed(&mut stream).await);
}

const LONG: usize = 16 << 20;

#[tokio::test]
async fn an_api_that_answers_early_gets_the_rest_of_the_request() {
    let api = Api::new().await;
    let serve = async {
        let mut stream = api.accept().await;
        answer(&mut stream, &[OK]).await;
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest.len(), LONG);
    };
    let ask = async {
        let body = RequestBody::Whole(vec![b'x'; LONG].into());
        let request = Request::post("/").header("host", "a").header("content-length", LONG).body(body).unwrap();
        let answer = api.http1.send(request).await.unwrap();
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "ok");
    };
    tokio::join!(serve, ask);
}

#[tokio::test]
async fn an_answer_is_heard_when_the_budget_of_the_task_is_used_up() {
    let api = Api::new().await;
    let close = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok";
    let Api { listener, http1 } = api;
    tokio::spawn(async move { answer(&mut listener.accept().await.unwrap().0, &[close]).await });
    let request = Request::get("/").header("host", "a").body(RequestBody::Whole(Bytes::new())).unwrap();
    let mut sent = pin!(http1.send(request));
    let asked = poll_fn(|context| {
        // All but what the socket itself takes.
        for _ in 0..127 {
            if let Poll::Ready(progress) = tokio::task::coop::poll_proceed(context) {
                progress.made_progress();
            }
        }
        sent.as_mut().poll(context)
    });
    let answered = tokio::select! {
        biased;
        () = tokio::time::sleep(Duration::from_secs(20)) => panic!("nobody was woken"),
        answered = asked => answered,
    };
    assert_eq!(answered.unwrap().status(), 200);
}
