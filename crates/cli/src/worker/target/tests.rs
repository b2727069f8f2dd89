use hapax::broker::Message;
use hapax::store::Memory;
use hapax::{Identity, Key, Scope, Settings};
use http::uri::Scheme;
use tokio::net::TcpSocket;

use super::*;
use crate::tls;
use crate::upstream::client::Upstream;

/// A service at this address.
fn target(address: String) -> HttpTarget {
    let upstream = Upstream { scheme: Scheme::HTTP, authority: address.parse().unwrap(), is_h2: false };
    HttpTarget::new(Service {
        gate: Gate::builder(Arc::new(Memory::new()), Settings::default()).build().unwrap(),
        client: UpstreamClient::new(upstream, &tls::unused_config().unwrap(), WHILE_DOWN),
        address,
        path: PathAndQuery::from_static("/transfers"),
        timeout: WHILE_DOWN,
        outcomes: StatusOutcomes::default(),
        forwarded: Vec::new(),
        max_attempts: 1,
        health: ServiceHealth::default(),
    })
}

fn job(key: &str, ordering_key: Option<&'static str>) -> Job {
    let (scope, key) = (Scope::untenanted("shop").unwrap(), Key::new(key).unwrap());
    let call = Identity::plain().call(&scope, &key);
    let message = Message { ordering_key: ordering_key.map(Bytes::from), ..Message::default() };
    Job { record_key: call.record_key(), call: call.into(), key, message: Arc::new(message), attempt: None }
}

#[tokio::test]
async fn a_message_waits_for_the_one_before_it_for_which_the_worker_pauses() {
    // A socket that is bound and does not listen refuses connections, and keeps others from its port.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let target = target(socket.local_addr().unwrap().to_string());
    let jobs = vec![job("order-1", Some("acme")), job("order-2", Some("acme")), job("order-3", None)];
    let (pause, busy) = (Verdict::Pause { after: WHILE_DOWN }, Verdict::Busy { after: Duration::ZERO });
    assert_eq!(target.process(jobs).await, [pause.clone(), busy, pause]);
}
