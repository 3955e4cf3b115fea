//! Common interface of storage engines, so that an experiment runs the same operations on each engine.
//!
//! The features `peer-rocksdb` and `peer-fjall` add RocksDB and fjall. The feature `peers` adds both. The features are
//! off by default because RocksDB needs a C library. `docs/results/peers.md` explains the settings of each engine.

#[cfg(feature = "peer-fjall")]
mod fjall;
pub mod lsmx;
#[cfg(feature = "peer-rocksdb")]
mod rocksdb;
pub mod settings;

use std::fmt;
use std::path::Path;

use ::lsmx::Explanation;
use ::lsmx::operand_store::OperandMetrics;

use crate::error::{Error, Result};
use crate::numbers;
use crate::process;

pub use settings::EngineSettings;

/// Filter bits per key, for each engine that has this setting.
pub const FILTER_BITS_PER_KEY: f64 = 10.0;
/// Maximum number of memtables of an engine without a memory budget.
pub const MEMTABLES_MAX: u64 = 4;
/// Target length of a data block in bytes, for each engine.
pub const BLOCK_BYTES: u32 = 4096;

/// A callback that receives the key and the value of each visited entry.
pub type EntryVisitor<'a> = dyn FnMut(&[u8], &[u8]) + 'a;

/// An open database of any engine. Several threads can use the database at the same time.
pub trait Engine: Send + Sync {
    /// Puts a value and passes the log record to the operating system, without a sync.
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()>;

    /// Puts a value and waits until the value is on stable storage.
    fn put_sync(&self, key: &[u8], value: &[u8]) -> Result<()>;

    /// Deletes a key with the same durability as [`Engine::put`].
    fn delete(&self, key: &[u8]) -> Result<()>;

    /// Looks up a key and calls `see` with the value, without a copy of the value. Returns whether the key is present.
    fn get(&self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool>;

    /// Visits up to `entries` entries in key order, starting at the first key ≥ `from`. Returns the number of entries.
    fn seek(&self, from: &[u8], entries: u64, visit: &mut EntryVisitor<'_>) -> Result<u64>;

    /// Visits up to `entries` entries forward from the first key, or backward from the last key. Returns the number of
    /// entries.
    fn scan(&self, backward: bool, entries: u64, visit: &mut EntryVisitor<'_>) -> Result<u64>;

    /// Flushes the memtables and waits for all compactions. Returns the time from the end of the compactions to its
    /// detection, in nanoseconds.
    fn flush_and_wait_idle(&self) -> Result<u64>;

    /// Waits until the engine has no background work. Does not flush the memtables.
    fn wait_until_idle(&self) -> Result<()>;

    /// Returns the bytes written since the database was opened, or `None` if the engine does not count written bytes.
    fn written_bytes(&self) -> Option<WrittenBytes> {
        None
    }

    /// Returns the sum of the delays of all writes that waited for flushes or compactions, in microseconds. Returns
    /// `None` if the engine does not count these delays.
    fn write_stall_us(&self) -> Option<u64> {
        None
    }

    /// Returns the engine's estimate of the bytes that pending compactions have to rewrite, or `None` if the engine has
    /// no estimate.
    fn pending_compaction_bytes(&self) -> Option<u64> {
        None
    }

    /// Returns the total length of the live tables, in bytes.
    fn table_bytes(&self) -> Result<u64>;

    fn close(self: Box<Self>) -> Result<()>;

    /// Reads a value, overwrites the part at `offset` with `bytes`, and puts the result. No other thread may write the
    /// key at the same time, because the update is not atomic on every engine.
    fn read_and_put_field(&self, key: &[u8], offset: u32, bytes: &[u8]) -> Result<()> {
        let mut value = Vec::new();
        self.get(key, &mut |old| value.extend_from_slice(old))?;
        write_field(&mut value, offset, bytes);
        self.put(key, &value)
    }

    /// Merges an operand that overwrites the value at `offset` with `bytes`. Does not read the value. Fails if the
    /// engine has no merge operators.
    fn merge(&self, key: &[u8], offset: u32, bytes: &[u8]) -> Result<()>;

    /// Returns the number of blocks that the calling thread has read from files, in all databases of this engine.
    /// Returns 0 if the engine does not count block reads.
    fn thread_block_reads(&self) -> u64 {
        0
    }

    /// Returns the bytes that file system calls have read and written. The default implementation counts all calls of
    /// the process.
    fn io_bytes(&self) -> IoBytes {
        let (read, written) = (process::process_read_bytes(), process::process_written_bytes());
        IoBytes { read: read.unwrap_or(0), written: written.unwrap_or(0) }
    }

    /// Looks up a key and returns the steps of the lookup, and the number of blocks that were read from the operand
    /// store meanwhile. Returns `None` if the engine does not report steps.
    fn explain(&self, _key: &[u8]) -> Result<Option<(Explanation, u64)>> {
        Ok(None)
    }

    /// Returns the metrics of the operand store, or `None` if the database has no operand store.
    fn operand_store_metrics(&self) -> Option<OperandMetrics> {
        None
    }

    /// Returns the total length of the blob files, in bytes. Returns `None` if the engine does not report the length.
    fn blob_bytes(&self) -> Option<u64> {
        None
    }
}

/// Bytes that file system calls have read and written. Includes reads from the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoBytes {
    pub read: u64,
    pub written: u64,
}

/// Overwrites a value at `offset` with `bytes`. A value that is too short is first extended with zeros.
pub(crate) fn write_field(value: &mut Vec<u8>, offset: u32, bytes: &[u8]) {
    let start = numbers::to_usize(u64::from(offset));
    let end = start + bytes.len();
    if value.len() < end {
        value.resize(end, 0);
    }
    value[start..end].copy_from_slice(bytes);
}

/// Bytes that an engine has written to the WAL, in flushes and in compactions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct WrittenBytes {
    pub wal_bytes: u64,
    pub flushed_bytes: u64,
    pub compaction_bytes: u64,
}

impl WrittenBytes {
    pub fn total(self) -> u64 {
        self.wal_bytes + self.flushed_bytes + self.compaction_bytes
    }

