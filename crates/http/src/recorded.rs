//! A recorded response as an operator reads and writes it.

use bytes::Bytes;
use hapax_core::gate::Answer;
use hapax_core::{BoxError, Error, ErrorKind};
use http::{HeaderMap, StatusCode};

use crate::headers::is_storable;
use crate::stored::StoredResponse;

/// A response as the layer records it: for tools that resolve a record with an answer, or show the one that it has.
///
/// ```
/// use hapax::http::RecordedResponse;
/// use http::{HeaderMap, StatusCode};
///
/// let status = StatusCode::CREATED;
/// let charged = RecordedResponse { status, headers: HeaderMap::new(), body: "charged".into() };
/// let stored = charged.encode()?;
/// assert_eq!(RecordedResponse::decode(stored)?, Some(charged));
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedResponse {
    /// The status.
    pub status: StatusCode,
    /// The header fields that are replayed.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
}

impl RecordedResponse {
    /// The stored form, the same bytes in every store.
    ///
    /// # Errors
    /// `Invalid` if a field is never stored, or is too long for the stored form.
    pub fn encode(&self) -> Result<Bytes, Error> {
        let invalid = |why: &str| Error::new(ErrorKind::Invalid, why.to_owned());
        if let Some(name) = self.headers.keys().find(|name| !is_storable(name)) {
            return Err(invalid(&format!("{name} is never part of a recorded response")));
        }
        let Self { status, headers, body } = self.clone();
        let stored = StoredResponse::Replayable { status, headers, body }.encode();
        match Self::decode(stored.clone()) {
            // The stored form leaves out what does not fit into it.
            Ok(Some(read)) if read == *self => Ok(stored),
            Ok(_) | Err(_) => Err(invalid("a header field is too long, or there are more than 255")),
        }
    }

    /// Reads the stored form. None if the response was too large to be stored.
    ///
    /// # Errors
    /// If the bytes are not those of a recorded response.
    pub fn decode(stored: Bytes) -> Result<Option<Self>, BoxError> {
        Ok(match StoredResponse::decode(stored)? {
            StoredResponse::Replayable { status, headers, body } => Some(Self { status, headers, body }),
            StoredResponse::NotReplayable => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use http::header::{CONTENT_TYPE, SET_COOKIE};
    use http::{HeaderName, HeaderValue};

    use super::*;

    fn response(name: HeaderName, value: String) -> RecordedResponse {
        let headers = [(name, HeaderValue::try_from(value).unwrap())].into_iter().collect();
        RecordedResponse { status: StatusCode::CREATED, headers, body: Bytes::from_static(b"{}") }
    }

    #[test]
    fn a_response_that_cannot_be_replayed_as_it_is_is_refused() {
        let fits = response(CONTENT_TYPE, "application/json".into());
        assert_eq!(RecordedResponse::decode(fits.encode().unwrap()).unwrap(), Some(fits));
        for wrong in [response(SET_COOKIE, "s=1".into()), response(CONTENT_TYPE, "x".repeat(70_000))] {
            assert_eq!(wrong.encode().unwrap_err().kind(), ErrorKind::Invalid);
        }
        assert_eq!(RecordedResponse::decode(StoredResponse::NotReplayable.encode()).unwrap(), None);
    }
}
