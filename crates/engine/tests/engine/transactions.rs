//! Transactions: the anomalies of Hermitage, reads of own writes, conflicts, savepoints, and random histories.
//!
//! Source of the anomalies: Kleppmann, <https://github.com/ept/hermitage>. Each test has the name of one anomaly. Two keys
//! have the values 10 and 20 at the start.

use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use lsmx::env::Background;
use lsmx::internals::vfs::{Errno, Fault, FaultRule, FaultVfs, VfsCall};
use lsmx::merge_operator::Append;
use lsmx::metrics::TransactionMetrics;
use lsmx::vfs::{MemVfs, Vfs};
use lsmx::{
    Db, Durability, Error, Keyspace, Options, Result, Slice, Transaction, TransactionRange,
    WriteBatch,
};
use lsmx_testkit::case_seeds;

use crate::harness::database::{inline, open, settle, small};
use crate::harness::small_database::{open_kinds, options as options_of_kinds};
use crate::harness::transactions::{
    concurrent_transactions, failing_transactions, interleaved_transactions, locked_increments,
};

/// Returns a database with the keys `1` and `2`, with the values `10` and `20`.
fn hermitage() -> (Db, Keyspace) {
    let keyspace = small().merge_operator(Append::with_separator(b","));
    let db = open(&MemVfs::new(), inline().keyspace_defaults(keyspace));
    let keyspace = db.default_keyspace();
    keyspace.put("1", "10").unwrap();
    keyspace.put("2", "20").unwrap();
    (db, keyspace)
}

const fn is_send_and_sync<T: Send + Sync>() {}
const _: () = is_send_and_sync::<Transaction>();

fn commit(tx: Transaction) -> Result<()> {
    tx.commit(Durability::Buffered)
}

fn assert_conflict(tx: Transaction) {
    let committed = commit(tx);
    assert!(matches!(committed, Err(Error::Conflict { .. })), "{committed:?}");
}

fn text(value: Option<Slice>) -> String {
    value.map_or("none".to_owned(), |value| String::from_utf8(value.to_vec()).unwrap())
}

/// Returns the entries of a range as text, such as `1=10 2=20`.
fn entries(range: impl Iterator<Item = Result<(Slice, Slice)>>) -> String {
    let entry = |entry: Result<(Slice, Slice)>| {
        let (key, value) = entry.unwrap();
        format!("{}={}", text(Some(key)), text(Some(value)))
    };
    range.map(entry).collect::<Vec<_>>().join(" ")
}

fn all<'tx>(tx: &'tx Transaction, keyspace: &Keyspace) -> TransactionRange<'tx> {
    tx.range::<&[u8]>(keyspace, ..)
}

/// Kind of the transactions of an anomaly test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Optimistic,
    Locking,
}

impl Kind {
    /// Starts a transaction. One that waits for a key fails at once.
    fn begin(self, db: &Db) -> Transaction {
        match self {
            Kind::Optimistic => db.transaction(),
            Kind::Locking => db.locking_transaction(Duration::ZERO),
        }
    }

    /// Puts a key that another transaction has put. Returns whether the call succeeds. It fails if the other transaction
    /// has locked the key.
    fn try_put(self, tx: &Transaction, keyspace: &Keyspace, key: &str, value: &str) -> bool {
        match (self, tx.put(keyspace, key, value)) {
            (Kind::Optimistic, Ok(())) => true,
            (Kind::Locking, Err(Error::LockTimeout { .. })) => false,
            (_, result) => panic!("{self:?}: {result:?}"),
        }
    }

    /// Commits a transaction without writes, after other commits have written what it has read. The commit checks only the
    /// reads of locking transactions.
    fn commit_outdated_reader(self, tx: Transaction) {
        match self {
            Kind::Optimistic => commit(tx).unwrap(),
            Kind::Locking => assert_conflict(tx),
        }
    }
}

/// Runs a test of an anomaly with both kinds of transactions.
fn with_both_kinds(test: fn(Kind)) {
    for kind in [Kind::Optimistic, Kind::Locking] {
        test(kind);
    }
}

/// Two transactions write both keys. The writes are not interleaved.
#[test]
fn g0_write_cycles_are_prevented() {
    with_both_kinds(|kind| {
        let (db, keyspace) = hermitage();
        let (one, two) = (kind.begin(&db), kind.begin(&db));
        one.put(&keyspace, "1", "11").unwrap();
        let is_put = kind.try_put(&two, &keyspace, "1", "12");
        one.put(&keyspace, "2", "21").unwrap();
        commit(one).unwrap();
        if !is_put {
            two.put(&keyspace, "1", "12").unwrap();
        }
        two.put(&keyspace, "2", "22").unwrap();
        commit(two).unwrap();
        assert_eq!(entries(keyspace.iter()), "1=12 2=22");
    });
}

#[test]
fn g1a_aborted_reads_are_prevented() {
    with_both_kinds(|kind| {
        let (db, keyspace) = hermitage();
        let (one, two) = (kind.begin(&db), kind.begin(&db));
        one.put(&keyspace, "1", "101").unwrap();
        assert_eq!(entries(all(&two, &keyspace)), "1=10 2=20");
        drop(one);
        assert_eq!(entries(all(&two, &keyspace)), "1=10 2=20");
        commit(two).unwrap();
        assert_eq!(entries(keyspace.iter()), "1=10 2=20");
    });
}

#[test]
fn g1b_intermediate_reads_are_prevented() {
    with_both_kinds(|kind| {
        let (db, keyspace) = hermitage();
        let (one, two) = (kind.begin(&db), kind.begin(&db));
        one.put(&keyspace, "1", "101").unwrap();
        assert_eq!(entries(all(&two, &keyspace)), "1=10 2=20");
        one.put(&keyspace, "1", "11").unwrap();
        commit(one).unwrap();
        assert_eq!(entries(all(&two, &keyspace)), "1=10 2=20");
        kind.commit_outdated_reader(two);
    });
}

#[test]
fn g1c_circular_information_flow_is_prevented() {
    with_both_kinds(|kind| {
        let (db, keyspace) = hermitage();
        let (one, two) = (kind.begin(&db), kind.begin(&db));
        one.put(&keyspace, "1", "11").unwrap();
        two.put(&keyspace, "2", "22").unwrap();
        assert_eq!(text(one.get(&keyspace, "2").unwrap()), "20");
        assert_eq!(text(two.get(&keyspace, "1").unwrap()), "10");
        commit(one).unwrap();
        assert_conflict(two);
    });
}

