use std::ops::Deref;

use tokio_postgres::Client;

/// The transaction of a runner, for its handler: every statement on this client runs in it. The runner sends BEGIN with
/// the claim, and COMMIT with the end of the claim. A handler sends neither. If the runner is dropped before, the
/// connection is closed, and the server rolls back.
#[derive(Debug)]
pub struct PostgresTransaction<'c> {
    client: &'c Client,
}

impl<'c> PostgresTransaction<'c> {
    pub(super) fn new(client: &'c Client) -> Self {
        Self { client }
    }
}

impl Deref for PostgresTransaction<'_> {
    type Target = Client;

    fn deref(&self) -> &Client {
        self.client
    }
}
