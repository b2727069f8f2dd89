use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use async_trait::async_trait;
use hapax::runtime::Runtime;
use hapax::store::Finding;

use crate::store::OpenedStore;
use crate::table::UrlRole;

/// A place outside of the store that a URL names, for large answers. It is not open.
pub(crate) trait NamedAnswers: fmt::Debug + Send + Sync {
    /// As [`AnswersUrl::open`].
    fn open(&self, kept_for: Option<Duration>, runtime: Arc<dyn Runtime>) -> hapax::Result<Arc<dyn OpenedAnswers>>;
}

/// An open place for large answers.
#[async_trait]
pub trait OpenedAnswers: fmt::Debug + Send + Sync {
    /// The same store, whose answers above this many bytes are kept here.
    fn around(&self, store: OpenedStore, inline: usize, runtime: Arc<dyn Runtime>) -> OpenedStore;

    /// Whether answers can be written, read and removed, and how long they are kept.
    async fn check(&self) -> Vec<Finding>;
}

/// A parsed URL of a place for large answers.
#[derive(Clone, Debug)]
pub struct AnswersUrl(Arc<dyn NamedAnswers>);

const ROLE: UrlRole<dyn NamedAnswers> = UrlRole { name: "place for answers", offer: |offers| offers.answers.as_ref() };

impl AnswersUrl {
    /// The URLs of such places in this build, for help and errors.
    pub fn forms() -> String {
        ROLE.forms()
    }

    /// Opens the place. Connects to nothing yet. `kept_for` is how long it has to keep an answer, if that is known.
    ///
    /// # Errors
    /// If a file that the URL names cannot be used.
    pub fn open(&self, kept_for: Option<Duration>, runtime: Arc<dyn Runtime>) -> hapax::Result<Arc<dyn OpenedAnswers>> {
        self.0.open(kept_for, runtime)
    }
}

impl FromStr for AnswersUrl {
    type Err = anyhow::Error;

    fn from_str(url: &str) -> Result<Self> {
        ROLE.read(url).map(Self)
    }
}