/// Observed transaction vanishes: a reader sees either all writes of a transaction or none.
#[test]
fn otv_observed_transaction_vanishes_is_prevented() {
    with_both_kinds(|kind| {
        let (db, keyspace) = hermitage();
        let (one, two) = (kind.begin(&db), kind.begin(&db));
        one.put(&keyspace, "1", "11").unwrap();
        one.put(&keyspace, "2", "19").unwrap();
        let is_put = kind.try_put(&two, &keyspace, "1", "12");
        commit(one).unwrap();
        if !is_put {
            two.put(&keyspace, "1", "12").unwrap();
        }
        let three = kind.begin(&db);
        assert_eq!(text(three.get(&keyspace, "1").unwrap()), "11");
        two.put(&keyspace, "2", "18").unwrap();
        assert_eq!(text(three.get(&keyspace, "2").unwrap()), "19");
        commit(two).unwrap();
        assert_eq!(text(three.get(&keyspace, "2").unwrap()), "19");
        assert_eq!(text(three.get(&keyspace, "1").unwrap()), "11");
        kind.commit_outdated_reader(three);
    });
}

/// Predicate many-preceders: a key appears in a range after the range was read.
#[test]
fn pmp_predicate_many_preceders_are_prevented() {
    with_both_kinds(|kind| {
        let (db, keyspace) = hermitage();
        let (one, two) = (kind.begin(&db), kind.begin(&db));
        assert_eq!(entries(one.range(&keyspace, "3".."9")), "");
        two.put(&keyspace, "3", "30").unwrap();
        commit(two).unwrap();
        assert_eq!(entries(one.range(&keyspace, "3".."9")), "");
        one.put(&keyspace, "1", "found none").unwrap();
        assert_conflict(one);
        // The same with a write that depends on a range that was deleted.
        let (one, two) = (kind.begin(&db), kind.begin(&db));
        assert_eq!(entries(all(&two, &keyspace)), "1=10 2=20 3=30");
        one.delete_range(&keyspace, "2".."3").unwrap();
        commit(one).unwrap();
        two.delete(&keyspace, "3").unwrap();
        assert_conflict(two);
    });
}

#[test]
fn p4_lost_update_is_prevented() {
    with_both_kinds(|kind| {
        let (db, keyspace) = hermitage();
        let (one, two) = (kind.begin(&db), kind.begin(&db));
        assert_eq!(text(one.get(&keyspace, "1").unwrap()), "10");
        assert_eq!(text(two.get(&keyspace, "1").unwrap()), "10");
        one.put(&keyspace, "1", "11").unwrap();
        let is_put = kind.try_put(&two, &keyspace, "1", "11");
        commit(one).unwrap();
        if !is_put {
            two.put(&keyspace, "1", "11").unwrap();
        }
        assert_conflict(two);
    });
}

/// Read skew: two reads of one transaction see different states.
#[test]
fn g_single_read_skew_is_prevented() {
    with_both_kinds(|kind| {
        let (db, keyspace) = hermitage();
        let one = kind.begin(&db);
        assert_eq!(text(one.get(&keyspace, "1").unwrap()), "10");
        let two = kind.begin(&db);
        assert_eq!(text(two.get(&keyspace, "1").unwrap()), "10");
        assert_eq!(text(two.get(&keyspace, "2").unwrap()), "20");
        two.put(&keyspace, "1", "12").unwrap();
        two.put(&keyspace, "2", "18").unwrap();
        commit(two).unwrap();
        assert_eq!(text(one.get(&keyspace, "2").unwrap()), "20");
        // A write that depends on the old state is refused.
        one.delete_range(&keyspace, "2"..).unwrap();
        assert_conflict(one);
    });
}

/// Write skew on keys.
#[test]
fn g2_item_write_skew_is_prevented() {
    with_both_kinds(|kind| {
        let (db, keyspace) = hermitage();
        let (one, two) = (kind.begin(&db), kind.begin(&db));
        for tx in [&one, &two] {
            let values = tx.multi_get(&keyspace, ["1", "2"]).unwrap();
            assert_eq!(values.into_iter().map(text).collect::<Vec<_>>(), ["10", "20"]);
        }
        one.put(&keyspace, "1", "11").unwrap();
        two.put(&keyspace, "2", "21").unwrap();
        commit(one).unwrap();
        assert_conflict(two);
    });
}

/// Write skew on ranges: each transaction adds a key to the range that the other one has read.
#[test]
fn g2_anti_dependency_cycles_of_ranges_are_prevented() {
    with_both_kinds(|kind| {
        for backward in [false, true] {
            for flush in [false, true] {
                let (db, keyspace) = hermitage();
                let (one, two) = (kind.begin(&db), kind.begin(&db));
                for tx in [&one, &two] {
                    let range = tx.range(&keyspace, "3"..="9");
                    assert_eq!(if backward { entries(range.rev()) } else { entries(range) }, "");
                }
                one.put(&keyspace, "3", "30").unwrap();
                two.put(&keyspace, "4", "42").unwrap();
                commit(one).unwrap();
                if flush {
                    settle(&db);
                }
                assert_conflict(two);
            }
        }
    });
}

/// A read-only transaction sees one state and never fails, although the writers that it sees would form a cycle with it
/// under snapshot isolation.
#[test]
fn read_only_transaction_never_conflicts() {
    let (db, keyspace) = hermitage();
    let (one, two) = (db.transaction(), db.transaction());
    assert_eq!(entries(all(&one, &keyspace)), "1=10 2=20");
    two.put(&keyspace, "2", "25").unwrap();
    commit(two).unwrap();
    let three = db.transaction();
    assert_eq!(entries(all(&three, &keyspace)), "1=10 2=25");
    keyspace.put("2", "26").unwrap();
    commit(three).unwrap();
    one.put(&keyspace, "1", "0").unwrap();
    assert_conflict(one);
    // A write that was rolled back is no write.
    let four = db.transaction();
    let savepoint = four.savepoint();
    four.get(&keyspace, "1").unwrap();
    four.put(&keyspace, "1", "1").unwrap();
    four.rollback_to(savepoint).unwrap();
    keyspace.put("1", "2").unwrap();
    commit(four).unwrap();
}

#[test]
fn blind_writes_do_not_conflict_and_reads_for_update_do() {
    let (db, keyspace) = hermitage();
    let (one, two) = (db.transaction(), db.transaction());
    for tx in [&one, &two] {
        tx.put(&keyspace, "1", "own").unwrap();
        assert_eq!(text(tx.get(&keyspace, "1").unwrap()), "own");
    }
    assert_eq!(text(two.get_for_update(&keyspace, "1").unwrap()), "own");
    keyspace.put("1", "other").unwrap();
    commit(one).unwrap();
    let Err(Error::Conflict { keyspace: name, key, .. }) = commit(two) else {
        panic!("a read for update does not conflict")
    };
    assert_eq!((&name[..], &key[..]), ("default", &b"1"[..]));
    assert_eq!(text(keyspace.get("1").unwrap()), "own");
}

