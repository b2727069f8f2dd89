//! Every setting is as expected: what is shipped holds, and what must not be done breaks by what it is named for.

use std::process::ExitCode;

use hapax_model::{SETTINGS, check, tell};
use libtest_mimic::{Arguments, Failed, Trial, run};

fn main() -> ExitCode {
    let trials = SETTINGS.iter().map(|listed| {
        Trial::test(listed.name, || {
            let verdict = check(listed.setting);
            listed.as_expected(&verdict).map_err(|why| {
                let way = verdict.broken.as_ref().map(|(_, way)| tell(listed.setting, way)).unwrap_or_default();
                Failed::from(format!("{}: {why}\n{way}", listed.what))
            })
        })
    });
    run(&Arguments::from_args(), trials.collect()).exit_code()
}
