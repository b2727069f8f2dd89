//! `hapax guide`: the chapters of the guide, for a terminal without a browser.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::anyhow;
use hapax::guide::chapters::CHAPTERS;

use crate::guide::chapter;
use crate::serve::exit::CommandError;

/// The arguments of `hapax guide`.
#[derive(Debug, clap::Args)]
pub(crate) struct GuideArgs {
    /// The chapter; without it, all chapters are listed
    chapter: Option<String>,
}

pub(crate) fn run(args: &GuideArgs) -> Result<ExitCode, CommandError> {
    let text = match &args.chapter {
        None => list(),
        Some(name) => {
            let unknown = || CommandError::usage(anyhow!("there is no chapter {name:?}; `hapax guide` lists them"));
            chapter(name).ok_or_else(unknown)?
        }
    };
    // A reader such as `head` may leave before the end.
    let _ = io::stdout().write_all(text.as_bytes());
    Ok(ExitCode::SUCCESS)
}

fn list() -> String {
    let longest = CHAPTERS.iter().map(|chapter| chapter.name.len()).max().unwrap_or(0);
    let lines = CHAPTERS.iter().map(|chapter| format!("{:<longest$}  for {}\n", chapter.name, chapter.readers));
    lines.collect()
}
