/// Why a demo did not come to its end.
#[derive(Debug)]
pub enum DemoError {
    /// The command line is wrong.
    Usage(anyhow::Error),
    /// Something that the demo needs is missing.
    CannotStart(anyhow::Error),
    /// The demo ran and failed.
    Failed(anyhow::Error),
}
