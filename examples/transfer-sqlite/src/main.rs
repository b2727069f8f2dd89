//! A transfer between two accounts, in the program's own SQLite file. Run it twice with the same key, or kill it at any
//! moment and run it again: the money moves once.
//!
//! ```sh
//! cargo run -p example-transfer-sqlite -- bank.db order-7 alice bob 5
//! ```

use anyhow::{Context, bail};
use hapax::gate::{Failure, Provenance};
use hapax::ledger::{Call, Entry, Event, Terms};
use hapax::stores::SqliteLedger;
use hapax::{Identity, Key, Rule, Scope};
use rusqlite::{Connection, Transaction};

#[cfg(test)]
mod tests;

const ACCOUNTS: &str = "
    create table if not exists account (name text primary key, balance integer not null check (balance >= 0)) strict;
    insert into account values ('alice', 100), ('bob', 100) on conflict do nothing;";

/// The effect: two rows change, and an event leaves, or nothing happens.
fn transfer(bank: &Transaction<'_>, entry: &mut Entry, order: &Order) -> Result<String, Failure<String>> {
    let Order { from, to, amount } = order;
    let take = "update account set balance = balance - ?2 where name = ?1 and balance >= ?2";
    if bank.execute(take, (from, amount))? == 0 {
        return Err(Failure::finally(format!("{from} does not have {amount}")));
    }
    if bank.execute("update account set balance = balance + ?2 where name = ?1", (to, amount))? == 0 {
        // What was taken is given back, because the answer is final without an effect.
        return Err(Failure::finally(format!("there is no account {to}")));
    }
    entry.emit(Event::new("transfers", format!("{from} gave {to} {amount}")).ordered_by(from.clone()))?;
    Ok(format!("{from} gave {to} {amount}"))
}

struct Order {
    from: String,
    to: String,
    amount: i64,
}

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [file, key, from, to, amount] = &arguments[..] else {
        bail!("usage: example-transfer-sqlite FILE KEY FROM TO AMOUNT");
    };
    let amount: i64 = amount.parse().ok().filter(|amount| *amount > 0).context("AMOUNT is a whole number above 0")?;
    let order = Order { from: from.clone(), to: to.clone(), amount };

    let mut bank = Connection::open(file)?;
    SqliteLedger::migrate(&mut bank)?;
    bank.execute_batch(ACCOUNTS)?;

    let identity = Identity::plain();
    let payload = identity.fingerprint(Rule(1), &[from.as_bytes(), to.as_bytes(), &amount.to_be_bytes()]);
    let call = identity.call(&Scope::untenanted("transfers")?, &Key::new(key.as_bytes())?).fingerprint(payload);

    let ledger = SqliteLedger::new(Terms::new("transfers")?);
    let result = ledger.run(&mut bank, Call::from(call), |bank, entry| transfer(bank, entry, &order))?;
    let when = if result.provenance == Provenance::Replayed { "before" } else { "now" };
    println!("{when}: {}", result.answer);
    Ok(())
}
