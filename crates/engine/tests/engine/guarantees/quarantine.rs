//! Guarantees 7, 15 and 16, for files that background work cannot read.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use lsmx::env::Background;
use lsmx::internals::vfs::{Fault, FaultRule, FaultVfs, VfsCall};
use lsmx::vfs::{MemVfs, Vfs};
use lsmx::{Db, Error, Event, Options, verify};

use super::support::{all_kinds, file_of, files, lock, options, tuning};
use crate::harness::quarantine as harness_quarantine;
use lsmx_testkit::{EventLog, seed};

const MINUTE_US: u64 = 60_000_000;

/// A database on a disk whose reads can be made to fail.
struct Fixture {
    disk: MemVfs,
    faults: FaultVfs,
    events: EventLog,
    db: Db,
    written: u32,
}

impl Fixture {
    fn new(background: Background, policy: &str) -> Fixture {
        let default = tuning("default").policy(policy.parse::<lsmx::PolicySpec>().unwrap());
        Fixture::with(options(background).keyspace_defaults(default))
    }

    fn with(options: Options) -> Fixture {
        let (disk, events) = (MemVfs::new(), EventLog::default());
        let faults = FaultVfs::new(Arc::new(disk.clone()), 1);
        let vfs: Arc<dyn Vfs> = Arc::new(faults.clone());
        let db = Db::open("db", options.listener(Arc::new(events.clone())).vfs(vfs)).unwrap();
        Fixture { disk, faults, events, db, written: 0 }
    }

    fn key(&self, number: u32) -> [u8; 4] {
        // All over the key space, so that runs overlap.
        number.wrapping_mul(0x9e37_79b9).to_be_bytes()
    }

    /// Writes one more key. A background error refuses one write; the next one is done.
    fn write(&mut self) -> lsmx::Result<()> {
        let key = self.key(self.written);
        let put = || self.db.put(key, [7; 60]);
        match put() {
            Err(Error::Background { .. }) => put()?,
            done => done?,
        }
        self.written += 1;
        Ok(())
    }

    fn write_many(&mut self, count: u32) {
        for _ in 0..count {
            self.write().unwrap();
        }
    }

    fn alter_reads(&self, of: &str) {
        let rule = FaultRule::new(Fault::AlteredRead).for_calls(&[VfsCall::Read]).path_contains(of);
        self.faults.add_rule(rule.from_then_on());
    }

    fn l0_runs(&self) -> u64 {
        self.db.metrics().keyspaces["default"].levels.first().map_or(0, |level| level.runs)
    }

    fn quarantined(&self) -> Vec<PathBuf> {
        self.db.health().quarantined.into_iter().map(|file| file.path).collect()
    }

    /// Files whose quarantine has begun and ended, by the events.
    fn told_quarantines(&self) -> (Vec<PathBuf>, Vec<PathBuf>) {
        let begun = self.events.select(|event| match event {
            Event::FileQuarantined(file) => Some(file.path.clone()),
            _ => None,
        });
        let ended = self.events.select(|event| match event {
            Event::QuarantineEnd(file) => Some(file.path.clone()),
            _ => None,
        });
        (begun, ended)
    }

    fn check_all_there(&self) {
        for number in 0..self.written {
            assert!(self.db.get(self.key(number)).unwrap().is_some(), "key {number}");
        }
    }

    /// The driven clock moves on, and background work that is due is done.
    fn advance(&self, us: u64) {
        match self.db.env().background() {
            Background::Inline => self.db.env().advance_us(us),
            _ => self.db.env().pause_us(us),
        }
        let _ = self.db.wait_idle();
    }
}

const BACKGROUNDS: [Background; 2] =
    [Background::Inline, Background::Stepped { seed: 7, workers: 2 }];

