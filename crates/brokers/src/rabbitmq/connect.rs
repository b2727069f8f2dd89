//! From the URL to a connection and its channels.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::runtime::{Runtime, timeout};
use hapax_core::{Error, Result};
use hapax_net::tls::{ServerTrust, client_config};
use hapax_net::url::{Host, ServerUrl};
use lapin::options::{ExchangeDeclareOptions, QueueDeclareOptions};
use lapin::tcp::AsyncTcpStream;
use lapin::types::{FieldTable, ShortString};
use lapin::uri::{AMQPAuthority, AMQPQueryString, AMQPScheme, AMQPUri, AMQPUserInfo};
use lapin::{Channel, Connection, ConnectionProperties, ErrorKind};
use tokio_rustls::TlsConnector;

use super::stream::{self, OwnStreams};
use super::url::{heartbeat, virtual_host};
use crate::errors::{not_applied, unusable};

/// How long a broker may take for a question, or for a connection.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// Connects to the hosts of a URL in turn, and begins with the one of this number.
///
/// # Errors
/// - `NotApplied`: no host can be reached, or takes a further connection.
/// - `Unusable`: a broker refuses the credentials or the virtual host, or a file in the URL cannot be read.
pub(super) async fn connect(url: &ServerUrl, first: usize, runtime: &dyn Runtime) -> Result<Connection> {
    let tls = match url.scheme() == "amqps" {
        true => Some(TlsConnector::from(Arc::new(client_config(ServerTrust::Named, &url.tls_files())?))),
        false => None,
    };
    let mut failure = None;
    for step in 0..url.hosts().len() {
        let host = &url.hosts()[(first + step) % url.hosts().len()];
        let connected = timeout(runtime, PATIENCE, connect_to(url, host, tls.clone())).await;
        match connected.unwrap_or_else(|| Err(not_applied(format!("the broker at {host} does not reply")))) {
            Ok(connection) => return Ok(connection),
            // The other nodes of a cluster refuse it, too.
            Err(error) if error.kind() == hapax_core::ErrorKind::Unusable => return Err(error),
            Err(error) => failure = Some(error),
        }
    }
    Err(failure.unwrap_or_else(|| not_applied("the URL has no host")))
}

async fn connect_to(url: &ServerUrl, host: &Host, tls: Option<TlsConnector>) -> Result<Connection> {
    let uri = uri(url, host)?;
    let properties = ConnectionProperties::default()
        .with_connection_name("hapax".into())
        .configure_backoff(|backoff| backoff.with_max_times(0));
    let to = host.clone();
    let open = async move |_: AMQPUri, _: async_rs::Runtime<OwnStreams>| {
        Ok(AsyncTcpStream::Plain(stream::connect(&to, tls.as_ref()).await?))
    };
    let runtime = async_rs::Runtime::new(OwnStreams::current());
    let connected = Connection::connector(uri, runtime, open, properties).await;
    connected.map_err(|error| refused_connection(error, host, virtual_host(url)))
}

fn uri(url: &ServerUrl, host: &Host) -> Result<AMQPUri> {
    let login = url.credentials()?;
    let userinfo = AMQPUserInfo {
        username: login.user.unwrap_or_else(|| "guest".to_owned()),
        password: login.password.unwrap_or_else(|| "guest".to_owned()),
    };
    let heartbeat = Some(heartbeat(url)?);
    Ok(AMQPUri {
        scheme: AMQPScheme::AMQP,
        authority: AMQPAuthority { userinfo, host: host.name.clone(), port: host.port },
        vhost: virtual_host(url).to_owned(),
        query: AMQPQueryString { heartbeat, ..AMQPQueryString::default() },
    })
}

fn refused_connection(error: lapin::Error, host: &Host, virtual_host: &str) -> Error {
    // 530 is also said if a limit of connections is reached, or the virtual host is down.
    let is_refused = said(&error).is_some_and(refuses_virtual_host);
    match code(&error) {
        Some(403) => unusable(format!("the broker at {host} refuses the user or the password")).caused_by(error),
        Some(530) if is_refused => {
            unusable(format!("the broker at {host} refuses the virtual host `{virtual_host}`")).caused_by(error)
        }
        _ => not_applied(format!("cannot connect to the broker at {host}")).caused_by(error),
    }
}

fn refuses_virtual_host(said: &str) -> bool {
    let is_for_a_while = said.contains("limit (") || said.contains("is reached") || said.ends_with("is down");
    said.ends_with(" not found") || (said.contains("' refused for user '") && !is_for_a_while)
}

/// The code of an error that the broker sent.
pub(super) fn code(error: &lapin::Error) -> Option<u16> {
    if let ErrorKind::ProtocolError(error) = error.kind() { Some(error.get_id()) } else { None }
}

/// The text of an error that the broker sent.
fn said(error: &lapin::Error) -> Option<&str> {
    if let ErrorKind::ProtocolError(error) = error.kind() { Some(error.get_message().as_str()) } else { None }
}

