//! Engines under one small trait, so that one workload can be played against each of them.
//!
//! A file per engine. lsmx is always there; the others come with the features `peer-rocksdb` and
//! `peer-fjall`, or both at once with `peers`, and are off by default because RocksDB brings a C
//! library along. `docs/results/peers.md` says which settings each of them gets, and why.

#[cfg(feature = "peer-fjall")]
mod fjall;
pub mod lsmx;
#[cfg(feature = "peer-rocksdb")]
mod rocksdb;

use std::fmt;
use std::path::Path;

use ::lsmx::operand_store::OperandMetrics;

use crate::error::{Error, Result};

use self::lsmx::LsmxOptions;

/// Bits of a filter per key, for every engine that can be told.
pub const FILTER_BITS_PER_KEY: f64 = 10.0;
/// Target bytes of a data block, for every engine.
pub const BLOCK_BYTES: u32 = 4096;

/// What a visitor of entries is handed: key and value.
pub type Visit<'a> = dyn FnMut(&[u8], &[u8]) + 'a;

/// An open database of any engine. All calls may come from many threads at once.
pub trait Engine: Send + Sync {
    /// Gives `key` a value; it is handed to the operating system before this returns.
    ///
    /// # Errors
    /// As the engine says.
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()>;

    /// As [`Engine::put`], and on stable storage before this returns.
    ///
    /// # Errors
    /// As the engine says.
    fn put_sync(&self, key: &[u8], value: &[u8]) -> Result<()>;

    /// Deletes `key`, with the durability of [`Engine::put`].
    ///
    /// # Errors
    /// As the engine says.
    fn delete(&self, key: &[u8]) -> Result<()>;

    /// Whether `key` is there; `see` is shown its value without a copy.
    ///
    /// # Errors
    /// As the engine says.
    fn get(&self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool>;

    /// Shows up to `entries` entries from `from` on, in key order, and says how many there were.
    ///
    /// # Errors
    /// As the engine says.
    fn seek(&self, from: &[u8], entries: u64, visit: &mut Visit<'_>) -> Result<u64>;

    /// Shows up to `entries` entries from one end of the database, and says how many there were.
    ///
    /// # Errors
    /// As the engine says.
    fn scan(&self, backward: bool, entries: u64, visit: &mut Visit<'_>) -> Result<u64>;

    /// Writes memory to tables and waits until all compaction rests. Returns the nanoseconds at
    /// the end in which nothing happened any more and this only made sure.
    ///
    /// # Errors
    /// As the engine says.
    fn settle(&self) -> Result<u64>;

    /// Bytes written since the database was opened, for engines that count them at no cost.
    fn written(&self) -> Option<Written>;

    /// Bytes of the live tables.
    ///
    /// # Errors
    /// As the engine says.
    fn table_bytes(&self) -> Result<u64>;

    /// Closes the database.
    ///
    /// # Errors
    /// As the engine says.
    fn close(self: Box<Self>) -> Result<()>;
}

/// An engine whose values have fields that change one by one.
pub trait Fields: Engine {
    /// Reads the value of `key`, writes `bytes` into it at `offset`, and puts it, in one atomic step or with
    /// nobody else writing that key.
    ///
    /// # Errors
    /// As the engine says.
    fn rewrite(&self, key: &[u8], offset: u32, bytes: &[u8]) -> Result<()>;

    /// Merges an operand that writes `bytes` at `offset`, without reading.
    ///
    /// # Errors
    /// As the engine says.
    fn merge(&self, key: &[u8], offset: u32, bytes: &[u8]) -> Result<()>;

    /// Waits until no background work is left, without writing memory to tables.
    ///
    /// # Errors
    /// As the engine says.
    fn rest(&self) -> Result<()>;

    /// Blocks that the calling thread has read from files so far, through any engine of this kind.
    fn reads_of_this_thread(&self) -> u64;

    /// Bytes that the engine has read and written so far, by calls on files.
    fn io_bytes(&self) -> IoBytes;

    /// What operands that are kept apart have cost since opening; none where they are not.
    fn operand_store(&self) -> Option<OperandMetrics> {
        None
    }

    /// Bytes of the files that hold values beside the tree; none of engines that do not tell.
    fn blob_bytes(&self) -> Option<u64> {
        None
    }
}

/// Settings of an engine whose fields are updated.
#[derive(Clone, Copy, Debug)]
pub struct FieldSettings {
    /// Bytes for memtables, cached blocks and what belongs to open tables.
    pub memory_budget: u64,
    /// Bytes that no value exceeds.
    pub value_bytes_max: u32,
    /// Whether tables are read, and written where that can be asked for, past the page cache.
    pub direct_io: bool,
    /// Whether there is a merge operator.
    pub merges: bool,
    /// Whether values lie apart from the tree.
    pub value_log: bool,
}

/// Bytes of calls on files, whether the page cache had them or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoBytes {
    /// Read.
    pub read: u64,
    /// Written.
    pub written: u64,
}

/// Writes a field into a value; one that ends before is filled up with zeros.
pub(crate) fn write_field(value: &mut Vec<u8>, offset: u32, bytes: &[u8]) {
    let start = crate::numbers::length(u64::from(offset));
    let end = start + bytes.len();
    if value.len() < end {
        value.resize(end, 0);
    }
    value[start..end].copy_from_slice(bytes);
}

/// Bytes written by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Written {
    /// To the write-ahead log.
    pub wal_bytes: u64,
    /// Tables that flushes wrote.
    pub flushed_bytes: u64,
    /// Tables that compactions wrote.
    pub compaction_bytes: u64,
}

impl Written {
    /// All of it.
    #[must_use]
    pub fn total(self) -> u64 {
        self.wal_bytes + self.flushed_bytes + self.compaction_bytes
    }

