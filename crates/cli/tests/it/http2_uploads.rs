//! Bodies of requests over HTTP/2.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::timeout;

use crate::harness::Api;
use crate::http2_clients::FrameClient;
use crate::http2_frames::{ACK, END_STREAM, HEADERS, PING, WINDOW_UPDATE};
use crate::raw_http::ScriptedApi;
use crate::tls::{Pki, secure_gateway, secure_gateway_with};

const HERE: [u8; 4] = [127, 0, 0, 1];

/// A client of HTTP/2 may say only with an empty frame that a request has no body.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_with_an_empty_body_reaches_an_http1_api_without_a_body_h36() {
    let (api, pki) = (Api::start().await, Pki::new());
    let gateway = secure_gateway(api.address, &pki).await;
    let mut client = FrameClient::start(HERE, gateway.public, &pki, 1 << 16).await.unwrap();
    for method in ["GET", "HEAD", "DELETE", "OPTIONS"] {
        for pieces in [&[""][..], &["", ""], &["one"], &["", "one", ""]] {
            let stream = client.open(method, "/charges", "key-1").await;
            for (number, piece) in pieces.iter().enumerate() {
                let flags = if number + 1 == pieces.len() { END_STREAM } else { 0 };
                client.send_data(stream, piece.as_bytes(), flags).await;
            }
            client.read_heads(1).await;
            let seen = api.seen().pop().unwrap();
            let body = pieces.concat();
            assert_eq!(seen.body, body.as_bytes(), "{method} {pieces:?}");
            let is_chunked = seen.headers.contains_key("transfer-encoding");
            assert_eq!(is_chunked, !body.is_empty(), "{method} {pieces:?}: {:?}", seen.headers);
        }
    }
}

/// Sends bodies on these streams until no window has had room for a second.
async fn fill_windows(client: &mut FrameClient, streams: &[u32]) {
    // Stream 0 is the connection.
    let mut windows: HashMap<u32, usize> = streams.iter().chain(&[0]).map(|stream| (*stream, 65_535)).collect();
    loop {
        for stream in streams {
            while let size @ 1.. = windows[stream].min(windows[&0]).min(16 << 10) {
                client.send_data(*stream, &vec![b'x'; size], 0).await;
                for stream in [*stream, 0] {
                    *windows.get_mut(&stream).unwrap() -= size;
                }
            }
        }
        let Ok(frame) = timeout(Duration::from_secs(1), client.read()).await else { return };
        let frame = frame.unwrap();
        if let Some(window) = windows.get_mut(&frame.stream).filter(|_| frame.kind == WINDOW_UPDATE) {
            let more = u32::from_be_bytes(frame.payload.try_into().unwrap());
            *window += usize::try_from(more).unwrap();
        }
    }
}

/// Returns whether a response has begun on this stream.
async fn is_answered(client: &mut FrameClient, stream: u32) -> bool {
    client.send_ping().await.unwrap();
    loop {
        let frame = client.read().await.unwrap();
        if frame.kind == HEADERS && frame.stream == stream {
            return true;
        }
        if frame.kind == PING && frame.flags & ACK != 0 {
            return false;
        }
    }
}

/// The API reads none of four bodies, which then occupy the window of their connection.
#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_waits_for_the_window_of_its_connection_is_not_too_slow_h11() {
    let pki = Pki::new();
    let answer = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
    let api = ScriptedApi::start(&[("/charges", answer.into())]).await;
    // An upload has two seconds of grace.
    let flags = ["--stall-timeout", "2s", "--upstream-timeout", "10m"];
    let gateway = secure_gateway_with(api.address, &pki, &flags).await;
    let mut client = FrameClient::start(HERE, gateway.public, &pki, 1 << 16).await.unwrap();
    let mut unread = Vec::new();
    for _ in 0..4 {
        unread.push(client.open("PUT", ScriptedApi::NEVER, "key-none").await);
    }
    fill_windows(&mut client, &unread).await;
    let upload = client.open("POST", "/charges", "key-1").await;
    assert!(!is_answered(&mut client, upload).await);
    // This upload begins later on a connection of its own, and sends nothing.
    let mut idle = FrameClient::start(HERE, gateway.public, &pki, 1 << 16).await.unwrap();
    idle.open("POST", "/charges", "key-2").await;
    idle.read_heads(1).await;
    assert!(!is_answered(&mut client, upload).await, "the client could not send");
    for stream in unread {
        client.reset(stream).await.unwrap();
    }
    client.send_data(upload, b"{}", END_STREAM).await;
    let heads = client.read_heads(1).await.0;
    assert_eq!((heads[0].stream, heads[0].payload[0]), (upload, 0x88), "200");
    assert_eq!(api.count("/charges"), 1);
}