/// A queue, and how many of its messages are ready. Asks on a channel of its own: the broker closes the channel of a
/// question about a queue that is missing.
///
/// # Errors
/// `Unusable` if it is missing, exclusive to another connection or may not be read; `NotApplied` without an answer, and
/// if its node is away.
pub(super) async fn count_ready(connection: &Connection, queue: &str, runtime: &dyn Runtime) -> Result<u32> {
    ask(connection, queue, runtime).await?.map_err(|error| refused_queue(error, queue))
}

/// As [`count_ready`], for a queue that was there before: it may come back.
///
/// # Errors
/// As [`count_ready`], but `NotApplied` if the queue is missing.
pub(super) async fn find_again(connection: &Connection, queue: &str, runtime: &dyn Runtime) -> Result<u32> {
    ask(connection, queue, runtime).await?.map_err(|error| match code(&error) {
        Some(404) => not_applied(format!("the broker has no queue `{queue}` now")).caused_by(error),
        _ => refused_queue(error, queue),
    })
}

async fn ask(connection: &Connection, queue: &str, runtime: &dyn Runtime) -> Result<lapin::Result<u32>> {
    let asked = async {
        let channel = connection.create_channel().await?;
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let queue = channel.queue_declare(ShortString::from(queue), options, FieldTable::default()).await?;
        close(&channel).await;
        Ok(queue.message_count())
    };
    answered(asked, runtime).await
}

fn refused_queue(error: lapin::Error, queue: &str) -> Error {
    // 404 is also said about a queue whose node is away.
    let is_missing = said(&error).is_some_and(|said| said.starts_with("NOT_FOUND - no queue '"));
    match code(&error) {
        Some(404) if is_missing => unusable(format!("the broker has no queue `{queue}`: declare it")).caused_by(error),
        Some(403) => unusable(format!("the broker does not let this user read the queue `{queue}`")).caused_by(error),
        Some(405) => unusable(format!("the queue `{queue}` belongs to another connection alone")).caused_by(error),
        _ => not_applied(format!("the broker does not tell about the queue `{queue}`")).caused_by(error),
    }
}

/// Asks for an exchange on a channel of its own.
///
/// # Errors
/// `Unusable` if it is missing, `NotApplied` without an answer.
pub(super) async fn check_exchange(connection: &Connection, exchange: &str, runtime: &dyn Runtime) -> Result<()> {
    let asked = async {
        let channel = connection.create_channel().await?;
        let options = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
        let (name, kind) = (ShortString::from(exchange), lapin::ExchangeKind::Topic);
        channel.exchange_declare(name, kind, options, FieldTable::default()).await?;
        close(&channel).await;
        Ok(())
    };
    answered(asked, runtime).await?.map_err(|error: lapin::Error| match code(&error) {
        Some(404) => unusable(format!("the broker has no exchange `{exchange}`: declare it")).caused_by(error),
        _ => not_applied(format!("the broker does not tell about the exchange `{exchange}`")).caused_by(error),
    })
}

async fn answered<T>(asked: impl Future<Output = T> + Send, runtime: &dyn Runtime) -> Result<T> {
    let answered = timeout(runtime, PATIENCE, asked).await;
    answered.ok_or_else(|| not_applied("the broker does not reply in time"))
}

/// An error means that it has ended before.
pub(super) async fn close(channel: &Channel) {
    let _ = channel.close(200, "done".into()).await;
}

#[cfg(test)]
mod tests {
    use lapin::protocol::{AMQPError, AMQPErrorKind, AMQPHardError, AMQPSoftError};

    use super::*;

    #[test]
    fn a_virtual_host_that_takes_no_connection_now_is_tried_again() {
        let kind = |said: &str| {
            let error = AMQPError::new(AMQPErrorKind::Hard(AMQPHardError::NOTALLOWED), said.into());
            let host = Host { name: "a".into(), port: 5672 };
            refused_connection(ErrorKind::ProtocolError(error).into(), &host, "shop").kind()
        };
        for said in ["NOT_ALLOWED - vhost shop not found", "NOT_ALLOWED - access to vhost 'shop' refused for user 'me'"]
        {
            assert_eq!(kind(said), hapax_core::ErrorKind::Unusable, "{said}");
        }
        for said in [
            "NOT_ALLOWED - access to vhost 'shop' refused for user 'me': connection limit (10) is reached",
            "NOT_ALLOWED - access to vhost 'shop' refused for user 'me': vhost 'shop' is down",
            "NOT_ALLOWED - connection refused for user 'me': user connection limit (10) is reached",
        ] {
            assert_eq!(kind(said), hapax_core::ErrorKind::NotApplied, "{said}");
        }
    }

    #[test]
    fn only_a_queue_that_is_not_declared_is_unusable() {
        let kind = |said: &str| {
            let error = AMQPError::new(AMQPErrorKind::Soft(AMQPSoftError::NOTFOUND), said.into());
            refused_queue(ErrorKind::ProtocolError(error).into(), "q").kind()
        };
        assert_eq!(kind("NOT_FOUND - no queue 'q' in vhost '/'"), hapax_core::ErrorKind::Unusable);
        let away = "NOT_FOUND - home node 'rabbit@a' of durable queue 'q' in vhost '/' is down or inaccessible";
        assert_eq!(kind(away), hapax_core::ErrorKind::NotApplied);
    }
}
