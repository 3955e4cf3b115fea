//! What led to each compaction, written down as it is decided.

use std::fmt;
use std::io::Write;

use lsmx::event::Decision;
use lsmx_base::sync::{Arc, Mutex};

/// Where decisions are written to, a few lines each.
#[derive(Clone)]
pub struct Decisions(Arc<Mutex<Box<dyn Write + Send>>>);

impl Decisions {
    /// Decisions go there.
    #[must_use]
    pub fn to(out: Box<dyn Write + Send>) -> Decisions {
        Decisions(Arc::new(Mutex::new(out)))
    }

    /// Writes one decision. Whoever has closed the output wants no more of them, and the run goes on.
    pub(super) fn write(&self, decision: &Decision) {
        let Decision { keyspace, policy, explanation } = decision;
        let mut out = self.0.lock();
        let _ = writeln!(out, "{policy} in {keyspace}: {explanation}");
    }
}

impl fmt::Debug for Decisions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Decisions")
    }
}
