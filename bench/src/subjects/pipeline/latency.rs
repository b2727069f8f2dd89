//! The latency of a payment, by the times at the borders of a pipeline with all layers and of pipelines that leave
//! layers out.

use std::fmt::Write;
use std::time::Duration;

use anyhow::Context;

use super::WARM_UP;
use super::load::SentPayment;
use super::servers::PipelineServers;
use super::system::PipelineProcesses;
use crate::stages::PipelineLayers;

/// A payment every 5 ms: far from the limit of the machine.
const PAUSE: Duration = Duration::from_millis(5);
const PAYMENTS: u64 = 3_000;

/// A part of the way of a payment: its name, and the borders where it begins and ends.
struct WaySection {
    name: &'static str,
    from: Border,
    to: Border,
}

/// Where the time is taken.
#[derive(Clone, Copy)]
enum Border {
    Sent,
    AtService,
    InKafka,
    Answered,
    AtWorker,
    Committed,
    InNats,
    Consumed,
}

const BORDERS: usize = 8;

const SECTIONS: [WaySection; 9] = [
    WaySection::new("client to service: gateway, begin in Redis", Border::Sent, Border::AtService),
    WaySection::new("service to Kafka, confirmed", Border::AtService, Border::InKafka),
    WaySection::new("service to client: gateway, completion in Redis", Border::InKafka, Border::Answered),
    WaySection::new(ANSWER, Border::Sent, Border::Answered),
    WaySection::new("Kafka to worker", Border::InKafka, Border::AtWorker),
    WaySection::new(TRANSACTION, Border::AtWorker, Border::Committed),
    WaySection::new(PUBLICATION, Border::Committed, Border::InNats),
    WaySection::new("NATS to consumer", Border::InNats, Border::Consumed),
    WaySection::new(END_TO_END, Border::Sent, Border::Consumed),
];

const ANSWER: &str = "request to answer";
const TRANSACTION: &str = "transaction of the worker";
const PUBLICATION: &str = "commit to NATS, stored";
const END_TO_END: &str = "client to consumer";

impl WaySection {
    const fn new(name: &'static str, from: Border, to: Border) -> Self {
        Self { name, from, to }
    }
}

/// A pipeline, and what the first one has more than this one.
struct ComparedPipeline {
    name: &'static str,
    layers: PipelineLayers,
    missing: &'static str,
    /// The section that shows what is missing.
    section: &'static str,
}

impl ComparedPipeline {
    const fn new(name: &'static str, layers: PipelineLayers, missing: &'static str, section: &'static str) -> Self {
        Self { name, layers, missing, section }
    }
}

const PIPELINES: [ComparedPipeline; 5] = {
    let all = PipelineLayers::ALL;
    let (no_gate, no_ledger) = (PipelineLayers { gate: false, ..all }, PipelineLayers { ledger: false, ..all });
    let no_outbox = PipelineLayers { outbox: false, ..all };
    [
        ComparedPipeline::new("all layers", all, "", ""),
        ComparedPipeline::new("without the gate", no_gate, "layer 1, the gateway with Redis", ANSWER),
        ComparedPipeline::new("without the ledger", no_ledger, "layer 2, the ledger", TRANSACTION),
        ComparedPipeline::new("without the outbox", no_outbox, "layer 3, outbox and relay", PUBLICATION),
        ComparedPipeline::new("no layer", PipelineLayers::NONE, "all three layers", END_TO_END),
    ]
};

/// The 50th and the 99th percentile of each section, in microseconds.
type Percentiles = [(i64, i64); SECTIONS.len()];

/// Measures all pipelines one after the other.
pub(super) fn compare(servers: &PipelineServers) -> anyhow::Result<String> {
    let mut measured = Vec::new();
    for ComparedPipeline { name, layers, .. } in &PIPELINES {
        println!("latency, {name}: a payment every {} ms", PAUSE.as_millis());
        let times = servers.runtime.block_on(times(servers, *layers))?;
        measured.push(SECTIONS.each_ref().map(|section| percentiles(&times, section)));
    }
    let text = table(&measured) + &added(&measured);
    println!("{text}");
    Ok(text)
}

