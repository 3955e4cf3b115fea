//! Simulates a power loss before every file system operation, and makes each file system call fail once.

use crate::common::{Committed, Driver, Write, disk};
use lsmx::Result;
use lsmx::internals::vfs::{Errno, Fault, FaultRule, FaultVfs, VfsCall};
use lsmx::vfs::{CrashImage, MemVfs};
use lsmx_base::sync::{Arc, AtomicU64, Ordering};
use lsmx_delta::DeltaOptions;
use lsmx_testkit::TestRng;

fn options() -> DeltaOptions {
    DeltaOptions::default().bucket_bytes(1024).buckets_max(9).log_bytes_max(3000).cache_bytes(4000)
}

fn writes(rng: &mut TestRng) -> Vec<Write> {
    let count = rng.between(5, 29);
    let mut write = |_| {
        let key = format!("key{:02}", rng.below(30)).into_bytes();
        match rng.below(20) {
            0..15 => Write::Operand { key, bytes: rng.below(50) },
            15..19 => Write::DeleteMarker { key },
            _ => Write::RangeDeleteMarker { start: key, end: None },
        }
    };
    (0..count).map(&mut write).collect()
}

fn work(driver: &mut Driver, seed: u64, rounds: usize) -> Result<()> {
    let mut rng = TestRng::new(seed);
    for round in 0..rounds {
        let (prepared, model) = driver.deliver(&writes(&mut rng))?;
        driver.commit(&prepared, model);
        if round % 5 == 3 {
            driver.snapshots.insert(driver.model.through);
        }
        if round % 5 == 1 {
            driver.snapshots.pop_first();
        }
        driver.save_committed();
        driver.collect(None)?;
        if round % 7 == 6 {
            driver.reopen()?;
        }
        if round % 2 == 1 {
            driver.check()?;
        }
    }
    Ok(())
}

/// Opens a store after a power loss, checks it and continues. Then simulates a second power loss and checks again.
fn recover(vfs: MemVfs, committed: Committed, seed: u64) {
    let mut driver = Driver::new(options());
    driver.restore_committed(committed);
    driver.files.next_number.store(100_000, Ordering::Relaxed);
    driver.open_on(Arc::new(vfs.clone())).unwrap();
    driver.verify().unwrap();
    driver.check().unwrap();
    driver.reopen().unwrap();
    driver.flush(&writes(&mut TestRng::new(seed)));
    driver.collect(None).unwrap();
    let images = CrashImage::ALL.len() as u64;
    let again = vfs.crash(CrashImage::ALL[usize::try_from(seed % images).unwrap()], seed);
    driver.reopen_on(Arc::new(again)).unwrap();
    driver.check().unwrap();
}

#[test]
fn committed_state_survives_power_loss() {
    lsmx_testkit::time_test();
    let mut driver = Driver::new(options());
    let (committed, mem) = (driver.committed.clone(), driver.mem.clone());
    let images = Arc::new(AtomicU64::new(0));
    let image_count = images.clone();
    mem.set_observer(Some(Arc::new(move |mem: &MemVfs, operation| {
        let committed = committed.lock().clone();
        for image in CrashImage::ALL {
            let crashed = mem.crash(image, operation.index * 7 + 1);
            recover(crashed, committed.clone(), operation.index);
            image_count.fetch_add(1, Ordering::Relaxed);
        }
    })));
    work(&mut driver, 1, 26).unwrap();
    mem.set_observer(None);
    let metrics = driver.store.metrics();
    assert!(metrics.buckets > 3, "{metrics:?}");
    println!("{} images", images.load(Ordering::Relaxed));
}

/// Makes each file system call fail once. The store must continue and lose no committed state. After a reopen, it must
/// have the last committed version.
#[test]
fn failed_call_loses_no_committed_state() {
    lsmx_testkit::time_test();
    let calls = [
        (VfsCall::Append, Fault::Error(Errno::NoSpace)),
        (VfsCall::Append, Fault::ShortWrite(Errno::NoSpace)),
        (VfsCall::Sync, Fault::Error(Errno::Io)),
        (VfsCall::SyncDir, Fault::Error(Errno::Io)),
        (VfsCall::Create, Fault::Error(Errno::Io)),
        (VfsCall::Read, Fault::Error(Errno::Io)),
        (VfsCall::Open, Fault::Error(Errno::TooManyFiles)),
    ];
    for (call, fault) in calls {
        let mut points = 0;
        for nth in 1.. {
            let mem = disk();
            let vfs = FaultVfs::new(Arc::new(mem.clone()), nth);
            let mut driver = Driver::on(mem.clone(), Arc::new(vfs.clone()), options());
            vfs.add_rule(FaultRule::new(fault).for_calls(&[call]).nth(nth).once());
            let result = work(&mut driver, 2, 15);
            if vfs.fired_counts().is_empty() {
                result.unwrap();
                break;
            }
            points += 1;
            vfs.clear_rules();
            // The engine calls `abandon` before it resumes. The store must also continue without this call.
            if nth % 2 == 0 {
                driver.store.abandon();
            }
            let committed = driver.committed.lock().clone();
            driver.restore_committed(committed);
            driver.flush(&writes(&mut TestRng::new(nth)));
            driver.check().unwrap();
            driver.collect(None).unwrap();
            driver.check().unwrap();
            let next = usize::try_from(nth % 7).unwrap();
            let images = if call == VfsCall::Sync {
                &CrashImage::ALL[..]
            } else {
                &CrashImage::ALL[next..=next]
            };
            for image in images {
                driver.reopen_on(Arc::new(mem.crash(*image, nth))).unwrap();
                driver.check().unwrap();
                driver.verify().unwrap();
            }
        }
        println!("{call:?} {fault:?}: {points}");
        assert!(points > 1, "{call:?} {fault:?}: {points}");
    }
}
