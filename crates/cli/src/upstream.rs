//! Requests to the API behind the gateway. Generic in the body of the request.
//!
//! `forward.rs` forwards a request and classifies failures, `client.rs` sends it in the version of HTTP that the API
//! speaks, and `http1.rs` and `http2.rs` keep the connections of one version each. `fields.rs` has the rules about
//! header fields, `body.rs` the body of a response, and `failure.rs` the response for an API that gives none.
//! `websocket.rs` has the switch to WebSocket.

pub(crate) mod body;
pub(crate) mod client;
mod failure;
pub(crate) mod fields;
pub(crate) mod forward;
mod http1;
pub(crate) mod http2;
pub(crate) mod websocket;

use std::time::Duration;

use hapax::BoxError;

/// How long an idle connection stays open. Common servers close theirs after 5 s; a request must not hit a connection
/// that the API is closing.
const IDLE_TIMEOUT: Duration = Duration::from_secs(4);

/// How many connections are tried for a request that could not be written to the first ones.
const TRIES: usize = 3;

const CONNECTIONS_CLOSE: &str = "the API closes each connection at once";
const CONNECT_TIMEOUT: &str = "the connection was not established in time";

/// Why a request got no response.
#[derive(Debug)]
pub(crate) enum SendError {
    /// The API has not processed the request: no byte was sent, or the API says so itself.
    Unsent(BoxError),
    /// The API may have processed the request.
    Cut(BoxError),
}
