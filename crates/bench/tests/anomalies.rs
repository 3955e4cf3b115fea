//! The anomalies that transactions of lsmx and of other engines allow. The table in `docs/guide/transactions.md` has the
//! same results.
//!
//! Source of the scenarios: Kleppmann, <https://github.com/ept/hermitage>. The features `peer-fjall` and `peer-rocksdb` add
//! the tests of these engines. Further variants of the scenarios are in `crates/engine/tests/engine/transactions.rs`.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

/// A transaction of an engine.
trait Tx {
    fn get(&mut self, key: &str) -> Option<String>;
    /// Reads a key that the transaction will write.
    fn get_for_update(&mut self, key: &str) -> Option<String>;
    /// Returns the keys from `start` to `end`, without `end`.
    fn keys(&mut self, start: &str, end: &str) -> Vec<String>;
    fn put(&mut self, key: &str, value: &str);
    /// Returns false if the commit fails because of a conflict.
    fn commit(self: Box<Self>) -> bool;
}

/// Starts a transaction.
type Begin<'a> = dyn Fn() -> Box<dyn Tx + 'a> + 'a;

/// A scenario with its own keys `1` and `2`, which have the values `10` and `20` at the start.
struct Scenario<'s, 'a> {
    begin: &'s Begin<'a>,
    prefix: &'static str,
    reads_for_update: bool,
}

impl<'a> Scenario<'_, 'a> {
    fn begin(&self) -> Box<dyn Tx + 'a> {
        (self.begin)()
    }

    fn put(&self, tx: &mut dyn Tx, key: &str, value: &str) {
        tx.put(&format!("{}/{key}", self.prefix), value);
    }

    fn get(&self, tx: &mut dyn Tx, key: &str) -> String {
        let key = format!("{}/{key}", self.prefix);
        let value = if self.reads_for_update { tx.get_for_update(&key) } else { tx.get(&key) };
        value.unwrap()
    }

    /// Returns the keys from `3` to `9`.
    fn keys(&self, tx: &mut dyn Tx) -> Vec<String> {
        tx.keys(&format!("{}/3", self.prefix), &format!("{}/9", self.prefix))
    }

    /// Returns the committed values of the keys `1` and `2`.
    fn committed(&self) -> [String; 2] {
        let mut tx = self.begin();
        ["1", "2"].map(|key| self.get(&mut *tx, key))
    }
}

/// Writes of two transactions are interleaved.
fn g0(it: &Scenario<'_, '_>) -> bool {
    let (mut one, mut two) = (it.begin(), it.begin());
    it.put(&mut *one, "1", "11");
    it.put(&mut *two, "1", "12");
    it.put(&mut *one, "2", "21");
    one.commit();
    it.put(&mut *two, "2", "22");
    two.commit();
    let found = it.committed();
    found != ["11", "21"] && found != ["12", "22"]
}

/// A write of a discarded transaction is read.
fn g1a(it: &Scenario<'_, '_>) -> bool {
    let (mut one, mut two) = (it.begin(), it.begin());
    it.put(&mut *one, "1", "101");
    let before = it.get(&mut *two, "1");
    drop(one);
    [before, it.get(&mut *two, "1")] != ["10", "10"]
}

/// A value that its writer replaced before the commit is read.
fn g1b(it: &Scenario<'_, '_>) -> bool {
    let (mut one, mut two) = (it.begin(), it.begin());
    it.put(&mut *one, "1", "101");
    let before = it.get(&mut *two, "1");
    it.put(&mut *one, "1", "11");
    one.commit();
    [before, it.get(&mut *two, "1")].contains(&"101".to_owned())
}

/// Two transactions each read a write of the other one.
fn g1c(it: &Scenario<'_, '_>) -> bool {
    let (mut one, mut two) = (it.begin(), it.begin());
    it.put(&mut *one, "1", "11");
    it.put(&mut *two, "2", "22");
    let reads = [it.get(&mut *one, "2"), it.get(&mut *two, "1")];
    let (one, two) = (one.commit(), two.commit());
    reads == ["22", "11"] && one && two
}

/// A transaction reads one write of a commit and then misses another one.
fn otv(it: &Scenario<'_, '_>) -> bool {
    let (mut one, mut two) = (it.begin(), it.begin());
    it.put(&mut *one, "1", "11");
    it.put(&mut *one, "2", "19");
    it.put(&mut *two, "1", "12");
    one.commit();
    let mut three = it.begin();
    let first = it.get(&mut *three, "1");
    it.put(&mut *two, "2", "18");
    let second = it.get(&mut *three, "2");
    two.commit();
    let third = it.get(&mut *three, "2");
    let fourth = it.get(&mut *three, "1");
    (first == "11" && second == "20") || (third == "18" && fourth == "11")
}

