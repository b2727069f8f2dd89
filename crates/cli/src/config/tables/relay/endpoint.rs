//! `[relay.endpoints.NAME]`: where webhooks go.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{anyhow, bail};
use hapax_systems::{WebhookEndpoint, WebhookSecret};

use crate::config::reader::file::EndpointTable;
use crate::config::reader::parse;
use crate::config::reader::values::{Parse, quote};
use crate::files;

/// Reads all endpoints.
pub(super) fn endpoints(tables: &[EndpointTable]) -> Result<BTreeMap<String, WebhookEndpoint>, anyhow::Error> {
    tables.iter().map(|table| Ok((table.name.clone(), endpoint(table)?))).collect()
}

fn endpoint(table: &EndpointTable) -> Result<WebhookEndpoint, anyhow::Error> {
    let (name, line) = (&table.name, &table.line);
    let Some(url) = one(table, "url", |url| Ok(url.to_owned()))? else {
        bail!("{line}: the endpoint {name} has no url; add one, for instance url = \"https://shop.example/hooks\"");
    };
    let Some(secrets) = one(table, "secret-file", |path| secrets(path.as_ref()))? else {
        bail!("{line}: the endpoint {name} has no secret-file; webhooks are always signed");
    };
    let mut endpoint = WebhookEndpoint::new(url);
    endpoint.secrets = secrets;
    endpoint.headers = one(table, "header-file", |path| headers(path.as_ref()))?.unwrap_or_default();
    endpoint.forwarded = list(table, "forward-header", |name| parse::header(name).map(|name| name.to_string()))?;
    endpoint.time_limit = one(table, "timeout", parse::nonzero_duration)?.unwrap_or(endpoint.time_limit);
    endpoint.max_in_flight = one(table, "max-in-flight", parse::count)?.unwrap_or(endpoint.max_in_flight);
    endpoint.allow_http = one(table, "allow-http", parse::is_on)?.unwrap_or(endpoint.allow_http);
    endpoint.allowed_networks =
        list(table, "allow-network", |text| parse::network(text).map(|network| network.to_string()))?;
    endpoint.authorities = one(table, "ca", parse::path)?;
    Ok(endpoint)
}

/// Reads a file with one secret a line.
pub(super) fn secrets(path: &Path) -> Result<Vec<WebhookSecret>, anyhow::Error> {
    let secrets = String::from_utf8(files::read_secret(path)?).map(|text| WebhookSecret::from_lines(&text));
    let secrets = secrets.unwrap_or_default();
    if secrets.is_empty() {
        bail!("the file holds no secret; write one a line: whsec_ and base64, from `openssl rand -base64 32`");
    }
    Ok(secrets)
}

/// Reads a file with one header field a line. An error shows no value: it may be a password.
fn headers(path: &Path) -> Result<Vec<(String, String)>, anyhow::Error> {
    let text = String::from_utf8(files::read_secret(path)?).map_err(|_| anyhow!("the file is not UTF-8 text"))?;
    let lines = text.lines().zip(1..).filter(|(line, _)| !line.trim().is_empty());
    let headers = lines.map(|(line, number)| {
        let Some((name, value)) = line.split_once(':').filter(|(_, value)| !value.trim().is_empty()) else {
            bail!("line {number} is no header field; write `Name: value`");
        };
        let name = parse::header(name.trim()).map_err(|_| anyhow!("line {number} does not begin with a name"))?;
        Ok((name.to_string(), value.trim().to_owned()))
    });
    headers.collect()
}

fn one<T>(table: &EndpointTable, field: &str, parse: Parse<T>) -> Result<Option<T>, anyhow::Error> {
    Ok(list(table, field, parse)?.into_iter().next())
}

fn list<T>(table: &EndpointTable, field: &str, parse: Parse<T>) -> Result<Vec<T>, anyhow::Error> {
    let Some(given) = table.fields.get(field) else { return Ok(Vec::new()) };
    let wrong = |text: &str, error| anyhow!("{}: {field}: {}", given.origin, quote(text, &error));
    given.texts.iter().map(|text| parse(text).map_err(|error| wrong(text, error))).collect()
}
