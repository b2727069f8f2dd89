use hapax_core::runtime::Tokio;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;

const BODY: usize = 1 << 20;

fn client() -> HttpClient {
    let settings = HttpSettings { max_body: BODY, ..HttpSettings::new(Arc::new(Tokio::current())) };
    HttpClient::new(settings).unwrap()
}

/// What a client gets from a server that gives this answer and closes, or gives none.
async fn asked(answer: Option<Vec<u8>>) -> Result<Response<Bytes>, RequestFailure> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let uri = format!("http://{}/", listener.local_addr().unwrap());
    Tokio::current().spawn(Box::pin(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let _ = stream.read(&mut [0; 4096]).await.unwrap();
        match answer {
            // The client may stop reading.
            Some(answer) => drop(stream.write_all(&answer).await),
            None => std::future::pending().await,
        }
    }));
    client().send(Request::post(uri).body("{}".into()).unwrap()).await
}

fn with_body(length: usize) -> Option<Vec<u8>> {
    Some(format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{}", " ".repeat(length)).into_bytes())
}

#[tokio::test]
async fn an_answer_is_read_up_to_its_limit() {
    assert_eq!(asked(with_body(BODY)).await.unwrap().into_body().len(), BODY);
    let failure = asked(with_body(BODY + 1)).await.unwrap_err();
    assert!(matches!(failure, RequestFailure::Cut(_)), "{failure:?}");
    assert!(failure.source().unwrap().to_string().contains("longer than 1 MiB"), "{failure:?}");
}

#[tokio::test]
async fn a_redirect_is_an_answer() {
    let moved = b"HTTP/1.1 307 Temporary Redirect\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n";
    assert_eq!(asked(Some(moved.to_vec())).await.unwrap().status(), 307);
}

#[tokio::test]
async fn a_failure_tells_whether_the_request_may_have_arrived() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let nobody = listener.local_addr().unwrap();
    drop(listener);
    let refused = client().send(Request::post(format!("http://{nobody}/")).body("{}".into()).unwrap()).await;
    assert!(matches!(refused, Err(RequestFailure::Unsent(_))), "{refused:?}");
    let broken = asked(Some(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nx".to_vec())).await;
    assert!(matches!(broken, Err(RequestFailure::Cut(_))), "{broken:?}");
}

// The clock goes on whenever everything waits.
#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_answer_is_given_up() {
    let failure = asked(None).await.unwrap_err();
    assert_eq!(failure.to_string(), "it does not answer within 30s");
}
