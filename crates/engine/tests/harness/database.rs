//! Helpers for small databases: options, opens, comparison with an ordered map, and lists of files.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use lsmx::env::Background;
use lsmx::metrics::KeyspaceMetrics;
use lsmx::vfs::{MemVfs, Vfs};
use lsmx::{
    Db, Keyspace, KeyspaceOptions, Options, PolicySpec, Range, ReadOptions, ReadTier, Slice,
    VerifyReport,
};

/// The expected keys and values of a keyspace.
pub(crate) type Entries = BTreeMap<Vec<u8>, Vec<u8>>;

/// Returns options without background threads and with a fixed seed.
pub(crate) fn inline() -> Options {
    Options::default().background(Background::Inline).seed(1)
}

/// Returns options of a keyspace with memtables and tables of 4 KiB, and blocks of 256 bytes.
pub(crate) fn small() -> KeyspaceOptions {
    KeyspaceOptions::default().memtable_bytes(4 << 10).table_bytes(4 << 10).block_bytes(256)
}

/// Returns [`small`] options with which merges are never due, so that tests control all jobs.
pub(crate) fn without_jobs() -> KeyspaceOptions {
    small().policy(policy("leveled(trigger=100,stop=200)"))
}

pub(crate) fn policy(text: &str) -> PolicySpec {
    text.parse().unwrap()
}

/// Returns read options for [`ReadTier::Memory`]: a read that needs a file fails with `WouldBlock`.
pub(crate) fn memory_only() -> ReadOptions {
    ReadOptions { tier: ReadTier::Memory, ..ReadOptions::default() }
}

/// Opens the database in the directory `db`. Panics on an error.
pub(crate) fn open(disk: &(impl Vfs + Clone), options: Options) -> Db {
    try_open(disk, options).unwrap()
}

/// Opens the database in the directory `db`.
pub(crate) fn try_open(disk: &(impl Vfs + Clone), options: Options) -> lsmx::Result<Db> {
    Db::open("db", options.vfs(Arc::new(disk.clone())))
}

pub(crate) fn verify(disk: &(impl Vfs + Clone)) -> lsmx::Result<VerifyReport> {
    lsmx::verify("db", &Options::default().vfs(Arc::new(disk.clone())))
}

/// Checks that the database in the directory `db` is undamaged and has no orphaned files.
pub(crate) fn assert_clean(disk: &(impl Vfs + Clone)) -> VerifyReport {
    let report = verify(disk).unwrap();
    assert_eq!(report.orphans, Vec::<PathBuf>::new());
    report
}

pub(crate) fn settle(db: &Db) {
    db.flush().unwrap();
    db.wait_idle().unwrap();
}

pub(crate) fn compact(db: &Db) -> lsmx::Result<()> {
    db.default_keyspace().compact_range::<&[u8]>(..)
}

pub(crate) fn metrics(db: &Db) -> KeyspaceMetrics {
    db.metrics().keyspaces.remove("default").unwrap()
}

pub(crate) fn entries(range: Range) -> Vec<(Slice, Slice)> {
    range.map(Result::unwrap).collect()
}

/// Checks that a keyspace contains exactly the expected entries, by iteration in both directions, `get` and
/// `multi_get`.
pub(crate) fn assert_entries(keyspace: &Keyspace, expected: &Entries) {
    let expected: Vec<(Slice, Slice)> =
        expected.iter().map(|(key, value)| (key[..].into(), value[..].into())).collect();
    let assert_equal = |found: Vec<(Slice, Slice)>, direction: &str| {
        let differs = found.iter().zip(&expected).find(|(found, expected)| found != expected);
        assert_eq!(differs, None, "{direction}: found and expected");
        assert_eq!(found.len(), expected.len(), "{direction}: number of entries");
    };
    assert_equal(entries(keyspace.iter()), "forward");
    let mut backward: Vec<_> = keyspace.iter().rev().map(Result::unwrap).collect();
    backward.reverse();
    assert_equal(backward, "backward");
    let values = keyspace.multi_get(expected.iter().map(|(key, _)| key)).unwrap();
    for ((key, value), of_many) in expected.iter().zip(values) {
        assert_eq!(keyspace.get(key).unwrap().as_ref(), Some(value), "get of {key:?}");
        assert_eq!(of_many.as_ref(), Some(value), "multi_get of {key:?}");
    }
}

pub(crate) fn files(disk: &MemVfs, suffix: &str) -> Vec<PathBuf> {
    disk.paths().into_iter().filter(|path| path.to_string_lossy().ends_with(suffix)).collect()
}

/// Polls a condition until it is true. Panics after one minute.
#[expect(clippy::disallowed_methods, reason = "the condition depends on threads of the engine")]
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..6_000 {
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("a minute passed without: {what}");
}
