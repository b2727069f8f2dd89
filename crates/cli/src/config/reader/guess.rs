/// Returns the known name that is closest to a mistyped one: at most one typo, and one more for every four letters.
pub(super) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let with_distance = |known| (strsim::damerau_levenshtein(name, known), known);
    let (distance, nearest) = known.into_iter().map(with_distance).min()?;
    (distance <= 1 + name.len() / 4).then_some(nearest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guess_needs_a_similar_name() {
        let guess = |name| nearest(name, ["lease", "retention", "wait"]);
        assert_eq!(
            (guess("leese"), guess("wiat"), guess("retenti0ns")),
            (Some("lease"), Some("wait"), Some("retention"))
        );
        assert_eq!((guess("port"), guess("x"), guess("")), (None, None, None));
    }
}
