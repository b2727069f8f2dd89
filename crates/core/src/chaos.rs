//! Mutants: known bugs that can be switched on, to prove that the test harnesses detect them.
//!
//! With the feature `chaos`, `HAPAX_CHAOS=<name>` switches one mutant on for the whole process. Without the feature no
//! mutant is compiled. `cargo xtask mutants` runs the harnesses against each mutant.
//!
//! The code that only a mutant runs is in this folder: `machine.rs` stands in for the machine, and `gate.rs` and
//! `worker.rs` are modules of the gate and of the engine of the worker.

mod mutants;

pub use mutants::Mutant;

impl Mutant {
    /// Whether this mutant is switched on. A value of `HAPAX_CHAOS` that names no mutant ends the process.
    #[cfg(feature = "chaos")]
    pub fn is_on(self) -> bool {
        *CHOSEN == Some(self)
    }

    /// Always false without the feature `chaos`.
    #[cfg(not(feature = "chaos"))]
    pub const fn is_on(self) -> bool {
        false
    }
}

#[cfg(feature = "chaos")]
static CHOSEN: std::sync::LazyLock<Option<Mutant>> = std::sync::LazyLock::new(|| {
    let name = std::env::var_os("HAPAX_CHAOS")?;
    let chosen = Mutant::ALL.iter().find(|mutant| name == mutant.name()).copied();
    if chosen.is_none() {
        refuse(&name);
    }
    chosen
});

/// Ends the process. A panic could be caught, and a harness would go on without the bug that it has to detect.
#[cfg(feature = "chaos")]
fn refuse(name: &std::ffi::OsStr) -> ! {
    use std::io::Write;
    // Not `eprintln`, whose text a test binary keeps until the test ends.
    let _ = writeln!(std::io::stderr(), "HAPAX_CHAOS={} names no known bug of Hapax", name.display());
    std::process::exit(2)
}
