use std::sync::Mutex;

use aws_credential_types::provider::future::ProvideCredentials as Future;
use aws_credential_types::provider::{self, ProvideCredentials};
use hapax_core::runtime::Tokio;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;
use crate::http::HttpSettings;

/// Long before every test.
const SERVER_TIME: &str = "Fri, 27 Nov 2020 06:00:00 GMT";

/// How far a measured time may be from the expected one.
const SLACK: Duration = Duration::from_secs(1);

/// A service that gives these answers, one to a connection, and keeps the requests.
struct StandIn {
    uri: String,
    requests: Arc<Mutex<Vec<String>>>,
}

impl StandIn {
    async fn start(answers: Vec<Option<String>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = format!("http://{}/", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&requests);
        Tokio::current().spawn(Box::pin(async move {
            for answer in answers {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = Vec::new();
                while !request.ends_with(b"{}") {
                    let mut read = [0; 4096];
                    let length = stream.read(&mut read).await.unwrap();
                    assert!(length > 0, "the request has no end");
                    request.extend_from_slice(&read[..length]);
                }
                kept.lock().unwrap().push(String::from_utf8(request).unwrap());
                match answer {
                    Some(answer) => stream.write_all(answer.as_bytes()).await.unwrap(),
                    // Without an answer.
                    None => drop(stream),
                }
            }
        }));
        Self { uri, requests }
    }

    /// The values of a field, one for each request.
    fn field(&self, name: &str) -> Vec<String> {
        let value = |request: &String| {
            let lines = request.lines().filter_map(|line| line.split_once(": "));
            lines.filter(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_owned()).next()
        };
        self.requests.lock().unwrap().iter().filter_map(value).collect()
    }
}

