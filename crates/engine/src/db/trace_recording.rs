//! Recording what users do: see [`crate::workload_trace`].

use std::path::Path;

use lsmx_base::slice::Slice;
use lsmx_base::sync::Arc;

use crate::db::{Db, DbInner, outputs};
use crate::error::Result;
use crate::tree::Tree;
use crate::workload_trace::{Recorder, ScanTrace, Trace, TraceOptions};
use crate::write::batch::WriteBatch;

impl Db {
    /// Records every operation from here on in a new file, until the handle is stopped or dropped:
    /// keys, sizes of values, times. See [`crate::workload_trace`] for what that costs and promises.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) if the file is there already or cannot be made;
    /// [`Error::InvalidOption`](crate::Error::InvalidOption) if another trace is being recorded;
    /// [`Error::OutputInDatabase`](crate::Error::OutputInDatabase) for the name of an engine file in a database directory;
    /// [`Error::Closed`](crate::Error::Closed).
    pub fn record_trace(&self, path: impl AsRef<Path>) -> Result<Trace> {
        self.record_trace_with(path, TraceOptions::default())
    }

    /// [`Db::record_trace`] with options: keys hashed, values kept.
    ///
    /// # Errors
    /// As [`Db::record_trace`].
    pub fn record_trace_with(
        &self,
        path: impl AsRef<Path>,
        options: TraceOptions,
    ) -> Result<Trace> {
        let core = self.inner();
        core.check_open()?;
        let path = path.as_ref();
        outputs::check_output(&*core.state.vfs, path)?;
        let vfs = Arc::clone(&core.state.vfs);
        Trace::begin(&core.recording, vfs, &core.state.env, path, options)
    }
}

/// A commit that a trace will note if it goes well; the commit itself takes its batch along.
pub(crate) struct CommitTrace {
    recorder: Arc<Recorder>,
    payload: Vec<u8>,
    count: u32,
    trees: Vec<Arc<Tree>>,
}

impl CommitTrace {
    pub(crate) fn committed(self, synced: bool) {
        let keyspaces = self.trees.iter().map(|tree| (tree.id, tree.name.as_str()));
        self.recorder.committed(&self.payload, self.count, synced, keyspaces);
    }
}

impl DbInner {
    /// What a trace needs of a batch, while one is recorded.
    #[inline]
    pub(crate) fn start_commit_trace(&self, batch: &WriteBatch) -> Option<CommitTrace> {
        let recorder = self.recording.recorder().filter(|_| !batch.is_empty())?;
        let (payload, trees) = (batch.payload.clone(), batch.trees.clone());
        Some(CommitTrace { recorder, payload, count: batch.count, trees })
    }

    /// Notes a lookup that went well.
    #[inline]
    pub(crate) fn record_get(&self, tree: &Tree, key: &[u8], value: Option<&Slice>) {
        if let Some(recorder) = self.recording.recorder() {
            record_get(&recorder, tree, key, value);
        }
    }

    /// What notes how far an iterator goes, while anybody wants to know.
    #[inline]
    pub(crate) fn start_scan_trace(&self, tree: &Tree) -> Option<Box<ScanTrace>> {
        let recorder = self.recording.recorder()?;
        Some(Box::new(ScanTrace::new(recorder, tree.id, tree.name.clone())))
    }
}

#[cold]
fn record_get(recorder: &Recorder, tree: &Tree, key: &[u8], value: Option<&Slice>) {
    recorder.got((tree.id, &tree.name), key, value.map(|value| value.len()));
}
