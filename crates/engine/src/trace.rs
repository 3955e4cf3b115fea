//! Jobs as spans, and everything a listener is told as events, for whoever collects `tracing` data.
//!
//! With the feature `tracing` (on by default) and no subscriber this is a load and a branch for
//! each job and event; without the feature it is nothing. Targets are `lsmx::trace`; reads and
//! writes of users have no spans.

use crate::event::Event;

/// A job under way on this thread; ends when it is dropped.
#[derive(Debug)]
pub(crate) struct JobSpan {
    #[cfg(feature = "tracing")]
    span: tracing::span::EnteredSpan,
}

/// What a job is, when it begins.
#[derive(Clone, Copy)]
#[cfg_attr(not(feature = "tracing"), expect(dead_code, reason = "nobody is told"))]
pub(crate) struct JobBegin<'a> {
    /// `flush`, `merge`, `move`, `drop`, `rewrite`, `recovery`, `resume`, `collection`; `part` for a part of a merge
    /// that runs on another thread than the job.
    pub(crate) kind: &'static str,
    /// The keyspace; empty for jobs of the whole database.
    pub(crate) keyspace: &'a str,
    /// Input files, or memtables.
    pub(crate) inputs: usize,
    /// Why it is done.
    pub(crate) reason: &'a dyn std::fmt::Display,
}

impl JobSpan {
    /// Begins a span.
    #[cfg(feature = "tracing")]
    pub(crate) fn begin(job: JobBegin<'_>) -> JobSpan {
        use tracing::field::Empty;
        let span = tracing::info_span!(
            "job",
            kind = job.kind,
            keyspace = job.keyspace,
            inputs = job.inputs,
            reason = %job.reason,
            read_bytes = Empty,
            written_bytes = Empty,
            elapsed_us = Empty,
            error = Empty,
        );
        JobSpan { span: span.entered() }
    }

    #[cfg(not(feature = "tracing"))]
    pub(crate) fn begin(_: JobBegin<'_>) -> JobSpan {
        JobSpan {}
    }

    /// Notes what a job did that ended well.
    pub(crate) fn done(&self, read_bytes: u64, written_bytes: u64, elapsed_us: u64) {
        #[cfg(feature = "tracing")]
        self.span
            .record("read_bytes", read_bytes)
            .record("written_bytes", written_bytes)
            .record("elapsed_us", elapsed_us);
        #[cfg(not(feature = "tracing"))]
        let _ = (read_bytes, written_bytes, elapsed_us);
    }

    /// Notes why a job failed.
    pub(crate) fn failed(&self, error: &crate::Error) {
        #[cfg(feature = "tracing")]
        self.span.record("error", tracing::field::display(error));
        #[cfg(not(feature = "tracing"))]
        let _ = error;
    }
}

/// Hands on what a listener is told.
pub(crate) fn event(event: &Event) {
    #[cfg(feature = "tracing")]
    match event {
        Event::ReadOnly(_) => tracing::error!("{event}"),
        Event::Failure(_) => tracing::warn!("{event}"),
        Event::FlushBegin(_) | Event::CompactionBegin(_) | Event::StallBegin(_) => {
            tracing::debug!("{event}");
        }
        _ => tracing::info!("{event}"),
    }
    #[cfg(not(feature = "tracing"))]
    let _ = event;
}

#[cfg(all(test, feature = "tracing"))]
mod tests {
    use super::*;
    use lsmx_base::sync::{Arc, Mutex};
    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Metadata, Subscriber};

    /// Writes down every field of every span.
    #[derive(Clone, Debug, Default)]
    struct Notes(Arc<Mutex<Vec<String>>>);

    impl Visit for Notes {
        fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
            self.0.lock().push(format!("{field}={value:?}"));
        }
    }

    impl Subscriber for Notes {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, span: &Attributes<'_>) -> Id {
            span.record(&mut self.clone());
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, values: &Record<'_>) {
            values.record(&mut self.clone());
        }
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, event: &tracing::Event<'_>) {
            event.record(&mut self.clone());
        }
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn a_job_tells_what_it_is_and_what_it_did() {
        let notes = Notes::default();
        tracing::subscriber::with_default(notes.clone(), || {
            let job =
                JobBegin { kind: "merge", keyspace: "users", inputs: 3, reason: &"L0 is full" };
            let span = JobSpan::begin(job);
            span.done(10, 5, 7);
            event(&Event::Resumed);
        });
        let notes = notes.0.lock().join(" ");
        for part in ["kind=\"merge\"", "keyspace=\"users\"", "inputs=3", "reason=L0 is full"] {
            assert!(notes.contains(part), "{notes}");
        }
        for part in ["read_bytes=10", "written_bytes=5", "elapsed_us=7", "takes writes again"] {
            assert!(notes.contains(part), "{notes}");
        }
    }
}
