//! The table of the systems, in the order in which help texts list their URLs.

use anyhow::anyhow;

/// A system. It has a row also in a build without it.
#[derive(Debug)]
pub struct SystemRow {
    /// The name, for errors.
    pub name: &'static str,
    /// The feature that builds it in. None: it is in every build.
    pub feature: Option<&'static str>,
    /// The schemes of its URLs.
    pub schemes: &'static [&'static str],
    is_built_in: bool,
}

macro_rules! systems {
    (@feature) => { (None, true) };
    (@feature $feature:literal) => { (Some($feature), cfg!(feature = $feature)) };
    ($($name:literal $(feature $feature:literal)? schemes $schemes:expr;)*) => {
        const SYSTEMS: &[SystemRow] = &[$({
            let (feature, is_built_in) = systems!(@feature $($feature)?);
            SystemRow { name: $name, feature, schemes: &$schemes, is_built_in }
        }),*];
    };
}

systems! {
    "Kafka" feature "kafka" schemes ["kafka"];
    "NATS" feature "nats" schemes ["nats"];
    "SQLite" feature "sqlite" schemes ["sqlite"];
    "Redis" feature "redis" schemes ["redis", "rediss", "unix"];
    "PostgreSQL" feature "postgres" schemes ["postgres", "postgresql"];
    "memory:" schemes ["memory"];
    "webhooks" schemes ["https", "http"];
}

/// The features of this build that add systems, sorted.
pub fn features() -> impl Iterator<Item = &'static str> {
    let mut features: Vec<_> = SYSTEMS.iter().filter(|row| row.is_built_in).filter_map(|row| row.feature).collect();
    features.sort_unstable();
    features.into_iter()
}

/// The error for a URL whose system is not in this build. None if the system is built in, or if no system has the
/// scheme.
pub fn not_built_in(scheme: &str) -> Option<anyhow::Error> {
    let row = SYSTEMS.iter().find(|row| row.schemes.contains(&scheme) && !row.is_built_in)?;
    let feature = row.feature.unwrap_or_default();
    Some(anyhow!("this build does not include {}; build it with the feature `{feature}`", row.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scheme_names_one_system() {
        let mut schemes: Vec<_> = SYSTEMS.iter().flat_map(|row| row.schemes).collect();
        let count = schemes.len();
        schemes.sort_unstable();
        schemes.dedup();
        assert_eq!(schemes.len(), count);
    }

    #[test]
    fn a_system_that_is_not_built_in_names_its_feature() {
        let built_in: Vec<_> = features().collect();
        for row in SYSTEMS.iter().filter(|row| row.feature.is_some()) {
            let is_built_in = row.feature.is_some_and(|feature| built_in.contains(&feature));
            for scheme in row.schemes {
                let error = not_built_in(scheme).map(|error| error.to_string());
                assert_eq!(error.is_none(), is_built_in, "{scheme}");
                assert!(error.is_none_or(|error| error.contains(row.feature.unwrap())), "{scheme}");
            }
        }
        assert!(not_built_in("memory").is_none() && not_built_in("amqp").is_none());
    }
}
