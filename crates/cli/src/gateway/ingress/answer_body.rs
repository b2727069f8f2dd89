//! The body of a response on its way to a client.
//!
//! All bytes that wait for clients share one memory (`--answer-memory`). They count until the connection has written
//! them, however long that takes: the bytes themselves give their room back when they are dropped.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hapax::gate::Provenance;
use hapax::http::headers::{HAPAX_RECORDED, HAPAX_UNRECORDED};
use hapax::http::{
    Problem, ProblemDetails, ProblemTemplate, ProtectedOutcome, RequestSummary, ResponseBody, ShowProblem,
};
use hapax::runtime::BoxFuture;
use hapax::{BoxError, RecordKey};
use http::Response;
use http::header::CONTENT_TYPE;
use hyper::body::{Body, Frame, SizeHint};

use crate::gateway::ingress::access_log::AccessLogEntry;
use crate::gateway::limits::shares::{AddressAccount, Resource, Taken};
use crate::gateway::limits::{ANSWER_PIECE, SMALL_BODY};
use crate::gateway::listen::stream_flow::StreamFlow;

/// The detail of the problem that replaces an answer to a request that was run.
const WITHHELD: &str = "The request was run and its answer is recorded, but too many answers wait to be read by \
                        clients. Send the same request again to get the answer.";

/// The body of a response to a client. When it is dropped, the request has ended and its log entry is written.
pub(crate) struct AnswerBody<R> {
    body: ResponseBody<R>,
    entry: AccessLogEntry,
    account: Arc<AddressAccount>,
    /// The room for the bytes that are in memory from the start.
    taken: Option<Taken>,
    /// On an HTTP/2 stream: whether the client has taken the last piece.
    flow: Option<StreamFlow>,
    /// Bytes that are not handed to the connection yet.
    unsent: Bytes,
    /// Set while the next frame waits for room.
    room: Option<BoxFuture<'static, ()>>,
}

/// Gives a response its log entry, and room for its bytes. If there is none, an answer that a copy of the request can
/// get is withheld with 503.
pub(crate) fn answer<R: Body<Data = Bytes>>(
    mut entry: AccessLogEntry,
    mut response: Response<ResponseBody<R>>,
    account: Arc<AddressAccount>,
) -> Response<AnswerBody<R>> {
    if let (Some(template), Some(problem)) = (&entry.rules().problem_template, response.extensions().get()) {
        let shown = template.show(problem, record_key_of(&response).as_ref());
        response = with_document_of(shown, response);
    }
    let (bytes, flow) = (response.body().bytes_in_memory(), StreamFlow::current());
    let mut taken = None;
    if bytes > 0 && (flow.is_some() || bytes > SMALL_BODY) {
        taken = account.take(Resource::Answers, bytes);
        if taken.is_none() {
            response = if is_replayable(&response) {
                withhold(response, entry.rules().problem_template.as_deref())
            } else {
                response
            };
            taken = Some(account.take_anyway(Resource::Answers, response.body().bytes_in_memory()));
        }
    }
    if let Some(ProtectedOutcome::Problem(Problem::Overloaded)) = outcome_of(&response) {
        account.warn_if_full(Resource::Attempts);
    }
    entry.set_response(&response);
    response.map(|body| {
        if body.is_end_stream() {
            entry.set_complete();
        }
        AnswerBody { body, entry, account, taken, flow, unsent: Bytes::new(), room: None }
    })
}

/// The outcome of a protected request.
fn outcome_of<B>(response: &Response<B>) -> Option<&ProtectedOutcome> {
    response.extensions().get::<RequestSummary>().map(|summary| &summary.outcome)
}

/// The record of a protected request.
fn record_key_of<B>(response: &Response<B>) -> Option<RecordKey> {
    response.extensions().get::<RequestSummary>().and_then(|summary| summary.record_key)
}

/// The response with the document of another one, and the media type of that document.
fn with_document_of<R>(shown: Response<Bytes>, response: Response<ResponseBody<R>>) -> Response<ResponseBody<R>> {
    let (shown, document) = shown.into_parts();
    let mut response = response.map(|_| ResponseBody::whole(document));
    if let Some(media_type) = shown.headers.get(CONTENT_TYPE) {
        response.headers_mut().insert(CONTENT_TYPE, media_type.clone());
    }
    response
}

/// Whether a copy of the request gets this answer.
///
/// The live answer is the only one if its record is not confirmed, or if it is too long to be recorded. Then only its
/// first bytes are in memory.
fn is_replayable<R: Body<Data = Bytes>>(response: &Response<ResponseBody<R>>) -> bool {
    let is_whole = || u64::try_from(response.body().bytes_in_memory()).ok() == response.body().size_hint().exact();
    let has_field = |name| response.headers().contains_key(name);
    match outcome_of(response) {
        Some(ProtectedOutcome::Answered(Provenance::Fresh)) => {
            is_whole() && !has_field(HAPAX_UNRECORDED) && !has_field(HAPAX_RECORDED)
        }
        Some(ProtectedOutcome::Answered(Provenance::Replayed | Provenance::Canonical)) => true,
        // Problems, which are short, and responses without a record.
        Some(ProtectedOutcome::NotApplied | ProtectedOutcome::Unknown | ProtectedOutcome::Problem(_)) | None => false,
    }
}