#[test]
fn compaction_reads_a_corrupt_block_once_more_and_nothing_fails() {
    for background in BACKGROUNDS {
        for nth in [0, 1, 2, 5, 9, 14] {
            let mut fixture = Fixture::new(background, "leveled");
            fixture.write_many(40);
            let rule = FaultRule::new(Fault::AlteredRead)
                .for_calls(&[VfsCall::Read])
                .path_contains(".sst");
            // An open reads footer and properties, and fails the job that made the file. It has no such offset.
            fixture.faults.add_rule(rule.nth(100 + nth).once());
            fixture.write_many(600);
            fixture.db.wait_idle().unwrap();
            assert!(fixture.db.health().is_good());
            let failures = fixture.events.count(|event| matches!(event, Event::Failure(_)));
            let repeated = fixture.events.count(|event| matches!(event, Event::ReadRepeated(_)));
            assert_eq!((failures, repeated), (0, 1), "{background:?}, read {nth}");
            assert_eq!(fixture.db.metrics().background_io.reads_repeated, 1);
            fixture.check_all_there();
        }
    }
}

/// All inputs of a job that met a corrupt block once stayed busy until the database was opened again: L0 grew
/// to the hard stop, and every write failed for good.
#[test]
fn unreadable_file_is_quarantined_alone_until_a_read_of_it_succeeds() {
    for background in BACKGROUNDS {
        for policy in ["leveled", "tiering(T=3)", "universal", "lo+1", "full", "lazy-leveling"] {
            let when = format!("{background:?}, {policy}");
            let mut fixture = Fixture::new(background, policy);
            fixture.write_many(300);
            fixture.db.wait_idle().unwrap();
            // The first table that a job reads from here on.
            let tables = files(&fixture.disk, ".sst");
            let bad = tables.last().unwrap().to_string_lossy().into_owned();
            fixture.alter_reads(&bad);
            fixture.write_many(3_000);
            let _ = fixture.db.wait_idle();
            let (begun, ended) = fixture.told_quarantines();
            assert_eq!(begun, [PathBuf::from(&bad)], "{when}");
            assert_eq!((ended, fixture.quarantined()), (Vec::new(), begun.clone()), "{when}");
            assert!(fixture.l0_runs() <= 20, "{when}: {} runs", fixture.l0_runs());
            let metrics = fixture.db.metrics().keyspaces["default"].compaction.clone();
            assert_eq!((metrics.quarantined_files, metrics.quarantines), (1, 1), "{when}");
            let said = fixture.db.wait_idle().expect_err("it is not at rest");
            assert_eq!(said.path(), Some(Path::new(&bad)), "{when}: {said}");
            // It is read again after increasing pauses, and used as soon as that works.
            fixture.advance(10 * MINUTE_US);
            let reads = fixture.db.health().quarantined[0].failed_reads;
            assert!((2..30).contains(&reads), "{when}: {reads} reads in ten minutes");
            fixture.faults.clear_rules();
            fixture.advance(2 * MINUTE_US);
            fixture.db.wait_idle().unwrap();
            assert!(fixture.db.health().is_good(), "{when}");
            assert_eq!(fixture.told_quarantines(), (begun.clone(), begun), "{when}");
            fixture.write_many(100);
            fixture.check_all_there();
        }
    }
}

#[test]
fn resume_ends_the_quarantine_of_a_file_that_verifies() {
    let mut fixture = Fixture::new(Background::Inline, "leveled");
    fixture.write_many(300);
    let bad = files(&fixture.disk, ".sst").last().unwrap().to_string_lossy().into_owned();
    fixture.alter_reads(&bad);
    fixture.write_many(1_000);
    assert_eq!(fixture.quarantined(), [PathBuf::from(&bad)]);
    fixture.db.resume().unwrap();
    assert_eq!(fixture.quarantined(), [PathBuf::from(&bad)], "it is as bad as before");
    fixture.faults.clear_rules();
    fixture.db.resume().unwrap();
    assert!(fixture.db.health().is_good());
    fixture.db.wait_idle().unwrap();
    fixture.check_all_there();
}

