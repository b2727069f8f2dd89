//! `hapax journal`: records the answers of a journal in the store that has replaced its own.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::anyhow;
use hapax::Journal;
use hapax::journal::{FileJournal, FileJournalSettings, Spilled, StorePlace};
use hapax::machine::Completed;
use hapax::runtime::{Runtime, Tokio};
use hapax::store::Protocol;
use hapax_systems::{OpenedStore, StoreUrl, is_file};

use crate::serve::exit::{CommandError, request};
use crate::store::checks::usable;
use crate::store::opening;

/// The arguments of `hapax journal`.
#[derive(Debug, clap::Args)]
pub(crate) struct JournalArgs {
    #[command(subcommand)]
    action: JournalCommand,
}

#[derive(Debug, clap::Subcommand)]
enum JournalCommand {
    /// Record the answers of another store in this one, which has replaced it
    ///
    /// A gateway or a worker leaves the answers of another store alone: a request of this store must not get the answer
    /// of a request that never ran here. Adopt them if this store has the records of that one, for instance because the
    /// store got another address. An answer that is recorded or has expired leaves the journal. The others stay.
    Adopt(AdoptArgs),
}

#[derive(Debug, clap::Args)]
struct AdoptArgs {
    /// The directory of the journal, --data-dir of the gateway or the worker
    #[arg(long, value_name = "DIRECTORY")]
    data_dir: PathBuf,

    /// The store of the answers, as the log names it; `unknown` for files whose store cannot be read
    #[arg(long, value_name = "URL", value_parser = place)]
    from: StorePlace,

    /// The store that gets the answers
    #[arg(long, value_name = "URL")]
    store: String,
}

fn place(text: &str) -> Result<StorePlace, String> {
    if text == StorePlace::unknown().to_string() {
        return Ok(StorePlace::unknown());
    }
    // The log names a file by its absolute path. A link may be there by now, and no file is opened.
    if is_file(text) && text.split_once("://").is_some_and(|(_, path)| path.starts_with('/')) {
        return Ok(StorePlace::new(text));
    }
    let url: StoreUrl = text.parse().map_err(|error: anyhow::Error| format!("{error:#}"))?;
    Ok(url.place())
}

pub(crate) async fn run(args: JournalArgs) -> Result<ExitCode, CommandError> {
    let JournalCommand::Adopt(args) = args.action;
    let url = opening::read_store(&args.store)?;
    let runtime = Arc::new(Tokio::current()) as Arc<dyn Runtime>;
    let missing = || CommandError::cannot_start(anyhow!("the store has no records; name the one of the gateway"));
    let store = opening::open_existing(&url, Arc::clone(&runtime)).await?.ok_or_else(missing)?;
    usable(store.inspect.check()).await.map_err(|failure| CommandError::cannot_start(failure.into_error()))?;
    if !args.data_dir.is_dir() {
        let message = anyhow!("{} is not a directory; name that of the journal", args.data_dir.display());
        return Err(CommandError::usage(message));
    }
    let settings = FileJournalSettings::default();
    let journal = FileJournal::with(&args.data_dir, &args.from, Arc::clone(&runtime), settings);
    let journal = journal.map_err(CommandError::cannot_start)?;
    let adopted = adopt(&journal, &store, &*runtime).await;
    journal.close().await;
    let adopted = adopted?;
    if adopted.total() == 0 {
        let (from, directory) = (&args.from, args.data_dir.display());
        return Err(CommandError::failed(anyhow!(
            "{directory} has no answers of {from}, or the process that wrote them still runs"
        )));
    }
    println!("{}", adopted.told());
    if adopted.kept > 0 {
        let message = "answers stay in the journal; if this is not the store that replaced theirs, name that one";
        return Err(CommandError::failed(anyhow!("{} {message}", adopted.kept)));
    }
    Ok(ExitCode::SUCCESS)
}

/// How many answers were recorded, and how many were not.
#[derive(Debug, Default)]
struct AdoptedAnswers {
    recorded: usize,
    /// The store has another attempt or answer for the key. They stay in the journal: this may be the wrong store.
    kept: usize,
    /// The answer is older than its retention.
    expired: usize,
}

impl AdoptedAnswers {
    fn total(&self) -> usize {
        self.recorded + self.kept + self.expired
    }

    fn told(&self) -> String {
        let Self { recorded, kept, expired } = self;
        let mut told = format!("recorded: {recorded}");
        if *kept > 0 {
            told += &format!("; kept, because the key has another attempt or answer: {kept}");
        }
        if *expired > 0 {
            told += &format!("; removed, because the answer has expired: {expired}");
        }
        told
    }
}

/// Records every answer of the journal. Stops if the store does not reply to one; it stays with the rest.
async fn adopt(
    journal: &FileJournal,
    store: &OpenedStore,
    runtime: &dyn Runtime,
) -> Result<AdoptedAnswers, CommandError> {
    let mut adopted = AdoptedAnswers::default();
    for (number, spilled) in request(journal.replay()).await? {
        match request(record(store, &spilled, runtime)).await? {
            Completed::Done | Completed::Already | Completed::Recreated => adopted.recorded += 1,
            Completed::Lost(_) => {
                adopted.kept += 1;
                continue;
            }
            Completed::Gone => adopted.expired += 1,
        }
        request(journal.done(number)).await?;
    }
    Ok(adopted)
}

async fn record(store: &OpenedStore, spilled: &Spilled, runtime: &dyn Runtime) -> hapax::Result<Completed> {
    let mut complete = spilled.complete.clone();
    complete.age = runtime.wall_now().since(complete.ended);
    Protocol::over(&*store.store).complete(&spilled.rk, &complete).await
}
