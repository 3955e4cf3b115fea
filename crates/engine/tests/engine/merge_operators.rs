//! Merge operators: present, missing, changed and failing; bounded chains of operands.

use std::sync::Arc;

use lsmx::env::Background;
use lsmx::merge_operator::{Append, CHAIN_OPERANDS_MAX, Counter};
use lsmx::vfs::MemVfs;
use lsmx::{
    Db, Error, KeyspaceOptions, MergeError, MergeOperator, MergeResult, Options, ReadOptions,
    ReadTier, WriteBatch,
};

/// Appends without merging partially; refuses operands with a `!`, and panics over a `?`.
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

fn tuning() -> KeyspaceOptions {
    KeyspaceOptions::default().memtable_bytes(4 << 10).table_bytes(4 << 10).block_bytes(256)
}

fn open(disk: &MemVfs, keyspace: KeyspaceOptions) -> lsmx::Result<Db> {
    let options = Options::default().background(Background::Inline).keyspace_defaults(keyspace);
    Db::open("db", options.vfs(Arc::new(disk.clone())))
}

#[test]
fn a_key_that_does_not_fold_fails_alone_until_it_is_written() {
    let disk = MemVfs::new();
    let db = open(&disk, tuning().merge_operator(Whole)).unwrap();
    let keyspace = db.default_keyspace();
    for (key, operand) in [("a", "1"), ("b", "!"), ("c", "?"), ("d", "4")] {
        db.default_keyspace().merge(key, "0").unwrap();
        db.default_keyspace().merge(key, operand).unwrap();
    }
    // In the memtable, flushed, merged, and after long chains that their writers could not fold.
    for round in 0..4 {
        assert_eq!(db.get("a").unwrap().unwrap()[..2], *b"01");
        assert_eq!(db.get("d").unwrap().unwrap()[..2], *b"04");
        for (key, why) in
            [("b", "an exclamation"), ("c", "the merge operator panicked: a question")]
        {
            let Err(Error::MergeFailed { keyspace, key: named, why: said }) = db.get(key) else {
                panic!("{key} was read");
            };
            assert_eq!((keyspace.as_str(), named.as_slice()), ("default", key.as_bytes()));
            assert_eq!(said.to_string(), why);
        }
        let mut forward = keyspace.iter();
        assert!(forward.next().unwrap().is_ok());
        assert!(matches!(forward.next(), Some(Err(Error::MergeFailed { .. }))));
        assert!(matches!(forward.next(), Some(Err(Error::MergeFailed { .. }))), "that of c");
        assert_eq!(&*forward.next().unwrap().unwrap().0, b"d");
        assert!(forward.next().is_none());
        let backward: Result<Vec<_>, _> = keyspace.range(.."b").rev().collect();
        assert_eq!(backward.unwrap().len(), 1, "elsewhere it does not matter");
        for key in ["a", "b", "c", "d"] {
            for _ in 0..2 * CHAIN_OPERANDS_MAX {
                db.default_keyspace().merge(key, "x").unwrap();
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
    db.default_keyspace().merge("c", "1").unwrap();
    assert_eq!(db.get("b").unwrap().unwrap(), b"new");
    assert_eq!(db.get("c").unwrap().unwrap(), b"1");
    assert_eq!(keyspace.iter().map(Result::unwrap).count(), 4);
}

/// What a walk meets: keys, and whether each has a value; the key of an error is the one that it names.
fn met(
    items: impl Iterator<Item = lsmx::Result<(lsmx::Slice, lsmx::Slice)>>,
) -> Vec<(String, bool)> {
    let item = |item: lsmx::Result<(lsmx::Slice, lsmx::Slice)>| match item {
        Ok((key, _)) => (String::from_utf8_lossy(&key).into_owned(), true),
        Err(Error::MergeFailed { key, .. }) => (String::from_utf8_lossy(&key).into_owned(), false),
        Err(error) => panic!("{error:?}"),
    };
    // A walk that does not end would be one of the things to be found.
    items.take(100).map(item).collect()
}

/// Keys b, c and f do not fold, at the beginning, in the middle and at the end of ranges; e is deleted.
fn with_keys_that_fail(db: &Db) {
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
fn ranges_go_on_after_keys_that_do_not_fold_and_stop_at_their_bounds() {
    let disk = MemVfs::new();
    let db = open(&disk, tuning().merge_operator(Whole)).unwrap();
    with_keys_that_fail(&db);
    let keyspace = db.default_keyspace();
    let all = [("a", true), ("b", false), ("c", false), ("d", true), ("f", false), ("g", true)];
    let owned = |all: &[(&str, bool)]| -> Vec<(String, bool)> {
        all.iter().map(|&(key, fine)| (key.to_owned(), fine)).collect()
    };
    let reversed = |all: &[(&str, bool)]| owned(all).into_iter().rev().collect::<Vec<_>>();
    for round in 0..3 {
        assert_eq!(met(keyspace.iter()), owned(&all));
        assert_eq!(met(keyspace.iter().rev()), reversed(&all));
        assert_eq!(
            met(keyspace
                .iter()
                .options(&ReadOptions { tier: ReadTier::Memory, ..ReadOptions::default() })),
            owned(&all),
            "all of it is in memory"
        );
        assert_eq!(
            met(keyspace
                .iter()
                .options(&ReadOptions { tier: ReadTier::Memory, ..ReadOptions::default() })
                .rev()),
            reversed(&all)
        );
        // From both ends by turns each key comes once.
        let mut ends = keyspace.iter();
        let (mut front, mut back) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            front.extend(ends.next());
            back.extend(ends.next_back());
        }
        assert!(ends.next().is_none() && ends.next_back().is_none());
        let mut both = met(front.into_iter());
        both.extend(met(back.into_iter()).into_iter().rev());
        assert_eq!(both, owned(&all));
        // A key past a bound is none of the range's business, whichever end comes to it.
        assert_eq!(met(keyspace.range("d".."f")), owned(&[("d", true)]));
        assert_eq!(met(keyspace.range("d"..="f")), owned(&[("d", true), ("f", false)]));
        assert_eq!(met(keyspace.range("d".."e").rev()), owned(&[("d", true)]));
        assert_eq!(met(keyspace.range("b".."c")), owned(&[("b", false)]));
        assert_eq!(met(keyspace.prefix("f")), owned(&[("f", false)]));
        assert!(keyspace.first().is_ok() && keyspace.last().is_ok());
        // Reads of many keys fail as one, and the error names the key; without it they work.
        let Err(Error::MergeFailed { key, .. }) = keyspace.multi_get(["a", "b", "d"]) else {
            panic!("b was read");
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
            keyspace.compact_range::<&str>(..).unwrap();
        }
    }
}

#[test]
fn a_range_that_was_bound_to_memory_does_not_meet_a_failed_key_twice() {
    let disk = MemVfs::new();
    let db = open(&disk, tuning().merge_operator(Whole)).unwrap();
    with_keys_that_fail(&db);
    let keyspace = db.default_keyspace();
    for backward in [false, true] {
        let mut range = keyspace
            .iter()
            .options(&ReadOptions { tier: ReadTier::Memory, ..ReadOptions::default() });
        let step =
            |range: &mut lsmx::Range| if backward { range.next_back() } else { range.next() };
        let mut items: Vec<_> = (0..2).filter_map(|_| step(&mut range)).collect();
        assert!(matches!(items[1], Err(Error::MergeFailed { .. })));
        range = range.options(&ReadOptions::default());
        items.extend(std::iter::from_fn(|| step(&mut range)).take(10));
        assert_eq!(met(items.into_iter()).len(), 6);
        // It is one of as many as a limit says.
        let limited = keyspace.iter().limit(2);
        assert_eq!(met(limited).len(), 2);
        assert_eq!(
            met(keyspace
                .iter()
                .options(&ReadOptions { tier: ReadTier::Memory, ..ReadOptions::default() })
                .limit(5)
                .rev())
            .len(),
            5
        );
    }
}

#[test]
fn what_does_not_fold_survives_recovery_checkpoints_and_snapshots_unharmed() {
    let disk = MemVfs::new();
    let db = open(&disk, tuning().merge_operator(Whole)).unwrap();
    with_keys_that_fail(&db);
    let expected = met(db.default_keyspace().iter());
    let snapshot = db.snapshot();
    for key in ["b", "c", "f"] {
        db.put(key, "new").unwrap();
    }
    assert!(met(db.default_keyspace().iter()).iter().all(|(_, fine)| *fine));
    let of_snapshot = || met(snapshot.iter(&db.default_keyspace()));
    assert_eq!(of_snapshot(), expected);
    db.flush().unwrap();
    db.default_keyspace().compact_range::<&str>(..).unwrap();
    assert_eq!(of_snapshot(), expected, "operands stay for who still sees them");
    drop(snapshot);
    // The other way round, so that the log, memtables and tables all hold operands that do not fold.
    with_keys_that_fail(&db);
    db.flush().unwrap();
    with_keys_that_fail(&db);
    db.sync().unwrap();
    db.checkpoint("copy").unwrap();
    let crashed = disk.crash(lsmx::internals::vfs::CrashImage::Keep, 1);
    drop(db);
    for (disk, path) in [(&crashed, "db"), (&disk, "db"), (&disk, "copy")] {
        let options = Options::default()
            .background(Background::Inline)
            .keyspace_defaults(tuning().merge_operator(Whole));
        let vfs = Arc::new(disk.clone());
        let db = Db::open(path, options.vfs(vfs.clone())).unwrap();
        assert_eq!(met(db.default_keyspace().iter()), expected, "{path}");
        db.put("c", "new").unwrap();
        assert_eq!(db.get("c").unwrap().unwrap(), b"new");
        db.close(None).unwrap();
        lsmx::verify(path, &Options::default().vfs(vfs)).unwrap();
    }
}

#[test]
fn the_operator_stays_with_its_keyspace() {
    let disk = MemVfs::new();
    let db = open(&disk, tuning()).unwrap();
    let lacking = |done: lsmx::Result<()>, known: Option<&str>| {
        let Err(Error::NoMergeOperator { keyspace, operator }) = done else { panic!("{done:?}") };
        assert_eq!((keyspace.as_str(), operator.as_deref()), ("default", known));
    };
    lacking(db.default_keyspace().merge("k", "v"), None);
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
    give(&db, tuning().merge_operator(Append::default())).unwrap();
    other(give(&db, tuning().merge_operator(Counter)));
    give(&db, tuning()).unwrap();
    // In a table of its own, without its base, the operand stays one.
    db.put("k", "base+").unwrap();
    db.flush().unwrap();
    db.default_keyspace().merge("k", "v").unwrap();
    drop(db);

    let before = disk.snapshot_all();
    other(open(&disk, tuning().merge_operator(Counter)).map(drop));
    assert_eq!(disk.snapshot_all(), before, "a refused opening changes nothing");

    let db = open(&disk, tuning()).unwrap();
    lacking(db.default_keyspace().merge("k", "v"), Some("lsmx.append"));
    lacking(db.get("k").map(drop), Some("lsmx.append"));
    lacking(db.default_keyspace().iter().next().unwrap().map(drop), Some("lsmx.append"));
    lacking(db.default_keyspace().iter().next_back().unwrap().map(drop), Some("lsmx.append"));
    assert!(db.get("j").unwrap().is_none());
    db.put("j", "w").unwrap();
    db.flush().unwrap();
    assert_eq!(db.get("j").unwrap().unwrap(), b"w");
    give(&db, tuning().merge_operator(Append::default())).unwrap();
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

/// A base deep in the tree and merges for ever: the chain that a reader meets stays short, whether
/// a memtable holds many operands of a key or one, with partial merges or without.
#[test]
fn chains_stay_short_in_memory_and_in_tables() {
    for (operator, keys) in [(true, 1u32), (true, 40), (false, 1), (false, 40)] {
        let disk = MemVfs::new();
        let tuning = tuning()
            .policy("tiering".parse::<lsmx::PolicySpec>().unwrap())
            .memtable_bytes(16 << 10);
        let tuning = match operator {
            true => tuning.merge_operator(Append::default()),
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
            db.default_keyspace().merge(key.to_be_bytes(), [b'0']).unwrap();
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
