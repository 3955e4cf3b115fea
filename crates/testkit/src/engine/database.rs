//! Fuzz target for a whole database. Compares the contents of the database with a model after each operation.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeBounds;
use std::path::Path;

use lsmx::env::Background;
use lsmx::operand_store::OperandStoreFactory;
use lsmx::vfs::{CrashImage, MemVfs};
use lsmx::{
    Compression, Db, Durability, Keyspace, KeyspaceOptions, Options, PolicySpec, Range, Snapshot,
    ValueSeparation, WalOptions, WriteBatch, verify,
};
use lsmx_base::sync::Arc;

use crate::merge_operators::merge_operator;

use super::operations::{KEYS, KeyBounds, Operation, OperationDecoder, SNAPSHOTS_MAX, Write};

const DIR: &str = "db";
/// Names of the keyspaces, in the order of [`Contents`].
const KEYSPACES: [&str; 2] = ["default", "other"];
/// Maximum number of operations. Shorter sequences are easier to analyse.
const OPERATIONS_MAX: usize = 64;
/// Maximum length in bytes of merged values in the second keyspace.
const MERGED_BYTES_MAX: usize = 200;

/// Operand stores that the keyspaces of the database use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OperandStores {
    /// Function that adds an operand store to the options of a keyspace.
    pub(crate) add_store: fn(KeyspaceOptions) -> KeyspaceOptions,
    /// Function that returns the operand store factories that `verify` needs.
    pub(crate) factories: fn() -> Vec<Arc<dyn OperandStoreFactory>>,
}

impl OperandStores {
    /// Value for databases without operand stores.
    pub(crate) const NONE: OperandStores =
        OperandStores { add_store: |options| options, factories: Vec::new };
}

type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;
/// Expected key-value pairs of each keyspace.
type Contents = [Pairs; 2];

/// Moves an iterator once per element of `steps` (`true`: forward), then forward to its end. Compares each returned
/// pair with `expected`.
fn check_iterator(mut range: Range, mut expected: Vec<(&[u8], &[u8])>, steps: &[bool]) {
    let to_end = (0..=expected.len()).map(|_| true);
    for is_forward in steps.iter().copied().chain(to_end) {
        let (found, expected) = match is_forward {
            true if expected.is_empty() => (range.next(), None),
            true => (range.next(), Some(expected.remove(0))),
            false => (range.next_back(), expected.pop()),
        };
        let found = found.map(|pair| pair.expect("I/O in memory succeeds"));
        assert_eq!(found.as_ref().map(|(key, value)| (&**key, &**value)), expected);
    }
}

/// A database, and the model with its expected contents.
struct ModelledDb {
    disk: MemVfs,
    /// First byte of the input. Each bit selects an option.
    option_bits: u8,
    stores: OperandStores,
    /// Number of times that the database was opened.
    opens: u64,
    /// `None` while the database is closed.
    db: Option<Db>,
    keyspaces: Vec<Keyspace>,
    /// Contents that are possible after a crash: those after the last synced commit and after each later commit, oldest
    /// first.
    possible_contents: Vec<Contents>,
    snapshots: Vec<(Snapshot, Contents)>,
    /// Operations that were applied. They are printed after a panic.
    operations: Vec<Operation>,
    /// Number of values written, modulo 256. Each value repeats one byte, which is this number.
    values: u8,
}

impl fmt::Debug for ModelledDb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelledDb").field("operations", &self.operations).finish_non_exhaustive()
    }
}

impl Drop for ModelledDb {
    #[expect(clippy::print_stderr, reason = "the panic message does not list the operations")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{:?}", self.operations);
        }
    }
}

impl ModelledDb {
    fn new(option_bits: u8, stores: OperandStores) -> ModelledDb {
        let mut db = ModelledDb {
            disk: MemVfs::new(),
            option_bits,
            stores,
            opens: 0,
            db: None,
            keyspaces: Vec::new(),
            possible_contents: vec![Contents::default()],
            snapshots: Vec::new(),
            operations: Vec::new(),
            values: 0,
        };
        db.open();
        db
    }

    fn has_option(&self, bit: u8) -> bool {
        self.option_bits >> bit & 1 == 1
    }

    fn keyspace_options(&self, keyspace: usize) -> KeyspaceOptions {
        let separation = ValueSeparation { threshold_bytes: 20, ..ValueSeparation::default() };
        let compression = if self.has_option(2) { Compression::Lz4 } else { Compression::None };
        let options = KeyspaceOptions::default()
            .memtable_bytes(if self.has_option(0) { 1 << 10 } else { 16 << 10 })
            .table_bytes(256)
            .block_bytes(64)
            .restart_interval(if self.has_option(1) { 2 } else { 16 })
            .compression(compression)
            .value_separation(self.has_option(3).then_some(separation))
            .merge_operator(merge_operator(keyspace, MERGED_BYTES_MAX));
        (self.stores.add_store)(options)
    }

