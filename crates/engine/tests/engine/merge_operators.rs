//! Tests of merge operators: failing merges, missing and replaced operators, and the length of operand chains.

use std::sync::Arc;

use lsmx::merge_operator::{Append, CHAIN_OPERANDS_MAX, Counter};
use lsmx::vfs::MemVfs;
use lsmx::{
    Db, Error, KeyspaceOptions, MergeError, MergeOperator, MergeResult, Options, ReadOptions,
    WriteBatch,
};

use crate::harness::database::{
    self, compact, inline, memory_only, metrics, policy, settle, small, try_open,
};

/// A merge operator without a partial merge. It appends operands, returns an error for the operand `!` and panics for
/// the operand `?`.
#[derive(Debug)]
struct Whole;

impl MergeOperator for Whole {
    fn name(&self) -> &'static str {
        "whole"
    }

    fn full_merge(&self, key: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> MergeResult {
        assert!(!operands.contains(&&b"?"[..]), "a question");
        if operands.contains(&&b"!"[..]) {
            return Err(MergeError::new("an exclamation"));
        }
        Append::default().full_merge(key, base, operands)
    }
}

fn open(disk: &MemVfs, operator: impl MergeOperator + 'static) -> Db {
    database::open(disk, inline().keyspace_defaults(small().merge_operator(operator)))
}

#[test]
fn failed_merge_fails_reads_of_its_key_until_a_write() {
    let disk = MemVfs::new();
    let db = open(&disk, Whole);
    let keyspace = db.default_keyspace();
    for (key, operand) in [("a", "1"), ("b", "!"), ("c", "?"), ("d", "4")] {
        db.default_keyspace().merge(key, "0").unwrap();
        db.default_keyspace().merge(key, operand).unwrap();
    }
    // In round 0, the operands are in the memtable. In later rounds, the operands are in tables and their chains are
    // longer.
    for round in 0..4 {
        assert_eq!(db.get("a").unwrap().unwrap()[..2], *b"01");
        assert_eq!(db.get("d").unwrap().unwrap()[..2], *b"04");
        for (key, why) in
            [("b", "an exclamation"), ("c", "the merge operator panicked: a question")]
        {
            let Err(Error::MergeFailed { keyspace, key: named, why: said }) = db.get(key) else {
                panic!("the read of {key} succeeded");
            };
            assert_eq!((keyspace.as_str(), named.as_slice()), ("default", key.as_bytes()));
            assert_eq!(said.to_string(), why);
        }
        let mut forward = keyspace.iter();
        assert!(forward.next().unwrap().is_ok());
        assert!(matches!(forward.next(), Some(Err(Error::MergeFailed { .. }))));
        assert!(matches!(forward.next(), Some(Err(Error::MergeFailed { .. }))), "c");
        assert_eq!(&*forward.next().unwrap().unwrap().0, b"d");
        assert!(forward.next().is_none());
        let backward: Result<Vec<_>, _> = keyspace.range(.."b").rev().collect();
        assert_eq!(backward.unwrap().len(), 1, "the range contains no key whose merge fails");
        for key in ["a", "b", "c", "d"] {
            for _ in 0..2 * CHAIN_OPERANDS_MAX {
                db.default_keyspace().merge(key, "x").unwrap();
            }
        }
        if round > 0 {
            settle(&db);
        }
    }
    assert!(metrics(&db).merges.failures > 0);
    db.put("b", "new").unwrap();
    db.delete("c").unwrap();
    db.default_keyspace().merge("c", "1").unwrap();
    assert_eq!(db.get("b").unwrap().unwrap(), b"new");
    assert_eq!(db.get("c").unwrap().unwrap(), b"1");
    assert_eq!(keyspace.iter().map(Result::unwrap).count(), 4);
}

/// Returns the keys that an iterator yields. The flag is `true` for an entry and `false` for an [`Error::MergeFailed`].
fn outcomes(
    items: impl Iterator<Item = lsmx::Result<(lsmx::Slice, lsmx::Slice)>>,
) -> Vec<(String, bool)> {
    let item = |item: lsmx::Result<(lsmx::Slice, lsmx::Slice)>| match item {
        Ok((key, _)) => (String::from_utf8_lossy(&key).into_owned(), true),
        Err(Error::MergeFailed { key, .. }) => (String::from_utf8_lossy(&key).into_owned(), false),
        Err(error) => panic!("{error:?}"),
    };
    // The limit ends the loop in case an iterator returns the same error forever.
    items.take(100).map(item).collect()
}

/// Writes the keys `a` to `g` and deletes `e`. Reads of `b`, `c` and `f` fail in the merge operator.
fn write_failing_keys(db: &Db) {
    for key in ["b", "c", "d", "e", "f"] {
        db.put(key, "0").unwrap();
        db.default_keyspace()
            .merge(key, if ["b", "f"].contains(&key) { "!" } else { "1" })
            .unwrap();
    }
    db.default_keyspace().merge("c", "?").unwrap();
    db.delete("e").unwrap();
    db.put("a", "0").unwrap();
    db.put("g", "0").unwrap();
}

