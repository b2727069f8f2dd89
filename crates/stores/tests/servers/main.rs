//! What becomes of the records when connections and servers fail: on real servers, as far as one can be made to do it.

#![expect(clippy::unwrap_used, reason = "a test fails by a panic, also outside of its own function")]

mod access;
mod accounts;
mod connections;
mod errors;
mod faults;
mod gate;
mod greetings;
mod noticed;
mod plight;
mod rights;
mod strays;
mod takeovers;
mod world;

use std::process::ExitCode;

use hapax_testkit::servers;

fn main() -> ExitCode {
    servers::main(
        [
            errors::tests(),
            greetings::tests(),
            rights::tests(),
            connections::tests(),
            access::tests(),
            faults::tests(),
            noticed::tests(),
            strays::tests(),
            takeovers::tests(),
            gate::tests(),
        ]
        .into_iter()
        .flatten(),
    )
}