fn answer(status: &str, body: &str) -> Option<String> {
    let length = body.len();
    Some(format!(
        "HTTP/1.1 {status}\r\ndate: {SERVER_TIME}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    ))
}

fn refusal(status: &str, code: &str) -> Option<String> {
    answer(status, &format!(r#"{{"__type":"com.amazonaws.sqs#{code}","message":"because"}}"#))
}

/// Gives another key each time.
#[derive(Debug, Default)]
struct Numbered(AtomicI64);

impl ProvideCredentials for Numbered {
    fn provide_credentials<'a>(&'a self) -> Future<'a>
    where
        Self: 'a,
    {
        let number = self.0.fetch_add(1, Ordering::Relaxed);
        let found: provider::Result = Ok(Credentials::new(format!("KEY{number}"), "secret", None, None, "test"));
        Future::ready(found)
    }
}

/// Never gives one.
#[derive(Debug)]
struct Silent;

impl ProvideCredentials for Silent {
    fn provide_credentials<'a>(&'a self) -> Future<'a>
    where
        Self: 'a,
    {
        Future::new(std::future::pending())
    }
}

fn client(uri: &str) -> AwsClient {
    client_with(uri, Numbered::default())
}

fn client_with(uri: &str, provider: impl ProvideCredentials + 'static) -> AwsClient {
    let runtime: Arc<dyn Runtime> = Arc::new(Tokio::current());
    let http = HttpClient::new(HttpSettings::new(Arc::clone(&runtime))).unwrap();
    let credentials = AwsCredentials::provided_by(provider, Arc::clone(&runtime));
    let (uri, region) = (uri.parse().unwrap(), "eu-west-1".to_owned());
    let endpoint = AwsEndpoint { uri, region, service: "sqs", target: "AmazonSQS", credentials };
    AwsClient::new(endpoint, http, runtime).unwrap()
}

async fn call(uri: &str) -> Result<Bytes, AwsFailure> {
    call_by(&client(uri)).await
}

async fn call_by(client: &AwsClient) -> Result<Bytes, AwsFailure> {
    Ok(client.call(&call_within(Duration::from_secs(30))).await?.body)
}

/// A call whose answer begins within this time.
fn call_within(head: Duration) -> AwsCall {
    let limits = AnswerLimits { head, body: Duration::from_secs(20) };
    AwsCall { operation: "ListQueues", body: Bytes::from_static(b"{}"), limits, time: None }
}

#[tokio::test]
async fn a_call_is_a_signed_post_of_json() {
    let service = StandIn::start(vec![answer("200 OK", r#"{"a":1}"#)]).await;
    assert_eq!(call(&service.uri).await.unwrap(), r#"{"a":1}"#);
    assert_eq!(service.field("x-amz-target"), ["AmazonSQS.ListQueues"]);
    assert_eq!(service.field("content-type"), [JSON]);
    let host = service.uri.trim_start_matches("http://").trim_end_matches('/');
    assert_eq!(service.field("host"), [host]);
    let authorization = service.field("authorization").remove(0);
    assert!(authorization.contains("Credential=KEY0/") && authorization.contains("/eu-west-1/sqs/aws4_request"));
    assert!(authorization.contains("SignedHeaders=content-type;host;x-amz-date;x-amz-target,"), "{authorization}");
}

#[tokio::test]
async fn a_refused_call_has_a_short_code_and_is_not_sent_again() {
    for (status, code) in [("400 Bad Request", "QueueDoesNotExist"), ("403 Forbidden", "AccessDenied")] {
        let service = StandIn::start(vec![refusal(status, code)]).await;
        let failure = call(&service.uri).await.unwrap_err();
        assert_eq!(failure.to_string(), format!("AWS refused a call: {code}: because"));
        assert_eq!(service.field("host").len(), 1);
    }
    let service = StandIn::start(vec![answer("404 Not Found", "<html>")]).await;
    let failure = call(&service.uri).await.unwrap_err();
    assert!(matches!(&failure, AwsFailure::Refused(refusal) if refusal.code == "HTTP 404"), "{failure:?}");
}

#[tokio::test]
async fn credentials_that_are_taken_no_longer_are_renewed_once() {
    for code in ["ExpiredToken", "ExpiredTokenException", "InvalidClientTokenId", "UnrecognizedClientException"] {
        let ended = || refusal("403 Forbidden", code);
        let service = StandIn::start(vec![ended(), answer("200 OK", "{}")]).await;
        call(&service.uri).await.unwrap();
        let used = service.field("authorization");
        assert!(used[0].contains("KEY0/") && used[1].contains("KEY1/"), "{used:?}");
        let service = StandIn::start(vec![ended(), ended(), ended()]).await;
        let client = client(&service.uri);
        for requests in [2, 3] {
            let failure = call_by(&client).await.unwrap_err();
            assert!(matches!(&failure, AwsFailure::Refused(refusal) if refusal.code == code), "{failure:?}");
            assert_eq!(service.field("host").len(), requests, "others are searched for once in a while");
        }
    }
}

#[tokio::test]
async fn a_call_that_is_refused_because_of_the_time_has_the_time_of_the_service_next() {
    let refused = || refusal("403 Forbidden", "SignatureDoesNotMatch");
    let service = StandIn::start(vec![refused(), answer("200 OK", "{}")]).await;
    call(&service.uri).await.unwrap();
    assert!(service.field("x-amz-date")[1].starts_with("20201127T0600"), "{:?}", service.field("x-amz-date"));
    // The secret is wrong, and not the time.
    let service = StandIn::start(vec![refused(), refused()]).await;
    let failure = call(&service.uri).await.unwrap_err();
    assert!(matches!(failure, AwsFailure::Refused(_)), "{failure:?}");
    assert_eq!(service.field("host").len(), 2);
}

#[tokio::test]
async fn a_call_is_signed_with_the_time_of_its_caller_and_then_with_that_of_the_service() {
    let refused = refusal("403 Forbidden", "SignatureDoesNotMatch");
    let service = StandIn::start(vec![refused, answer("200 OK", "{}")]).await;
    let known = Timestamp(1_440_938_160_000_000);
    let timed = AwsCall { time: Some(known), ..call_within(Duration::from_secs(30)) };
    client(&service.uri).call(&timed).await.unwrap();
    let used = service.field("x-amz-date");
    assert!(used[0].starts_with("20150830T123600") && used[1].starts_with("20201127T0600"), "{used:?}");
}

#[tokio::test]
async fn an_answer_tells_the_time_of_the_service_and_its_connection() {
    let service = StandIn::start(vec![answer("200 OK", "{}"), refusal("400 Bad Request", "Refused")]).await;
    let (client, call) = (client(&service.uri), call_within(Duration::from_secs(30)));
    let answer = client.call(&call).await.unwrap().arrival;
    let AwsFailure::Refused(refusal) = client.call(&call).await.unwrap_err() else { panic!("it refuses the call") };
    assert!(refusal.body.starts_with(b"{\"__type\""), "{refusal:?}");
    for arrival in [answer, refusal.arrival] {
        // Fri, 27 Nov 2020 06:00:00 GMT
        assert_eq!(arrival.date, Some(Timestamp(1_606_456_800_000_000)));
        assert!(arrival.sent <= arrival.began && arrival.connection.is_some(), "{arrival:?}");
    }
    assert_ne!(answer.connection, refusal.arrival.connection, "the service closes a connection after an answer");
}

#[tokio::test]
async fn a_refusal_does_not_repeat_the_session_token() {
    let why = "The request signature we calculated does not match the signature you provided.";
    let signed = "The Canonical String for this request should have been";
    for between in [r"\n\n", " "] {
        let message = format!(r"{why}{between}{signed} 'POST{between}x-amz-security-token:SECRET{between}'");
        let body = format!(r#"{{"__type":"SignatureDoesNotMatch","message":"{message}"}}"#);
        let refused = || answer("403 Forbidden", &body);
        let service = StandIn::start(vec![refused(), refused()]).await;
        let failure = call(&service.uri).await.unwrap_err();
        let shown = format!("{failure} {failure:?}");
        assert!(shown.contains(why) && !shown.contains("SECRET"), "{shown}");
    }
    let body = format!(r#"{{"__type":"X","message":"{}"}}"#, "x".repeat(10_000));
    let service = StandIn::start(vec![answer("400 Bad Request", &body)]).await;
    assert!(call(&service.uri).await.unwrap_err().to_string().len() < 600);
}

#[tokio::test]
async fn a_wrong_signature_at_the_right_time_asks_for_another_secret() {
    let undated = |answer: String| answer.replace(&format!("date: {SERVER_TIME}\r\n"), "");
    let refused = refusal("403 Forbidden", "SignatureDoesNotMatch").map(undated);
    let service = StandIn::start(vec![refused, answer("200 OK", "{}")]).await;
    call(&service.uri).await.unwrap();
    let used = service.field("authorization");
    assert!(used[0].contains("KEY0/") && used[1].contains("KEY1/"), "{used:?}");
}

#[tokio::test]
async fn a_call_without_an_answer_may_have_arrived_unless_nothing_was_sent() {
    for answer in [None, answer("500 Internal Server Error", "{}"), refusal("503 Slow Down", "ServiceUnavailable")] {
        let service = StandIn::start(vec![answer]).await;
        let failure = call(&service.uri).await.unwrap_err();
        assert!(matches!(failure, AwsFailure::Unknown(_)), "{failure:?}");
        assert_eq!(service.field("host").len(), 1, "it is not sent again");
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let uri = format!("http://{}/", listener.local_addr().unwrap());
    drop(listener);
    let failure = call(&uri).await.unwrap_err();
    let is_unsent = matches!(&failure, AwsFailure::NotSent(error) if error.kind() == ErrorKind::NotApplied);
    assert!(is_unsent, "{failure:?}");
}

#[tokio::test(start_paused = true)]
async fn a_call_ends_with_its_own_limit() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let uri = format!("http://{}/", listener.local_addr().unwrap());
    let (limit, begun) = (Duration::from_secs(7), tokio::time::Instant::now());
    let call = call_within(limit);
    let failure = client(&uri).call(&call).await.unwrap_err();
    assert!(matches!(failure, AwsFailure::Unknown(_)) && begun.elapsed().abs_diff(limit) < SLACK, "{failure:?}");
    // The search for credentials takes 30 s.
    let begun = tokio::time::Instant::now();
    let failure = client_with(&uri, Silent).call(&call).await.unwrap_err();
    assert!(matches!(failure, AwsFailure::NotSent(_)) && begun.elapsed().abs_diff(limit) < SLACK, "{failure:?}");
}

#[tokio::test]
async fn the_body_of_an_answer_has_a_time_of_its_own() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let uri = format!("http://{}/", listener.local_addr().unwrap());
    let (went_on, goes_on) = tokio::sync::oneshot::channel::<()>();
    Tokio::current().spawn(Box::pin(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let _ = stream.read(&mut [0; 4096]).await.unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n").await.unwrap();
        let _ = goes_on.await;
        stream.write_all(b"{}").await.unwrap();
    }));
    let (limit, runtime) = (Duration::from_millis(200), Tokio::current());
    let (client, call) = (client(&uri), call_within(limit));
    let begun = runtime.boottime_now();
    let late = async {
        runtime.sleep(2 * limit).await;
        let _ = went_on.send(());
        runtime.boottime_now()
    };
    let (answer, late) = tokio::join!(client.call(&call), late);
    let answer = answer.unwrap();
    assert_eq!(answer.body, "{}");
    let began = answer.arrival.began;
    assert!(begun <= began && began < late, "it begins with its head");
}
