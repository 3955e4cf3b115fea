//! Prints the reason for each compaction.

use std::fmt;
use std::io::Write;

use lsmx::event::Decision;
use lsmx_base::sync::{Arc, Mutex};

/// Output for the explanations of compaction decisions, one line per compaction.
#[derive(Clone)]
pub struct DecisionWriter(Arc<Mutex<Box<dyn Write + Send>>>);

impl DecisionWriter {
    /// Creates the output from a writer.
    pub fn with_output(out: Box<dyn Write + Send>) -> DecisionWriter {
        DecisionWriter(Arc::new(Mutex::new(out)))
    }

    /// Writes the reason for one compaction. Write errors are ignored, so a closed pipe does not end the run.
    pub(super) fn write_decision(&self, decision: &Decision) {
        let Decision { keyspace, policy, explanation } = decision;
        let mut out = self.0.lock();
        let _ = writeln!(out, "{policy} in {keyspace}: {explanation}");
    }
}

impl fmt::Debug for DecisionWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Decisions")
    }
}
