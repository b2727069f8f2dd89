//! A service for which a test answers.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD_NO_PAD;
use bytes::{BufMut, Bytes, BytesMut};
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use hapax_core::runtime::{Runtime, Tokio, timeout};
use hapax_net::google::GoogleCode;
use http::{HeaderMap, Request, Response};
use prost::Message;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::PubSubUrl;
use super::api::{NamedSubscription, PubSubApi};
use super::messages::{PulledMessage, StreamingPullResponse, TopicMessage};

/// A call that does not come until then never comes.
const DEADLINE: Duration = Duration::from_secs(20);

/// Long enough for a call that would come.
const QUIET: Duration = Duration::from_millis(100);

pub(super) struct PubSubStandIn {
    address: SocketAddr,
    calls: UnboundedReceiver<PubSubStandInCall>,
}

/// A call that waits for its answer. If it is dropped, it has none.
pub(super) struct PubSubStandInCall {
    /// The name of the method.
    pub(super) method: String,
    /// Its first message.
    message: Bytes,
    request: RecvStream,
    respond: SendResponse<Bytes>,
}

/// A stream of messages to the client.
pub(super) struct StandInStream {
    sender: SendStream<Bytes>,
    request: RecvStream,
}

impl PubSubStandIn {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, calls) = unbounded_channel();
        Tokio::current().spawn(Box::pin(async move {
            while let Ok((stream, _)) = listener.accept().await {
                Tokio::current().spawn(Box::pin(serve(stream, sender.clone())));
            }
        }));
        Self { address, calls }
    }

    pub(super) fn url(&self, path: &str) -> String {
        let separator = if path.contains('?') { '&' } else { '?' };
        format!("pubsub://shop/{path}{separator}endpoint=http://{}", self.address)
    }

    pub(super) fn subscription(&self) -> NamedSubscription {
        let (url, runtime): (PubSubUrl, Arc<dyn Runtime>) =
            (self.url("orders").parse().unwrap(), Arc::new(Tokio::current()));
        PubSubApi::new(&url.place, &runtime).unwrap().subscription("orders")
    }

    /// The next call.
    pub(super) async fn call(&mut self) -> PubSubStandInCall {
        timeout(&Tokio::current(), DEADLINE, self.calls.recv()).await.expect("no call comes").unwrap()
    }

    /// The next call of this method.
    pub(super) async fn call_of(&mut self, method: &str) -> PubSubStandInCall {
        let call = self.call().await;
        assert_eq!(call.method, method);
        call
    }

    /// Whether no call comes.
    pub(super) async fn is_quiet(&mut self) -> bool {
        timeout(&Tokio::current(), QUIET, self.calls.recv()).await.is_none()
    }
}

impl PubSubStandInCall {
    pub(super) fn read<M: Message + Default>(&self) -> M {
        M::decode(self.message.clone()).unwrap()
    }

    pub(super) fn answer(self, message: &impl Message) {
        let mut stream = self.open();
        stream.send(message);
        stream.end(GoogleCode::Ok);
    }

    pub(super) fn refuse(self, code: GoogleCode) {
        self.open().end(code);
    }

    /// Refuses the deliveries of these ids, for these reasons.
    pub(super) fn refuse_ids(self, code: GoogleCode, reasons: &[(&str, &str)]) {
        let metadata = reasons.iter().map(|(id, reason)| ((*id).to_owned(), (*reason).to_owned())).collect();
        let value = InfoMessage { metadata }.encode_to_vec();
        let detail = DetailMessage { type_url: "type.googleapis.com/google.rpc.ErrorInfo".into(), value };
        let status = StatusMessage { details: vec![detail] }.encode_to_vec();
        let mut trailers = status_of(code);
        let encoded = BASE64_STANDARD_NO_PAD.encode(status);
        trailers.insert("grpc-status-details-bin", encoded.parse().unwrap());
        // The client may be gone.
        let _ = self.open().sender.send_trailers(trailers);
    }

    /// Begins a stream.
    pub(super) fn open(mut self) -> StandInStream {
        let head = Response::builder().header("content-type", "application/grpc").body(()).unwrap();
        let sender = self.respond.send_response(head, false).unwrap();
        StandInStream { sender, request: self.request }
    }
}

impl StandInStream {
    pub(super) fn send(&mut self, message: &impl Message) {
        let encoded = message.encode_to_vec();
        let mut frame = BytesMut::new();
        frame.put_u8(0);
        frame.put_u32(encoded.len().try_into().unwrap());
        frame.put_slice(&encoded);
        self.sender.send_data(frame.freeze(), false).unwrap();
    }

    /// Sends messages of one ordering key, whose ack ids and message ids are their data.
    pub(super) fn send_messages(&mut self, texts: &[&str]) {
        let message = |text: &&str| {
            let message = TopicMessage {
                data: Bytes::copy_from_slice(text.as_bytes()),
                ordering_key: "k".into(),
                message_id: (*text).to_owned(),
                ..TopicMessage::default()
            };
            PulledMessage { ack_id: (*text).to_owned(), message: Some(message), delivery_attempt: 0 }
        };
        self.send(&StreamingPullResponse { received_messages: texts.iter().map(message).collect() });
    }

    pub(super) fn end(mut self, code: GoogleCode) {
        // The client may be gone.
        let _ = self.sender.send_trailers(status_of(code));
    }

    /// Waits until the client has ended its direction.
    pub(super) async fn client_end(&mut self) {
        let ended = async { while self.request.data().await.is_some_and(|data| data.is_ok()) {} };
        timeout(&Tokio::current(), DEADLINE, ended).await.expect("the client goes on");
    }
}

fn status_of(code: GoogleCode) -> HeaderMap {
    HeaderMap::from_iter([("grpc-status".parse().unwrap(), i32::from(code).into())])
}

#[derive(Clone, PartialEq, Message)]
struct StatusMessage {
    #[prost(message, repeated, tag = "3")]
    details: Vec<DetailMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct DetailMessage {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct InfoMessage {
    #[prost(btree_map = "string, string", tag = "3")]
    metadata: BTreeMap<String, String>,
}

async fn serve(stream: TcpStream, calls: UnboundedSender<PubSubStandInCall>) {
    let Ok(mut connection) = h2::server::handshake(stream).await else { return };
    while let Some(Ok((request, respond))) = connection.accept().await {
        let calls = calls.clone();
        Tokio::current().spawn(Box::pin(async move {
            if let Some(call) = read_call(request, respond).await {
                // The test may be over.
                let _ = calls.send(call);
            }
        }));
    }
}

/// The call with its first message.
async fn read_call(request: Request<RecvStream>, respond: SendResponse<Bytes>) -> Option<PubSubStandInCall> {
    let (head, mut request) = request.into_parts();
    assert!(head.headers.contains_key("x-goog-request-params"), "a call without a route");
    assert!(!head.headers.contains_key("authorization"), "a stand-in gets no token");
    let mut read = BytesMut::new();
    while read.len() < 5
        || read.len() < 5 + usize::try_from(u32::from_be_bytes(read[1..5].try_into().unwrap())).unwrap()
    {
        let data = request.data().await?.ok()?;
        let _ = request.flow_control().release_capacity(data.len());
        read.extend_from_slice(&data);
    }
    let method = head.uri.path().rsplit('/').next()?.to_owned();
    Some(PubSubStandInCall { method, message: read.split_off(5).freeze(), request, respond })
}
