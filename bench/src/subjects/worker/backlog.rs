use std::process::Command;
use std::rc::Rc;

use anyhow::Context;
use tokio::runtime::Builder;

use super::drain::{DrainPlan, drain};
use super::{AT_ONCE, BATCH, Servers, kafka, loops};
use crate::harness::{BatchResult, Limit, MeasuredBatch, Subject, memory_of, once};

/// A backlog that fits into the worker's bounds.
const SMALL: usize = 10_000;

/// The peak of a worker process that drains a backlog, beside one with a backlog that it could hold as a whole.
pub(super) fn memory(servers: &Rc<Servers>, messages: usize) -> Subject {
    Subject {
        name: "worker, memory in front of a backlog",
        what: "no rate: KiB of a worker process at its peak while it drains the topic; defaults: 10,000 messages a \
               partition and 64 MiB, with 5,000 messages or 8 MiB a partition in the source",
        run: once(in_a_process(servers, messages)),
        limit: Some(Limit {
            what: "KiB with a backlog of 10,000 messages",
            run: once(in_a_process(servers, SMALL)),
            at_least: None,
        }),
    }
}

fn in_a_process(servers: &Rc<Servers>, messages: usize) -> MeasuredBatch {
    let servers = Rc::clone(servers);
    Box::new(move || {
        let topic = servers.kafka.topic(&servers.runtime, messages)?;
        let words = ["drain", &topic.url("backlog"), &servers.postgres.url(), &messages.to_string()];
        let output = Command::new(std::env::current_exe()?).args(words).output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let [peak, idle, rate] =
            figures(&text).with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
        let note = format!(
            "{:.1} MiB at its peak, {:.1} MiB before the first message, {rate:.0} messages a second of {messages}",
            peak / 1024.0,
            idle / 1024.0
        );
        Ok(BatchResult { rate: peak, note })
    })
}

/// The three numbers that the process prints.
fn figures(text: &str) -> Option<[f64; 3]> {
    let numbers: Vec<f64> = text.split_whitespace().map_while(|word| word.parse().ok()).collect();
    numbers.try_into().ok()
}

/// Drains a topic of Kafka, and prints the peak of the resident memory and the memory before, in KiB, and the rate.
/// Runs in the child process of `in_a_process`.
pub(crate) fn drain_and_report(words: &[String]) -> anyhow::Result<()> {
    let [source, postgres, messages] = words else {
        anyhow::bail!("the arguments are a topic, a database and a count")
    };
    let messages: usize = messages.parse()?;
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let (idle, result) = runtime.block_on(async {
        let process = loops::process(&super::ledger(postgres)?);
        let source = kafka::source(&source.parse()?).await?;
        let idle = memory_of("VmRSS:")?;
        let result = drain(Box::new(source), process, DrainPlan::new(messages, AT_ONCE, BATCH)).await?;
        anyhow::Ok((idle, result))
    })?;
    println!("{} {idle} {}", memory_of("VmHWM:")?, result.rate);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::figures;

    #[test]
    fn three_numbers_are_read_and_nothing_else() {
        assert_eq!(figures("1024 512 8000.5\n"), Some([1024.0, 512.0, 8000.5]));
        assert_eq!(figures("1024 512"), None);
        assert_eq!(figures("an error"), None);
    }
}
