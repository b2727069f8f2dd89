//! Every setting has its expected result, and the settings reach every row of the machine's table.

mod table;

use std::process::ExitCode;

use hapax_model::{NamedSetting, check, settings};
use libtest_mimic::{Arguments, Failed, Trial, run};

fn main() -> ExitCode {
    let trials = settings().map(|listed| Trial::test(listed.name, || is_as_expected(listed)));
    let table = Trial::test("the_settings_reach_every_row_of_the_table", table::is_covered);
    let numbers = Trial::test("every_row_of_the_protocol_document_is_listed", table::has_every_number);
    run(&Arguments::from_args(), trials.chain([table, numbers]).collect()).exit_code()
}

fn is_as_expected(listed: &NamedSetting) -> Result<(), Failed> {
    let verdict = check(listed.setting);
    listed.as_expected(&verdict).map_err(|why| {
        let way = verdict.broken.as_ref().map(|broken| broken.way.as_str()).unwrap_or_default();
        Failed::from(format!("{}: {why}\n{way}", listed.what))
    })
}
