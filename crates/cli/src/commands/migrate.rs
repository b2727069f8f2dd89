//! `hapax migrate`: creates the tables of Hapax in a database, or brings them to the newest version; and the table of a
//! store that needs one.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use hapax::runtime::Tokio;
use hapax_systems::{StoreTable, StoreUrl, Tables};

use crate::serve::exit::CommandError;

/// The arguments of `hapax migrate`.
#[derive(Debug, clap::Args)]
pub(crate) struct MigrateArgs {
    #[arg(long, value_name = "URL", env = "HAPAX_DATABASE", hide_env_values = true)]
    #[arg(help = database_help(), long_help = format!("{}\n\n{DATABASE_DETAILS}", database_help()))]
    database: Option<String>,

    #[arg(long, value_name = "URL", hide = StoreUrl::table_forms().is_empty())]
    #[arg(help = store_help(), long_help = format!("{}\n\n{STORE_DETAILS}", store_help()))]
    store: Option<String>,

    /// Print the SQL, or the shell commands, that create the missing tables, and change nothing
    #[arg(long, conflicts_with = "check")]
    print: bool,

    /// Change nothing, and exit with 1 if something is missing or wrong, such as a sequence behind its table after a
    /// restore
    #[arg(long)]
    check: bool,
}

const DATABASE_DETAILS: &str = "\
A missing SQLite file and a missing schema are created. The role needs the right to create tables; the services that \
use them do not. An SQLite file gets a write-ahead log (`journal_mode=wal`), and keeps it: the records of Hapax need \
one.";

const STORE_DETAILS: &str = "\
The table gets capacity on demand, and a TTL. A table that exists keeps its capacity. The credentials need the rights \
to describe and create the table and to change its TTL; the services that use it do not.";

fn store_help() -> String {
    format!("Instead of a database, a store that needs a table: {}", StoreUrl::table_forms())
}

fn database_help() -> String {
    format!("The database: {}", StoreUrl::database_forms())
}

pub(crate) async fn run(args: MigrateArgs) -> Result<ExitCode, CommandError> {
    if let Some(store) = &args.store {
        return run_store(store, &args).await;
    }
    let database = args.database.as_deref().ok_or_else(|| CommandError::usage(anyhow!("name the --database")))?;
    let tables = database.parse().and_then(|url: StoreUrl| url.tables());
    let context = || format!("--database takes {}", StoreUrl::database_forms());
    let tables = tables.with_context(context).map_err(CommandError::usage)?;
    if args.print {
        print!("{}", tables.script().await.map_err(CommandError::cannot_start)?);
        return Ok(ExitCode::SUCCESS);
    }
    if args.check {
        return check(&*tables).await;
    }
    let applied = tables.create().await.map_err(CommandError::cannot_start)?;
    if applied.is_empty() {
        println!("nothing to do: the tables are there, in the newest version");
    } else {
        println!("applied: {}", versions(&applied));
    }
    Ok(ExitCode::SUCCESS)
}

async fn run_store(store: &str, args: &MigrateArgs) -> Result<ExitCode, CommandError> {
    let table = store.parse().and_then(|url: StoreUrl| url.table(Arc::new(Tokio::current())));
    let context = || format!("--store takes {}", StoreUrl::table_forms());
    let table = table.with_context(context).map_err(CommandError::usage)?;
    if args.print {
        print!("{}", table.commands().await.map_err(CommandError::cannot_start)?);
        return Ok(ExitCode::SUCCESS);
    }
    if args.check {
        return check_store(&*table).await;
    }
    let is_changed = table.create().await.map_err(CommandError::cannot_start)?;
    println!("{}", if is_changed { "the table is there now" } else { "nothing to do: the table is there" });
    Ok(ExitCode::SUCCESS)
}

async fn check_store(table: &dyn StoreTable) -> Result<ExitCode, CommandError> {
    if !table.exists().await.map_err(CommandError::cannot_start)? {
        println!("the table is missing; run `hapax migrate` without --check");
        return Ok(ExitCode::from(1));
    }
    let findings = table.check().await.map_err(CommandError::cannot_start)?;
    println!("the table is there");
    findings.iter().for_each(|finding| println!("{}", finding.message));
    Ok(if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

async fn check(tables: &dyn Tables) -> Result<ExitCode, CommandError> {
    let missing = tables.missing().await.map_err(CommandError::cannot_start)?;
    if !missing.is_empty() {
        println!("missing: {}; run `hapax migrate` without --check", versions(&missing));
        return Ok(ExitCode::from(1));
    }
    let findings = tables.check().await.map_err(CommandError::cannot_start)?;
    println!("the tables are there, in the newest version");
    findings.iter().for_each(|finding| println!("{}", finding.message));
    Ok(if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn versions(versions: &[i32]) -> String {
    let numbers: Vec<String> = versions.iter().map(ToString::to_string).collect();
    let word = if numbers.len() == 1 { "version" } else { "versions" };
    format!("{word} {}", numbers.join(", "))
}