#[test]
fn damaged_file_is_named_by_verify_and_an_open_starts_without_quarantine() {
    let mut fixture = Fixture::new(Background::Inline, "leveled");
    fixture.write_many(300);
    let bad = files(&fixture.disk, ".sst").last().unwrap().clone();
    fixture.disk.flip_bits(&bad, 20, 1).unwrap();
    fixture.write_many(1_000);
    assert_eq!(fixture.quarantined(), std::slice::from_ref(&bad));
    // Compaction by hand needs the file, and says so at once.
    let compacted = fixture.db.default_keyspace().compact_range::<&[u8]>(..);
    assert!(matches!(&compacted, Err(Error::CompactionBlocked { file, .. }) if *file == bad));
    fixture.db.close(None).unwrap();
    let wrong = verify("db", &Options::default().vfs(Arc::new(fixture.disk.clone()))).unwrap_err();
    assert_eq!(file_of(&wrong), bad);
    let options = options(Background::Inline).keyspace_defaults(tuning("default"));
    let db = Db::open("db", options.vfs(Arc::new(fixture.disk.clone()))).unwrap();
    for number in 0..1_000u32 {
        match db.put(number.to_be_bytes(), [8; 60]) {
            Err(Error::Background { .. }) => {}
            done => done.unwrap(),
        }
    }
    // A drop reads nothing: what range deletes cover goes, however damaged.
    db.default_keyspace().clear().unwrap();
    db.flush().unwrap();
    let _ = db.wait_idle();
    assert!(db.health().quarantined.is_empty(), "{:?}", db.health());
    db.wait_idle().unwrap();
}

#[test]
fn writes_stop_with_the_file_and_the_way_out_once_no_runs_of_l0_can_be_merged() {
    for background in BACKGROUNDS {
        let mut fixture = Fixture::new(background, "leveled");
        fixture.write_many(100);
        // A flush reads the end of the table that it made. No job can read any table after that.
        let opened = Mutex::new(BTreeSet::new());
        let rule = FaultRule::new(Fault::AlteredRead).for_calls(&[VfsCall::Read]).path_where(
            move |path| {
                path.extension().is_some_and(|end| end == "sst")
                    && !lock(&opened).insert(path.to_owned())
            },
        );
        fixture.faults.add_rule(rule.from_then_on());
        let stopped = (0..20_000).find_map(|_| fixture.write().err());
        let stopped = stopped.expect("L0 does not grow for ever");
        let Error::CompactionBlocked { keyspace, file, cause } = &stopped else {
            panic!("{background:?}: {stopped:?}")
        };
        assert_eq!((&**keyspace, file_of(cause)), ("default", file.clone()));
        let text = stopped.to_string();
        assert!(text.contains(&*file.to_string_lossy()) && text.contains("resume()"), "{text}");
        assert!(fixture.db.health().read_only.is_none());
        let health = fixture.db.health();
        let [blocked] = &*health.compaction_blocked else { panic!("{health:?}") };
        assert!(blocked.writes_stopped && health.quarantined.len() > 1, "{health:?}");
        let json = serde_json::to_value(&health).unwrap();
        assert_eq!(json["compaction_blocked"][0]["keyspace"], "default");
        assert!(json["quarantined"][0]["cause"].as_str().unwrap().contains("checksum"));
        let runs = fixture.l0_runs();
        for _ in 0..20 {
            fixture.write().unwrap_err();
        }
        assert_eq!(fixture.l0_runs(), runs);
        assert!(matches!(fixture.db.wait_idle(), Err(Error::CompactionBlocked { .. })));
        assert!(matches!(fixture.db.resume(), Err(Error::CompactionBlocked { .. })));
        fixture.faults.clear_rules();
        fixture.db.resume().unwrap();
        fixture.db.wait_idle().unwrap();
        assert!(fixture.db.health().is_good(), "{:?}", fixture.db.health());
        fixture.write_many(200);
        fixture.check_all_there();
    }
}

