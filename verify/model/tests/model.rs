//! Every setting is as expected: what is shipped holds, and what must not be done breaks by what it is named for. And the
//! settings come to every row of the machine's table.

mod table;

use std::process::ExitCode;

use hapax_model::{Listed, check, settings, tell};
use libtest_mimic::{Arguments, Failed, Trial, run};

fn main() -> ExitCode {
    let trials = settings().map(|listed| Trial::test(listed.name, || is_as_expected(listed)));
    let table = Trial::test("every_row_of_the_table_is_come_to", table::is_walked_through);
    run(&Arguments::from_args(), trials.chain([table]).collect()).exit_code()
}

fn is_as_expected(listed: &Listed) -> Result<(), Failed> {
    let verdict = check(listed.setting);
    listed.as_expected(&verdict).map_err(|why| {
        let way = verdict.broken.as_ref().map(|(_, way)| tell(listed.setting, way)).unwrap_or_default();
        Failed::from(format!("{}: {why}\n{way}", listed.what))
    })
}
