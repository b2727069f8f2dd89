//! The version of this build: for `--version`, and for the metric `hapax_build_info`.

use std::sync::LazyLock;

/// A build with the feature `chaos` can be made to misbehave, so its version shows it.
pub(crate) const VERSION: &str =
    if cfg!(feature = "chaos") { concat!(env!("CARGO_PKG_VERSION"), "+chaos") } else { env!("CARGO_PKG_VERSION") };

/// The features of this build that add a system or an export.
static FEATURES: LazyLock<Vec<&str>> = LazyLock::new(|| {
    let mut features: Vec<_> = hapax_systems::features().chain(cfg!(feature = "otlp").then_some("otlp")).collect();
    features.sort_unstable();
    features
});

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