#[test]
fn range_continues_after_failed_merges_and_keeps_its_bounds() {
    let disk = MemVfs::new();
    let db = open(&disk, Whole);
    write_failing_keys(&db);
    let keyspace = db.default_keyspace();
    let all = [("a", true), ("b", false), ("c", false), ("d", true), ("f", false), ("g", true)];
    let owned = |all: &[(&str, bool)]| -> Vec<(String, bool)> {
        all.iter().map(|&(key, fine)| (key.to_owned(), fine)).collect()
    };
    let reversed = |all: &[(&str, bool)]| owned(all).into_iter().rev().collect::<Vec<_>>();
    for round in 0..3 {
        assert_eq!(outcomes(keyspace.iter()), owned(&all));
        assert_eq!(outcomes(keyspace.iter().rev()), reversed(&all));
        assert_eq!(
            outcomes(keyspace.iter().options(&memory_only())),
            owned(&all),
            "all entries are in memory"
        );
        assert_eq!(outcomes(keyspace.iter().options(&memory_only()).rev()), reversed(&all));
        // An iterator that alternates between both ends returns each key once.
        let mut ends = keyspace.iter();
        let (mut front, mut back) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            front.extend(ends.next());
            back.extend(ends.next_back());
        }
        assert!(ends.next().is_none() && ends.next_back().is_none());
        let mut both = outcomes(front.into_iter());
        both.extend(outcomes(back.into_iter()).into_iter().rev());
        assert_eq!(both, owned(&all));
        // A range reports no error for keys outside its bounds.
        assert_eq!(outcomes(keyspace.range("d".."f")), owned(&[("d", true)]));
        assert_eq!(outcomes(keyspace.range("d"..="f")), owned(&[("d", true), ("f", false)]));
        assert_eq!(outcomes(keyspace.range("d".."e").rev()), owned(&[("d", true)]));
        assert_eq!(outcomes(keyspace.range("b".."c")), owned(&[("b", false)]));
        assert_eq!(outcomes(keyspace.prefix("f")), owned(&[("f", false)]));
        assert!(keyspace.first().is_ok() && keyspace.last().is_ok());
        // `multi_get` fails if the merge of one of its keys fails.
        let Err(Error::MergeFailed { key, .. }) = keyspace.multi_get(["a", "b", "d"]) else {
            panic!("the read of b succeeded");
        };
        assert_eq!(key, b"b");
        assert_eq!(keyspace.multi_get(["a", "d", "e"]).unwrap().iter().flatten().count(), 2);
        assert!(matches!(
            keyspace.fetch_update("f", |_| b"x".to_vec()),
            Err(Error::MergeFailed { .. })
        ));
        if round == 0 {
            db.flush().unwrap();
        } else {
            compact(&db).unwrap();
        }
    }
}

#[test]
fn range_after_memory_reads_returns_a_failed_key_once() {
    let disk = MemVfs::new();
    let db = open(&disk, Whole);
    write_failing_keys(&db);
    let keyspace = db.default_keyspace();
    for backward in [false, true] {
        let mut range = keyspace.iter().options(&memory_only());
        let step =
            |range: &mut lsmx::Range| if backward { range.next_back() } else { range.next() };
        let mut items: Vec<_> = (0..2).filter_map(|_| step(&mut range)).collect();
        assert!(matches!(items[1], Err(Error::MergeFailed { .. })));
        range = range.options(&ReadOptions::default());
        items.extend(std::iter::from_fn(|| step(&mut range)).take(10));
        assert_eq!(outcomes(items.into_iter()).len(), 6);
        // A key whose merge fails counts towards the limit of the range.
        let limited = keyspace.iter().limit(2);
        assert_eq!(outcomes(limited).len(), 2);
        assert_eq!(outcomes(keyspace.iter().options(&memory_only()).limit(5).rev()).len(), 5);
    }
}

#[test]
fn failed_merges_survive_recovery_checkpoints_and_snapshots() {
    let disk = MemVfs::new();
    let db = open(&disk, Whole);
    write_failing_keys(&db);
    let expected = outcomes(db.default_keyspace().iter());
    let snapshot = db.snapshot();
    for key in ["b", "c", "f"] {
        db.put(key, "new").unwrap();
    }
    assert!(outcomes(db.default_keyspace().iter()).iter().all(|(_, fine)| *fine));
    let of_snapshot = || outcomes(snapshot.iter(&db.default_keyspace()));
    assert_eq!(of_snapshot(), expected);
    db.flush().unwrap();
    compact(&db).unwrap();
    assert_eq!(of_snapshot(), expected, "the snapshot still shows the operands");
    drop(snapshot);
    // After these writes, the tables, the memtable and the WAL contain operands that cannot be merged.
    write_failing_keys(&db);
    db.flush().unwrap();
    write_failing_keys(&db);
    db.sync().unwrap();
    db.checkpoint("copy").unwrap();
    let crashed = disk.crash(lsmx::internals::vfs::CrashImage::Keep, 1);
    drop(db);
    for (disk, path) in [(&crashed, "db"), (&disk, "db"), (&disk, "copy")] {
        let options = inline().keyspace_defaults(small().merge_operator(Whole));
        let vfs = Arc::new(disk.clone());
        let db = Db::open(path, options.vfs(vfs.clone())).unwrap();
        assert_eq!(outcomes(db.default_keyspace().iter()), expected, "{path}");
        db.put("c", "new").unwrap();
        assert_eq!(db.get("c").unwrap().unwrap(), b"new");
        db.close(None).unwrap();
        lsmx::verify(path, &Options::default().vfs(vfs)).unwrap();
    }
}

