use hapax_core::runtime::Tokio;
use parking_lot::Mutex;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::google::test_server::{TokenServer, token, write};

#[derive(Clone, PartialEq, prost::Message)]
struct Text {
    #[prost(string, tag = "1")]
    text: String,
}

fn client(address: &str) -> GoogleClient {
    client_with(address, GoogleCredentials::of_a_stand_in())
}

fn client_with(address: &str, credentials: GoogleCredentials) -> GoogleClient {
    let (uri, connect_within) = (format!("http://{address}"), Duration::from_secs(5));
    let endpoint = GoogleEndpoint { uri, credentials, connect_within };
    GoogleClient::new(endpoint, Arc::new(Tokio::current())).unwrap()
}

fn request(limit: Duration) -> GoogleCall<Text> {
    GoogleCall { path: "/a.B/C", route: ("name", "x/y z".into()), request: Text { text: "x".into() }, limit }
}

/// A service that takes one token, and notes those that come.
struct OneToken {
    address: String,
    /// How long each call is waited for, as the service learns it.
    limits: SeenTexts,
    seen: SeenTexts,
}

impl OneToken {
    async fn start(taken: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let seen: SeenTexts = Arc::default();
        let limits: SeenTexts = Arc::default();
        let noted = (Arc::clone(&seen), Arc::clone(&limits));
        Tokio::current().spawn(Box::pin(async move {
            while let Ok((stream, _)) = listener.accept().await {
                Tokio::current().spawn(Box::pin(serve(stream, taken, noted.clone())));
            }
        }));
        Self { address, limits, seen }
    }
}

/// The texts of a field, one a call that had it.
type SeenTexts = Arc<Mutex<Vec<String>>>;

/// Refuses behind the head of an answer, as the front of Google does in the middle of a stream.
async fn serve(stream: TcpStream, taken: &'static str, (seen, limits): (SeenTexts, SeenTexts)) {
    let mut connection = h2::server::handshake(stream).await.unwrap();
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        let token = request.headers()[http::header::AUTHORIZATION].to_str().unwrap().to_owned();
        let is_taken = token == format!("Bearer {taken}");
        seen.lock().push(token);
        let limit = request.headers().get("grpc-timeout").map(|limit| limit.to_str().unwrap().to_owned());
        limits.lock().extend(limit);
        let head = http::Response::builder().header("content-type", "application/grpc").body(()).unwrap();
        let mut body = respond.send_response(head, false).unwrap();
        if is_taken {
            body.send_data(bytes::Bytes::from_static(&[0, 0, 0, 0, 0]), false).unwrap();
        }
        let code = if is_taken { Code::Ok } else { Code::Unauthenticated };
        let status = http::HeaderMap::from_iter([("grpc-status".parse().unwrap(), i32::from(code).into())]);
        body.send_trailers(status).unwrap();
    }
}

/// A server with these tokens, and the credentials that ask it.
async fn credentials(folder: &tempfile::TempDir, tokens: &[&str]) -> (TokenServer, GoogleCredentials) {
    let tokens: Vec<_> = tokens.iter().map(|text| token(text)).collect();
    let server = TokenServer::start(&tokens).await;
    let file = folder.path().join("user.json");
    let uri = format!("http://{}/token", server.address);
    let user = json!({
        "type": "authorized_user", "client_id": "i", "client_secret": "s", "refresh_token": "r", "token_uri": uri,
    });
    write(&file, &user);
    (server, GoogleCredentials::from_file(file, Arc::new(Tokio::current())).unwrap())
}

#[tokio::test]
async fn after_a_call_without_an_answer_the_next_one_takes_a_new_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = client(&listener.local_addr().unwrap().to_string());
    let silent = request(Duration::from_millis(200));
    let mut held = Vec::new();
    for _ in 0..2 {
        let called = client.call::<_, Text>(silent.clone());
        let (answer, accepted) = tokio::join!(called, timeout(&*client.runtime, LONG, listener.accept()));
        held.push(accepted.expect("a new connection").unwrap());
        assert!(matches!(answer, Err(GoogleFailure::Unknown(_))), "{answer:?}");
    }
}

const LONG: Duration = Duration::from_secs(20);

