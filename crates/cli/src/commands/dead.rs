//! `hapax dead`: lists the messages that nobody could process, shows one, marks them to be processed again, and drops
//! them.

mod print;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::anyhow;
use hapax::broker::{DeadLetterId, DeadReason, SeenLetter};
use hapax::runtime::Tokio;
use hapax_systems::{DeadLetterPlace, StoreUrl};

use super::print::{line, object};
use super::progress::CommandProgress;
use crate::admin::api::AdminApi;
use crate::admin::api::calls::{ApiCall, LARGEST_PAGE, members};
use crate::admin::api::dead::{DropLetter, ListLetters, RedriveLetter, ShowLetter};
use crate::place::{AdminArgs, AuditArgs, CalledPlace};
use crate::serve::exit::CommandError;
use crate::store::opening::{open_dead_letters, read_url};

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
    #[command(flatten)]
    admin: AdminArgs,

    #[arg(long, value_name = "URL", env = "HAPAX_STORE", hide_env_values = true)]
    #[arg(help = format!("The store that has the dead letters: {}", StoreUrl::dead_letter_forms()))]
    store: Option<String>,

    #[arg(long, value_name = "URL", env = "HAPAX_DATABASE", hide_env_values = true)]
    #[arg(help = format!("The database that has the dead letters: {}", StoreUrl::database_forms()))]
    database: Option<String>,

    #[command(flatten)]
    audit: AuditArgs,

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
    #[arg(long, value_name = "DURATION")]
    older_than: Option<humantime::Duration>,
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

    /// Your word that all of these letters are meant: --all needs it where it drops letters or decides outcomes
    #[arg(long, requires = "all")]
    yes: bool,

    /// Print which letters would be written, and write nothing
    #[arg(long)]
    dry_run: bool,

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

fn reason(name: &str) -> Result<DeadReason, String> {
    let names = || DeadReason::ALL.map(DeadReason::as_str).join(", ");
    DeadReason::from_name(name).ok_or_else(|| format!("the reasons are {}", names()))
}

pub(crate) async fn run(args: DeadArgs) -> Result<ExitCode, CommandError> {
    match args.action {
        DeadAction::List(args) => list(&args).await,
        DeadAction::Show(args) => show(&args).await,
        DeadAction::Redrive(args) => redrive(&args).await,
        DeadAction::Drop(args) => drop_letters(&args).await,
    }
}

impl Place {
    async fn open(&self) -> Result<CalledPlace, CommandError> {
        if let Some(process) = self.admin.open()? {
            return Ok(process);
        }
        let (flag, url) = match (&self.store, &self.database) {
            (Some(url), None) => ("--store", url),
            (None, Some(url)) => ("--database", url),
            (None, None) => {
                return Err(CommandError::usage(anyhow!(
                    "name the place by --admin URL, --store URL or --database URL"
                )));
            }
            (Some(_), Some(_)) => {
                let message = "both --store and --database are set (by HAPAX_STORE or HAPAX_DATABASE, too); name one";
                return Err(CommandError::usage(anyhow!(message)));
            }
        };
        if DeadLetterPlace::is_at_broker(url) {
            let message = "a broker has dead letters for its consumers: read them there with the broker's own tools, \
                           and send a message again to repeat it";
            let forms = StoreUrl::dead_letter_forms();
            return Err(CommandError::usage(anyhow!("{flag} takes {forms}: {message}")));
        }
        let url = read_url(flag, url, StoreUrl::dead_letter_forms)?;
        let letters = open_dead_letters(&url, Arc::new(Tokio::current())).await?;
        Ok(self.audit.place(&url, |api| AdminApi { dead: Some(letters), ..api }))
    }
}

impl Filter {
    fn ask(&self, cursor: Option<String>) -> ListLetters {
        let reason = self.reason.map(|reason| reason.as_str().to_owned());
        ListLetters {
            reason,
            source: self.source.clone(),
            older_than: self.older_than,
            cursor,
            limit: Some(LARGEST_PAGE),
        }
    }
}

async fn list(args: &ListArgs) -> Result<ExitCode, CommandError> {
    let place = args.place.open().await?;
    let mut ask = args.filter.ask(args.after.clone());
    let mut left = args.limit.unwrap_or(usize::MAX);
    while left > 0 {
        let page = place.ask(&ask).await?;
        ask.cursor = page.next;
        for letter in page.dead_letters.iter().take(left) {
            left -= 1;
            if left == 0 {
                ask.cursor = Some(letter.cursor.clone());
            }
            if !line(&print::listed(letter, args.place.json))? {
                return Ok(ExitCode::SUCCESS);
            }
        }
        if ask.cursor.is_none() {
            return Ok(ExitCode::SUCCESS);
        }
    }
    if let Some(cursor) = ask.cursor.filter(|_| !args.place.json) {
        eprintln!("there may be more: --after {cursor}");
    }
    Ok(ExitCode::SUCCESS)
}

async fn show(args: &ShowArgs) -> Result<ExitCode, CommandError> {
    let shown = args.place.open().await?.ask(&ShowLetter { id: args.id, payload: args.payload }).await?;
    line(&object(members(&shown), args.place.json))?;
    Ok(ExitCode::SUCCESS)
}

