//! The limit that `lsmx bench --memory-limit` sets for each engine.

use std::ffi::OsString;
use std::fmt;
use std::path::Path;

use super::engine_process::{EngineProcess, EngineProcesses};
use crate::error::{Error, Result};
use crate::memory_group::GroupVersion;
use crate::peers::{EngineKind, EngineSettings, MEMTABLES_MAX};
use crate::report::text::format_bytes;

/// Name of [`LimitMethod::DirectIo`] in results.
pub(super) const DIRECT_IO: &str = "direct I/O";

/// Memory limit of each engine. The page cache of the files of an engine counts toward the limit.
#[derive(Clone, Debug)]
pub struct MemoryLimit {
    pub bytes: u64,
    pub method: LimitMethod,
    /// Command-line arguments for child processes: the arguments of this process, without the program name.
    pub(super) arguments: Vec<OsString>,
    /// The running child processes.
    pub processes: EngineProcesses,
}

/// How the memory is limited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitMethod {
    /// Each engine runs in a child process, which is in a memory control group.
    Group(GroupVersion),
    /// No group can be created. The engines run in this process and bypass the page cache.
    DirectIo {
        /// Reason why no group can be created.
        reason: String,
    },
}

impl fmt::Display for LimitMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LimitMethod::Group(version) => version.fmt(f),
            LimitMethod::DirectIo { .. } => f.write_str(DIRECT_IO),
        }
    }
}

impl MemoryLimit {
    /// Tries to start a child process in a memory control group, and selects the method by the outcome. `arguments` are
    /// the arguments of this process, without the program name.
    pub fn choose(bytes: u64, arguments: Vec<OsString>) -> MemoryLimit {
        let (method, processes) =
            (LimitMethod::DirectIo { reason: String::new() }, EngineProcesses::default());
        let mut limit = MemoryLimit { bytes, method, arguments, processes };
        limit.method = match EngineProcess::start(EngineKind::Lsmx, Path::new(""), &limit) {
            Ok(process) => LimitMethod::Group(process.group_version()),
            Err(Error::EngineProcess { failure, .. }) => {
                LimitMethod::DirectIo { reason: failure.to_string() }
            }
            Err(error) => LimitMethod::DirectIo { reason: error.to_string() },
        };
        limit
    }

    /// Returns whether each engine runs in a child process.
    pub(in crate::experiment) fn has_processes(&self) -> bool {
        matches!(self.method, LimitMethod::Group(_))
    }

    /// Checks that the limit covers the block cache and the memtables, and that the selected method can limit every
    /// engine.
    pub(super) fn check(&self, settings: &EngineSettings, peers: &[EngineKind]) -> Result<()> {
        let cache = settings.block_cache_bytes.unwrap_or(0);
        let memtable = settings.memtable_bytes.unwrap_or(0);
        let needed = cache.saturating_add(memtable.saturating_mul(MEMTABLES_MAX));
        if self.bytes == 0 || self.bytes < needed {
            let must = format!(
                "at least {needed}: the block cache ({}) and {MEMTABLES_MAX} memtables (of {} each)",
                format_bytes(cache),
                format_bytes(memtable),
            );
            return Err(Error::invalid_argument("--memory-limit", self.bytes, must));
        }
        if let LimitMethod::DirectIo { reason } = &self.method
            && let Some(peer) = peers.iter().find(|peer| !peer.has_direct_io())
        {
            let must = format!("left out, because it has no direct I/O and {reason}");
            return Err(Error::invalid_argument("--peers", peer, must));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn direct(bytes: u64) -> MemoryLimit {
        MemoryLimit {
            bytes,
            method: LimitMethod::DirectIo { reason: "no hierarchy".to_owned() },
            arguments: Vec::new(),
            processes: EngineProcesses::default(),
        }
    }

    #[test]
    fn limit_below_cache_and_memtables_is_rejected() {
        let settings = EngineSettings {
            block_cache_bytes: Some(100),
            memtable_bytes: Some(50),
            ..EngineSettings::default()
        };
        for bytes in [0, 299] {
            let error = direct(bytes).check(&settings, &[]).unwrap_err();
            assert!(error.is_usage());
            let error = error.to_string();
            assert!(error.contains(&format!("--memory-limit is {bytes}, must be at least 300")));
        }
        direct(300).check(&settings, &[]).unwrap();
        assert!(direct(0).check(&EngineSettings::default(), &[]).is_err());
    }

    #[test]
    fn engine_without_direct_io_needs_a_group() {
        let settings = EngineSettings::default();
        let peers = [EngineKind::Rocksdb, EngineKind::Fjall];
        let error = direct(1).check(&settings, &peers).unwrap_err().to_string();
        let start = "--peers is fjall, must be left out";
        assert!(error.starts_with(start) && error.contains("no hierarchy"), "{error}");
        direct(1).check(&settings, &peers[..1]).unwrap();
        let group = LimitMethod::Group(GroupVersion::V2);
        MemoryLimit { method: group, ..direct(1) }.check(&settings, &peers).unwrap();
    }
}
