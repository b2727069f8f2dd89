//! Tests on real Redis, Valkey, PostgreSQL and DynamoDB Local servers, and on the emulator of Spanner: connections and
//! servers fail, and the records must stay right.

#![expect(clippy::unwrap_used, reason = "a panic fails the test, also in a helper")]

mod access;
mod cluster;
mod confirmation;
mod connections;
mod dynamodb;
mod errors;
mod faults;
mod gate;
mod grant_audit;
mod handshake;
mod misrouted_replies;
mod permissions;
mod postgres;
mod races;
mod refusals;
mod sentinel;
mod server_changes;
mod spanner;
mod spanner_ledger;
mod support;
mod takeovers;

use std::process::ExitCode;

use hapax_testkit::servers;

fn main() -> ExitCode {
    servers::main(
        [
            errors::tests(),
            handshake::tests(),
            permissions::tests(),
            connections::tests(),
            access::tests(),
            cluster::tests(),
            confirmation::tests(),
            races::tests(),
            sentinel::tests(),
            faults::tests(),
            server_changes::tests(),
            misrouted_replies::tests(),
            takeovers::tests(),
            gate::tests(),
            postgres::tests(),
            dynamodb::tests(),
            spanner::tests(),
            spanner_ledger::tests(),
        ]
        .into_iter()
        .flatten(),
    )
}
