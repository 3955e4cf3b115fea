//! Merge operators as users meet them: given, lacking, changed, failing; and chains that stay short.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use lsmx::env::Background;
use lsmx::merge::{Append, CHAIN_OPERANDS_MAX, Counter};
use lsmx::vfs::MemVfs;
use lsmx::{Db, Error, KeyspaceOptions, MergeError, MergeOperator, Options, WriteBatch};

/// Appends without merging partially; refuses operands with a `!`, and panics over a `?`.
#[derive(Debug)]
struct Whole;

impl MergeOperator for Whole {
    fn name(&self) -> &'static str {
        "whole"
    }

    fn full_merge(
        &self,
        key: &[u8],
        base: Option<&[u8]>,
        operands: &[&[u8]],
    ) -> Result<Option<Vec<u8>>, MergeError> {
        assert!(!operands.contains(&&b"?"[..]), "a question");
        if operands.contains(&&b"!"[..]) {
            return Err(MergeError::new("an exclamation"));
        }
        Append::new().full_merge(key, base, operands)
    }
}

fn tuning() -> KeyspaceOptions {
    KeyspaceOptions::default().memtable_bytes(4 << 10).table_bytes(4 << 10).block_bytes(256)
}

fn open(disk: &MemVfs, keyspace: KeyspaceOptions) -> lsmx::Result<Db> {
    let options = Options::default().background(Background::Inline).keyspace_defaults(keyspace);
    Db::open_with(Arc::new(disk.clone()), "db", options)
}

#[test]
fn a_key_that_does_not_fold_fails_alone_until_it_is_written() {
    let disk = MemVfs::new();
    let db = open(&disk, tuning().merge_operator(Whole)).unwrap();
    let keyspace = db.default_keyspace();
    for (key, operand) in [("a", "1"), ("b", "!"), ("c", "?"), ("d", "4")] {
        db.merge(key, "0").unwrap();
        db.merge(key, operand).unwrap();
    }
    // In the memtable, flushed, merged, and after long chains that their writers could not fold.
    for round in 0..4 {
        assert_eq!(db.get("a").unwrap().unwrap()[..2], *b"01");
        assert_eq!(db.get("d").unwrap().unwrap()[..2], *b"04");
        for (key, why) in [("b", "an exclamation"), ("c", "panicked: a question")] {
            let Err(Error::MergeFailed { keyspace, key: named, why: said }) = db.get(key) else {
                panic!("{key} was read");
            };
            assert_eq!((keyspace.as_str(), named.as_slice()), ("default", key.as_bytes()));
            assert_eq!(said.to_string(), why);
        }
        let mut forward = keyspace.iter();
        assert!(forward.next().unwrap().is_ok());
        assert!(matches!(forward.next(), Some(Err(Error::MergeFailed { .. }))));
        assert!(matches!(forward.next(), Some(Err(_))), "what has failed keeps failing");
        let backward: Result<Vec<_>, _> = keyspace.range(.."b").rev().collect();
        assert_eq!(backward.unwrap().len(), 1, "elsewhere it does not matter");
        for key in ["a", "b", "c", "d"] {
            for _ in 0..2 * CHAIN_OPERANDS_MAX {
                db.merge(key, "x").unwrap();
            }
        }
        if round > 0 {
            db.flush().unwrap();
            db.wait_idle().unwrap();
        }
    }
    assert!(db.metrics().keyspaces["default"].merges.failures > 0);
    db.put("b", "new").unwrap();
    db.delete("c").unwrap();
    db.merge("c", "1").unwrap();
    assert_eq!(db.get("b").unwrap().unwrap(), b"new");
    assert_eq!(db.get("c").unwrap().unwrap(), b"1");
    assert_eq!(keyspace.iter().map(Result::unwrap).count(), 4);
}