/// Bug: the commit of a locking transaction checked a key of which it had only read its own value.
#[test]
fn read_that_own_writes_determine_is_not_checked() {
    with_both_kinds(|kind| {
        let (db, keyspace) = hermitage();
        let tx = kind.begin(&db);
        tx.put(&keyspace, "1", "own").unwrap();
        assert_eq!(text(tx.get(&keyspace, "1").unwrap()), "own");
        assert_eq!(text(tx.multi_get(&keyspace, ["1"]).unwrap().remove(0)), "own");
        keyspace.put("1", "other").unwrap();
        commit(tx).unwrap();
        assert_eq!(text(keyspace.get("1").unwrap()), "own");
        // The value of an operand depends on the committed value.
        let tx = kind.begin(&db);
        tx.merge(&keyspace, "1", "x").unwrap();
        assert_eq!(text(tx.get(&keyspace, "1").unwrap()), "own,x");
        keyspace.put("1", "other").unwrap();
        assert_conflict(tx);
    });
}

/// Bug: a locking transaction searched a key in storage although its own writes determined the value.
#[test]
fn read_that_own_writes_determine_reads_no_file() {
    let disk = FaultVfs::new(Arc::new(MemVfs::new()), 1);
    let db = open(&disk, inline().block_cache_bytes(0));
    let keyspace = db.default_keyspace();
    keyspace.put("1", "10").unwrap();
    settle(&db);
    let fault = FaultRule::new(Fault::Error(Errno::Io));
    disk.add_rule(fault.for_calls(&[VfsCall::Read]).from_then_on());
    assert!(matches!(keyspace.get("1"), Err(Error::Io { .. })));
    for kind in [Kind::Optimistic, Kind::Locking] {
        let tx = kind.begin(&db);
        tx.put(&keyspace, "1", "own").unwrap();
        assert_eq!(text(tx.get(&keyspace, "1").unwrap()), "own");
        assert_eq!(text(tx.multi_get(&keyspace, ["1"]).unwrap().remove(0)), "own");
    }
}

/// Each way to write a key conflicts with each way to read it.
#[test]
fn every_kind_of_write_conflicts_with_every_kind_of_read() {
    type Write = fn(&Db, &Keyspace) -> Result<()>;
    let writes: [Write; 7] = [
        |_, keyspace| keyspace.put("5", "x"),
        |_, keyspace| keyspace.delete("5"),
        |_, keyspace| keyspace.merge("5", "x"),
        |_, keyspace| keyspace.delete_range("4".."6"),
        |_, keyspace| keyspace.clear(),
        |_, keyspace| keyspace.fetch_update("5", |_| b"x".to_vec()).map(drop),
        |db, keyspace| {
            let mut batch = WriteBatch::new();
            batch.put(keyspace, "8", "x");
            batch.put(keyspace, "5", "x");
            batch.put(keyspace, "7", "x");
            db.write(batch, Durability::Buffered)
        },
    ];
    type Read = fn(&Transaction, &Keyspace);
    let reads: [Read; 6] = [
        |tx, keyspace| drop(tx.get(keyspace, "5").unwrap()),
        |tx, keyspace| drop(tx.multi_get(keyspace, ["1", "5"]).unwrap()),
        |tx, keyspace| drop(entries(tx.range(keyspace, "5"..="5"))),
        |tx, keyspace| drop(entries(tx.range(keyspace, "4".."6").rev())),
        |tx, keyspace| drop(entries(tx.prefix(keyspace, "5"))),
        |tx, keyspace| {
            let bounds = (Bound::Excluded("4"), Bound::<&str>::Unbounded);
            drop(tx.range::<&str>(keyspace, bounds).next().unwrap().unwrap());
        },
    ];
    for (number, write) in writes.into_iter().enumerate() {
        for (read_number, read) in reads.into_iter().enumerate() {
            for flush in [false, true] {
                let (db, keyspace) = hermitage();
                // The key exists and is not the only one, and one more range read has started the history of ranges.
                for key in 0..10 {
                    keyspace.put(key.to_string(), "old").unwrap();
                }
                drop(all(&db.transaction(), &keyspace));
                let tx = db.transaction();
                read(&tx, &keyspace);
                tx.put(&keyspace, "result", "x").unwrap();
                keyspace.put("20", "outside of what was read").unwrap();
                write(&db, &keyspace).unwrap();
                if flush {
                    settle(&db);
                }
                let committed = commit(tx);
                assert!(
                    matches!(committed, Err(Error::Conflict { .. })),
                    "write {number}, read {read_number}, flush {flush}: {committed:?}"
                );
            }
        }
    }
}

/// Only the part of a range that was read is checked.
#[test]
fn range_read_in_part_conflicts_in_this_part_only() {
    for (written, forward_conflicts, backward_conflicts) in [
        ("a", false, false),
        ("b", true, false),
        ("c", true, false),
        ("c0", false, false),
        ("f", false, true),
        ("f0", false, true),
        ("g", false, true),
        ("h", false, false),
    ] {
        for (backward, conflicts) in [(false, forward_conflicts), (true, backward_conflicts)] {
            for flush in [false, true] {
                let (db, keyspace) = hermitage();
                for key in ["a", "b", "c", "d", "e", "f", "g", "h"] {
                    keyspace.put(key, "old").unwrap();
                }
                drop(all(&db.transaction(), &keyspace));
                let tx = db.transaction();
                let mut range = tx.range(&keyspace, "b".."h");
                for _ in 0..2 {
                    let entry = if backward { range.next_back() } else { range.next() };
                    entry.unwrap().unwrap();
                }
                drop(range);
                tx.put(&keyspace, "result", "x").unwrap();
                keyspace.put(written, "new").unwrap();
                if flush {
                    settle(&db);
                }
                let committed = commit(tx);
                let is_conflict = matches!(committed, Err(Error::Conflict { .. }));
                assert_eq!(is_conflict, conflicts, "{written} {backward} {flush}: {committed:?}");
            }
        }
    }
}

/// An iterator that was never dropped counts as a read of its whole range. An iterator without a call is no read.
#[test]
fn range_leaked_is_read_and_range_unused_is_not_read() {
    let (db, keyspace) = hermitage();
    for is_leaked in [false, true] {
        let tx = db.transaction();
        let range = tx.range(&keyspace, "3".."5");
        if is_leaked {
            std::mem::forget(range)
        } else {
            drop(range)
        }
        tx.put(&keyspace, "1", "x").unwrap();
        keyspace.put("4", "x").unwrap();
        assert_eq!(matches!(commit(tx), Err(Error::Conflict { .. })), is_leaked);
    }
}