#[tokio::test]
async fn a_call_whose_token_is_refused_is_sent_once_more_with_another_one() {
    let folder = tempfile::tempdir().unwrap();
    let (tokens, found) = credentials(&folder, &["first", "second"]).await;
    let service = OneToken::start("second").await;
    let client = client_with(&service.address, found);
    client.call::<_, Text>(request(LONG)).await.unwrap();
    client.call::<_, Text>(request(LONG)).await.unwrap();
    assert_eq!(*service.seen.lock(), ["Bearer first", "Bearer second", "Bearer second"]);
    assert_eq!(tokens.asked().len(), 2);
    let limits = service.limits.lock().clone();
    assert!(limits.len() == 3 && limits.iter().all(|limit| limit.starts_with("205")), "20.5 s each: {limits:?}");
    // Nothing helps if no token is taken.
    let (_tokens, found) = credentials(&folder, &["third", "fourth"]).await;
    let failure = client_with(&service.address, found).call::<_, Text>(request(LONG)).await.unwrap_err();
    assert!(failure.is_about_token(), "{failure:?}");
    assert_eq!(service.seen.lock()[3..], ["Bearer third", "Bearer fourth"]);
}

#[tokio::test]
async fn a_stream_whose_token_is_refused_behind_its_head_has_broken_and_the_next_one_has_another_token() {
    let folder = tempfile::tempdir().unwrap();
    let (_tokens, found) = credentials(&folder, &["first", "second"]).await;
    let service = OneToken::start("second").await;
    let client = client_with(&service.address, found);
    let never = || -> BoxFuture<'static, ()> { Box::pin(std::future::pending()) };
    let mut stream = client.stream::<_, Text>(request(LONG), never).await.unwrap();
    let failure = stream.next().await.unwrap_err();
    assert!(matches!(failure, GoogleFailure::Unknown(_)), "{failure:?}");
    let mut stream = client.stream::<_, Text>(request(LONG), never).await.unwrap();
    assert_eq!(stream.next().await.unwrap(), Some(Text::default()));
    assert_eq!(*service.seen.lock(), ["Bearer first", "Bearer second"]);
}

async fn call(address: &str, limit: Duration) -> GoogleFailure {
    client(address).call::<_, Text>(request(limit)).await.unwrap_err()
}

#[tokio::test]
async fn a_call_to_nobody_was_not_sent_and_one_without_an_answer_may_have_arrived() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let silent = call(&address, Duration::from_millis(200)).await;
    assert!(matches!(silent, GoogleFailure::Unknown(_)), "{silent:?}");
    drop(listener);
    let refused = call(&address, Duration::from_secs(20)).await;
    assert!(matches!(refused, GoogleFailure::NotSent(_)), "{refused:?}");
}

#[test]
fn a_token_is_sent_but_not_printed_and_a_route_is_encoded() {
    let token = AccessToken { text: "hush".into(), end: std::time::UNIX_EPOCH };
    let mut metadata = MetadataMap::new();
    authorize(&mut metadata, Some(token.header().unwrap()), &("topic", "projects/a b/topics/c".into())).unwrap();
    assert_eq!(metadata.get("x-goog-request-params").unwrap(), "topic=projects%2Fa+b%2Ftopics%2Fc");
    assert_eq!(metadata.get("authorization").unwrap(), "Bearer hush");
    assert!(!format!("{metadata:?}").contains("hush"));
    assert!(AccessToken { text: "a\nb".into(), ..token }.header().is_err());
}

#[test]
fn a_status_has_what_the_service_says_of_each_thing() {
    let metadata = BTreeMap::from([("id".to_owned(), "PERMANENT".to_owned())]);
    let info = RpcDetail {
        type_url: "type.googleapis.com/google.rpc.ErrorInfo".into(),
        value: ErrorInfo { metadata }.encode_to_vec(),
    };
    let other = RpcDetail { type_url: "type.googleapis.com/google.rpc.RetryInfo".into(), value: vec![0xff] };
    let details = RpcStatus { details: vec![other, info] }.encode_to_vec();
    let status = Status::with_details(Code::FailedPrecondition, "no", details.into());
    let GoogleFailure::Answered(found) = failure(status) else { panic!("it is an answer") };
    assert_eq!(
        (found.code, &*found.details["id"], &*found.to_string()),
        (Code::FailedPrecondition, "PERMANENT", "FailedPrecondition: no")
    );
}
