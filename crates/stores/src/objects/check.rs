//! Whether a bucket can be used, looked at when a process starts.

use std::time::Duration;

use bytes::Bytes;
use hapax_core::Error;
use hapax_core::store::{Finding, Severity};
use hapax_net::objects::LifecycleRule;

use super::AnswerBucket;
use super::bucket::FoundObject;

/// A day of a lifecycle rule.
const DAY: Duration = Duration::from_secs(24 * 3600);

impl AnswerBucket {
    /// Writes, reads and removes an object, and looks at the lifecycle rules. Finds what does not work.
    ///
    /// A bucket that cannot be used is reported as a warning: the store works, and large answers wait in the journal.
    ///
    /// # Cancel safety
    /// If dropped, a small object may be left behind.
    pub async fn check(&self) -> Vec<Finding> {
        let mut random = [0; 8];
        self.runtime().fill_random(&mut random);
        // Another process may look at the same time.
        let name = format!("{}/check-{:016x}", self.url().prefix(), u64::from_be_bytes(random));
        let content = Bytes::from_static(b"hapax");
        let read = match self.put(&name, content.clone()).await {
            Ok(()) => self.get(&name).await,
            Err(error) => return vec![warning("answers above the limit cannot be recorded", &error)],
        };
        let mut findings = Vec::new();
        match read {
            Ok(FoundObject::Bytes(bytes)) if bytes == content => {}
            Ok(FoundObject::Bytes(_) | FoundObject::Missing) => findings.push(Finding {
                severity: Severity::Warn,
                message: format!("the bucket {} does not give back what was written to it", self.url()),
            }),
            Err(error) => findings.push(warning("recorded answers cannot be given", &error)),
        }
        if let Err(error) = self.delete(&name).await {
            findings.push(warning("`hapax keys purge` cannot remove answers", &error));
        }
        findings.extend(self.check_lifecycle().await);
        findings
    }

    async fn check_lifecycle(&self) -> Option<Finding> {
        let rules = match self.lifecycle().await {
            Ok(rules) => rules,
            Err(error) => return Some(warning("whether it removes old answers is not known", &error)),
        };
        let wanted =
            self.wanted_life().map(|kept| u32::try_from(kept.as_secs().div_ceil(DAY.as_secs())).unwrap_or(u32::MAX));
        let problem = lifecycle_problem(&rules, self.url().prefix(), wanted)?;
        let message = format!("the bucket {} {problem}", self.url());
        Some(Finding { severity: Severity::Warn, message })
    }
}

/// What is wrong with the rules for the objects under this prefix. `wanted` is how many days an answer is needed.
fn lifecycle_problem(rules: &[LifecycleRule], prefix: &str, wanted: Option<u32>) -> Option<String> {
    let names = format!("{prefix}/");
    let days = |rule: &&LifecycleRule| rule.days.filter(|_| names.starts_with(&rule.prefix));
    let early = rules.iter().filter(|rule| names.starts_with(&rule.prefix) || rule.prefix.starts_with(&names));
    if let (Some(shortest), Some(wanted)) = (early.filter_map(|rule| rule.days).min(), wanted)
        && shortest < wanted
    {
        return Some(format!(
            "removes answers after {shortest} days, and their records may live for {wanted}: then a copy of a call \
             gets an error instead of its answer; let the rule wait for {wanted} days"
        ));
    }
    let removes = rules.iter().filter(|rule| !rule.is_partial).filter_map(|rule| days(&rule)).min();
    let advice = wanted.map(|wanted| format!(" of {wanted} days")).unwrap_or_default();
    removes.is_none().then(|| {
        format!(
            "keeps the answers of expired records for ever: give it a lifecycle rule{advice} for the prefix {names}"
        )
    })
}

fn warning(what: &str, error: &Error) -> Finding {
    let causes = std::iter::successors(std::error::Error::source(error), |error| error.source());
    let text = causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"));
    Finding { severity: Severity::Warn, message: format!("{what}: {text}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(prefix: &str, days: Option<u32>) -> LifecycleRule {
        LifecycleRule { prefix: prefix.to_owned(), is_partial: false, days, noncurrent_days: None }
    }

    fn problem(rules: &[LifecycleRule]) -> String {
        lifecycle_problem(rules, "a/b", Some(32)).unwrap_or_default()
    }

    #[test]
    fn a_rule_is_for_the_prefix_and_not_shorter_than_the_life_of_a_record() {
        for prefix in ["", "a", "a/b", "a/b/"] {
            assert_eq!(problem(&[rule(prefix, Some(32))]), "", "{prefix}");
            assert_eq!(problem(&[rule("c/", Some(1)), rule(prefix, Some(90))]), "", "{prefix}");
            let short = problem(&[rule(prefix, Some(90)), rule(prefix, Some(31))]);
            assert!(short.contains("after 31 days") && short.contains("for 32 days"), "{short}");
        }
        let some = problem(&[rule("a/b/00/", Some(3)), rule("", Some(90))]);
        assert!(some.contains("after 3 days"), "{some}");
        let partial = LifecycleRule { is_partial: true, ..rule("a/b/", Some(90)) };
        let other_versions = LifecycleRule { noncurrent_days: Some(1), ..rule("a/b/", None) };
        for rules in [&[][..], &[rule("a/b/00/", Some(90))], &[rule("a/bc", Some(90))], &[partial], &[other_versions]] {
            let missing = problem(rules);
            assert!(missing.contains("for ever") && missing.contains("of 32 days for the prefix a/b/"), "{missing}");
        }
        assert_eq!(lifecycle_problem(&[rule("", Some(1))], "a/b", None), None);
    }
}