    fn open(&mut self) {
        self.opens += 1;
        let options = Options::default()
            .background(Background::Inline)
            .seed(self.opens)
            .wal(WalOptions { segment_bytes: 500, ..WalOptions::default() })
            .block_cache_bytes(if self.has_option(4) { 0 } else { 64 << 10 })
            .keyspace_defaults(self.keyspace_options(0));
        let db = Db::open(DIR, options.vfs(Arc::new(self.disk.clone())))
            .expect("I/O in memory succeeds");
        let other =
            db.keyspace(KEYSPACES[1], self.keyspace_options(1)).expect("I/O in memory succeeds");
        self.keyspaces = vec![db.default_keyspace(), other];
        self.db = Some(db);
    }

    fn db(&self) -> &Db {
        self.db.as_ref().expect("the database is open between operations")
    }

    /// Returns the contents after the last commit.
    fn contents(&self) -> &Contents {
        self.possible_contents.last().expect("the list is never empty")
    }

    /// Marks all commits as durable in the model.
    fn mark_synced(&mut self) {
        self.possible_contents.drain(..self.possible_contents.len() - 1);
    }

    /// Returns a value of `bytes` bytes that differs from the last 255 values of this length.
    fn next_value(&mut self, bytes: usize) -> Vec<u8> {
        self.values = self.values.wrapping_add(1);
        vec![self.values; bytes]
    }

    fn write_batch(&mut self, writes: &[Write], sync: bool) {
        let mut batch = WriteBatch::new();
        let mut contents = self.contents().clone();
        for write in writes {
            match *write {
                Write::Put { keyspace, key, bytes } => {
                    let value = self.next_value(bytes);
                    batch.put(&self.keyspaces[keyspace], key, &value);
                    contents[keyspace].insert(key.to_vec(), value);
                }
                Write::Delete { keyspace, key } => {
                    batch.delete(&self.keyspaces[keyspace], key);
                    contents[keyspace].remove(key);
                }
                Write::Merge { keyspace, key, bytes } => {
                    let operand = self.next_value(bytes);
                    batch.merge(&self.keyspaces[keyspace], key, &operand);
                    let base = contents[keyspace].remove(key);
                    let merged = merge_operator(keyspace, MERGED_BYTES_MAX).full_merge(
                        key,
                        base.as_deref(),
                        &[&operand],
                    );
                    let merged = merged.expect("the operators return no errors");
                    contents[keyspace].extend(merged.map(|value| (key.to_vec(), value)));
                }
                Write::DeleteRange { keyspace, bounds } => {
                    batch.delete_range::<&[u8]>(&self.keyspaces[keyspace], bounds);
                    contents[keyspace].retain(|key, _| !is_within(key, bounds));
                }
            }
        }
        let durability = if sync { Durability::Sync } else { Durability::Buffered };
        self.db().write(batch, durability).expect("I/O in memory succeeds");
        self.possible_contents.push(contents);
        if sync {
            self.mark_synced();
        }
    }

    /// Drops all handles and opens the database again.
    fn reopen(&mut self) {
        self.snapshots.clear();
        self.keyspaces.clear();
        self.db = None;
        self.open();
    }

    fn close(&mut self) {
        self.snapshots.clear();
        self.db().close(None).expect("I/O in memory succeeds");
        self.mark_synced();
        self.keyspaces.clear();
        self.db = None;
    }

    /// Simulates a power loss. Checks that the recovered contents are those after the last synced commit or after a
    /// later commit.
    fn crash(&mut self, image: CrashImage, seed: u64) {
        self.disk = self.disk.crash(image, seed);
        self.reopen();
        let found = [0, 1].map(|keyspace| {
            let pairs =
                self.keyspaces[keyspace].iter().map(|pair| pair.expect("I/O in memory succeeds"));
            pairs.map(|(key, value)| (key.to_vec(), value.to_vec())).collect::<Pairs>()
        });
        let index = self.possible_contents.iter().rposition(|contents| *contents == found);
        let index = index.unwrap_or_else(|| panic!("not a state after the last sync: {found:?}"));
        self.possible_contents.truncate(index + 1);
        self.mark_synced();
    }