    pub fn since(self, before: WrittenBytes) -> WrittenBytes {
        WrittenBytes {
            wal_bytes: self.wal_bytes.saturating_sub(before.wal_bytes),
            flushed_bytes: self.flushed_bytes.saturating_sub(before.flushed_bytes),
            compaction_bytes: self.compaction_bytes.saturating_sub(before.compaction_bytes),
        }
    }
}

/// A storage engine that experiments can run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EngineKind {
    Lsmx,
    Rocksdb,
    Fjall,
}

impl EngineKind {
    /// The engines that lsmx is compared with.
    pub const PEERS: [EngineKind; 2] = [EngineKind::Rocksdb, EngineKind::Fjall];

    pub fn name(self) -> &'static str {
        match self {
            EngineKind::Lsmx => "lsmx",
            EngineKind::Rocksdb => "rocksdb",
            EngineKind::Fjall => "fjall",
        }
    }

    /// Returns the peer with this name. Fails if the name is unknown or this build does not contain the peer.
    pub fn parse_peer(name: &str) -> Result<EngineKind> {
        let known = || format!("one of {}", EngineKind::PEERS.map(EngineKind::name).join(", "));
        let kind = EngineKind::PEERS.into_iter().find(|kind| kind.name() == name);
        let kind = kind.ok_or_else(|| Error::invalid_argument("--peers", name, known()))?;
        if kind.is_built_in() { Ok(kind) } else { Err(kind.not_built_in_error()) }
    }

    pub fn is_built_in(self) -> bool {
        match self {
            EngineKind::Lsmx => true,
            EngineKind::Rocksdb => cfg!(feature = "peer-rocksdb"),
            EngineKind::Fjall => cfg!(feature = "peer-fjall"),
        }
    }

    /// Returns whether the engine can bypass the page cache, see [`EngineSettings::direct_io`].
    pub fn has_direct_io(self) -> bool {
        self != EngineKind::Fjall
    }

    /// Checks that this build contains the engine, and that the engine has merge operators.
    pub fn check_can_merge(self) -> Result<()> {
        match self {
            EngineKind::Fjall => Err(self.merge_error()),
            _ if self.is_built_in() => Ok(()),
            _ => Err(self.not_built_in_error()),
        }
    }

    fn merge_error(self) -> Error {
        Error::invalid_argument("--peers", self.name(), "rocksdb, which merges")
    }

    fn not_built_in_error(self) -> Error {
        let must = "built in: `cargo build --release -p lsmx-cli --features peers`, \
                    see docs/results/peers.md";
        Error::invalid_argument("--peers", self.name(), must)
    }

    /// Opens the database in a directory, or creates it. Fails if this build does not contain the engine.
    pub fn open(self, path: &Path, settings: &EngineSettings) -> Result<Box<dyn Engine>> {
        match self {
            EngineKind::Lsmx => Ok(Box::new(lsmx::Lsmx::open(path, settings)?)),
            #[cfg(feature = "peer-rocksdb")]
            EngineKind::Rocksdb => Ok(Box::new(rocksdb::Rocksdb::open(path, settings)?)),
            #[cfg(feature = "peer-fjall")]
            EngineKind::Fjall => Ok(Box::new(fjall::Fjall::open(path, settings)?)),
            #[cfg(not(all(feature = "peer-rocksdb", feature = "peer-fjall")))]
            _ => Err(self.not_built_in_error()),
        }
    }
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_unknown_or_not_built_in_is_a_usage_error() {
        let error = EngineKind::parse_peer("leveldb").unwrap_err();
        assert!(error.is_usage() && error.to_string().contains("rocksdb, fjall"), "{error}");
        for kind in EngineKind::PEERS {
            match EngineKind::parse_peer(kind.name()) {
                Ok(found) => assert!(found == kind && kind.is_built_in()),
                Err(error) => {
                    assert!(!kind.is_built_in() && error.is_usage());
                    assert!(error.to_string().contains("--features peers"), "{error}");
                }
            }
        }
    }
}