#[test]
fn range_shows_own_writes_in_both_directions() {
    let (db, keyspace) = hermitage();
    for key in 3..8 {
        keyspace.put(key.to_string(), (key * 10).to_string()).unwrap();
    }
    settle(&db);
    let tx = db.transaction();
    // Later commits are not seen, also in keys that the transaction writes.
    keyspace.put("1", "unseen").unwrap();
    keyspace.merge("4", "unseen").unwrap();
    keyspace.put("9", "unseen").unwrap();
    tx.merge(&keyspace, "1", "11").unwrap();
    tx.delete(&keyspace, "2").unwrap();
    tx.merge(&keyspace, "4", "41").unwrap();
    tx.merge(&keyspace, "4", "42").unwrap();
    tx.delete_range(&keyspace, "5".."8").unwrap();
    tx.put(&keyspace, "6", "own").unwrap();
    tx.merge(&keyspace, "7", "own").unwrap();
    tx.put(&keyspace, "8", "80").unwrap();
    let expected = "1=10,11 3=30 4=40,41,42 6=own 7=own 8=80";
    assert_eq!(entries(all(&tx, &keyspace)), expected);
    let backward: Vec<_> = expected.split(' ').rev().collect();
    assert_eq!(entries(all(&tx, &keyspace).rev()), backward.join(" "));
    for entry in expected.split(' ') {
        let (key, value) = entry.split_once('=').unwrap();
        assert_eq!(text(tx.get(&keyspace, key).unwrap()), value);
    }
    let keys = ["5", "2", "4", "4", "9"];
    let values = tx.multi_get(&keyspace, keys).unwrap();
    let values: Vec<_> = values.into_iter().map(text).collect();
    assert_eq!(values, ["none", "none", "40,41,42", "40,41,42", "none"]);
    // Both ends meet, and a range keeps showing the writes before its creation.
    let mut range = all(&tx, &keyspace);
    assert_eq!(entries(range.by_ref().take(2)), "1=10,11 3=30");
    tx.put(&keyspace, "4", "later").unwrap();
    tx.put(&keyspace, "5", "later").unwrap();
    assert_eq!(entries(range.by_ref().rev().take(3)), "8=80 7=own 6=own");
    assert_eq!(entries(range), "4=40,41,42");
    assert_eq!(entries(tx.range(&keyspace, "4".."6")), "4=later 5=later");
}

#[test]
fn transaction_spans_keyspaces_of_all_kinds() {
    let db = open(&MemVfs::new(), options_of_kinds(Background::Inline));
    let keyspaces = open_kinds(&db);
    for keyspace in &keyspaces {
        keyspace.put("old", "a value that is longer than the threshold").unwrap();
        keyspace.merge("merged", "1").unwrap();
    }
    settle(&db);
    for (at, written) in keyspaces.iter().enumerate() {
        let tx = db.transaction();
        for keyspace in &keyspaces {
            tx.merge(keyspace, "merged", "2").unwrap();
            let merged = tx.get(keyspace, "merged").unwrap().unwrap();
            let found = entries(tx.range(keyspace, "m".."p"));
            let old = "a value that is longer than the threshold";
            assert_eq!(found, format!("merged={} old={old}", text(Some(merged))));
            tx.put(keyspace, "new", "another value that is longer than the threshold").unwrap();
        }
        written.merge("merged", "by another client").unwrap();
        if at > 0 {
            settle(&db);
        }
        assert_conflict(tx);
        assert!(keyspaces.iter().all(|keyspace| keyspace.get("new").unwrap().is_none()));
    }
    let tx = db.transaction();
    for keyspace in &keyspaces {
        tx.put(keyspace, "new", "another value that is longer than the threshold").unwrap();
    }
    tx.commit(Durability::Sync).unwrap();
    assert!(keyspaces.iter().all(|keyspace| keyspace.get("new").unwrap().is_some()));
}

#[test]
fn savepoint_rollback_discards_later_writes() {
    let (db, keyspace) = hermitage();
    let tx = db.transaction();
    let start = tx.savepoint();
    tx.put(&keyspace, "1", "a").unwrap();
    let middle = tx.savepoint();
    assert_eq!(tx.savepoint(), middle, "no write in between");
    tx.delete_range::<&[u8]>(&keyspace, ..).unwrap();
    assert_eq!(entries(all(&tx, &keyspace)), "");
    tx.put(&keyspace, "3", "c").unwrap();
    let end = tx.savepoint();
    tx.rollback_to(middle).unwrap();
    assert_eq!(entries(all(&tx, &keyspace)), "1=a 2=20");
    assert!(matches!(tx.rollback_to(end), Err(Error::UnknownSavepoint)));
    tx.put(&keyspace, "4", "d").unwrap();
    tx.rollback_to(middle).unwrap();
    tx.put(&keyspace, "5", "e").unwrap();
    assert_eq!(entries(all(&tx, &keyspace)), "1=a 2=20 5=e");
    assert!(matches!(db.transaction().rollback_to(start), Err(Error::UnknownSavepoint)));
    commit(tx).unwrap();
    assert_eq!(entries(keyspace.iter()), "1=a 2=20 5=e");
}

#[test]
fn failed_write_leaves_transaction_usable() {
    let (db, keyspace) = hermitage();
    let other = open(&MemVfs::new(), inline());
    let tx = db.transaction();
    tx.put(&keyspace, "1", "first").unwrap();
    let large = vec![0; 1 << 20];
    let written = tx.put(&keyspace, &large, "too large a key");
    assert!(matches!(written, Err(Error::TooLarge { .. })), "{written:?}");
    let foreign = other.default_keyspace();
    assert!(matches!(tx.put(&foreign, "1", "x"), Err(Error::ForeignKeyspace { .. })));
    assert!(matches!(tx.get(&foreign, "1"), Err(Error::ForeignKeyspace { .. })));
    let read = all(&tx, &foreign).next();
    assert!(matches!(read, Some(Err(Error::ForeignKeyspace { .. }))), "{read:?}");
    let merged = other.transaction().merge(&foreign, "1", "x");
    assert!(matches!(merged, Err(Error::NoMergeOperator { .. })), "{merged:?}");
    tx.put(&keyspace, "2", "second").unwrap();
    commit(tx).unwrap();
    assert_eq!(entries(keyspace.iter()), "1=first 2=second");
}

/// All transactions share a quarter of the block cache. A write that was refused leaves its transaction usable.
#[test]
fn transactions_over_memory_budget_are_too_large() {
    let db = open(&MemVfs::new(), inline().memory_budget(4 << 20));
    let (keyspace, value) = (db.default_keyspace(), vec![7; 10_000]);
    let fill = |tx: &Transaction| {
        let written = (0..1_000).map_while(|at| tx.put(&keyspace, format!("{at}"), &value).ok());
        let (count, refused) = (written.count(), tx.put(&keyspace, "refused", &value));
        let Err(Error::TooLarge { what, bytes, limit }) = refused else { panic!("{refused:?}") };
        assert_eq!((what, limit), ("memory of all transactions", 512 << 10));
        assert!(bytes > limit, "{bytes}");
        count
    };
    let (one, two) = (db.transaction(), db.transaction());
    // A write needs memory in the batch and for reads of the transaction.
    let count = fill(&one);
    assert!((20..28).contains(&count), "{count}");
    let held = db.metrics().memory.transactions;
    assert!((400 << 10..=512 << 10).contains(&held), "{held}");
    assert_eq!(fill(&two), 0);
    two.put(&keyspace, "small", "x").unwrap();
    commit(two).unwrap();
    // The transaction is usable. A read that needs only own writes does not conflict with `small`.
    assert!(one.get(&keyspace, "0").unwrap().is_some());
    commit(one).unwrap();
    assert_eq!(keyspace.iter().count(), count + 1);
    assert_eq!(db.metrics().memory.transactions, 0);
    // A rollback makes memory available again.
    let tx = db.transaction();
    let start = tx.savepoint();
    let count = fill(&tx);
    tx.rollback_to(start).unwrap();
    assert_eq!(fill(&tx), count);
}

