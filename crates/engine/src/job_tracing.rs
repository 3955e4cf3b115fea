//! Spans for jobs and commits, and events, for the crate `tracing`.
//!
//! Without a subscriber each job, commit and event costs one load and one branch. Without the feature `tracing`
//! (enabled by default) the functions compile to nothing. The target of spans and events is
//! `lsmx::trace`. Reads have no spans.

use crate::event::Event;

/// Target of all spans and events.
#[cfg(feature = "tracing")]
const TARGET: &str = "lsmx::trace";

/// Span of a job that runs on the current thread. Dropping it ends the span.
#[derive(Debug)]
pub(crate) struct JobSpan {
    #[cfg(feature = "tracing")]
    span: tracing::span::EnteredSpan,
}

/// Fields of a job that are known at its start.
#[derive(Clone, Copy)]
#[cfg_attr(not(feature = "tracing"), expect(dead_code, reason = "no span records the fields"))]
pub(crate) struct JobSpanFields<'a> {
    /// `flush`, `merge`, `move`, `drop`, `rewrite`, `recovery`, `resume` or `collection`. A subcompaction that does not
    /// run on the thread of its job is a `part`.
    pub(crate) kind: &'static str,
    /// Name of the keyspace. Empty for jobs of the whole database.
    pub(crate) keyspace: &'a str,
    /// Number of input files or memtables.
    pub(crate) inputs: usize,
    /// Reason of the job.
    pub(crate) reason: &'a dyn std::fmt::Display,
}

impl JobSpan {
    /// Starts a span.
    #[cfg(feature = "tracing")]
    pub(crate) fn start(job: JobSpanFields<'_>) -> JobSpan {
        use tracing::field::Empty;
        let span = tracing::info_span!(
            target: TARGET,
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
    pub(crate) fn start(_: JobSpanFields<'_>) -> JobSpan {
        JobSpan {}
    }

    /// Records the results of a successful job.
    pub(crate) fn record_success(&self, read_bytes: u64, written_bytes: u64, elapsed_us: u64) {
        #[cfg(feature = "tracing")]
        self.span
            .record("read_bytes", read_bytes)
            .record("written_bytes", written_bytes)
            .record("elapsed_us", elapsed_us);
        #[cfg(not(feature = "tracing"))]
        let _ = (read_bytes, written_bytes, elapsed_us);
    }

    /// Records the error of a failed job.
    pub(crate) fn record_error(&self, error: &crate::error::Error) {
        #[cfg(feature = "tracing")]
        self.span.record("error", tracing::field::display(error));
        #[cfg(not(feature = "tracing"))]
        let _ = error;
    }
}

/// Span of a commit. Its level is `TRACE`, because commits are frequent.
#[derive(Debug)]
pub(crate) struct CommitSpan {
    #[cfg(feature = "tracing")]
    span: tracing::Span,
}

impl CommitSpan {
    /// Creates the span of a batch with `operations` operations, which take `bytes` bytes in the WAL.
    #[cfg(feature = "tracing")]
    #[inline]
    pub(crate) fn new(operations: u32, bytes: usize, sync: bool) -> CommitSpan {
        let error = tracing::field::Empty;
        let span =
            tracing::trace_span!(target: TARGET, "commit", operations, bytes, sync, error = error);
        CommitSpan { span }
    }

    #[cfg(not(feature = "tracing"))]
    pub(crate) fn new(_: u32, _: usize, _: bool) -> CommitSpan {
        CommitSpan {}
    }

    /// Runs a part of the commit inside the span.
    #[inline]
    pub(crate) fn in_scope<T>(&self, commit: impl FnOnce() -> T) -> T {
        #[cfg(feature = "tracing")]
        return self.span.in_scope(commit);
        #[cfg(not(feature = "tracing"))]
        commit()
    }

    /// Records the error of a failed commit.
    #[cold]
    pub(crate) fn record_error(&self, error: &crate::error::Error) {
        #[cfg(feature = "tracing")]
        self.span.record("error", tracing::field::display(error));
        #[cfg(not(feature = "tracing"))]
        let _ = error;
    }
}

/// Emits an event of the engine as an event of `tracing`.
pub(crate) fn emit_event(event: &Event) {
    #[cfg(feature = "tracing")]
    match event {
        Event::ReadOnly(_) => tracing::error!(target: TARGET, "{event}"),
        Event::Failure(_) | Event::CompactionFilterFailed(_) => {
            tracing::warn!(target: TARGET, "{event}")
        }
        Event::FlushBegin(_) | Event::CompactionBegin(_) | Event::StallBegin(_) => {
            tracing::debug!(target: TARGET, "{event}");
        }
        _ => tracing::info!(target: TARGET, "{event}"),
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

    /// Subscriber that collects all fields of all spans and events.
    #[derive(Clone, Debug, Default)]
    struct FieldCollector(Arc<Mutex<Vec<String>>>);

    impl Visit for FieldCollector {
        fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
            self.0.lock().push(format!("{field}={value:?}"));
        }
    }

    impl Subscriber for FieldCollector {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target() == "lsmx::trace"
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

    /// Environment variable that is set in the child process of the test.
    const CHILD: &str = "LSMX_TEST_TRACING_CHILD";

    #[test]
    fn job_span_records_fields_and_results() {
        // If a thread without a subscriber is the first to reach a call site, `tracing` may disable the call site for
        // all threads. Other tests have such threads, so the test runs in a process of its own.
        if std::env::var_os(CHILD).is_none() {
            let child = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "job_tracing::tests::job_span_records_fields_and_results"])
                .env(CHILD, "1")
                .output()
                .unwrap();
            let output = String::from_utf8_lossy(&child.stdout);
            assert!(output.contains("1 passed"), "{output}");
            return;
        }
        let emit_all = || {
            let job = JobSpanFields {
                kind: "merge",
                keyspace: "users",
                inputs: 3,
                reason: &"L0 is full",
            };
            let span = JobSpan::start(job);
            span.record_success(10, 5, 7);
            emit_event(&Event::Resumed);
            let commit = CommitSpan::new(2, 40, true);
            assert_eq!(commit.in_scope(|| 1), 1);
            commit.record_error(&crate::error::Error::Closed);
        };
        let fields = FieldCollector::default();
        tracing::subscriber::with_default(fields.clone(), emit_all);
        let fields = fields.0.lock().join(" ");
        for part in ["operations=2", "bytes=40", "sync=true", "error=the database is closed"] {
            assert!(fields.contains(part), "{fields}");
        }
        for part in ["kind=\"merge\"", "keyspace=\"users\"", "inputs=3", "reason=L0 is full"] {
            assert!(fields.contains(part), "{fields}");
        }
        for part in ["read_bytes=10", "written_bytes=5", "elapsed_us=7", "accepts writes again"] {
            assert!(fields.contains(part), "{fields}");
        }
    }
}
