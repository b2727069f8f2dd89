//! Requests to the API behind the gateway, over HTTP/1.1 and HTTP/2.

pub(crate) mod forward;
mod http1;
mod http2;
