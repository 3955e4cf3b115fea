//! Opens and closes a database many times. File descriptors, threads and the used disk space must not grow.
//!
//! `LSMX_TEST_SCALE` multiplies the number of rounds.

use std::path::Path;
use std::time::Duration;

use lsmx::{Db, KeyspaceOptions, Options};
use lsmx_testkit::scaled;

/// Returns the numbers of open descriptors and threads.
fn count_resources() -> (usize, usize) {
    let entries = |path: &str| std::fs::read_dir(path).unwrap().count();
    (entries("/proc/self/fd"), entries("/proc/self/task"))
}

/// Returns the numbers of open descriptors and threads when they have not changed for a second. A thread that was joined
/// may be counted for a moment.
#[expect(clippy::disallowed_methods, reason = "the threads of the process end in real time")]
fn count_settled_resources() -> (usize, usize) {
    let mut counts = count_resources();
    let mut equal = 0;
    while equal < 10 {
        std::thread::sleep(Duration::from_millis(100));
        let now = count_resources();
        equal = if now == counts { equal + 1 } else { 0 };
        counts = now;
    }
    counts
}

fn count_bytes(dir: &Path) -> u64 {
    std::fs::read_dir(dir).unwrap().map(|at| at.unwrap().metadata().unwrap().len()).sum()
}

fn run_round(dir: &Path, round: u64) {
    let tuning = KeyspaceOptions::default().memtable_bytes(32 << 10).table_bytes(16 << 10);
    let options = Options::default().open_files_max(8).keyspace_defaults(tuning.clone());
    let db = Db::open(dir, options).unwrap();
    let users = db.keyspace("users", tuning).unwrap();
    let byte = u8::try_from(round % 256).unwrap();
    for number in 0..3_000u64 {
        let key = (number * 7_919 % 3_000).to_be_bytes();
        db.put(key, [byte; 50]).unwrap();
        users.put(key, [byte; 10]).unwrap();
    }
    let snapshot = db.snapshot();
    let held = users.iter().take(10).count();
    for number in 0..3_000u64 {
        assert!(db.get(number.to_be_bytes()).unwrap().is_some());
    }
    assert_eq!((held, snapshot.iter(&users).count()), (10, 3_000));
    drop(snapshot);
    if round.is_multiple_of(2) {
        db.wait_idle().unwrap();
        db.close(None).unwrap();
    }
    // In odd rounds, the test does not call `close`. The drop of the last handle closes the database.
}

#[test]
fn open_and_close_many_times_leaves_no_resources() {
    let _alone = lsmx_testkit::run_alone();
    let dir = tempfile::tempdir().unwrap();
    // During the first rounds, the tree grows to its final size.
    (0..4).for_each(|number| run_round(dir.path(), number));
    let rounds = scaled(20);
    let (resources, bytes) = (count_settled_resources(), count_bytes(dir.path()));
    for number in 4..4 + rounds {
        run_round(dir.path(), number);
        if count_resources() != resources {
            assert_eq!(count_settled_resources(), resources, "round {number}");
        }
        let bytes_now = count_bytes(dir.path());
        // At the end of a round, some compactions may not have finished, so the used disk space varies.
        assert!(bytes_now <= 4 * bytes, "round {number}: {bytes_now} bytes, {bytes} at first");
    }
}
