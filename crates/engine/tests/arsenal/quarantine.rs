//! Checks of the quarantine of the files of operand stores.

use std::sync::Arc;

use lsmx::env::Background;
use lsmx::merge::Append;
use lsmx::vfs::{Fault, FaultVfs, MemVfs, Rule, VfsCall};
use lsmx::{Db, Error, Keyspace, KeyspaceOptions, Options};
use lsmx_delta::{DeltaOptions, KeyDelta};

use super::Outcome;

const MINUTE_US: u64 = 60_000_000;

fn failed(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// A keyspace whose files that end so are unreadable from the point on at which background work needs them.
struct Fixture {
    disk: MemVfs,
    faults: FaultVfs,
    db: Db,
    keyspace: Keyspace,
    end: &'static str,
}

impl Fixture {
    fn new(seed: u64, end: &'static str, tuning: KeyspaceOptions) -> Outcome<Fixture> {
        let disk = MemVfs::new();
        let faults = FaultVfs::new(Arc::new(disk.clone()), seed);
        let options = Options::default().background(Background::Inline).seed(seed);
        let db = Db::open_with(Arc::new(faults.clone()), "db", options).map_err(failed)?;
        let tuning = tuning.memtable_bytes(1 << 10).table_bytes(2 << 10).block_bytes(256);
        let tuning = tuning.merge_operator(Append::new());
        let keyspace = db.keyspace("files", tuning).map_err(failed)?;
        Ok(Fixture { disk, faults, db, keyspace, end })
    }

    /// Each read of a file that is there from now on returns altered bytes.
    fn alter_reads(&self) {
        for path in self.disk.paths() {
            let path = path.to_string_lossy().into_owned();
            if path.ends_with(self.end) {
                let rule = Rule::new(Fault::AlteredRead).on(&[VfsCall::Read]);
                self.faults.add(rule.path_contains(&path).from_then_on());
            }
        }
    }

    /// Makes writes; a background error refuses one and the next one is done.
    fn write(&self, count: u64, write: impl Fn(u64) -> lsmx::Result<()>) -> Outcome {
        for number in 0..count {
            match write(number) {
                Err(Error::Background { .. }) => {
                    write(number).map_err(failed)?;
                }
                done => done.map_err(failed)?,
            }
        }
        Ok(())
    }
}

/// The quarantine of an unreadable bucket ends once the bucket can be read.
pub(crate) fn readable_bucket_leaves_quarantine(seed: u64) -> Outcome {
    let store = KeyDelta::new(DeltaOptions::default().bucket_bytes(512).log_bytes_max(2 << 10));
    let fixture = Fixture::new(seed, ".bucket", KeyspaceOptions::default().operand_store(store))?;
    let merge = |number: u64| fixture.keyspace.merge((number % 61).to_be_bytes(), [7; 24]);
    fixture.write(900, merge)?;
    fixture.alter_reads();
    fixture.write(300, merge)?;
    if fixture.db.health().quarantined.is_empty() {
        return Err("no bucket was quarantined".to_owned());
    }
    fixture.faults.clear();
    fixture.db.env().advance_us(2 * MINUTE_US);
    fixture.write(600, merge)?;
    fixture.db.flush().map_err(failed)?;
    let idle = fixture.db.wait_idle();
    match fixture.db.health().is_good() {
        true => idle.map_err(failed),
        false => Err(format!("{:?} after {idle:?}", fixture.db.health())),
    }
}
