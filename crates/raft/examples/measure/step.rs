//! Time and memory of a step. `raft_bench` and `scripts/raft_peers` use the same code.

use std::time::Instant;

/// A step of a snapshot. Measures its duration, and the maximum of the resident memory if the system can reset it.
pub(crate) struct Step {
    resident_kib: Option<u64>,
    begun: Instant,
}

impl Step {
    /// Starts a measurement.
    pub(crate) fn begin() -> Step {
        let is_reset = std::fs::write("/proc/self/clear_refs", "5").is_ok();
        Step { resident_kib: is_reset.then(|| memory_kib("VmRSS:")), begun: Instant::now() }
    }

    /// Prints the duration, and by how much the maximum exceeds the resident memory at the begin.
    pub(crate) fn print(self, name: &str) {
        let ms = self.begun.elapsed().as_secs_f64() * 1e3;
        let added = self.resident_kib.map(|kib| memory_kib("VmHWM:").saturating_sub(kib));
        let memory = added.map(|kib| format!(" {:8.1} MiB", kib as f64 / 1024.0));
        println!("{name:8} {ms:9.1} ms{}", memory.unwrap_or_default());
    }
}

/// Returns a field of `/proc/self/status`, or 0 if it does not exist.
fn memory_kib(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).unwrap_or(0)
}
