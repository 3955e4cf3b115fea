//! Obsolete files that cannot be deleted.

use lsmx::Event;
use lsmx::env::Background;
use lsmx::internals::vfs::{Errno, Fault, FaultRule, VfsCall};

use crate::harness::clock::MINUTE_US;
use crate::harness::database::assert_clean;
use crate::harness::quarantine::FaultyReads;

const SECOND_US: u64 = 1_000_000;

/// Regression: a file whose deletion had failed stayed until the next open of the database.
#[test]
fn failed_deletion_is_repeated_after_increasing_pauses() {
    for background in [Background::Inline, Background::Stepped { seed: 7, workers: 2 }] {
        let mut database = FaultyReads::new(background, "leveled");
        database.write_many(300);
        database.db.wait_idle().unwrap();
        let rule = FaultRule::new(Fault::Error(Errno::Io)).for_calls(&[VfsCall::Remove]);
        database.faults.add_rule(rule.path_contains(".sst").from_then_on());
        database.write_many(300);
        database.db.flush().unwrap();
        database.db.wait_idle().unwrap();
        let failures = || database.events.count(|event| matches!(event, Event::Failure(_)));
        let attempts = || database.faults.fired_counts().values().sum::<u64>();
        let (files, before) = (failures() as u64, attempts());
        assert!(files > 0, "{background:?}: no deletion has failed");
        (0..10 * 60).for_each(|_| database.advance(SECOND_US));
        let per_file = (attempts() - before) / files;
        assert!((10..=20).contains(&per_file), "{background:?}: {per_file} attempts per file");
        assert_eq!(failures() as u64, files, "{background:?}: a repetition is reported");
        database.faults.clear_rules();
        database.advance(MINUTE_US);
        database.check_good();
        database.db.close(None).unwrap();
        assert_clean(&database.disk);
    }
}