/// The keys to which an iterator narrows its range were not counted, so many iterators over ranges with short bounds could
/// exceed the memory budget.
#[test]
fn range_narrowed_to_long_keys_counts_their_memory() {
    let db = open(&MemVfs::new(), inline().memory_budget(4 << 20));
    let keyspace = db.default_keyspace();
    keyspace.put(vec![b'x'; 60_000], "value").unwrap();
    let tx = db.transaction();
    let reads = (0..100).map_while(|_| all(&tx, &keyspace).next()?.ok()).count();
    assert!((5..20).contains(&reads), "{reads}");
    let refused = all(&tx, &keyspace).next();
    assert!(matches!(refused, Some(Err(Error::TooLarge { .. }))), "{refused:?}");
}

#[test]
fn keyspace_dropped_during_transaction_stays_readable_and_fails_commit() {
    for is_written in [false, true] {
        let (db, keyspace) = hermitage();
        let other = db.keyspace("other", small()).unwrap();
        other.put("1", "old").unwrap();
        let tx = db.transaction();
        if is_written {
            tx.put(&other, "1", "own").unwrap();
        }
        let expected = if is_written { "own" } else { "old" };
        assert_eq!(text(tx.get(&other, "1").unwrap()), expected);
        tx.put(&keyspace, "1", "not committed").unwrap();
        db.drop_keyspace("other").unwrap();
        // A new keyspace with the same name is another keyspace.
        let created = db.keyspace("other", small()).unwrap();
        created.put("1", "new").unwrap();
        assert_eq!(text(tx.get(&other, "1").unwrap()), expected);
        assert_eq!(entries(all(&tx, &other)), format!("1={expected}"));
        assert_eq!(entries(all(&tx, &created)), "");
        let committed = commit(tx);
        assert!(matches!(committed, Err(Error::KeyspaceDropped { .. })), "{committed:?}");
        assert_eq!(text(keyspace.get("1").unwrap()), "10");
        let later = db.transaction();
        assert!(matches!(later.get(&other, "1"), Err(Error::KeyspaceDropped { .. })));
        let read = all(&later, &other).next();
        assert!(matches!(read, Some(Err(Error::KeyspaceDropped { .. }))), "{read:?}");
    }
}

/// Bugs: a locked key of a dropped keyspace could not be read. Without writes, the commit failed with `ConflictUnknown` if the
/// keyspace had been flushed, and succeeded otherwise.
#[test]
fn keyspace_dropped_during_locking_transaction_stays_readable_and_fails_commit() {
    for (is_flushed, has_writes) in [(false, false), (false, true), (true, false), (true, true)] {
        let (db, keyspace) = hermitage();
        let other = db.keyspace("other", small()).unwrap();
        for key in ["1", "2", "3"] {
            other.put(key, "old").unwrap();
        }
        let tx = db.locking_transaction(Duration::ZERO);
        for key in ["1", "2"] {
            other.put(key, "new").unwrap();
        }
        assert_eq!(text(tx.get_for_update(&other, "1").unwrap()), "new");
        if has_writes {
            tx.put(&keyspace, "1", "not committed").unwrap();
        }
        if is_flushed {
            other.put("4", "after the read").unwrap();
            settle(&db);
        }
        db.drop_keyspace("other").unwrap();
        let values = tx.multi_get(&other, ["1", "2", "3"]).unwrap();
        assert_eq!(values.into_iter().map(text).collect::<Vec<_>>(), ["new", "old", "old"]);
        assert_eq!(text(tx.get_for_update(&other, "1").unwrap()), "new");
        assert_eq!(text(tx.get_for_update(&other, "3").unwrap()), "old");
        assert_eq!(entries(all(&tx, &other)), "1=old 2=old 3=old");
        let committed = commit(tx);
        assert!(matches!(committed, Err(Error::KeyspaceDropped { .. })), "{committed:?}");
        assert_eq!(text(keyspace.get("1").unwrap()), "10");
        let later = db.locking_transaction(Duration::ZERO);
        let refused = later.get_for_update(&other, "1");
        assert!(matches!(refused, Err(Error::KeyspaceDropped { .. })), "{refused:?}");
    }
}

#[test]
fn metrics_count_transactions_by_result() {
    let (db, keyspace) = hermitage();
    drop(db.transaction());
    let reader = db.transaction();
    reader.get(&keyspace, "1").unwrap();
    commit(reader).unwrap();
    let mut attempts = 0;
    let body = |tx: &Transaction| {
        attempts += 1;
        tx.get(&keyspace, "1")?;
        if attempts < 3 {
            keyspace.put("1", attempts.to_string())?;
        }
        tx.put(&keyspace, "1", "x")
    };
    db.transact(Durability::Buffered, body).unwrap();
    // This transaction is older than the history of ranges.
    let old = db.transaction();
    keyspace.put("9", "x").unwrap();
    settle(&db);
    assert_eq!(entries(old.range(&keyspace, "1".."2")), "1=x");
    old.put(&keyspace, "1", "y").unwrap();
    commit(old).unwrap_err();
    let expected = TransactionMetrics {
        begun: 6,
        committed: 1,
        read_only: 1,
        conflicts: 2,
        unknown: 1,
        retries: 2,
        ..TransactionMetrics::default()
    };
    let metrics = db.metrics();
    assert_eq!(metrics.transactions, expected);
    let line = "transactions 6 begun, 1 committed, 1 read-only, 2 conflicts, 1 unknown, 2 retries";
    assert!(metrics.to_string().contains(line), "{metrics}");
}

/// In stepped mode, a wait ends only if the clock advances to its timeout.
#[test]
fn metrics_count_waits_for_locks_and_their_failures() {
    let background = Background::Stepped { seed: 1, workers: 1 };
    let db = open(&MemVfs::new(), Options::default().background(background));
    let keyspace = db.default_keyspace();
    let begin = || db.locking_transaction(Duration::from_secs(3));
    let [one, two] = [begin(), begin()];
    one.put(&keyspace, "a", "1").unwrap();
    one.put(&keyspace, "a", "2").unwrap();
    two.put(&keyspace, "b", "1").unwrap();
    let free = TransactionMetrics { begun: 2, locks_held: 2, ..TransactionMetrics::default() };
    assert_eq!(db.metrics().transactions, free);
    let timeout = two.get_for_update(&keyspace, "a");
    assert!(matches!(timeout, Err(Error::LockTimeout { .. })), "{timeout:?}");
    let metrics = db.metrics();
    let waited = TransactionMetrics {
        lock_waits: 1,
        lock_wait_us_total: 3_000_000,
        lock_timeouts: 1,
        ..free
    };
    assert_eq!(metrics.transactions, waited);
    let line = "2 keys locked, 1 waits of 3.0 s, 1 timeouts, 0 deadlocks";
    assert!(metrics.to_string().contains(line), "{metrics}");
    let text = metrics.to_prometheus(&[]);
    assert!(text.contains("lsmx_transaction_lock_wait_seconds_total 3\n"), "{text}");
    drop((one, two));
    assert_eq!(db.metrics().transactions.locks_held, 0);
}

