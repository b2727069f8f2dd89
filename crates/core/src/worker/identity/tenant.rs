use std::str::FromStr;
use std::sync::Arc;

use crate::broker::{DeadReason, Message};
use crate::error::{Error, Result};
use crate::worker::identity::invalid;
use crate::worker::identity::json::JsonPayload;
use crate::worker::identity::key_rule::one_header;

/// Where the tenant of a message is.
///
/// As text: `none`, `header:NAME` or `json:/pointer`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TenantRule {
    /// All messages share one scope.
    #[default]
    None,
    /// The value of this header.
    Header(Arc<str>),
    /// The text or number at this JSON pointer.
    Json(Arc<str>),
}

impl TenantRule {
    pub(super) fn find(&self, message: &Message, payload: &JsonPayload<'_>) -> Result<Option<Vec<u8>>, DeadReason> {
        let unknown = DeadReason::CallerUnknown;
        let found = match self {
            Self::None => return Ok(None),
            Self::Header(name) => one_header(message, &[name]).map_err(|_| unknown)?.map(<[u8]>::to_vec),
            Self::Json(pointer) => payload.text_at(pointer).map_err(|_| unknown)?,
        };
        found.filter(|tenant| !tenant.is_empty()).map(Some).ok_or(unknown)
    }
}

impl FromStr for TenantRule {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.split_once(':') {
            None if text == "none" => Ok(Self::None),
            Some(("header", name)) if !name.is_empty() => Ok(Self::Header(name.into())),
            Some(("json", pointer)) if pointer.starts_with('/') => Ok(Self::Json(pointer.into())),
            Some(_) | None => {
                Err(invalid(format!("`{text}` is no rule for tenants; use none, header:NAME or json:/pointer")))
            }
        }
    }
}
