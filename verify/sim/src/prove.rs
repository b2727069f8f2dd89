//! Runs many seeds on all cores, in blocks. Each finished block is a line in a file, so that a stopped run can resume.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;

use hapax_sim::{FailedSeed, RunTotals, run_all};

use crate::report;

const BLOCK: u64 = 1000;

/// The seeds to run.
pub(crate) struct SeedBatch<'a> {
    pub(crate) seeds: Range<u64>,
    /// The commit of the sources. Progress of another commit does not count.
    pub(crate) commit: &'a str,
    /// The folder of the progress file.
    pub(crate) folder: &'a Path,
}

/// Runs the blocks that are not done yet, and writes the report beside the progress. Returns whether no rule was
/// broken.
pub(crate) fn run(order: &SeedBatch<'_>) -> io::Result<bool> {
    fs::create_dir_all(order.folder)?;
    let mut done = read_progress(&order.progress())?;
    done.retain(|start, _| order.seeds.contains(start));
    let blocks = order.blocks().filter(|block| !done.contains_key(&block.start)).collect();
    let total = order.seeds.end - order.seeds.start;
    let sum: u64 = done.values().map(|tally| tally.runs).sum();
    println!("{total} seeds from {}, {sum} of them done before", order.seeds.start);
    let file = OpenOptions::new().create(true).append(true).open(order.progress())?;
    let work =
        BatchProgress { blocks: Mutex::new(blocks), done: Mutex::new((done, file)), failure: Mutex::default(), total };
    let cores = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(|| work.run_blocks())).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().expect("a panic in a world is caught and counts as a broken rule"))
    })?;
    if let Some(FailedSeed { seed, rule }) = lock(&work.failure).as_ref() {
        let command = FailedSeed { seed: *seed, rule: rule.clone() }.command();
        println!("seed {seed} breaks a rule: {rule}\nto print its trace: {command}");
        return Ok(false);
    }
    let mut tally = RunTotals::default();
    lock(&work.done).0.values().for_each(|block| tally.merge(block));
    let report = report::text(&order.seeds, order.commit, &tally);
    fs::write(order.folder.join("report.md"), &report)?;
    print!("{report}");
    Ok(true)
}

impl SeedBatch<'_> {
    fn progress(&self) -> PathBuf {
        self.folder.join(format!("{}.txt", self.commit))
    }

    /// Each block starts at a multiple of its length, so that overlapping ranges share blocks.
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

/// The state that all threads share.
struct BatchProgress {
    blocks: Mutex<VecDeque<Range<u64>>>,
    done: Mutex<(BTreeMap<u64, RunTotals>, File)>,
    failure: Mutex<Option<FailedSeed>>,
    total: u64,
}

impl BatchProgress {
    fn run_blocks(&self) -> io::Result<()> {
        loop {
            let Some(block) = lock(&self.blocks).pop_front() else { return Ok(()) };
            match run_all(block.clone()) {
                Ok(tally) => self.finish_block(&block, tally)?,
                Err(failure) => {
                    lock(&self.blocks).clear();
                    *lock(&self.failure) = Some(failure);
                }
            }
        }
    }

    fn finish_block(&self, block: &Range<u64>, tally: RunTotals) -> io::Result<()> {
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

/// Reads the blocks that an earlier run finished, by their first seeds. Ignores a line that was cut short.
fn read_progress(path: &Path) -> io::Result<BTreeMap<u64, RunTotals>> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error),
    };
    let block = |line: &str| {
        let mut words = line.splitn(3, ' ');
        let (start, end) = (words.next()?.parse::<u64>().ok()?, words.next()?.parse::<u64>().ok()?);
        let tally = RunTotals::read(words.next()?)?;
        (tally.runs == end - start).then_some((start, tally))
    };
    Ok(text.lines().filter_map(block).collect())
}