    fn apply_operation(&mut self, operation: &Operation) {
        match *operation {
            Operation::WriteBatch { ref writes, sync } => self.write_batch(writes, sync),
            Operation::Iterate { keyspace, bounds, ref steps } => {
                let range = self.keyspaces[keyspace].range::<&[u8]>(bounds);
                let pairs = &self.contents()[keyspace];
                let expected = pairs.iter().filter(|(key, _)| is_within(key, bounds));
                let expected = expected.map(|(key, value)| (&**key, &**value));
                check_iterator(range, expected.collect(), steps);
            }
            Operation::TakeSnapshot => {
                if self.snapshots.len() < SNAPSHOTS_MAX {
                    self.snapshots.push((self.db().snapshot(), self.contents().clone()));
                }
            }
            Operation::DropSnapshot(index) => {
                if index < self.snapshots.len() {
                    self.snapshots.swap_remove(index);
                }
            }
            Operation::Flush => {
                self.db().flush().expect("I/O in memory succeeds");
                self.mark_synced();
            }
            Operation::CompactRange { keyspace, bounds } => {
                self.keyspaces[keyspace]
                    .compact_range::<&[u8]>(bounds)
                    .expect("I/O in memory succeeds");
            }
            Operation::SetPolicy { keyspace, preset } => {
                let policies = PolicySpec::all_presets();
                let policy = policies[preset % policies.len()].clone();
                // With a small size ratio, small trees have several levels.
                let policy = policy.clone().with_size_ratio(2).unwrap_or(policy);
                self.keyspaces[keyspace].set_policy(policy).expect("I/O in memory succeeds");
            }
            Operation::Sync => {
                self.db().sync().expect("I/O in memory succeeds");
                self.mark_synced();
            }
            Operation::Reopen { close } => {
                if close {
                    self.close();
                }
                self.reopen();
            }
            Operation::Crash { image, seed } => self.crash(image, seed),
        }
    }

    /// Compares the keyspaces and the snapshots with the model, by iterators and by lookups.
    fn check_contents(&self) {
        for (keyspace, pairs) in self.keyspaces.iter().zip(self.contents()) {
            check_iterator(keyspace.iter(), all_pairs(pairs), &[]);
            check_iterator(keyspace.iter(), all_pairs(pairs), &[false; KEYS.len()]);
            for key in KEYS {
                let found = keyspace.get(key).expect("I/O in memory succeeds");
                assert_eq!(found.as_deref(), pairs.get(key).map(Vec::as_slice), "{key:?}");
            }
        }
        for (snapshot, contents) in &self.snapshots {
            for (keyspace, pairs) in self.keyspaces.iter().zip(contents) {
                check_iterator(snapshot.iter(keyspace), all_pairs(pairs), &[]);
                for (key, value) in pairs {
                    let found = snapshot.get(keyspace, key).expect("I/O in memory succeeds");
                    assert_eq!(found.as_deref(), Some(&**value), "{key:?}");
                }
            }
        }
    }

    /// Runs `verify` on the closed database. Checks that there are no orphans and no torn WAL record.
    fn verify_files(&self) {
        let disk = Arc::new(self.disk.clone());
        let factories = (self.stores.factories)();
        let has_stores = !factories.is_empty();
        let options = Options::default().vfs(disk);
        let options = factories.into_iter().fold(options, Options::operand_store);
        let mut report = verify(Path::new(DIR), &options).expect("the files are undamaged");
        // Ignores unreferenced bucket files of operand stores, which the next open removes.
        report
            .orphans
            .retain(|path| !has_stores || path.extension().is_none_or(|it| it != "bucket"));
        assert!(report.orphans.is_empty() && report.wal_tail_bytes == 0, "{report:?}");
    }
}

fn all_pairs(pairs: &Pairs) -> Vec<(&[u8], &[u8])> {
    pairs.iter().map(|(key, value)| (&**key, &**value)).collect()
}

fn is_within(key: &[u8], bounds: KeyBounds) -> bool {
    RangeBounds::<[u8]>::contains(&bounds, key)
}

/// Applies operations to a database in memory. The first byte of the input selects options, the others encode operations.
pub(crate) fn check_operations(input: &[u8], stores: OperandStores) {
    let mut decoder = OperationDecoder(input);
    let mut db = ModelledDb::new(decoder.next_byte().unwrap_or(0), stores);
    while db.operations.len() < OPERATIONS_MAX
        && let Some(operation) = decoder.next_operation()
    {
        db.operations.push(operation.clone());
        db.apply_operation(&operation);
        db.check_contents();
    }
    db.close();
    db.verify_files();
    db.reopen();
    db.check_contents();
}
