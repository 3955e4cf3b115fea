//! A scan that is being recorded: how far it went is known when its iterator goes.

use lsmx_base::sync::Arc;

use crate::workload_trace::Recorder;

/// Counts the entries that an iterator gives out, and notes them when it is dropped.
#[derive(Debug)]
pub(crate) struct ScanTrace {
    recorder: Arc<Recorder>,
    keyspace: u32,
    name: String,
    /// Which end it was asked at first, and the bound there; none before anything was asked.
    begun: Option<(bool, Option<Vec<u8>>)>,
    entries: u64,
}

impl ScanTrace {
    pub(crate) fn new(recorder: Arc<Recorder>, keyspace: u32, name: String) -> ScanTrace {
        ScanTrace { recorder, keyspace, name, begun: None, entries: 0 }
    }

    /// The iterator is asked for an entry, at its back end or at its front.
    pub(crate) fn asked(&mut self, backward: bool, start: Option<&[u8]>) {
        if self.begun.is_none() {
            self.begun = Some((backward, start.map(<[u8]>::to_vec)));
        }
    }

    /// It gives one out.
    pub(crate) fn gave(&mut self) {
        self.entries += 1;
    }
}

impl Drop for ScanTrace {
    fn drop(&mut self) {
        if let Some((backward, start)) = &self.begun {
            let keyspace = (self.keyspace, self.name.as_str());
            self.recorder.scanned(keyspace, *backward, start.as_deref(), self.entries);
        }
    }
}