/// A second read of a range returns other keys.
fn pmp(it: &Scenario<'_, '_>) -> bool {
    let (mut one, mut two) = (it.begin(), it.begin());
    let before = it.keys(&mut *one);
    it.put(&mut *two, "3", "30");
    two.commit();
    before != it.keys(&mut *one)
}

/// An update of a key is lost.
fn p4(it: &Scenario<'_, '_>) -> bool {
    let (mut one, mut two) = (it.begin(), it.begin());
    let reads = [it.get(&mut *one, "1"), it.get(&mut *two, "1")];
    it.put(&mut *one, "1", "11");
    let one = one.commit();
    it.put(&mut *two, "1", "12");
    let two = two.commit();
    reads == ["10", "10"] && one && two
}

/// A transaction reads two keys in different states.
fn g_single(it: &Scenario<'_, '_>) -> bool {
    let mut one = it.begin();
    let first = it.get(&mut *one, "1");
    let mut two = it.begin();
    it.put(&mut *two, "1", "12");
    it.put(&mut *two, "2", "18");
    two.commit();
    [first, it.get(&mut *one, "2")] == ["10", "18"]
}

/// Two transactions each read a key that the other one writes.
fn g2_item(it: &Scenario<'_, '_>) -> bool {
    let (mut one, mut two) = (it.begin(), it.begin());
    for tx in [&mut one, &mut two] {
        assert_eq!(["1", "2"].map(|key| it.get(&mut **tx, key)), ["10", "20"]);
    }
    it.put(&mut *one, "1", "11");
    it.put(&mut *two, "2", "21");
    let (one, two) = (one.commit(), two.commit());
    one && two
}

/// Two transactions each read a range to which the other one adds a key.
fn g2(it: &Scenario<'_, '_>) -> bool {
    let (mut one, mut two) = (it.begin(), it.begin());
    for tx in [&mut one, &mut two] {
        assert_eq!(it.keys(&mut **tx), Vec::<String>::new());
    }
    it.put(&mut *one, "3", "30");
    it.put(&mut *two, "4", "42");
    let (one, two) = (one.commit(), two.commit());
    one && two
}

/// Returns whether the anomaly of a scenario occurs.
type Test = fn(&Scenario<'_, '_>) -> bool;

/// Tests of anomalies with plain reads.
const TESTS: [(&str, Test); 10] = [
    ("G0", g0),
    ("G1a", g1a),
    ("G1b", g1b),
    ("G1c", g1c),
    ("OTV", otv),
    ("PMP", pmp),
    ("P4", p4),
    ("G-single", g_single),
    ("G2-item", g2_item),
    ("G2", g2),
];

/// Tests of anomalies in transactions that read the keys that they write with `get_for_update`.
const TESTS_FOR_UPDATE: [(&str, Test); 2] =
    [("P4 for update", p4), ("G2-item for update", g2_item)];