#[test]
fn unreadable_blob_file_stops_neither_compactions_nor_collections_of_others() {
    let mut fixture = Fixture::with(options(Background::Inline));
    let [_, values, _] = all_kinds(&fixture.db);
    let put = |number: u32| match values
        .put((number % 97).to_be_bytes(), [number.to_le_bytes()[0]; 64])
    {
        Err(Error::Background { .. }) => {
            values.put((number % 97).to_be_bytes(), [number.to_le_bytes()[0]; 64])
        }
        done => done,
    };
    (0..500).for_each(|number| put(number).unwrap());
    let rewrites = |db: &Db| db.metrics().keyspaces["values"].value_log.rewrites;
    assert!(rewrites(&fixture.db) > 0, "collections have begun");
    // Each blob file that is there fails all reads from here on; those written later do not.
    for bad in files(&fixture.disk, ".blob") {
        fixture.alter_reads(&bad.to_string_lossy());
    }
    (500..2_000).for_each(|number| put(number).unwrap());
    let (begun, _) = fixture.told_quarantines();
    assert!(!begun.is_empty() && begun.iter().all(|path| path.extension().unwrap() == "blob"));
    let before = rewrites(&fixture.db);
    (2_000..3_000).for_each(|number| put(number).unwrap());
    assert!(rewrites(&fixture.db) > before, "other blob files are collected");
    fixture.faults.clear_rules();
    fixture.db.env().advance_us(2 * MINUTE_US);
    put(3_000).unwrap();
    fixture.db.flush().unwrap();
    fixture.db.wait_idle().unwrap();
    assert!(fixture.db.health().is_good(), "{:?}", fixture.db.health());
    for number in 2_904..3_001u32 {
        let value = values.get((number % 97).to_be_bytes()).unwrap().unwrap();
        assert_eq!(*value, [number.to_le_bytes()[0]; 64]);
    }
    fixture.written = 0;
}

/// A store whose collection met a corrupt bucket once was never collected again.
#[test]
fn unreadable_bucket_is_left_out_of_collections_until_a_read_of_it_succeeds() {
    let fixture = Fixture::with(options(Background::Inline));
    let [_, _, operands] = all_kinds(&fixture.db);
    let merge = |number: u32| {
        let key = (number % 61).to_be_bytes();
        match operands.merge(key, [number.to_le_bytes()[0]; 24]) {
            Err(Error::Background { .. }) => operands.merge(key, [number.to_le_bytes()[0]; 24]),
            done => done,
        }
    };
    let rewritten = |db: &Db| {
        let store = db.metrics().keyspaces["operands"].operand_store.unwrap();
        store.rewrites + store.splits + store.to_tree
    };
    (0..600).for_each(|number| merge(number).unwrap());
    assert!(rewritten(&fixture.db) > 0, "collections have begun");
    // One transient bad read fails nothing.
    let rule =
        FaultRule::new(Fault::AlteredRead).for_calls(&[VfsCall::Read]).path_contains(".bucket");
    fixture.faults.add_rule(rule.once());
    (600..900).for_each(|number| merge(number).unwrap());
    assert_eq!(fixture.events.count(|event| matches!(event, Event::ReadRepeated(_))), 1);
    assert!(fixture.db.health().is_good());
    for bad in files(&fixture.disk, ".bucket") {
        fixture.alter_reads(&bad.to_string_lossy());
    }
    (900..1_200).for_each(|number| merge(number).unwrap());
    let (begun, _) = fixture.told_quarantines();
    assert!(!begun.is_empty() && begun.iter().all(|path| path.extension().unwrap() == "bucket"));
    assert!(fixture.db.wait_idle().is_err());
    fixture.faults.clear_rules();
    fixture.db.env().advance_us(2 * MINUTE_US);
    let before = rewritten(&fixture.db);
    (1_200..1_800).for_each(|number| merge(number).unwrap());
    fixture.db.flush().unwrap();
    fixture.db.wait_idle().unwrap();
    assert!(rewritten(&fixture.db) > before, "the buckets are collected again");
    assert!(fixture.db.health().is_good(), "{:?}", fixture.db.health());
    for key in 0..61u32 {
        let operands_of_key = (0..1_800).filter(|number| number % 61 == key).count();
        assert_eq!(operands.get(key.to_be_bytes()).unwrap().unwrap().len(), 24 * operands_of_key);
    }
}

#[test]
fn quarantined_bucket_that_can_be_read_again_is_released() {
    harness_quarantine::readable_bucket_leaves_quarantine(seed()).unwrap();
}

#[test]
fn quarantined_blob_file_is_read_by_rechecks_only() {
    harness_quarantine::quarantined_blob_file_is_not_read(seed()).unwrap();
}
