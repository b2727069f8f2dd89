use std::error::Error;

/// An error with its causes, each said once: some libraries repeat their cause in their own words.
pub(crate) fn in_words(error: &(dyn Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| (*error).source());
    let mut said: Vec<String> = Vec::new();
    for cause in causes.map(ToString::to_string) {
        if said.last().is_none_or(|last| !last.ends_with(&cause)) {
            said.push(cause);
        }
    }
    said.join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    #[test]
    fn a_cause_that_was_said_already_is_not_said_again() {
        let refused = || anyhow!("connection refused");
        for (error, words) in [
            (refused().context("connection refused").context("no server"), "no server: connection refused"),
            (refused().context("tcp: connection refused"), "tcp: connection refused"),
            (refused().context("no server"), "no server: connection refused"),
        ] {
            assert_eq!(in_words(error.as_ref()), words);
        }
    }
}