    /// What was written since `before`.
    #[must_use]
    pub fn since(self, before: Written) -> Written {
        Written {
            wal_bytes: self.wal_bytes.saturating_sub(before.wal_bytes),
            flushed_bytes: self.flushed_bytes.saturating_sub(before.flushed_bytes),
            compaction_bytes: self.compaction_bytes.saturating_sub(before.compaction_bytes),
        }
    }
}

/// Settings that all engines share, and those of lsmx alone.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Bytes of a memtable.
    pub memtable_bytes: u64,
    /// Bytes of the block cache.
    pub block_cache_bytes: u64,
    /// What `--option` says.
    pub lsmx: LsmxOptions,
}

/// The engines by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// This one.
    Lsmx,
    /// RocksDB, through its C interface.
    Rocksdb,
    /// fjall.
    Fjall,
}

impl Kind {
    /// The engines that lsmx is compared with.
    pub const PEERS: [Kind; 2] = [Kind::Rocksdb, Kind::Fjall];

    /// The name as typed and reported.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::Lsmx => "lsmx",
            Kind::Rocksdb => "rocksdb",
            Kind::Fjall => "fjall",
        }
    }

    /// The peer of this name, if it is compiled in.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the known names, or with how to build with it.
    pub fn peer(name: &str) -> Result<Kind> {
        let known = Kind::PEERS.into_iter().find(|kind| kind.name() == name);
        let kind = known.ok_or_else(|| Error::Invalid {
            name: "--peers",
            value: name.to_owned(),
            must: format!("one of {}", Kind::PEERS.map(Kind::name).join(", ")),
        })?;
        if kind.is_built_in() {
            return Ok(kind);
        }
        Err(kind.not_built_in())
    }

    /// Whether this build can run it.
    #[must_use]
    pub fn is_built_in(self) -> bool {
        match self {
            Kind::Lsmx => true,
            Kind::Rocksdb => cfg!(feature = "peer-rocksdb"),
            Kind::Fjall => cfg!(feature = "peer-fjall"),
        }
    }

    /// Opens a peer's database of values with fields in this directory, or makes one.
    ///
    /// # Errors
    /// As the engine says; [`Error::Invalid`] for one that is not built in, or cannot merge.
    pub fn open_fields(self, path: &Path, settings: &FieldSettings) -> Result<Box<dyn Fields>> {
        match self {
            #[cfg(feature = "peer-rocksdb")]
            Kind::Rocksdb => Ok(Box::new(rocksdb::RocksdbFields::open(path, settings)?)),
            #[cfg(not(feature = "peer-rocksdb"))]
            Kind::Rocksdb => {
                let _ = (path, settings);
                Err(self.not_built_in())
            }
            Kind::Lsmx | Kind::Fjall => Err(self.has_no_fields()),
        }
    }

    /// Whether [`Kind::open_fields`] knows the engine.
    ///
    /// # Errors
    /// [`Error::Invalid`] if not.
    pub fn can_have_fields(self) -> Result<()> {
        if self == Kind::Rocksdb { Ok(()) } else { Err(self.has_no_fields()) }
    }

    fn has_no_fields(self) -> Error {
        Error::Invalid {
            name: "--peers",
            value: self.name().to_owned(),
            must: "rocksdb, which merges".to_owned(),
        }
    }

    fn not_built_in(self) -> Error {
        Error::Invalid {
            name: "--peers",
            value: self.name().to_owned(),
            must: "built in: `cargo build --release -p lsmx-cli --features peers`, \
                   see docs/results/peers.md"
                .to_owned(),
        }
    }

    /// Opens the database in this directory, or makes one.
    ///
    /// # Errors
    /// As the engine says; [`Error::Invalid`] for one that is not built in.
    pub fn open(self, path: &Path, settings: &Settings) -> Result<Box<dyn Engine>> {
        match self {
            Kind::Lsmx => Ok(Box::new(lsmx::Lsmx::open(path, settings)?)),
            #[cfg(feature = "peer-rocksdb")]
            Kind::Rocksdb => Ok(Box::new(rocksdb::Rocksdb::open(path, settings)?)),
            #[cfg(feature = "peer-fjall")]
            Kind::Fjall => Ok(Box::new(fjall::Fjall::open(path, settings)?)),
            #[cfg(not(all(feature = "peer-rocksdb", feature = "peer-fjall")))]
            _ => {
                // Names nothing that is built in, so it says how to build with it.
                Kind::peer(self.name()).and_then(|kind| kind.open(path, settings))
            }
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
    fn an_unknown_peer_is_answered_with_the_known_ones() {
        let error = Kind::peer("leveldb").unwrap_err();
        assert!(error.is_usage());
        let text = error.to_string();
        assert!(text.contains("leveldb") && text.contains("rocksdb, fjall"), "{text}");
    }

    #[test]
    fn a_peer_that_is_not_built_in_says_how_to_build_it() {
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
