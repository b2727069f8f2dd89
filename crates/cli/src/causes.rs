use std::error::Error;

/// The message of an error followed by those of its causes. A cause that the message before already ends with is left
/// out, because some libraries repeat their cause.
pub(crate) fn in_words(error: &(dyn Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| (*error).source());
    let mut messages: Vec<String> = Vec::new();
    for cause in causes.map(ToString::to_string) {
        if messages.last().is_none_or(|last| !last.ends_with(&cause)) {
            messages.push(cause);
        }
    }
    messages.join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    #[test]
    fn a_repeated_cause_is_left_out() {
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