#[test]
fn merge_operator_of_a_keyspace_cannot_be_replaced_or_omitted() {
    let disk = MemVfs::new();
    let try_open =
        |keyspace: KeyspaceOptions| try_open(&disk, inline().keyspace_defaults(keyspace));
    let db = try_open(small()).unwrap();
    let assert_lacking = |done: lsmx::Result<()>, known: Option<&str>| {
        let Err(Error::NoMergeOperator { keyspace, operator }) = done else { panic!("{done:?}") };
        assert_eq!((keyspace.as_str(), operator.as_deref()), ("default", known));
    };
    assert_lacking(db.default_keyspace().merge("k", "v"), None);
    let mut batch = WriteBatch::new();
    batch.put(&db.default_keyspace(), "other", "v");
    batch.merge(&db.default_keyspace(), "k", "v");
    assert_lacking(db.write(batch, lsmx::Durability::Sync), None);
    assert!(db.get("other").unwrap().is_none(), "a refused batch was applied in part");
    // A keyspace without a merge operator accepts any operator. Afterwards the keyspace refuses a different operator.
    let assert_other = |done: lsmx::Result<()>| {
        let Err(error @ Error::Contradiction { .. }) = done else { panic!("{done:?}") };
        assert!(error.to_string().contains("lsmx.append"), "{error}");
    };
    let give = |db: &Db, options| db.keyspace("default", options).map(drop);
    give(&db, small().merge_operator(Append::default())).unwrap();
    assert_other(give(&db, small().merge_operator(Counter)));
    give(&db, small()).unwrap();
    // The base value and the operand of the key are in different files.
    db.put("k", "base+").unwrap();
    db.flush().unwrap();
    db.default_keyspace().merge("k", "v").unwrap();
    drop(db);

    let before = disk.snapshot_all();
    assert_other(try_open(small().merge_operator(Counter)).map(drop));
    assert_eq!(disk.snapshot_all(), before, "a refused open changes no file");

    let db = try_open(small()).unwrap();
    assert_lacking(db.default_keyspace().merge("k", "v"), Some("lsmx.append"));
    assert_lacking(db.get("k").map(drop), Some("lsmx.append"));
    assert_lacking(db.default_keyspace().iter().next().unwrap().map(drop), Some("lsmx.append"));
    assert_lacking(
        db.default_keyspace().iter().next_back().unwrap().map(drop),
        Some("lsmx.append"),
    );
    assert!(db.get("j").unwrap().is_none());
    db.put("j", "w").unwrap();
    db.flush().unwrap();
    assert_eq!(db.get("j").unwrap().unwrap(), b"w");
    give(&db, small().merge_operator(Append::default())).unwrap();
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

    fn full_merge(&self, _: &[u8], _: Option<&[u8]>, _: &[&[u8]]) -> MergeResult {
        Ok(None)
    }
}

/// The base values are in lower levels than the operands. If there are 40 keys, each memtable holds few operands per
/// key.
#[test]
fn operand_chains_stay_short_with_and_without_partial_merges() {
    for (partial, keys) in [(true, 1u32), (true, 40), (false, 1), (false, 40)] {
        let tuning = small().policy(policy("tiering")).memtable_bytes(16 << 10);
        let tuning = match partial {
            true => tuning.merge_operator(Append::default()),
            false => tuning.merge_operator(Whole),
        };
        let db = database::open(&MemVfs::new(), inline().keyspace_defaults(tuning));
        for key in 0..keys {
            db.put(key.to_be_bytes(), "base").unwrap();
        }
        db.flush().unwrap();
        for round in 0..15_000 {
            let key = round % keys;
            if round / keys % 100 == 99 {
                db.delete(key.to_be_bytes()).unwrap();
            }
            db.default_keyspace().merge(key.to_be_bytes(), [b'0']).unwrap();
        }
        for key in 0..keys {
            let length = db.get(key.to_be_bytes()).unwrap().unwrap().len();
            assert_eq!(length, 1 + (15_000 / keys - 1 - 99) as usize % 100);
        }
        let merges = metrics(&db).merges;
        // Without partial merges, writers shorten long chains at random. A chain of 20 times `CHAIN_OPERANDS_MAX` has
        // probability e^-20.
        let bound = u64::from(CHAIN_OPERANDS_MAX) * if partial || keys == 1 { 4 } else { 20 };
        assert!(merges.reads.operands_max <= bound, "{merges:?}");
        assert!(merges.reads.folds <= 15_000 / 16 + 100, "{merges:?}");
    }
}
