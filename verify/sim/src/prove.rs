//! Very many seeds on all cores, block by block. Each finished block is a line in a file, so that a run that was stopped goes on.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;

use hapax_sim::{Failure, Tally, run_all};

use crate::report;

const BLOCK: u64 = 1000;

/// What is to be run.
pub(crate) struct Order<'a> {
    pub(crate) seeds: Range<u64>,
    /// The state of the sources: what another one came to does not count.
    pub(crate) commit: &'a str,
    /// Where the progress is kept.
    pub(crate) folder: &'a Path,
}

/// Runs all that is not done yet, and writes the report beside the progress; says whether no rule was broken.
pub(crate) fn run(order: &Order<'_>) -> io::Result<bool> {
    fs::create_dir_all(order.folder)?;
    let mut done = done_before(&order.progress())?;
    done.retain(|start, _| order.seeds.contains(start));
    let blocks = order.blocks().filter(|block| !done.contains_key(&block.start)).collect();
    let total = order.seeds.end - order.seeds.start;
    let sum: u64 = done.values().map(|tally| tally.runs).sum();
    println!("{total} seeds from {}, {sum} of them done before", order.seeds.start);
    let file = OpenOptions::new().create(true).append(true).open(order.progress())?;
    let work = Work { blocks: Mutex::new(blocks), done: Mutex::new((done, file)), failure: Mutex::default(), total };
    let cores = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..cores).map(|_| scope.spawn(|| work.goes_on())).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("a panic of a world is a broken rule"))
    })?;
    if let Some(Failure { seed, rule }) = lock(&work.failure).as_ref() {
        let command = Failure { seed: *seed, rule: rule.clone() }.command();
        println!("seed {seed} breaks a rule: {rule}\nto read what happened: {command}");
        return Ok(false);
    }
    let mut tally = Tally::default();
    lock(&work.done).0.values().for_each(|block| tally.merge(block));
    let report = report::text(&order.seeds, order.commit, &tally);
    fs::write(order.folder.join("report.md"), &report)?;
    print!("{report}");
    Ok(true)
}

impl Order<'_> {
    fn progress(&self) -> PathBuf {
        self.folder.join(format!("{}.txt", self.commit))
    }

    /// Each begins at a multiple of its length, so that ranges that overlap share blocks.
    fn blocks(&self) -> impl Iterator<Item = Range<u64>> + use<'_> {
        let mut start = self.seeds.start;
        std::iter::from_fn(move || {
            let end = (start / BLOCK * BLOCK + BLOCK).min(self.seeds.end);
            let block = start..end;
            start = end;
            (!block.is_empty()).then_some(block)
        })
    }
}

/// What all threads share.
struct Work {
    blocks: Mutex<VecDeque<Range<u64>>>,
    done: Mutex<(BTreeMap<u64, Tally>, File)>,
    failure: Mutex<Option<Failure>>,
    total: u64,
}

impl Work {
    fn goes_on(&self) -> io::Result<()> {
        loop {
            let Some(block) = lock(&self.blocks).pop_front() else { return Ok(()) };
            match run_all(block.clone()) {
                Ok(tally) => self.is_done(&block, tally)?,
                Err(failure) => {
                    lock(&self.blocks).clear();
                    *lock(&self.failure) = Some(failure);
                }
            }
        }
    }

    fn is_done(&self, block: &Range<u64>, tally: Tally) -> io::Result<()> {
        let (done, file) = &mut *lock(&self.done);
        writeln!(file, "{} {} {}.", block.start, block.end, tally.line())?;
        done.insert(block.start, tally);
        let runs: u64 = done.values().map(|tally| tally.runs).sum();
        println!("  {runs} of {} seeds", self.total);
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The blocks that an earlier run finished, by their first seeds. A line that was cut short does not count.
fn done_before(path: &Path) -> io::Result<BTreeMap<u64, Tally>> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error),
    };
    let block = |line: &str| {
        let mut words = line.splitn(3, ' ');
        let (start, end) = (words.next()?.parse::<u64>().ok()?, words.next()?.parse::<u64>().ok()?);
        let tally = Tally::read(words.next()?)?;
        (tally.runs == end - start).then_some((start, tally))
    };
    Ok(text.lines().filter_map(block).collect())
}