#[test]
fn transaction_older_than_history_of_ranges_is_unknown() {
    let (db, keyspace) = hermitage();
    let tx = db.transaction();
    keyspace.put("9", "after the snapshot, flushed before the first range read").unwrap();
    settle(&db);
    assert_eq!(entries(tx.range(&keyspace, "1".."2")), "1=10");
    tx.put(&keyspace, "1", "11").unwrap();
    let committed = commit(tx);
    assert!(matches!(committed, Err(Error::ConflictUnknown { .. })), "{committed:?}");
    // The next flush records the history.
    let tx = db.transaction();
    keyspace.put("9", "again").unwrap();
    settle(&db);
    assert_eq!(entries(tx.range(&keyspace, "1".."2")), "1=10");
    tx.put(&keyspace, "1", "11").unwrap();
    commit(tx).unwrap();
}

/// Ingests a table with the value `new` for each key. The keys are in ascending order.
fn ingest(disk: &MemVfs, keyspace: &Keyspace, name: &str, keys: &[&str]) {
    let dir = Path::new("external");
    if !disk.exists(dir).unwrap() {
        disk.create_dir(dir).unwrap();
    }
    let mut table = keyspace.external_table_writer(dir.join(name)).unwrap();
    for key in keys {
        table.put(key, "new").unwrap();
    }
    table.finish().unwrap();
    keyspace.ingest([dir.join(name)]).unwrap();
}

/// A transaction that is older than an ingest is not committed if it has read a key, or a part of a range, between the
/// smallest and the largest ingested key.
#[test]
fn transaction_older_than_ingest_is_unknown_if_it_read_the_ingested_keys() {
    type Read = fn(&Transaction, &Keyspace);
    let conflicting: [(&str, Read); 9] = [
        ("key", |tx, keyspace| drop(tx.get(keyspace, "m").unwrap())),
        ("absent key", |tx, keyspace| assert_eq!(tx.get(keyspace, "k").unwrap(), None)),
        ("keys", |tx, keyspace| drop(tx.multi_get(keyspace, ["a", "p"]).unwrap())),
        ("all", |tx, keyspace| drop(entries(all(tx, keyspace)))),
        ("inside", |tx, keyspace| drop(entries(tx.range(keyspace, "m".."n")))),
        ("without entries", |tx, keyspace| assert_eq!(entries(tx.range(keyspace, "n".."o")), "")),
        ("up to the first key", |tx, keyspace| drop(entries(tx.range(keyspace, "a"..="k")))),
        ("from the last key", |tx, keyspace| drop(entries(tx.range(keyspace, "p"..)))),
        ("prefix", |tx, keyspace| drop(entries(tx.prefix(keyspace, "m")))),
    ];
    let disjoint: [(&str, Read); 6] = [
        ("key", |tx, keyspace| drop(tx.get(keyspace, "a").unwrap())),
        ("keys", |tx, keyspace| drop(tx.multi_get(keyspace, ["a", "z"]).unwrap())),
        ("below", |tx, keyspace| assert_eq!(entries(tx.range(keyspace, "a".."k")), "a=old")),
        ("above", |tx, keyspace| assert_eq!(entries(tx.range(keyspace, "pa"..)), "z=old")),
        ("first entry", |tx, keyspace| drop(all(tx, keyspace).next().unwrap().unwrap())),
        ("last entry", |tx, keyspace| drop(all(tx, keyspace).next_back().unwrap().unwrap())),
    ];
    let reads = conflicting.map(|read| (read, true)).into_iter();
    let reads = reads.chain(disjoint.map(|read| (read, false)));
    for (((what, read), conflicts), is_flushed) in
        reads.flat_map(|read| [(read, false), (read, true)])
    {
        let disk = MemVfs::new();
        let db = open(&disk, inline().keyspace_defaults(small()));
        let (keyspace, other) = (db.default_keyspace(), db.keyspace("other", small()).unwrap());
        for key in ["a", "m", "z"] {
            keyspace.put(key, "old").unwrap();
        }
        // The first range read starts the recording of flushed ranges.
        drop(entries(all(&db.transaction(), &keyspace)));
        let begin = || {
            let tx = db.transaction();
            read(&tx, &keyspace);
            tx.put(&other, "result", what).unwrap();
            tx
        };
        let tx = begin();
        ingest(&disk, &keyspace, "first", &["k", "m", "p"]);
        other.put("later", "write").unwrap();
        if is_flushed {
            settle(&db);
        }
        assert_eq!(text(tx.get(&keyspace, "z").unwrap()), "old");
        let committed = commit(tx);
        let is_unknown = matches!(committed, Err(Error::ConflictUnknown { .. }));
        assert_eq!(
            (is_unknown, committed.is_ok()),
            (conflicts, !conflicts),
            "{what}: {committed:?}"
        );
        // A transaction that reads the ingested entries has no conflict.
        let tx = db.transaction();
        assert_eq!(entries(all(&tx, &keyspace)), "a=old k=new m=new p=new z=old");
        tx.put(&other, "result", what).unwrap();
        commit(tx).unwrap();
        // An ingest into another keyspace causes no conflict.
        let tx = db.transaction();
        drop(entries(all(&tx, &keyspace)));
        tx.put(&keyspace, "result", what).unwrap();
        ingest(&disk, &other, "second", &["k", "m", "p"]);
        commit(tx).unwrap();
    }
}

#[test]
fn transact_retries_conflicts_and_returns_other_errors() {
    let (db, keyspace) = hermitage();
    let mut attempts = 0;
    let increment = |tx: &Transaction| -> Result<u64> {
        attempts += 1;
        let count: u64 = text(tx.get(&keyspace, "1")?).parse().unwrap();
        if attempts < 4 {
            keyspace.put("1", (count + 100).to_string())?;
        }
        tx.put(&keyspace, "1", (count + 1).to_string())?;
        Ok(count + 1)
    };
    assert_eq!(db.transact(Durability::Buffered, increment).unwrap(), 311);
    assert_eq!((attempts, text(keyspace.get("1").unwrap())), (4, "311".to_owned()));
    // The attempts are limited.
    let mut attempts = 0;
    let conflict = |tx: &Transaction| {
        attempts += 1;
        tx.get(&keyspace, "1")?;
        keyspace.put("1", attempts.to_string())?;
        tx.put(&keyspace, "1", "never")
    };
    let conflict = db.transact(Durability::Buffered, conflict);
    assert!(matches!(conflict, Err(Error::Conflict { .. })), "{conflict:?}");
    assert_eq!((attempts, text(keyspace.get("1").unwrap())), (24, "24".to_owned()));
    // An error of the caller discards the transaction.
    let refuse = |tx: &Transaction| -> std::result::Result<(), Box<dyn std::error::Error>> {
        tx.put(&keyspace, "1", "discarded")?;
        Err("not enough money".into())
    };
    assert_eq!(db.transact(Durability::Sync, refuse).unwrap_err().to_string(), "not enough money");
    assert_eq!(text(keyspace.get("1").unwrap()), "24");
}

