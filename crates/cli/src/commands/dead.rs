//! `hapax dead`: lists the messages that nobody could process, shows one, marks them to be processed again, and drops
//! them.

mod print;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use hapax::broker::{
    DeadCursor, DeadLetterId, DeadLetterStore, DeadReason, LetterChange, LetterWord, ListedLetter, ListedReason,
    SeenLetter,
};
use hapax::runtime::{Runtime, Tokio};

use super::print::line;
use crate::admin::api::dead::refuses_word;
use crate::serve::exit::{CommandError, request};
use crate::store::wiring::StoreUrl;
use crate::store::wiring::dead::{SCHEMES, is_at_broker, open};

/// The arguments of `hapax dead`.
#[derive(Debug, clap::Args)]
pub(crate) struct DeadArgs {
    #[command(subcommand)]
    action: DeadAction,
}

#[derive(Debug, clap::Subcommand)]
enum DeadAction {
    /// List dead letters, the oldest first, without their payloads
    List(ListArgs),
    /// Show one dead letter, with its headers
    Show(ShowArgs),
    /// Mark dead letters to be processed again, by a worker of their source
    ///
    /// Where the tables of the ledger are in the same database, the operation is no longer closed, and its attempts
    /// count from 0 again. A worker with a target opens the record of the message. A letter whose message fails again
    /// is written again, without the mark.
    Redrive(RedriveArgs),
    /// Remove dead letters for good, with the messages in them
    ///
    /// Nothing redrives them any more. A letter whose message a worker processes is not dropped. A copy that
    /// is sent again is a message like any other.
    Drop(Chosen),
}

/// Where the dead letters are.
#[derive(Debug, clap::Args)]
struct Place {
    /// The store that has the dead letters: sqlite://PATH, postgres://HOST/DATABASE or redis://HOST
    #[arg(long, value_name = "URL", env = "HAPAX_STORE", hide_env_values = true)]
    store: Option<String>,

    /// The database that has the dead letters: postgres://HOST/DATABASE?schema=NAME, or sqlite://PATH
    #[arg(long, value_name = "URL", env = "HAPAX_DATABASE", hide_env_values = true)]
    database: Option<String>,

    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct Filter {
    /// Only letters with this reason, for instance attempts-exhausted
    #[arg(long, value_name = "REASON", value_parser = reason)]
    reason: Option<DeadReason>,

    /// Only letters of this source, as the list prints it
    #[arg(long, value_name = "SOURCE")]
    source: Option<String>,

    /// Only letters that were written longer ago than this, for instance 90days
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    older_than: Option<Duration>,
}

#[derive(Debug, clap::Args)]
struct ListArgs {
    #[command(flatten)]
    place: Place,

    #[command(flatten)]
    filter: Filter,

    /// Print at most so many letters
    #[arg(long, value_name = "N")]
    limit: Option<usize>,

    /// Continue behind the letter with this cursor, which a list with --limit or --json prints
    #[arg(long, value_name = "CURSOR")]
    after: Option<String>,
}

#[derive(Debug, clap::Args)]
struct ShowArgs {
    /// The id of the letter
    id: DeadLetterId,

    /// Print the payload, too
    #[arg(long)]
    payload: bool,

    #[command(flatten)]
    place: Place,
}

/// Which letters a write is about.
#[derive(Debug, clap::Args)]
struct Chosen {
    /// The id of the letter
    #[arg(required_unless_present = "all", conflicts_with = "all", requires = "seen")]
    id: Option<DeadLetterId>,

    /// What you saw of the letter: `seen`, as `hapax dead show` prints it
    ///
    /// If the letter has changed since, your decision is about an earlier attempt, and nothing is written.
    #[arg(long, value_name = "SEEN", requires = "id", conflicts_with = "all")]
    seen: Option<SeenLetter>,

    /// All letters that --reason, --source and --older-than allow
    #[arg(long)]
    all: bool,

    #[command(flatten)]
    filter: Filter,