async fn redrive(args: &RedriveArgs) -> Result<ExitCode, CommandError> {
    if args.not_done || args.done {
        args.chosen.refuse_unsure("gives your word about all of these outcomes")?;
    }
    let (place, as_json) = (args.chosen.place.open().await?, args.chosen.place.json);
    let found = args.chosen.letters(&place).await?;
    let is_known = |letter: &FoundLetter| letter.reason.as_ref().is_none_or(|it| DeadReason::from_name(it).is_some());
    let (known, unreadable): (Vec<_>, Vec<_>) = found.into_iter().partition(is_known);
    for letter in &unreadable {
        line(&print::passed_over(letter, as_json))?;
    }
    let call = |letter: &FoundLetter| RedriveLetter {
        id: letter.id,
        seen: letter.seen.clone(),
        not_done: args.not_done,
        done: args.done,
    };
    let marked = args.chosen.write(&place, &known, ("marked", call)).await;
    if !args.not_done && !args.done {
        warn_of_missing_word(&place, &known).await;
    }
    if !unreadable.is_empty() {
        let (passed, of) = (unreadable.len(), unreadable.len() + known.len());
        let message = "this release cannot read them; use the one that wrote them, or drop them";
        return Err(CommandError::failed(anyhow!("{passed} of {of} dead letters are passed over: {message}")));
    }
    marked
}

/// Tells at once which messages a worker with a target will not run without a word. It makes their letters again.
async fn warn_of_missing_word(place: &CalledPlace, letters: &[FoundLetter]) {
    let mut unknown = 0_usize;
    for letter in letters {
        let reason = match &letter.reason {
            Some(reason) => Some(reason.clone()),
            None => place.ask(&ShowLetter { id: letter.id, payload: false }).await.ok().map(|shown| shown.reason),
        };
        let reason = reason.as_deref().and_then(DeadReason::from_name);
        unknown += usize::from(reason.is_some_and(DeadReason::is_unknown));
    }
    if unknown > 0 {
        eprintln!(
            "the outcome of {unknown} of these messages is unknown: `hapax worker` makes them dead letters again \
             unless you say --not-done or --done; a ledger needs no word"
        );
    }
}

async fn drop_letters(args: &Chosen) -> Result<ExitCode, CommandError> {
    args.refuse_unsure("removes all of these messages for good")?;
    let place = args.place.open().await?;
    let call = |letter: &FoundLetter| DropLetter { id: letter.id, seen: letter.seen.clone() };
    args.write(&place, &args.letters(&place).await?, ("dropped", call)).await
}

/// What a write has to know of a letter.
#[derive(Debug)]
struct FoundLetter {
    id: DeadLetterId,
    seen: SeenLetter,
    /// None if an operator named the letter.
    reason: Option<String>,
}

impl Chosen {
    /// Refuses a write of many letters without a word of the operator.
    fn refuse_unsure(&self, what: &str) -> Result<(), CommandError> {
        if !self.all || self.yes || self.dry_run {
            return Ok(());
        }
        Err(CommandError::usage(anyhow!("--all {what}: look first with --dry-run, then add --yes")))
    }

    async fn letters(&self, place: &CalledPlace) -> Result<Vec<FoundLetter>, CommandError> {
        if let (Some(id), Some(seen)) = (self.id, &self.seen) {
            return Ok(vec![FoundLetter { id, seen: seen.clone(), reason: None }]);
        }
        // They are collected first: a letter that a worker takes and writes again goes to the end of the list, so that
        // the list might never end.
        let (mut found, mut ask) = (Vec::new(), self.filter.ask(None));
        let mut looked = CommandProgress::of("dead letters found");
        loop {
            let page = place.ask(&ask).await?;
            looked.add(page.dead_letters.len());
            let letters = page.dead_letters.into_iter();
            found.extend(letters.map(|it| FoundLetter { id: it.id, seen: it.seen, reason: Some(it.reason) }));
            ask.cursor = page.next;
            if ask.cursor.is_none() {
                return Ok(found);
            }
        }
    }

    /// Makes a call for each letter. `done` is `marked` or `dropped`.
    async fn write<C: ApiCall>(
        &self,
        place: &CalledPlace,
        letters: &[FoundLetter],
        (done, call): (&str, impl Fn(&FoundLetter) -> C),
    ) -> Result<ExitCode, CommandError> {
        let mut unchanged = 0_usize;
        for letter in letters.iter().filter(|_| self.dry_run) {
            line(&print::planned(letter, done, self.place.json))?;
        }
        let mut tried = CommandProgress::of("dead letters tried");
        for letter in letters.iter().filter(|_| !self.dry_run) {
            tried.add(1);
            let refusal = place.attempt(&call(letter)).await?.err();
            unchanged += usize::from(refusal.is_some());
            // The others are written also if nobody reads what is printed.
            line(&print::changed(letter.id, (done, refusal), self.place.json))?;
        }
        if unchanged > 0 {
            let of = letters.len();
            return Err(CommandError::failed(anyhow!("{unchanged} of {of} dead letters were not {done}")));
        }
        Ok(ExitCode::SUCCESS)
    }
}
