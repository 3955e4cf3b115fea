//! Counts test cases by name. A test can require that each case has occurred.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use lsmx::{Event, EventListener};
use lsmx_base::file_name::FileName;
use lsmx_compaction::{JobKind, JobReason};
use lsmx_testkit::scale;

use super::Outcome;

/// The name of a group of cases, and the name of a case in this group.
type Name = (&'static str, &'static str);

#[derive(Debug, Default)]
pub(crate) struct Coverage(Mutex<BTreeMap<Name, u64>>);

impl Coverage {
    pub(crate) fn add(&self, group: &'static str, name: &'static str) {
        self.add_many(group, name, 1);
    }

    pub(crate) fn add_many(&self, group: &'static str, name: &'static str, count: u64) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *counts.entry((group, name)).or_default() += count;
    }

    pub(crate) fn count(&self, group: &'static str, name: &'static str) -> u64 {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.get(&(group, name)).copied().unwrap_or(0)
    }

    /// Fails if a case in `names` has never occurred. A short run may miss a case, so the check is skipped if
    /// `LSMX_TEST_SCALE` is below 1.
    pub(crate) fn require(&self, group: &'static str, names: &[&'static str]) -> Outcome {
        let missing: Vec<_> = names.iter().filter(|name| self.count(group, name) == 0).collect();
        if missing.is_empty() || scale() < 1.0 {
            return Ok(());
        }
        Err(format!("{group} that never happened: {missing:?}\n{self}"))
    }
}

impl std::fmt::Display for Coverage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut last = "";
        for ((group, name), count) in &*counts {
            if *group != last {
                write!(f, "{}{group}:", if last.is_empty() { "" } else { "\n" })?;
                last = group;
            }
            write!(f, " {name} {count},")?;
        }
        Ok(())
    }
}

impl EventListener for Coverage {
    fn on_event(&self, event: &Event) {
        let name = match event {
            Event::Recovery(report) if report.records > 0 && report.bytes_cut > 0 => "tail cut",
            Event::Recovery(report) if report.records > 0 => "replay",
            Event::Recovery(_) => "nothing to replay",
            Event::Flush(_) => "flush",
            Event::Compaction(end) => match end.job.kind {
                JobKind::Merge => "merge",
                JobKind::Move => "trivial move",
                JobKind::Drop => "drop",
                JobKind::Rewrite => "rewrite",
            },
            Event::Failure(_) => "background failure",
            Event::ReadOnly(_) => "read-only",
            Event::Resumed => "resume",
            Event::Stalled(_) => "stall",
            Event::OrphanRemoved(_) => "orphan removed",
            _ => "other",
        };
        self.add("jobs", name);
        if let Event::Compaction(end) = event
            && let JobReason::Expired { .. } = end.job.reason
        {
            self.add("jobs", "rewrite of an expired table");
        }
    }
}

pub(crate) fn file_kind(path: &Path) -> &'static str {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("");
    match FileName::parse(name) {
        Some(FileName::Table(_)) => "table",
        Some(FileName::Blob(_)) => "blob",
        Some(FileName::Segment(_)) => "segment",
        Some(FileName::Manifest(_)) => "manifest",
        Some(FileName::Operands(_)) => "operands",
        Some(FileName::Bucket(_)) => "bucket",
        Some(FileName::Temporary(_)) => "temporary",
        Some(FileName::Current) => "current",
        Some(FileName::Lock) => "lock",
        Some(FileName::Reserve) => "reserve",
        Some(FileName::Metrics | FileName::MetricsTemporary) => "metrics",
        None => "directory",
    }
}
