use std::sync::Arc;

use hapax_core::Result;
use hapax_core::runtime::Runtime;

use super::queue::SqsApi;
use super::url::SqsUrl;

impl SqsUrl {
    /// Creates the queue. Does nothing if there is one like it. It needs the right `sqs:CreateQueue`.
    ///
    /// # Errors
    /// - `NotApplied`: the service cannot be reached now, or refuses it.
    /// - `Unusable`: there are no credentials, or they have no right to do this.
    ///
    /// # Cancel safety
    /// If dropped, the queue may have been created.
    pub async fn create_queue(&self, runtime: Arc<dyn Runtime>) -> Result<()> {
        let api = SqsApi::new(&self.place, &runtime).await?;
        api.create(self.queue()).await.map_err(|failure| failure.asked(self.queue()))
    }

    /// Deletes the queue with its messages. It needs the right `sqs:DeleteQueue`.
    ///
    /// # Errors
    /// As [`create_queue`](Self::create_queue), and `Unusable` if there is no such queue.
    ///
    /// # Cancel safety
    /// If dropped, the queue may have been deleted.
    pub async fn delete_queue(&self, runtime: Arc<dyn Runtime>) -> Result<()> {
        let api = SqsApi::new(&self.place, &runtime).await?;
        let removed = async { api.queue(self.queue()).await?.remove().await };
        removed.await.map_err(|failure| failure.asked(self.queue()))
    }
}
