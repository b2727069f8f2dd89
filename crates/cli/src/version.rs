//! The version of this build: for `--version`, and for the metric `hapax_build_info`.

use std::sync::LazyLock;

/// A build with the feature `chaos` can be made to misbehave, so its version shows it.
pub(crate) const VERSION: &str =
    if cfg!(feature = "chaos") { concat!(env!("CARGO_PKG_VERSION"), "+chaos") } else { env!("CARGO_PKG_VERSION") };

/// The features of this build that add a store, a source, a sink or an export.
const FEATURES: &[&str] = &[
    #[cfg(feature = "kafka")]
    "kafka",
    #[cfg(feature = "nats")]
    "nats",
    #[cfg(feature = "otlp")]
    "otlp",
    #[cfg(feature = "postgres")]
    "postgres",
    #[cfg(feature = "redis")]
    "redis",
    #[cfg(feature = "sqlite")]
    "sqlite",
];

pub(crate) fn features() -> String {
    FEATURES.join(",")
}

/// The version with features and commit.
pub(crate) static LONG_VERSION: LazyLock<String> = LazyLock::new(|| {
    let features = if FEATURES.is_empty() { "none".into() } else { FEATURES.join(", ") };
    // `HAPAX_COMMIT` comes from `build.rs`.
    let commit = option_env!("HAPAX_COMMIT").unwrap_or("unknown");
    format!("{VERSION}\nfeatures: {features}\ncommit: {commit}")
});