#[test]
fn transaction_reads_database_that_is_read_only() {
    let disk = MemVfs::new();
    let db = open(&disk, inline());
    db.put("1", "10").unwrap();
    db.close(None).unwrap();
    let db = open(&disk, Options::default().read_only(true));
    let tx = db.transaction();
    assert_eq!(entries(all(&tx, &db.default_keyspace())), "1=10");
    assert!(matches!(tx.put(&db.default_keyspace(), "1", "x"), Err(Error::OpenedReadOnly)));
    commit(tx).unwrap();
}

#[test]
fn random_interleaved_transactions_are_serializable() {
    let (mut committed, mut conflicts, mut unknown, mut read_only) = (0, 0, 0, 0);
    let (mut power_losses, mut ingests) = (0, 0);
    for seed in case_seeds(&[], 150) {
        let recorded =
            interleaved_transactions(seed).unwrap_or_else(|what| panic!("{seed}: {what}"));
        committed += recorded.writers.len();
        read_only += recorded.readers.len();
        conflicts += recorded.conflicts;
        unknown += recorded.unknown;
        power_losses += recorded.power_losses;
        ingests += recorded.ingests.len();
    }
    println!(
        "{committed} commits, {read_only} without writes, {conflicts} conflicts, {unknown} unknown"
    );
    println!("{power_losses} power losses, {ingests} ingests");
    assert!(power_losses > 100 && ingests > 100, "{power_losses} {ingests}");
    assert!(committed > 1_000 && read_only > 50, "{committed} {read_only}");
    assert!(conflicts > 500 && unknown < conflicts / 4, "{conflicts} {unknown}");
}

#[test]
fn random_concurrent_transactions_are_serializable() {
    let (mut committed, mut conflicts, mut unknown) = (0, 0, 0);
    let (mut power_losses, mut ingests) = (0, 0);
    for seed in case_seeds(&[], 100) {
        let recorded =
            concurrent_transactions(seed).unwrap_or_else(|what| panic!("{seed}: {what}"));
        committed += recorded.writers.len();
        conflicts += recorded.conflicts;
        unknown += recorded.unknown;
        power_losses += recorded.power_losses;
        ingests += recorded.ingests.len();
    }
    println!("{committed} commits, {conflicts} conflicts, {unknown} unknown");
    println!("{power_losses} power losses, {ingests} ingests");
    assert!(committed > 1_000 && conflicts > 200, "{committed} {conflicts}");
    assert!(power_losses > 100 && ingests > 50, "{power_losses} {ingests}");
}

#[test]
fn transactions_are_serializable_while_calls_fail() {
    let (mut committed, mut conflicts, mut failures) = (0, 0, 0);
    for seed in case_seeds(&[], 60) {
        let (recorded, failed) =
            failing_transactions(seed).unwrap_or_else(|what| panic!("{seed}: {what}"));
        committed += recorded.writers.len();
        conflicts += recorded.conflicts;
        failures += failed;
    }
    println!("{committed} commits, {conflicts} conflicts, {failures} failures");
    assert!(committed > 400 && conflicts > 100, "{committed} {conflicts}");
    assert!(failures > 100, "{failures}");
}

#[test]
fn locked_increments_are_not_lost_and_never_conflict() {
    for seed in case_seeds(&[], 100) {
        locked_increments(seed).unwrap_or_else(|what| panic!("{seed}: {what}"));
    }
}

/// The reads of a locking transaction may show different states, so they are checked even without writes.
#[test]
fn locking_transaction_without_writes_is_checked() {
    let (db, keyspace) = hermitage();
    for changed in [None, Some("1"), Some("2")] {
        let tx = db.locking_transaction(Duration::ZERO);
        tx.get(&keyspace, "1").unwrap();
        if let Some(key) = changed {
            keyspace.put(key, "11").unwrap();
        }
        tx.get_for_update(&keyspace, "2").unwrap();
        match changed {
            // The second key was read after the write.
            None | Some("2") => commit(tx).unwrap(),
            _ => assert_conflict(tx),
        }
    }
}

#[test]
fn locking_transaction_reads_newest_value_of_locked_keys() {
    let (db, keyspace) = hermitage();
    let tx = db.locking_transaction(Duration::ZERO);
    keyspace.put("1", "11").unwrap();
    assert_eq!(tx.get_for_update(&keyspace, "1").unwrap().as_deref(), Some(&b"11"[..]));
    assert_eq!(tx.get(&keyspace, "1").unwrap().as_deref(), Some(&b"11"[..]));
    let values = tx.multi_get(&keyspace, ["1", "2"]).unwrap();
    assert_eq!(values[0].as_deref(), Some(&b"11"[..]));
    tx.merge(&keyspace, "1", "12").unwrap();
    assert_eq!(tx.get(&keyspace, "1").unwrap().as_deref(), Some(&b"11,12"[..]));
    commit(tx).unwrap();
    assert_eq!(keyspace.get("1").unwrap().as_deref(), Some(&b"11,12"[..]));
}

/// Bug: the newest value of a locked key was read from a closed database.
#[test]
fn locking_transaction_on_closed_database_reads_nothing() {
    let (db, keyspace) = hermitage();
    let tx = db.locking_transaction(Duration::ZERO);
    tx.get_for_update(&keyspace, "1").unwrap();
    db.close(None).unwrap();
    for read in [tx.get(&keyspace, "1"), tx.get_for_update(&keyspace, "2")] {
        assert!(matches!(read, Err(Error::Closed)), "{read:?}");
    }
}

/// Bug: a write locked its key before it failed because the database is read-only. Another transaction then waited for it.
#[test]
fn writes_of_locking_transactions_lock_no_keys_if_the_database_is_read_only() {
    let disk = MemVfs::new();
    let db = open(&disk, inline());
    db.put("1", "10").unwrap();
    db.close(None).unwrap();
    let db = open(&disk, Options::default().read_only(true));
    let keyspace = db.default_keyspace();
    let transactions = [(); 2].map(|()| db.locking_transaction(Duration::from_secs(100)));
    for tx in &transactions {
        let writes = [
            tx.put(&keyspace, "1", "x"),
            tx.put_with_ttl(&keyspace, "1", "x", Duration::from_secs(60)),
            tx.put_until(&keyspace, "1", "x", SystemTime::UNIX_EPOCH),
            tx.merge(&keyspace, "1", "x"),
            tx.delete(&keyspace, "1"),
        ];
        for written in writes {
            assert!(matches!(written, Err(Error::OpenedReadOnly)), "{written:?}");
        }
    }
    assert_eq!(db.metrics().transactions.locks_held, 0);
    // A read for update locks its key.
    let [tx, _] = transactions;
    assert_eq!(text(tx.get_for_update(&keyspace, "1").unwrap()), "10");
    commit(tx).unwrap();
}