    #[command(flatten)]
    place: Place,
}

#[derive(Debug, clap::Args)]
struct RedriveArgs {
    #[command(flatten)]
    chosen: Chosen,

    /// Your word that no attempt of a message with an unknown outcome has had an effect, or will have one
    ///
    /// Without a word, a worker with a target makes such a message a dead letter again. Look at the effect first, and
    /// make sure that no attempt still runs. A ledger does not need it: it knows whether the effect is there.
    #[arg(long, conflicts_with = "done")]
    not_done: bool,

    /// Your word that the message was processed
    ///
    /// A worker with a target records that where no record says so, removes the letter, and does not run the message.
    #[arg(long)]
    done: bool,
}

impl RedriveArgs {
    fn word(&self) -> Option<LetterWord> {
        let done = self.done.then_some(LetterWord::Done);
        done.or(self.not_done.then_some(LetterWord::NotDone))
    }
}

/// How many letters one request returns.
const PAGE: usize = 200;

fn reason(name: &str) -> Result<DeadReason, String> {
    let names = || DeadReason::ALL.map(DeadReason::as_str).join(", ");
    DeadReason::from_name(name).ok_or_else(|| format!("the reasons are {}", names()))
}

pub(crate) async fn run(args: DeadArgs) -> Result<ExitCode, CommandError> {
    match args.action {
        DeadAction::List(args) => list(&args).await,
        DeadAction::Show(args) => show(&args).await,
        DeadAction::Redrive(args) => redrive(args).await,
        DeadAction::Drop(args) => drop_letters(args).await,
    }
}

impl Place {
    fn open(&self) -> Result<Arc<dyn DeadLetterStore>, CommandError> {
        let (flag, url) = match (&self.store, &self.database) {
            (Some(url), None) => ("--store", url),
            (None, Some(url)) => ("--database", url),
            (None, None) => {
                return Err(CommandError::usage(anyhow!("name the place by --store URL or --database URL")));
            }
            (Some(_), Some(_)) => {
                let message = "both --store and --database are set (by HAPAX_STORE or HAPAX_DATABASE, too); name one";
                return Err(CommandError::usage(anyhow!(message)));
            }
        };
        if is_at_broker(url) {
            let message = "a broker has dead letters for its consumers: read them there with the broker's own tools, \
                           and send a message again to repeat it";
            return Err(CommandError::usage(anyhow!("{flag} takes {SCHEMES}: {message}")));
        }
        let wrong = |error: anyhow::Error| CommandError::usage(error.context(format!("{flag} takes {SCHEMES}")));
        let url: StoreUrl = url.parse().map_err(wrong)?;
        open(&url, Arc::new(Tokio::current()))
    }
}

impl Filter {
    fn allows(&self, letter: &ListedLetter) -> bool {
        self.reason.is_none_or(|reason| letter.reason == ListedReason::Known(reason))
            && self.source.as_ref().is_none_or(|source| *source == letter.source)
            && self.older_than.is_none_or(|age| Tokio::current().wall_now().since(letter.at) > age)
    }
}

async fn list(args: &ListArgs) -> Result<ExitCode, CommandError> {
    let letters = args.place.open()?;
    let mut cursor = args.after.clone().map(DeadCursor::new);
    let mut left = args.limit.unwrap_or(usize::MAX);
    while left > 0 {
        let page = request(letters.list(cursor.as_ref(), PAGE)).await?;
        if page.is_empty() {
            return Ok(ExitCode::SUCCESS);
        }
        cursor = page.last().map(|last| last.cursor.clone());
        for letter in page.iter().filter(|letter| args.filter.allows(letter)).take(left) {
            left -= 1;
            cursor = if left == 0 { Some(letter.cursor.clone()) } else { cursor };
            if !line(&print::listed(letter, args.place.json))? {
                return Ok(ExitCode::SUCCESS);
            }
        }
    }
    if let Some(cursor) = cursor.filter(|_| !args.place.json) {
        eprintln!("there may be more: --after {cursor}");
    }
    Ok(ExitCode::SUCCESS)
}

async fn show(args: &ShowArgs) -> Result<ExitCode, CommandError> {
    let letters = args.place.open()?;
    let Some(found) = request(letters.find(args.id)).await? else {
        return Err(CommandError::failed(anyhow!("there is no dead letter with the id {}", args.id)));
    };
    line(&print::shown(&found, args.payload, args.place.json))?;
    Ok(ExitCode::SUCCESS)
}

async fn redrive(args: RedriveArgs) -> Result<ExitCode, CommandError> {
    let (letters, as_json) = (args.chosen.place.open()?, args.chosen.place.json);
    let found = args.chosen.letters(&*letters).await?;
    let is_known = |letter: &FoundLetter| letter.reason.as_ref().is_none_or(|it| matches!(it, ListedReason::Known(_)));
    let (known, unreadable): (Vec<_>, Vec<_>) = found.into_iter().partition(is_known);
    for letter in &unreadable {
        line(&print::passed_over(letter, as_json))?;
    }
    let word = args.word();
    let mut unchanged = 0;
    for letter in &known {
        if request(refuses_word(&*letters, letter.id, word)).await? {
            unchanged += 1;
            line(&print::refused_word(letter.id, as_json))?;
            continue;
        }
        let change = request(letters.mark(letter.id, &letter.seen, word)).await?;
        unchanged += usize::from(change != LetterChange::Yes);
        // The others are marked also if nobody reads what is printed.
        line(&print::changed(letter.id, "marked", change, as_json))?;
    }
    if !unreadable.is_empty() {
        let (passed, of) = (unreadable.len(), unreadable.len() + known.len());
        let message = "this release cannot read them; use the one that wrote them, or drop them";
        return Err(CommandError::failed(anyhow!("{passed} of {of} dead letters are passed over: {message}")));
    }
    all_changed(unchanged, known.len(), "marked")
}

async fn drop_letters(args: Chosen) -> Result<ExitCode, CommandError> {
    let letters = args.place.open()?;
    let found = args.letters(&*letters).await?;
    let mut unchanged = 0;
    for letter in &found {
        let change = request(letters.remove(letter.id, &letter.seen)).await?;
        unchanged += usize::from(change != LetterChange::Yes);
        line(&print::changed(letter.id, "dropped", change, args.place.json))?;
    }
    all_changed(unchanged, found.len(), "dropped")
}

fn all_changed(unchanged: usize, of: usize, done: &str) -> Result<ExitCode, CommandError> {
    if unchanged > 0 {
        return Err(CommandError::failed(anyhow!("{unchanged} of {of} dead letters were not {done}")));
    }
    Ok(ExitCode::SUCCESS)
}

/// What a write has to know of a letter.
#[derive(Debug)]
struct FoundLetter {
    id: DeadLetterId,
    seen: SeenLetter,
    /// None if an operator named the letter.
    reason: Option<ListedReason>,
}

impl Chosen {
    async fn letters(&self, letters: &dyn DeadLetterStore) -> Result<Vec<FoundLetter>, CommandError> {
        match (self.id, &self.seen) {
            (Some(id), Some(seen)) => Ok(vec![FoundLetter { id, seen: seen.clone(), reason: None }]),
            _ => find_all(letters, &self.filter).await,
        }
    }
}

/// All letters that the filter allows, as their list shows them. They are collected first: a letter that a worker takes
/// and writes again goes to the end of the list, so that the list might never end.
async fn find_all(letters: &dyn DeadLetterStore, filter: &Filter) -> Result<Vec<FoundLetter>, CommandError> {
    let (mut found, mut cursor) = (Vec::new(), None);
    loop {
        let page = request(letters.list(cursor.as_ref(), PAGE)).await?;
        let Some(last) = page.last() else { return Ok(found) };
        cursor = Some(last.cursor.clone());
        let allowed = page.into_iter().filter(|letter| filter.allows(letter));
        let chosen =
            |letter: ListedLetter| FoundLetter { id: letter.id, seen: letter.seen, reason: Some(letter.reason) };
        found.extend(allowed.map(chosen));
    }
}
