//! `hapax dead`: lists the messages that nobody could process, shows one, marks them to be processed again, and drops
//! them.

mod print;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use hapax::broker::{DeadCursor, DeadLetterId, DeadLetterStore, DeadReason, ListedLetter, ListedReason};
use hapax::runtime::{Runtime, Tokio};

use super::print::line;
use super::{CommandError, request};
use crate::store::wiring::StoreUrl;
use crate::store::wiring::dead::{SCHEMES, is_at_broker, open};
pub(crate) use print::{letter_fields, listed_letter};

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
    /// Nothing redrives them any more. A worker that has taken a marked letter before may still process its message,
    /// and a copy that is sent again is a message like any other.
    Drop(DropArgs),
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

#[derive(Debug, clap::Args)]
struct RedriveArgs {
    /// The ids of the letters
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    ids: Vec<DeadLetterId>,

    /// Mark all letters that --reason, --source and --older-than allow
    #[arg(long)]
    all: bool,

    /// Your word that no attempt of a message with an unknown outcome has had an effect, or will have one
    ///
    /// Without it, a worker with a target makes such a message a dead letter again. Look at the effect first, and make
    /// sure that no attempt still runs. A ledger does not need it: it knows whether the effect is there.
    #[arg(long)]
    not_done: bool,

    #[command(flatten)]
    filter: Filter,

    #[command(flatten)]
    place: Place,
}

#[derive(Debug, clap::Args)]
struct DropArgs {
    /// The ids of the letters
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    ids: Vec<DeadLetterId>,

    /// Drop all letters that --reason, --source and --older-than allow
    #[arg(long)]
    all: bool,

    #[command(flatten)]
    filter: Filter,

    #[command(flatten)]
    place: Place,
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
    let letters = args.place.open()?;
    let (ids, unreadable) = if args.all {
        let found = find_all(&*letters, &args.filter).await?;
        let is_known = |letter: &FoundLetter| matches!(letter.reason, ListedReason::Known(_));
        let (known, others): (Vec<_>, Vec<_>) = found.into_iter().partition(is_known);
        (known.into_iter().map(|letter| letter.id).collect(), others)
    } else {
        (args.ids, Vec::new())
    };
    for letter in &unreadable {
        line(&print::passed_over(letter, args.place.json))?;
    }
    let mut missing = 0_usize;
    for id in &ids {
        let is_marked = match args.not_done {
            true => request(letters.mark_as(*id, DeadReason::OutcomeUnknown, DeadReason::NotDone)).await?,
            false => request(letters.mark(*id)).await?,
        };
        missing += usize::from(!is_marked);
        // The others are marked also if nobody reads what is printed.
        line(&print::marked(*id, is_marked, args.place.json))?;
    }
    if !unreadable.is_empty() {
        let (passed, of) = (unreadable.len(), unreadable.len() + ids.len());
        let message = "this release cannot read them; use the one that wrote them, or drop them";
        return Err(CommandError::failed(anyhow!("{passed} of {of} dead letters are passed over: {message}")));
    }
    all_existed(missing, ids.len())
}

async fn drop_letters(args: DropArgs) -> Result<ExitCode, CommandError> {
    let letters = args.place.open()?;
    let ids = match args.all {
        true => find_all(&*letters, &args.filter).await?.into_iter().map(|letter| letter.id).collect(),
        false => args.ids,
    };
    let mut missing = 0_usize;
    for id in &ids {
        let is_dropped = request(letters.remove(*id)).await?;
        missing += usize::from(!is_dropped);
        line(&print::dropped(*id, is_dropped, args.place.json))?;
    }
    all_existed(missing, ids.len())
}

fn all_existed(missing: usize, of: usize) -> Result<ExitCode, CommandError> {
    if missing > 0 {
        return Err(CommandError::failed(anyhow!("{missing} of {of} dead letters do not exist")));
    }
    Ok(ExitCode::SUCCESS)
}

/// What a command on all letters has to know of each.
#[derive(Debug)]
struct FoundLetter {
    id: DeadLetterId,
    reason: ListedReason,
}

/// All letters that the filter allows. They are collected first: a letter that a worker takes and writes
/// again goes to the end of the list, so that the list might never end.
async fn find_all(letters: &dyn DeadLetterStore, filter: &Filter) -> Result<Vec<FoundLetter>, CommandError> {
    let (mut found, mut cursor) = (Vec::new(), None);
    loop {
        let page = request(letters.list(cursor.as_ref(), PAGE)).await?;
        let Some(last) = page.last() else { return Ok(found) };
        cursor = Some(last.cursor.clone());
        let allowed = page.into_iter().filter(|letter| filter.allows(letter));
        found.extend(allowed.map(|letter| FoundLetter { id: letter.id, reason: letter.reason }));
    }
}