#[test]
fn transaction_decides_at_its_start_which_values_have_expired() {
    let (db, keyspace) = hermitage();
    let minute = Duration::from_secs(60);
    let all_values = "1=10 2=20 3=30";
    keyspace.put_with_ttl("3", "30", minute).unwrap();
    for is_flushed in [false, true] {
        if is_flushed {
            db.flush().unwrap();
        }
        let tx = db.transaction();
        assert_eq!(entries(all(&tx, &keyspace)), all_values);
    }
    let (tx, locking) = (db.transaction(), db.locking_transaction(Duration::ZERO));
    db.env().advance_us(60_000_000);
    assert_eq!(entries(keyspace.iter()), "1=10 2=20");
    assert_eq!(entries(all(&tx, &keyspace)), all_values);
    assert_eq!(entries(all(&tx, &keyspace).rev()), "3=30 2=20 1=10");
    assert_eq!(text(tx.get(&keyspace, "3").unwrap()), "30");
    assert_eq!(text(tx.get_for_update(&keyspace, "3").unwrap()), "30");
    let values = tx.multi_get(&keyspace, ["3", "4"]).unwrap();
    assert_eq!(values.into_iter().map(text).collect::<Vec<_>>(), ["30", "none"]);
    tx.merge(&keyspace, "3", "31").unwrap();
    assert_eq!(text(tx.get(&keyspace, "3").unwrap()), "30,31");
    // The expiry is no write, so it is no conflict. The operand stays.
    commit(tx).unwrap();
    assert_eq!(text(keyspace.get("3").unwrap()), "31");
    // The value of a locked key is read at the current time.
    assert_eq!(text(locking.get(&keyspace, "3").unwrap()), "30");
    assert_eq!(text(locking.get_for_update(&keyspace, "3").unwrap()), "31");
    assert_conflict(locking);
    keyspace.put_with_ttl("3", "30", minute).unwrap();
    let locking = db.locking_transaction(Duration::ZERO);
    db.env().advance_us(60_000_000);
    assert_eq!(text(locking.get(&keyspace, "3").unwrap()), "30");
    assert_eq!(text(locking.get_for_update(&keyspace, "3").unwrap()), "none");
    commit(locking).unwrap();
}

#[test]
fn own_writes_expire_like_committed_values() {
    let (db, keyspace) = hermitage();
    let minute = Duration::from_secs(60);
    for is_locking in [false, true] {
        let tx = match is_locking {
            true => db.locking_transaction(Duration::ZERO),
            false => db.transaction(),
        };
        // A value that has expired at the start hides the committed value.
        tx.put_until(&keyspace, "1", "11", SystemTime::UNIX_EPOCH).unwrap();
        tx.put_with_ttl(&keyspace, "3", "30", minute).unwrap();
        assert_eq!(entries(all(&tx, &keyspace)), "2=20 3=30");
        assert_eq!(entries(all(&tx, &keyspace).rev()), "3=30 2=20");
        assert_eq!(text(tx.get(&keyspace, "1").unwrap()), "none");
        assert_eq!(text(tx.get_for_update(&keyspace, "3").unwrap()), "30");
        let values = tx.multi_get(&keyspace, ["1", "2", "3"]).unwrap();
        assert_eq!(values.into_iter().map(text).collect::<Vec<_>>(), ["none", "20", "30"]);
        tx.merge(&keyspace, "1", "12").unwrap();
        tx.merge(&keyspace, "3", "31").unwrap();
        assert_eq!(entries(all(&tx, &keyspace)), "1=12 2=20 3=30,31");
        let savepoint = tx.savepoint();
        tx.put_with_ttl(&keyspace, "2", "21", minute).unwrap();
        tx.put_until(&keyspace, "3", "32", SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(entries(all(&tx, &keyspace)), "1=12 2=21");
        tx.rollback_to(savepoint).unwrap();
        assert_eq!(entries(all(&tx, &keyspace)), "1=12 2=20 3=30,31");
        commit(tx).unwrap();
        assert_eq!(entries(keyspace.iter()), "1=12 2=20 3=30,31");
        db.env().advance_us(60_000_000);
        assert_eq!(entries(keyspace.iter()), "1=12 2=20 3=31");
        settle(&db);
        assert_eq!(entries(keyspace.iter()), "1=12 2=20 3=31");
        keyspace.put("1", "10").unwrap();
        keyspace.delete("3").unwrap();
    }
}

/// Bug: a locking transaction decided at its start which of its own writes have expired.
#[test]
fn own_writes_of_locked_keys_expire_during_the_transaction() {
    with_both_kinds(|kind| {
        let (db, keyspace) = hermitage();
        let minute = Duration::from_secs(60);
        let tx = kind.begin(&db);
        tx.put_with_ttl(&keyspace, "1", "11", minute).unwrap();
        tx.put_with_ttl(&keyspace, "3", "30", minute).unwrap();
        tx.merge(&keyspace, "3", "31").unwrap();
        db.env().advance_us(60_000_000);
        let expected = match kind {
            Kind::Optimistic => ["11", "30,31"],
            Kind::Locking => ["none", "31"],
        };
        let values = tx.multi_get(&keyspace, ["1", "3"]).unwrap();
        assert_eq!(values.into_iter().map(text).collect::<Vec<_>>(), expected);
        for (key, expected) in ["1", "3"].into_iter().zip(expected) {
            assert_eq!(text(tx.get(&keyspace, key).unwrap()), expected);
            assert_eq!(text(tx.get_for_update(&keyspace, key).unwrap()), expected);
        }
        // Ranges show the state at the start.
        assert_eq!(entries(all(&tx, &keyspace)), "1=11 2=20 3=30,31");
        commit(tx).unwrap();
        assert_eq!(entries(keyspace.iter()), "2=20 3=31");
    });
}

#[test]
fn own_writes_use_the_default_time_to_live() {
    let minute = Duration::from_secs(60);
    let db = open(&MemVfs::new(), inline().keyspace_defaults(small().default_ttl(minute)));
    let keyspace = db.default_keyspace();
    let tx = db.transaction();
    tx.put(&keyspace, "1", "10").unwrap();
    tx.put_with_ttl(&keyspace, "2", "20", 2 * minute).unwrap();
    assert_eq!(entries(all(&tx, &keyspace)), "1=10 2=20");
    commit(tx).unwrap();
    assert_eq!(entries(keyspace.iter()), "1=10 2=20");
    db.env().advance_us(60_000_000);
    assert_eq!(entries(keyspace.iter()), "2=20");
    assert_eq!(entries(all(&db.transaction(), &keyspace)), "2=20");
}