#[test]
fn the_operator_stays_with_its_keyspace() {
    let disk = MemVfs::new();
    let db = open(&disk, tuning()).unwrap();
    let lacking = |done: lsmx::Result<()>, known: Option<&str>| {
        let Err(Error::NoMergeOperator { keyspace, operator }) = done else { panic!("{done:?}") };
        assert_eq!((keyspace.as_str(), operator.as_deref()), ("default", known));
    };
    lacking(db.merge("k", "v"), None);
    let mut batch = WriteBatch::new();
    batch.put(&db.default_keyspace(), "other", "v");
    batch.merge(&db.default_keyspace(), "k", "v");
    lacking(db.write(batch, lsmx::Durability::Sync), None);
    assert!(db.get("other").unwrap().is_none(), "all of a batch or nothing");
    // A keyspace that has none takes one on, and then no other.
    let other = |done: lsmx::Result<()>| {
        let Err(error @ Error::Contradiction { .. }) = done else { panic!("{done:?}") };
        assert!(error.to_string().contains("lsmx.append"), "{error}");
    };
    let give = |db: &Db, options| db.keyspace("default", options).map(drop);
    give(&db, tuning().merge_operator(Append::new())).unwrap();
    other(give(&db, tuning().merge_operator(Counter)));
    give(&db, tuning()).unwrap();
    // In a table of its own, without its base, the operand stays one.
    db.put("k", "base+").unwrap();
    db.flush().unwrap();
    db.merge("k", "v").unwrap();
    drop(db);

    let before = disk.snapshot_all();
    other(open(&disk, tuning().merge_operator(Counter)).map(drop));
    assert_eq!(disk.snapshot_all(), before, "a refused opening changes nothing");

    let db = open(&disk, tuning()).unwrap();
    lacking(db.merge("k", "v"), Some("lsmx.append"));
    lacking(db.get("k").map(drop), Some("lsmx.append"));
    lacking(db.default_keyspace().iter().next().unwrap().map(drop), Some("lsmx.append"));
    lacking(db.default_keyspace().iter().next_back().unwrap().map(drop), Some("lsmx.append"));
    assert!(db.get("j").unwrap().is_none());
    db.put("j", "w").unwrap();
    db.flush().unwrap();
    assert_eq!(db.get("j").unwrap().unwrap(), b"w");
    give(&db, tuning().merge_operator(Append::new())).unwrap();
    assert_eq!(db.get("k").unwrap().unwrap(), b"base+v");
    let named = KeyspaceOptions::default().merge_operator(Nameless);
    assert!(matches!(db.keyspace("n", named), Err(Error::InvalidOption { .. })));
}

#[derive(Debug)]
struct Nameless;

impl MergeOperator for Nameless {
    fn name(&self) -> &'static str {
        ""
    }

    fn full_merge(
        &self,
        _: &[u8],
        _: Option<&[u8]>,
        _: &[&[u8]],
    ) -> Result<Option<Vec<u8>>, MergeError> {
        Ok(None)
    }
}

/// A base deep in the tree and merges for ever: the chain that a reader meets stays short, whether
/// a memtable holds many operands of a key or one, with partial merges or without.
#[test]
fn chains_stay_short_in_memory_and_in_tables() {
    for (operator, keys) in [(true, 1u32), (true, 40), (false, 1), (false, 40)] {
        let disk = MemVfs::new();
        let tuning = tuning().policy("tiering".parse().unwrap()).memtable_bytes(16 << 10);
        let tuning = match operator {
            true => tuning.merge_operator(Append::new()),
            false => tuning.merge_operator(Whole),
        };
        let db = open(&disk, tuning).unwrap();
        for key in 0..keys {
            db.put(key.to_be_bytes(), "base").unwrap();
        }
        db.flush().unwrap();
        for round in 0..15_000 {
            let key = round % keys;
            if round / keys % 100 == 99 {
                db.delete(key.to_be_bytes()).unwrap();
            }
            db.merge(key.to_be_bytes(), [b'0']).unwrap();
        }
        for key in 0..keys {
            let length = db.get(key.to_be_bytes()).unwrap().unwrap().len();
            assert_eq!(length, 1 + (15_000 / keys - 1 - 99) as usize % 100);
        }
        let merges = db.metrics().keyspaces["default"].merges;
        // Drawn chains: twenty times the bound has a probability of e^-20.
        let bound = u64::from(CHAIN_OPERANDS_MAX) * if operator || keys == 1 { 4 } else { 20 };
        assert!(merges.reads.operands_max <= bound, "{merges:?}");
        assert!(merges.reads.folds <= 15_000 / 16 + 100, "{merges:?}");
    }
}