/// The times of each payment at all borders.
async fn times(servers: &PipelineServers, layers: PipelineLayers) -> anyhow::Result<Vec<[u64; BORDERS]>> {
    let mut pipeline = PipelineProcesses::start(servers, layers).await?;
    pipeline.warm_up(WARM_UP).await?;
    let sent = pipeline.sender.pace(WARM_UP..WARM_UP + PAYMENTS, PAUSE).await?;
    pipeline.arrivals.wait_for(WARM_UP + PAYMENTS).await?;
    let (stamps, arrivals) = (pipeline.stamps(WARM_UP + PAYMENTS).await?, pipeline.arrivals.all());
    let times = sent.into_iter().map(|SentPayment { number, sent, arrived, published, answered }| {
        let stamp = stamps.get(&number).context("the worker has no time of a payment")?;
        let arrival = arrivals.get(&number).context("the consumer has no time of a payment")?;
        let (received, committed) = (stamp.received, stamp.committed);
        Ok([sent, arrived, published, answered, received, committed, arrival.stored, arrival.consumed])
    });
    times.collect()
}

fn percentiles(times: &[[u64; BORDERS]], section: &WaySection) -> (i64, i64) {
    // A time may be negative: a worker may get a message before the service gets the broker's confirmation.
    let at = |times: &[u64; BORDERS], border: Border| times[border as usize].cast_signed();
    let mut all: Vec<i64> = times.iter().map(|times| at(times, section.to) - at(times, section.from)).collect();
    all.sort_unstable();
    (all[all.len() / 2], all[all.len() * 99 / 100])
}

fn table(measured: &[Percentiles]) -> String {
    let rate = 1_000 / PAUSE.as_millis();
    let names = PIPELINES.each_ref().map(|pipeline| pipeline.name).join(" | ");
    let mut table = format!(
        "\nLatency at {rate} payments a second, by the times that each process takes at its borders: p50 / p99 in us \
         of\n{PAYMENTS} payments.\n\n| section | {names} |\n|---{}|\n",
        "|---:".repeat(PIPELINES.len())
    );
    for (number, section) in SECTIONS.iter().enumerate() {
        let cells = measured.iter().map(|measured| format!("{} / {}", measured[number].0, measured[number].1));
        let _ = writeln!(table, "| {} | {} |", section.name, cells.collect::<Vec<_>>().join(" | "));
    }
    table + "\nWhat a layer adds: its section, beside the same section of the pipeline that leaves the layer out.\n\n"
}

fn added(measured: &[Percentiles]) -> String {
    let line = |(pipeline, without): (&ComparedPipeline, &Percentiles)| {
        let number = SECTIONS.iter().position(|section| section.name == pipeline.section)?;
        let ((p50, p99), (without50, without99)) = (measured[0][number], without[number]);
        let (more50, more99, ComparedPipeline { missing, section, .. }) = (p50 - without50, p99 - without99, pipeline);
        Some(format!("- {missing}, in \"{section}\": p50 {more50:+} us, p99 {more99:+} us\n"))
    };
    PIPELINES.iter().zip(measured).filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_adds_what_the_pipeline_without_it_saves() {
        let bare = [(100, 200); SECTIONS.len()];
        let mut all = bare;
        all[3] = (150, 190);
        let lines = added(&[all, bare, bare, bare, bare]);
        assert!(
            lines.starts_with("- layer 1, the gateway with Redis, in \"request to answer\": p50 +50 us, p99 -10 us")
        );
        assert_eq!(lines.lines().count(), 4);
    }

    #[test]
    fn percentiles_are_of_the_section_alone() {
        let times: Vec<[u64; BORDERS]> = (0..100).map(|number| [number, 2 * number, 0, 0, 0, 0, 0, 0]).collect();
        assert_eq!(percentiles(&times, &SECTIONS[0]), (50, 99));
    }
}
