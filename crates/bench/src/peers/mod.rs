//! Engines behind one trait, so that an experiment runs the same operations on each of them.
//!
//! lsmx is always available. The features `peer-rocksdb` and `peer-fjall`, or `peers` for both, add the others. They
//! are off by default because RocksDB needs a C library. `docs/results/peers.md` explains the settings of each engine.

#[cfg(feature = "peer-fjall")]
mod fjall;
pub mod lsmx;
#[cfg(feature = "peer-rocksdb")]
mod rocksdb;
pub mod settings;

use std::fmt;
use std::path::Path;

use ::lsmx::operand_store::OperandMetrics;

use crate::error::{Error, Result};
use crate::numbers;
use crate::process;

pub use settings::EngineSettings;

/// Bits of a filter per key, for every engine that has this setting.
pub const FILTER_BITS_PER_KEY: f64 = 10.0;
/// Target length of a data block in bytes, for every engine.
pub const BLOCK_BYTES: u32 = 4096;

/// Receives the key and the value of each visited entry.
pub type Visit<'a> = dyn FnMut(&[u8], &[u8]) + 'a;

/// An open database. Threads share it. Each method fails as its engine fails.
pub trait Engine: Send + Sync {
    /// Puts a value and hands it to the operating system.
    ///
    /// # Errors
    /// The engine fails.
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()>;

    /// Puts a value and waits until it is on stable storage.
    ///
    /// # Errors
    /// The engine fails.
    fn put_sync(&self, key: &[u8], value: &[u8]) -> Result<()>;

    /// Deletes a key, with the durability of [`Engine::put`].
    ///
    /// # Errors
    /// The engine fails.
    fn delete(&self, key: &[u8]) -> Result<()>;

    /// Returns whether a key is present and passes its value to `see` without a copy.
    ///
    /// # Errors
    /// The engine fails.
    fn get(&self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool>;

    /// Visits up to `entries` entries from `from` on, in key order. Returns their number.
    ///
    /// # Errors
    /// The engine fails.
    fn seek(&self, from: &[u8], entries: u64, visit: &mut Visit<'_>) -> Result<u64>;

    /// Visits up to `entries` entries from the first one on, or backward from the last one. Returns their number.
    ///
    /// # Errors
    /// The engine fails.
    fn scan(&self, backward: bool, entries: u64, visit: &mut Visit<'_>) -> Result<u64>;

    /// Flushes the memtables and waits for all compactions. Returns the time at the end, in nanoseconds, in which
    /// the engine was idle and only watched.
    ///
    /// # Errors
    /// The engine fails.
    fn settle(&self) -> Result<u64>;

    /// Waits until there is no background work. The memtables are not flushed.
    ///
    /// # Errors
    /// The engine fails.
    fn wait_idle(&self) -> Result<()>;

    /// Returns the bytes written since the database was opened, if the engine counts them at no cost.
    fn written(&self) -> Option<Written> {
        None
    }

    /// Returns the length of the live tables in bytes.
    ///
    /// # Errors
    /// The engine fails.
    fn table_bytes(&self) -> Result<u64>;

    /// Closes the database.
    ///
    /// # Errors
    /// The engine fails.
    fn close(self: Box<Self>) -> Result<()>;

    /// Reads a value, writes `bytes` at `offset` and puts the value. Either the update is atomic, or the caller
    /// guarantees that no other thread writes the key.
    ///
    /// # Errors
    /// The engine fails.
    fn rewrite(&self, key: &[u8], offset: u32, bytes: &[u8]) -> Result<()> {
        let mut value = Vec::new();
        self.get(key, &mut |old| value.extend_from_slice(old))?;
        write_field(&mut value, offset, bytes);
        self.put(key, &value)
    }

    /// Merges an operand that writes `bytes` at `offset`, without a read.
    ///
    /// # Errors
    /// The engine fails or cannot merge.
    fn merge(&self, key: &[u8], offset: u32, bytes: &[u8]) -> Result<()>;

    /// Returns the number of blocks that the calling thread has read from files, through any database of this
    /// engine. 0 if the engine does not count them.
    fn thread_block_reads(&self) -> u64 {
        0
    }

    /// Returns the bytes of calls on files. By default they are those of the whole process.
    fn io_bytes(&self) -> IoBytes {
        let (read, written) = (process::read_bytes(), process::written_bytes());
        IoBytes { read: read.unwrap_or(0), written: written.unwrap_or(0) }
    }

    /// Returns the metrics of the operand store, if there is one.
    fn operand_store(&self) -> Option<OperandMetrics> {
        None
    }

    /// Returns the length of the files that hold separated values, if the engine reports it.
    fn blob_bytes(&self) -> Option<u64> {
        None
    }
}

/// Bytes of calls on files, whether the page cache had them or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoBytes {
    /// Bytes read.
    pub read: u64,
    /// Bytes written.
    pub written: u64,
}

/// Writes a field into a value. A shorter value is extended by zeros.
pub(crate) fn write_field(value: &mut Vec<u8>, offset: u32, bytes: &[u8]) {
    let start = numbers::length(u64::from(offset));
    let end = start + bytes.len();
    if value.len() < end {
        value.resize(end, 0);
    }
    value[start..end].copy_from_slice(bytes);
}

/// Bytes written, by purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Written {
    /// Bytes of the write-ahead log.
    pub wal_bytes: u64,
    /// Bytes of tables that flushes wrote.
    pub flushed_bytes: u64,
    /// Bytes of tables that compactions wrote.
    pub compaction_bytes: u64,
}

impl Written {
    /// Returns the sum.
    pub fn total(self) -> u64 {
        self.wal_bytes + self.flushed_bytes + self.compaction_bytes
    }

