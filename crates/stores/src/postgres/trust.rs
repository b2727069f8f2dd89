//! Who else could change what the statements of Hapax do.
//!
//! A trigger, a rule or a policy of a table runs with the rights of the role that writes or reads the table, and the
//! owner of a table can add one at any time. A role that may create in a schema of the search path can add a function
//! or an operator that fits a statement better than that of the system. Statements of Hapax leave no room for that
//! (statements.rs); others that the same role runs may.

use hapax_core::store::{Finding, Severity};
use hapax_core::{Error, ErrorKind};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};

use super::call_error::PostgresCallError;
use super::pool::Parameter;
use super::schema::Schema;

/// The tables and sequences of Hapax.
const TABLES: [&str; 14] = [
    "hapax_migration",
    "hapax_store",
    "hapax_record",
    "hapax_never",
    "hapax_ledger",
    "hapax_guard",
    "hapax_open",
    "hapax_attempt",
    "hapax_outbox",
    "hapax_outbox_id",
    "hapax_parked",
    "hapax_relay",
    "hapax_dead",
    "hapax_dead_number",
];

/// Fails if somebody else could change what statements on these tables do. Do it before anything is read from them.
///
/// # Errors
/// `Unusable` with the reason. Otherwise as for every statement.
pub(super) async fn verify(client: &Client, schema: &Schema) -> Result<(), PostgresCallError> {
    let refusal = findings(client, schema).await?.into_iter().find(|finding| finding.severity == Severity::Refuse);
    match refusal {
        None => Ok(()),
        Some(Finding { message, .. }) => Err(PostgresCallError::Judged(Error::new(ErrorKind::Unusable, message))),
    }
}

/// What others could do. Tables that do not exist are no finding.
///
/// # Errors
/// As for every statement.
pub(super) async fn findings(client: &Client, schema: &Schema) -> Result<Vec<Finding>, PostgresCallError> {
    let parameters: [Parameter<'_>; 2] = [(&schema.name(), Type::TEXT), (&&TABLES[..], Type::TEXT_ARRAY)];
    let rows = client.query_typed(include_str!("trust.sql"), &parameters).await.map_err(PostgresCallError::Sent)?;
    rows.iter().map(|row| finding(row).map_err(PostgresCallError::Sent)).collect()
}

fn finding(row: &Row) -> Result<Finding, tokio_postgres::Error> {
    let (kind, object, name): (&str, &str, &str) = (row.try_get("kind")?, row.try_get("object")?, row.try_get("name")?);
    let place: Option<i64> = row.try_get("place")?;
    Ok(describe(kind, object, name, place))
}

fn describe(kind: &str, object: &str, name: &str, place: Option<i64>) -> Finding {
    let comes_first = place.is_some_and(|place| place < 0);
    let is_warning = kind == "schema owner" || kind == "schema" && !comes_first;
    let severity = if is_warning { Severity::Warn } else { Severity::Refuse };
    let message = match kind {
        "schema" if comes_first => format!(
            "the search path of the role has the schema {name} before pg_catalog, and other roles may create \
             functions and operators there, which would be taken for those of the system; leave pg_catalog out of \
             search_path, so that it comes first, or revoke create on the schema {name} from the others"
        ),
        "schema" => format!(
            "other roles may create objects in the schema {name}, which has the tables of Hapax or is in the search \
             path; Hapax calls none of them, but other statements of this role might; run `revoke create on schema \
             {name} from public`, and from each role that need not create there"
        ),
        "owner" => format!(
            "{object} is owned by the role {name}, which is neither this role nor the owner of its schema or of the \
             database, and could read and change everything there; let the owner of the schema own it, or use \
             another schema"
        ),
        "schema owner" => format!(
            "the schema {object} is owned by the role {name}, which is neither this role nor the owner of the \
             database; it can replace the tables of Hapax and add triggers to them, which run with the rights of this \
             role; let the owner of the database own the schema and its tables"
        ),
        "kind" => format!(
            "{object} is {name}, and not what Hapax has under this name; drop or rename it, or use another schema"
        ),
        "row security" => format!(
            "{object} has row-level security, which hides rows; run `alter table {object} disable row level security`"
        ),
        kind => {
            format!(
                "{object} has the {kind} {name}, which is not of Hapax, or was changed, and changes what its \
                 statements do; drop it, or create it as Hapax does"
            )
        }
    };
    Finding { severity, message }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::migrations::MIGRATIONS;

    #[test]
    fn every_table_and_sequence_of_the_migrations_is_known() {
        let lines = MIGRATIONS.iter().flat_map(|migration| migration.sql.lines());
        let created = lines.filter_map(|line| {
            let mut words = line.split([' ', ';']).filter(|word| *word != "unlogged");
            let is_creation = words.next() == Some("create") && matches!(words.next(), Some("table" | "sequence"));
            words.next().filter(|_| is_creation)
        });
        let mut created: Vec<&str> = created.chain(["hapax_migration"]).collect();
        let mut known = TABLES.to_vec();
        created.sort_unstable();
        known.sort_unstable();
        assert_eq!(created, known);
    }

    #[test]
    fn a_schema_before_that_of_the_system_is_refused_and_another_is_reported() {
        assert_eq!(describe("schema", "public", "public", Some(-1)).severity, Severity::Refuse);
        assert_eq!(describe("schema", "public", "public", Some(1)).severity, Severity::Warn);
        assert_eq!(describe("schema", "public", "public", None).severity, Severity::Warn);
    }
}
