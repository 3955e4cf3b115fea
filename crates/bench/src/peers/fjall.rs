//! Runs experiments on fjall.
//!
//! fjall uses leveled compaction and default settings. `docs/results/peers.md` lists the exceptions.

use std::error::Error as StdError;
use std::path::Path;

use fjall::config::{
    BlockSizePolicy, BloomConstructionPolicy, CompressionPolicy, FilterPolicy, FilterPolicyEntry,
};
use fjall::{CompressionType, Database, Guard, Keyspace, KeyspaceCreateOptions, PersistMode};

use crate::clock::{Stopwatch, sleep_ns};
use crate::error::{Error, Result};

use super::{BLOCK_BYTES, Engine, EngineKind, EngineSettings, EntryVisitor};

/// fjall is considered idle after this time without background work, in ns. fjall has no function that waits for
/// compactions.
const QUIET_NS: u64 = 500_000_000;
/// Time between two checks for background work, in ns.
const CHECK_NS: u64 = 2_000_000;

pub(super) struct Fjall {
    database: Database,
    keyspace: Keyspace,
}

impl Fjall {
    pub(super) fn open(path: &Path, settings: &EngineSettings) -> Result<Fjall> {
        let database = Database::builder(path)
            .journal_compression(CompressionType::None)
            // fjall reserves one worker thread for flushes.
            .worker_threads(settings.workers.saturating_add(1));
        let database = match settings.block_cache_bytes {
            Some(bytes) => database.cache_size(bytes),
            None => database,
        };
        let database = database.open().map_err(peer_error("open a database"))?;
        let filter = FilterPolicyEntry::Bloom(BloomConstructionPolicy::BitsPerKey(10.0));
        let keyspace = database
            .keyspace("default", || {
                let options = KeyspaceCreateOptions::default();
                let options = match settings.memtable_bytes {
                    Some(bytes) => options.max_memtable_size(bytes),
                    None => options,
                };
                options
                    .data_block_size_policy(BlockSizePolicy::all(BLOCK_BYTES))
                    .data_block_compression_policy(CompressionPolicy::all(CompressionType::None))
                    .filter_policy(FilterPolicy::all(filter))
            })
            .map_err(peer_error("open a keyspace"))?;
        Ok(Fjall { database, keyspace })
    }

    fn visit(
        entries: u64,
        iterator: impl Iterator<Item = Guard>,
        visit: &mut EntryVisitor<'_>,
    ) -> Result<u64> {
        let mut found = 0;
        for entry in iterator {
            if found == entries {
                break;
            }
            let (key, value) = entry.into_inner().map_err(peer_error("read a range"))?;
            visit(&key, &value);
            found += 1;
        }
        Ok(found)
    }

    /// Waits until fjall has been idle for [`QUIET_NS`]. Returns the idle time in nanoseconds.
    fn wait_until_quiet(&self) -> u64 {
        let mut quiet = Stopwatch::start();
        let mut completed = self.database.compactions_completed();
        while quiet.elapsed_ns() < QUIET_NS {
            sleep_ns(CHECK_NS);
            let now = self.database.compactions_completed();
            if self.is_busy() || now != completed {
                completed = now;
                quiet = Stopwatch::start();
            }
        }
        quiet.elapsed_ns()
    }

    fn is_busy(&self) -> bool {
        self.database.outstanding_flushes() > 0
            || self.keyspace.sealed_memtable_count() > 0
            || self.database.active_compactions() > 0
    }
}

fn peer_error<E: StdError + Send + Sync + 'static>(
    action: &'static str,
) -> impl FnOnce(E) -> Error {
    move |source| Error::Peer { engine: EngineKind::Fjall.name(), action, source: Box::new(source) }
}

impl Engine for Fjall {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        // The `insert` of fjall already passes the journal record to the operating system.
        self.keyspace.insert(key, value).map_err(peer_error("put a value"))
    }

    fn put_sync(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.keyspace.insert(key, value).map_err(peer_error("put a value"))?;
        self.database.persist(PersistMode::SyncData).map_err(peer_error("sync"))
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        self.keyspace.remove(key).map_err(peer_error("delete a key"))
    }

    fn get(&self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let value = self.keyspace.get(key).map_err(peer_error("look a key up"))?;
        if let Some(value) = &value {
            see(value);
        }
        Ok(value.is_some())
    }

    fn seek(&self, from: &[u8], entries: u64, visit: &mut EntryVisitor<'_>) -> Result<u64> {
        Fjall::visit(entries, self.keyspace.range(from..), visit)
    }

    fn scan(&self, backward: bool, entries: u64, visit: &mut EntryVisitor<'_>) -> Result<u64> {
        if backward {
            Fjall::visit(entries, self.keyspace.iter().rev(), visit)
        } else {
            Fjall::visit(entries, self.keyspace.iter(), visit)
        }
    }

    fn flush_and_wait_idle(&self) -> Result<u64> {
        self.keyspace.rotate_memtable().map_err(peer_error("flush"))?;
        Ok(self.wait_until_quiet())
    }

    fn wait_until_idle(&self) -> Result<()> {
        self.wait_until_quiet();
        Ok(())
    }

    fn merge(&self, _: &[u8], _: u32, _: &[u8]) -> Result<()> {
        Err(EngineKind::Fjall.merge_error())
    }

    fn table_bytes(&self) -> Result<u64> {
        Ok(self.keyspace.disk_space())
    }

    fn close(self: Box<Self>) -> Result<()> {
        let Fjall { database, keyspace } = *self;
        let persisted = database.persist(PersistMode::SyncAll).map_err(peer_error("close"));
        drop((keyspace, database));
        persisted
    }
}