    /// Returns the bytes written after `before`.
    pub fn since(self, before: Written) -> Written {
        Written {
            wal_bytes: self.wal_bytes.saturating_sub(before.wal_bytes),
            flushed_bytes: self.flushed_bytes.saturating_sub(before.flushed_bytes),
            compaction_bytes: self.compaction_bytes.saturating_sub(before.compaction_bytes),
        }
    }
}

/// An engine that experiments can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// lsmx.
    Lsmx,
    /// RocksDB, through its C interface.
    Rocksdb,
    /// fjall.
    Fjall,
}

impl Kind {
    /// The engines that lsmx is compared with.
    pub const PEERS: [Kind; 2] = [Kind::Rocksdb, Kind::Fjall];

    /// Returns the name that users type.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Lsmx => "lsmx",
            Kind::Rocksdb => "rocksdb",
            Kind::Fjall => "fjall",
        }
    }

    /// Returns the peer with this name.
    ///
    /// # Errors
    /// [`Error::Invalid`] if no peer has the name, or if this build does not contain the peer.
    pub fn peer(name: &str) -> Result<Kind> {
        let known = || format!("one of {}", Kind::PEERS.map(Kind::name).join(", "));
        let kind = Kind::PEERS.into_iter().find(|kind| kind.name() == name);
        let kind = kind.ok_or_else(|| Error::invalid("--peers", name, known()))?;
        if kind.is_built_in() { Ok(kind) } else { Err(kind.not_built_in()) }
    }

    /// Returns whether this build contains the engine.
    pub fn is_built_in(self) -> bool {
        match self {
            Kind::Lsmx => true,
            Kind::Rocksdb => cfg!(feature = "peer-rocksdb"),
            Kind::Fjall => cfg!(feature = "peer-fjall"),
        }
    }

    /// Checks that this build contains the engine and that the engine has merge operators.
    ///
    /// # Errors
    /// [`Error::Invalid`] if not.
    pub fn check_has_merges(self) -> Result<()> {
        match self {
            Kind::Fjall => Err(self.cannot_merge()),
            _ if self.is_built_in() => Ok(()),
            _ => Err(self.not_built_in()),
        }
    }

    fn cannot_merge(self) -> Error {
        Error::invalid("--peers", self.name(), "rocksdb, which merges")
    }

    fn not_built_in(self) -> Error {
        let must = "built in: `cargo build --release -p lsmx-cli --features peers`, \
                    see docs/results/peers.md";
        Error::invalid("--peers", self.name(), must)
    }

    /// Opens the database in a directory, or creates it.
    ///
    /// # Errors
    /// The engine fails. [`Error::Invalid`] if this build does not contain it.
    pub fn open(self, path: &Path, settings: &EngineSettings) -> Result<Box<dyn Engine>> {
        match self {
            Kind::Lsmx => Ok(Box::new(lsmx::Lsmx::open(path, settings)?)),
            #[cfg(feature = "peer-rocksdb")]
            Kind::Rocksdb => Ok(Box::new(rocksdb::Rocksdb::open(path, settings)?)),
            #[cfg(feature = "peer-fjall")]
            Kind::Fjall => Ok(Box::new(fjall::Fjall::open(path, settings)?)),
            #[cfg(not(all(feature = "peer-rocksdb", feature = "peer-fjall")))]
            _ => Err(self.not_built_in()),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_peer_error_lists_known_peers() {
        let error = Kind::peer("leveldb").unwrap_err();
        assert!(error.is_usage());
        let text = error.to_string();
        assert!(text.contains("leveldb") && text.contains("rocksdb, fjall"), "{text}");
    }

    #[test]
    fn peer_outside_the_build_error_says_how_to_build_it() {
        for kind in Kind::PEERS {
            match Kind::peer(kind.name()) {
                Ok(found) => assert!(found == kind && kind.is_built_in()),
                Err(error) => {
                    assert!(!kind.is_built_in() && error.is_usage());
                    assert!(error.to_string().contains("--features peers"), "{error}");
                }
            }
        }
    }
}
