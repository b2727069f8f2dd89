//! The sections of a report: one for each kind of run.

/// Of a new report.
const TITLE: &str = "# Torture";

/// The report with this section in place of an earlier one of the same heading. The section of a longer run stays.
pub fn with_section(report: &str, section: &str) -> String {
    let heading = section.lines().next().unwrap_or_default().strip_prefix("## ");
    let mut sections: Vec<&str> = report.split("\n## ").skip(1).collect();
    let earlier = sections.iter().find(|earlier| earlier.lines().next() == heading);
    if earlier.is_some_and(|earlier| length(earlier) > length(section)) {
        return report.to_owned();
    }
    sections.retain(|earlier| earlier.lines().next() != heading);
    let title = report.lines().next().unwrap_or(TITLE);
    let kept: Vec<String> = sections.iter().map(|section| format!("\n## {}\n", section.trim_end())).collect();
    format!("{title}\n{}\n{section}", kept.concat())
}

/// The number of transfers, payments, messages or events of a section.
fn length(section: &str) -> u32 {
    let number = |line: &str| {
        let counted = ["| transfers | ", "| payments | ", "| messages | ", "| transactions with an event | "];
        let row = counted.iter().find_map(|row| line.strip_prefix(row))?;
        row.strip_suffix(" |")?.parse().ok()
    };
    section.lines().find_map(number).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_takes_the_place_of_an_earlier_one() {
        let first = with_section("", "## One\n\n1\n");
        assert_eq!(first, "# Torture\n\n## One\n\n1\n");
        assert_eq!(with_section("# Title\n", "## One\n"), "# Title\n\n## One\n");
        let both = with_section(&first, "## Two\n\n2\n");
        assert_eq!(both, "# Torture\n\n## One\n\n1\n\n## Two\n\n2\n");
        assert_eq!(with_section(&both, "## One\n\n3\n"), "# Torture\n\n## Two\n\n2\n\n## One\n\n3\n");
    }
    #[test]
    fn a_short_run_leaves_the_section_of_a_longer_one() {
        let long = with_section("", "## One\n\n| transfers | 2000 |\n");
        assert_eq!(with_section(&long, "## One\n\n| transfers | 300 |\n"), long);
        assert_ne!(with_section(&long, "## One\n\n| transfers | 2000 |\n| time | 1 s |\n"), long);
    }
}
