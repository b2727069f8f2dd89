//! `hapax migrate`: creates the tables of Hapax in a database, or brings them to the newest version.

use std::process::ExitCode;

use anyhow::Context;
use hapax_systems::{StoreUrl, Tables};

use crate::serve::exit::CommandError;

/// The arguments of `hapax migrate`.
#[derive(Debug, clap::Args)]
pub(crate) struct MigrateArgs {
    #[arg(long, value_name = "URL", env = "HAPAX_DATABASE", hide_env_values = true)]
    #[arg(help = database_help(), long_help = format!("{}\n\n{DATABASE_DETAILS}", database_help()))]
    database: String,

    /// Print the SQL that is missing, and change nothing
    #[arg(long, conflicts_with = "check")]
    print: bool,

    /// Change nothing, and exit with 1 if something is missing, or a sequence is behind its table after a restore
    #[arg(long)]
    check: bool,
}

const DATABASE_DETAILS: &str = "\
A missing SQLite file and a missing schema are created. The role needs the right to create tables; the services that \
use them do not. An SQLite file gets a write-ahead log (`journal_mode=wal`), and keeps it: the records of Hapax need \
one.";

fn database_help() -> String {
    format!("The database: {}", StoreUrl::database_forms())
}

pub(crate) async fn run(args: MigrateArgs) -> Result<ExitCode, CommandError> {
    let tables = args.database.parse().and_then(|url: StoreUrl| url.tables());
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
