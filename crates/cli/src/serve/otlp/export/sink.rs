//! A sink whose publications are spans.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use hapax::outbox::{OutgoingEvent, Published, Sink};
use hapax::store::Finding;
use opentelemetry::KeyValue;
use opentelemetry::trace::{Span, SpanKind, Status, Tracer};
use opentelemetry_sdk::trace::SdkTracer;

use crate::serve::otlp::export::propagation::context_of;
use crate::serve::otlp::export::tracer;

/// Reports each publication of the sink as a span, if traces are exported.
pub(crate) fn traced(sink: Arc<dyn Sink>) -> Arc<dyn Sink> {
    match tracer() {
        Some(tracer) => Arc::new(TracedSink { sink, tracer }),
        None => sink,
    }
}

/// The span belongs to the trace in the headers of its event. The event keeps its headers: its consumer joins the
/// trace of its writer.
#[derive(Debug)]
struct TracedSink {
    sink: Arc<dyn Sink>,
    tracer: SdkTracer,
}

impl TracedSink {
    fn report(&self, event: &OutgoingEvent, begun: SystemTime, published: &Published) {
        let result = match published {
            Published::Yes { .. } => "yes",
            Published::NotPublished { .. } => "not-published",
            Published::Unknown(_) => "unknown",
            Published::Refused(_) => "refused",
        };
        let mut attributes = vec![
            KeyValue::new("hapax.sink", self.sink.name().to_string()),
            KeyValue::new("hapax.event", event.id.to_string()),
            KeyValue::new("hapax.result", result),
        ];
        if let Some(operation) = event.operation {
            attributes.push(KeyValue::new("hapax.operation", operation.to_string()));
        }
        let span = self.tracer.span_builder("hapax.publish").with_kind(SpanKind::Producer);
        let span = span.with_start_time(begun).with_attributes(attributes);
        let mut span = span.start_with_context(&self.tracer, &context_of(&event.headers));
        if result != "yes" {
            span.set_status(Status::error(""));
        }
        span.end();
    }
}

#[async_trait]
impl Sink for TracedSink {
    fn name(&self) -> &Arc<str> {
        self.sink.name()
    }

    fn max_len(&self) -> usize {
        self.sink.max_len()
    }

    fn window(&self) -> Option<Duration> {
        self.sink.window()
    }

    fn endpoint(&self, event: &OutgoingEvent) -> Option<Arc<str>> {
        self.sink.endpoint(event)
    }

    async fn undeliverable(&self) -> Vec<String> {
        self.sink.undeliverable().await
    }

    async fn check(&self) -> hapax::Result<Vec<Finding>> {
        self.sink.check().await
    }

    async fn publish(&self, event: &Arc<OutgoingEvent>) -> Published {
        let begun = SystemTime::now();
        let published = self.sink.publish(event).await;
        self.report(event, begun, &published);
        published
    }

    async fn close(&self) {
        self.sink.close().await;
    }
}