/// Returns the names of the anomalies that occur.
fn anomalies(begin: &Begin<'_>) -> Vec<&'static str> {
    let plain = TESTS.into_iter().map(|test| (test, false));
    let for_update = TESTS_FOR_UPDATE.into_iter().map(|test| (test, true));
    let occurs = plain.chain(for_update).filter(|((name, test), reads_for_update)| {
        let it = Scenario { begin, prefix: name, reads_for_update: *reads_for_update };
        let mut start = it.begin();
        it.put(&mut *start, "1", "10");
        it.put(&mut *start, "2", "20");
        assert!(start.commit());
        test(&it)
    });
    occurs.map(|((name, _), _)| name).collect()
}

fn text(bytes: impl AsRef<[u8]>) -> String {
    String::from_utf8(bytes.as_ref().to_vec()).unwrap()
}

mod lsmx_transactions {
    use std::sync::Arc;

    use lsmx::vfs::MemVfs;
    use lsmx::{Db, Durability, Error, Keyspace, Options, Transaction};

    use super::{Tx, anomalies, text};

    struct OwnTx(Transaction, Keyspace);

    impl Tx for OwnTx {
        fn get(&mut self, key: &str) -> Option<String> {
            self.0.get(&self.1, key).unwrap().map(text)
        }

        fn get_for_update(&mut self, key: &str) -> Option<String> {
            self.0.get_for_update(&self.1, key).unwrap().map(text)
        }

        fn keys(&mut self, start: &str, end: &str) -> Vec<String> {
            self.0.range(&self.1, start..end).map(|entry| text(entry.unwrap().0)).collect()
        }

        fn put(&mut self, key: &str, value: &str) {
            self.0.put(&self.1, key, value).unwrap();
        }

        fn commit(self: Box<Self>) -> bool {
            match self.0.commit(Durability::Buffered) {
                Err(Error::Conflict { .. }) => false,
                committed => {
                    committed.unwrap();
                    true
                }
            }
        }
    }

    #[test]
    fn lsmx_allows_no_anomaly() {
        let db = Db::open("db", Options::default().vfs(Arc::new(MemVfs::new()))).unwrap();
        let begin = || -> Box<dyn Tx> { Box::new(OwnTx(db.transaction(), db.default_keyspace())) };
        assert_eq!(anomalies(&begin), [""; 0]);
    }
}

#[cfg(feature = "peer-fjall")]
mod fjall_transactions {
    use fjall::{
        KeyspaceCreateOptions, OptimisticTxDatabase, OptimisticTxKeyspace, OptimisticWriteTx,
        Readable,
    };

    use super::{Tx, anomalies, text};

    struct FjallTx(OptimisticWriteTx, OptimisticTxKeyspace);

    impl Tx for FjallTx {
        fn get(&mut self, key: &str) -> Option<String> {
            self.0.get(&self.1, key).unwrap().map(text)
        }

        fn get_for_update(&mut self, key: &str) -> Option<String> {
            self.get(key)
        }

        fn keys(&mut self, start: &str, end: &str) -> Vec<String> {
            self.0.range(&self.1, start..end).map(|entry| text(entry.key().unwrap())).collect()
        }

        fn put(&mut self, key: &str, value: &str) {
            self.0.insert(&self.1, key, value);
        }

        fn commit(self: Box<Self>) -> bool {
            self.0.commit().unwrap().is_ok()
        }
    }

    #[test]
    fn fjall_allows_no_anomaly() {
        let directory = tempfile::tempdir().unwrap();
        let database = OptimisticTxDatabase::builder(directory.path()).open().unwrap();
        let keyspace = database.keyspace("default", KeyspaceCreateOptions::default).unwrap();
        let begin =
            || -> Box<dyn Tx> { Box::new(FjallTx(database.write_tx().unwrap(), keyspace.clone())) };
        assert_eq!(anomalies(&begin), [""; 0]);
    }
}

#[cfg(feature = "peer-rocksdb")]
mod rocksdb_transactions {
    use rocksdb::{
        Direction, ErrorKind, IteratorMode, OptimisticTransactionDB, OptimisticTransactionOptions,
        ReadOptions, Transaction, WriteOptions,
    };

    use super::{Tx, anomalies, text};

    struct RocksdbTx<'a> {
        tx: Transaction<'a, OptimisticTransactionDB>,
        /// Whether reads use the snapshot of the start.
        reads_snapshot: bool,
    }

    impl Tx for RocksdbTx<'_> {
        fn get(&mut self, key: &str) -> Option<String> {
            let value =
                if self.reads_snapshot { self.tx.snapshot().get(key) } else { self.tx.get(key) };
            value.unwrap().map(text)
        }

        fn get_for_update(&mut self, key: &str) -> Option<String> {
            self.tx.get_for_update(key, true).unwrap().map(text)
        }

        fn keys(&mut self, start: &str, end: &str) -> Vec<String> {
            let mode = || IteratorMode::From(start.as_bytes(), Direction::Forward);
            let bounded = || {
                let mut options = ReadOptions::default();
                options.set_iterate_upper_bound(end);
                options
            };
            if self.reads_snapshot {
                let snapshot = self.tx.snapshot();
                snapshot
                    .iterator_opt(mode(), bounded())
                    .map(|entry| text(entry.unwrap().0))
                    .collect()
            } else {
                let entries = self.tx.iterator_opt(mode(), bounded());
                entries.map(|entry| text(entry.unwrap().0)).collect()
            }
        }

        fn put(&mut self, key: &str, value: &str) {
            self.tx.put(key, value).unwrap();
        }

        fn commit(self: Box<Self>) -> bool {
            match self.tx.commit() {
                Err(error) if error.kind() == ErrorKind::Busy => false,
                committed => {
                    committed.unwrap();
                    true
                }
            }
        }
    }

    fn anomalies_of(reads_snapshot: bool) -> Vec<&'static str> {
        let directory = tempfile::tempdir().unwrap();
        let database =
            OptimisticTransactionDB::<rocksdb::SingleThreaded>::open_default(directory.path());
        let database = database.unwrap();
        let mut options = OptimisticTransactionOptions::new();
        options.set_snapshot(reads_snapshot);
        let begin = || -> Box<dyn Tx + '_> {
            let tx = database.transaction_opt(&WriteOptions::default(), &options);
            Box::new(RocksdbTx { tx, reads_snapshot })
        };
        anomalies(&begin)
    }

    #[test]
    fn rocksdb_allows_anomalies_of_reads() {
        assert_eq!(anomalies_of(false), ["PMP", "P4", "G-single", "G2-item", "G2"]);
    }

    #[test]
    fn rocksdb_with_snapshots_allows_write_skew() {
        assert_eq!(anomalies_of(true), ["G2-item", "G2"]);
    }
}
