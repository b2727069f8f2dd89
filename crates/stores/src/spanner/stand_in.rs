//! A server that answers as Spanner does, and fails as a test says.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use hapax_core::runtime::{Runtime, Tokio};
use hapax_net::google::GoogleCode;
use parking_lot::Mutex;
use prost::Message;
use tokio::net::{TcpListener, TcpStream};

use super::SpannerUrl;
use super::messages::{
    BegunTransaction, CommitRequest, CommitTransaction, ExecuteSqlRequest, NoFields, ResultSet, ResultSetMetadata,
    Selected, SessionName,
};

/// A server without tables: each statement finds nothing.
#[derive(Clone, Default)]
pub(super) struct StandInSpanner(Arc<StandInState>);

#[derive(Default)]
struct StandInState {
    /// The failures of the next commits. None: the commit succeeds, as all others do.
    commits: Mutex<VecDeque<Option<(GoogleCode, &'static str)>>>,
    /// The failures of the next statements.
    statements: Mutex<VecDeque<Option<(GoogleCode, &'static str)>>>,
    /// The name of each call, and the transaction of each commit.
    calls: Mutex<Vec<String>>,
}

impl StandInSpanner {
    /// Starts the server. Returns the URL of a database, too.
    pub(super) async fn start() -> (Self, SpannerUrl) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = Self::default();
        let accepting = server.clone();
        Tokio::current().spawn(Box::pin(async move {
            while let Ok((stream, _)) = listener.accept().await {
                Tokio::current().spawn(Box::pin(accepting.clone().serve(stream)));
            }
        }));
        (server, format!("spanner://p/in/db?endpoint=http://{address}").parse().unwrap())
    }

    /// Lets the next commits fail so.
    pub(super) fn fail_commits(&self, failures: &[(GoogleCode, &'static str)]) {
        self.0.commits.lock().extend(failures.iter().copied().map(Some));
    }

    /// Lets the next statements fail so.
    pub(super) fn fail_statements(&self, failures: &[(GoogleCode, &'static str)]) {
        self.0.statements.lock().extend(failures.iter().copied().map(Some));
    }

    /// The calls with this name since the last time.
    pub(super) fn take_calls(&self, name: &str) -> Vec<String> {
        let (taken, rest) = self.0.calls.lock().drain(..).partition(|call| call.starts_with(name));
        *self.0.calls.lock() = rest;
        taken
    }

    async fn serve(self, stream: TcpStream) {
        let mut connection = h2::server::handshake(stream).await.unwrap();
        while let Some(Ok((request, mut respond))) = connection.accept().await {
            let server = self.clone();
            Tokio::current().spawn(Box::pin(async move {
                let (head, mut body) = request.into_parts();
                let mut sent = Vec::new();
                while let Some(Ok(part)) = body.data().await {
                    body.flow_control().release_capacity(part.len()).unwrap();
                    sent.extend_from_slice(&part);
                }
                let name = head.uri.path().rsplit('/').next().unwrap_or_default().to_owned();
                let answered = server.answer(&name, &sent[5..]);
                let head = http::Response::builder().header("content-type", "application/grpc").body(()).unwrap();
                let mut stream = respond.send_response(head, false).unwrap();
                let (code, message) = match answered {
                    Ok(message) => {
                        let length = u32::try_from(message.len()).unwrap().to_be_bytes();
                        stream.send_data([&[0_u8][..], &length[..], &message[..]].concat().into(), false).unwrap();
                        (GoogleCode::Ok, "")
                    }
                    Err(failure) => failure,
                };
                let mut trailers = http::HeaderMap::new();
                trailers.insert("grpc-status", i32::from(code).into());
                trailers.insert("grpc-message", message.replace(' ', "%20").parse().unwrap());
                stream.send_trailers(trailers).unwrap();
            }));
        }
    }

    fn answer(&self, name: &str, sent: &[u8]) -> Result<Vec<u8>, (GoogleCode, &'static str)> {
        let mut calls = self.0.calls.lock();
        let number = calls.len();
        calls.push(name.to_owned());
        match name {
            "CreateSession" => Ok(SessionName { name: format!("sessions/{number}") }.encode_to_vec()),
            "ExecuteSql" => {
                let request = ExecuteSqlRequest::decode(sent).unwrap();
                if let Some(failure) = self.0.statements.lock().pop_front().flatten() {
                    return Err(failure);
                }
                let begins =
                    matches!(request.transaction.and_then(|selector| selector.selected), Some(Selected::Begin(_)));
                let id = Bytes::from(format!("transaction {number}"));
                let transaction = begins.then_some(BegunTransaction { id, snapshot: None });
                let metadata = Some(ResultSetMetadata { row_type: None, transaction });
                Ok(ResultSet { metadata, rows: Vec::new(), stats: None }.encode_to_vec())
            }
            "Commit" => {
                let request = CommitRequest::decode(sent).unwrap();
                if let Some(CommitTransaction::Id(id)) = request.transaction {
                    calls[number] = format!("Commit {}", String::from_utf8_lossy(&id));
                }
                self.0.commits.lock().pop_front().flatten().map_or(Ok(Vec::new()), Err)
            }
            _ => Ok(NoFields {}.encode_to_vec()),
        }
    }
}