/// Replaces an answer by 503 `overloaded`.
fn withhold<R>(response: Response<ResponseBody<R>>, template: Option<&ProblemTemplate>) -> Response<ResponseBody<R>> {
    let Some(RequestSummary { record_key, outcome }) = response.extensions().get() else { return response };
    let problem = Problem::Overloaded;
    let was_run = matches!(outcome, ProtectedOutcome::Answered(Provenance::Fresh | Provenance::Canonical));
    let detail = if was_run { WITHHELD.into() } else { problem.detail() };
    let shown = match template {
        Some(template) => template.show_with_detail(&problem, &detail, record_key.as_ref()),
        None => ProblemDetails::default().show_with_detail(&problem, &detail, record_key.as_ref()),
    };
    let mut shown = shown.map(ResponseBody::whole);
    let summary = RequestSummary { record_key: *record_key, outcome: ProtectedOutcome::Problem(problem) };
    shown.extensions_mut().insert(summary);
    shown
}

impl<R: Body<Data = Bytes, Error: Into<BoxError>>> AnswerBody<R> {
    /// The next frame of the body. A frame that is not in memory yet waits for room before it is read.
    fn poll_source(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let is_read_now = self.body.bytes_in_memory() == 0 && !self.body.is_end_stream();
        if is_read_now && (self.room.is_some() || !self.account.has_room(Resource::Answers)) {
            let account = &self.account;
            let wait = || Box::pin(Arc::clone(account).wait_for_room(Resource::Answers)) as BoxFuture<'static, ()>;
            ready!(self.room.get_or_insert_with(wait).as_mut().poll(cx));
            self.room = None;
        }
        Pin::new(&mut self.body).poll_frame(cx).map_err(Into::into)
    }

    /// Lets the bytes count until they are dropped.
    fn count(&mut self, data: Bytes) -> Bytes {
        let taken = match self.taken.take() {
            Some(taken) => taken,
            None if self.flow.is_none() && data.len() <= SMALL_BODY => return data,
            None => self.account.take_anyway(Resource::Answers, data.len()),
        };
        Bytes::from_owner(CountedBytes { data, _taken: taken })
    }

    /// The bytes that the connection gets next.
    fn next_piece(&mut self) -> Frame<Bytes> {
        Frame::data(match &self.flow {
            None => std::mem::take(&mut self.unsent),
            Some(flow) => flow.hand_over(self.unsent.split_to(self.unsent.len().min(ANSWER_PIECE))),
        })
    }
}

impl<R: Body<Data = Bytes, Error: Into<BoxError>>> Body for AnswerBody<R> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        if let Some(flow) = &this.flow {
            // The end of the body waits as well: hyper must keep the stream until its last byte is taken.
            ready!(flow.poll_taken(cx));
        }
        if this.unsent.is_empty() {
            match ready!(this.poll_source(cx)).transpose()?.map(Frame::into_data) {
                Some(Ok(data)) => this.unsent = this.count(data),
                Some(Err(other)) => {
                    // Nothing follows the trailers.
                    this.entry.set_complete();
                    return Poll::Ready(other.into_trailers().ok().map(|trailers| Ok(Frame::trailers(trailers))));
                }
                None => {
                    this.entry.set_complete();
                    return Poll::Ready(None);
                }
            }
        }
        let piece = this.next_piece();
        if this.flow.is_none() && this.is_end_stream() {
            this.entry.set_complete();
        }
        Poll::Ready(Some(Ok(piece)))
    }

    fn is_end_stream(&self) -> bool {
        let is_taken = self.flow.as_ref().is_none_or(StreamFlow::is_taken);
        is_taken && self.unsent.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Bytes that give their room back when they are dropped.
struct CountedBytes {
    data: Bytes,
    _taken: Taken,
}

impl AsRef<[u8]> for CountedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use http::HeaderValue;
    use http_body_util::{BodyExt, Full};
    use serde_json::Value;

    #[test]
    fn the_problem_instead_of_an_answer_says_whether_the_request_was_run() {
        for (provenance, detail) in [
            (Provenance::Fresh, WITHHELD.into()),
            (Provenance::Canonical, WITHHELD.into()),
            (Provenance::Replayed, Problem::Overloaded.detail()),
        ] {
            let mut response = Response::new(ResponseBody::<Full<Bytes>>::whole("answer"));
            let outcome = ProtectedOutcome::Answered(provenance);
            response.extensions_mut().insert(RequestSummary { record_key: None, outcome });
            let withheld = withhold(response, None);
            assert_eq!(withheld.status(), 503);
            assert_eq!(outcome_of(&withheld), Some(&ProtectedOutcome::Problem(Problem::Overloaded)));
            let body = withheld.into_body().collect().now_or_never().unwrap().unwrap().to_bytes();
            assert_eq!(serde_json::from_slice::<Value>(&body).unwrap()["detail"], *detail);
        }
    }

    #[test]
    fn only_an_answer_that_a_copy_gets_is_withheld() {
        let whole = || ResponseBody::whole("answer");
        let fresh = ProtectedOutcome::Answered(Provenance::Fresh);
        let streamed = || ResponseBody::streaming(Full::from("answer"));
        for (outcome, field, body, is_withheld) in [
            (fresh.clone(), None, whole(), true),
            (fresh.clone(), Some((HAPAX_RECORDED, "pending")), whole(), false),
            (fresh.clone(), Some((HAPAX_UNRECORDED, "true")), whole(), false),
            (fresh, None, streamed(), false),
            (ProtectedOutcome::Answered(Provenance::Replayed), None, whole(), true),
            (ProtectedOutcome::Answered(Provenance::Canonical), None, whole(), true),
            (ProtectedOutcome::Unknown, None, whole(), false),
            (ProtectedOutcome::Problem(Problem::NotReplayable), None, whole(), false),
        ] {
            let case = format!("{outcome:?} {field:?} {body:?}");
            let mut response = Response::new(body);
            response.extensions_mut().insert(RequestSummary { record_key: None, outcome });
            response.headers_mut().extend(field.map(|(name, value)| (name, HeaderValue::from_static(value))));
            assert_eq!(is_replayable(&response), is_withheld, "{case}");
        }
    }
}
