use hapax_core::runtime::Tokio;
use tokio::net::TcpListener;

use super::*;

#[derive(Clone, PartialEq, prost::Message)]
struct Text {
    #[prost(string, tag = "1")]
    text: String,
}

fn client(address: &str) -> GoogleClient {
    let endpoint = GoogleEndpoint {
        uri: format!("http://{address}"),
        credentials: GoogleCredentials::of_a_stand_in(),
        connect_within: Duration::from_secs(5),
    };
    GoogleClient::new(endpoint, Arc::new(Tokio::current())).unwrap()
}

async fn call(address: &str, limit: Duration) -> GoogleFailure {
    let request = Text { text: "x".into() };
    let call = GoogleCall { path: "/a.B/C", route: ("name", "x/y z".into()), request, limit };
    client(address).call::<_, Text>(call).await.unwrap_err()
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
