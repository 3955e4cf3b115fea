//! Power losses before every operation of the file system, and one failure of each call.

use std::collections::BTreeSet;

use crate::common::{Driver, Model, Write};
use lsmx::Result;
use lsmx::internals::vfs::{Errno, Fault, FaultRule, FaultVfs, VfsCall};
use lsmx::operand_store::StoreToken;
use lsmx::vfs::{CrashImage, MemVfs};
use lsmx_base::sync::{Arc, Mutex};
use lsmx_delta::DeltaOptions;
use lsmx_testkit::TestRng;

fn options() -> DeltaOptions {
    DeltaOptions::default().bucket_bytes(1024).buckets_max(9).log_bytes_max(3000).cache_bytes(4000)
}

fn writes(random: &mut TestRng) -> Vec<Write> {
    let count = 5 + random.below(25);
    let write = |random: &mut TestRng| {
        let key = format!("key{:02}", random.below(30)).into_bytes();
        match random.below(20) {
            0..15 => Write::Operand { key, bytes: usize::try_from(random.below(50)).unwrap() },
            15..19 => Write::DeleteMarker { key },
            _ => Write::RangeDeleteMarker { start: key, end: None },
        }
    };
    (0..count).map(|_| write(random)).collect()
}

/// What the manifest of the engine would say.
type Durable = Arc<Mutex<(Option<StoreToken>, Model, BTreeSet<u64>)>>;

fn save_durable_state(durable: &Durable, driver: &Driver) {
    *durable.lock() = (driver.token, driver.model.clone(), driver.snapshots.clone());
}

/// Flushes, collections and reopenings; `durable` follows each commit before what it makes obsolete goes.
fn work(driver: &mut Driver, seed: u64, rounds: usize, durable: &Durable) -> Result<()> {
    let mut random = TestRng::new(seed);
    for round in 0..rounds {
        let (prepared, model) = driver.deliver(&writes(&mut random))?;
        (driver.token, driver.model) = (Some(prepared.token), model);
        save_durable_state(durable, driver);
        driver.store.mark_committed(prepared.token);
        if round % 5 == 3 {
            driver.snapshots.insert(driver.model.through);
        }
        if round % 5 == 1 {
            driver.snapshots.pop_first();
        }
        save_durable_state(durable, driver);
        let store = driver.store.clone();
        if store.is_collection_due()
            && let Some(mut collection) = store.collect(&driver.snapshots())?
        {
            let mut model = driver.model.clone();
            if let Some(mut leaving) = collection.moved_operands()? {
                crate::common::move_to_tree(&mut model, &mut *leaving)?;
            }
            let prepared = collection.prepare()?;
            (driver.token, driver.model) = (Some(prepared.token), model);
            save_durable_state(durable, driver);
            driver.store.mark_committed(prepared.token);
        }
        if round % 7 == 6 {
            driver.reopen()?;
        }
        if round % 2 == 1 {
            driver.check()?;
        }
    }
    Ok(())
}

/// Opens what a crash has left, compares, goes on, and crashes again.
fn recover(vfs: MemVfs, state: &(Option<StoreToken>, Model, BTreeSet<u64>), seed: u64) {
    let files = crate::common::Files::new(Arc::new(vfs.clone()), "db", 100_000);
    let mut driver = Driver {
        store: lsmx::operand_store::OperandStoreFactory::open(
            &lsmx_delta::DeltaStoreFactory::new(options()),
            crate::common::store_context(&files, &Arc::default()),
            state.0,
        )
        .unwrap(),
        files,
        mem: vfs.clone(),
        counts: Arc::default(),
        options: options(),
        token: state.0,
        model: state.1.clone(),
        seq: state.1.through + 1000,
        snapshots: state.2.clone(),
    };
    driver.verify().unwrap();
    driver.check().unwrap();
    driver.reopen().unwrap();
    let mut random = TestRng::new(seed);
    driver.flush(&writes(&mut random));
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
    let durable = Durable::default();
    let (seen, mem) = (durable.clone(), driver.mem.clone());
    let images = Arc::new(lsmx_base::sync::AtomicU64::new(0));
    let taken = images.clone();
    mem.set_observer(Some(Arc::new(move |mem: &MemVfs, operation| {
        let state = seen.lock().clone();
        for image in CrashImage::ALL {
            let seed = operation.index * 7 + 1;
            recover(mem.crash(image, seed), &state, operation.index);
            taken.fetch_add(1, lsmx_base::sync::Ordering::Relaxed);
        }
    })));
    work(&mut driver, 1, 26, &durable).unwrap();
    mem.set_observer(None);
    let metrics = driver.store.metrics();
    assert!(metrics.buckets > 3, "{metrics:?}");
    println!("{} images", images.load(lsmx_base::sync::Ordering::Relaxed));
}

/// Every call fails once, in every way it can. Nothing that was committed is lost; after `abandon` the
/// store goes on; what is reopened is what was committed last, or what was prepared when it failed.
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
            let mem = MemVfs::new();
            lsmx::vfs::Vfs::create_dir(&mem, "db".as_ref()).unwrap();
            lsmx::vfs::Vfs::sync_dir(&mem, "".as_ref()).unwrap();
            let vfs = FaultVfs::new(Arc::new(mem.clone()), nth);
            let mut driver = Driver::on(mem.clone(), Arc::new(vfs.clone()), options());
            let durable = Durable::default();
            vfs.add_rule(FaultRule::new(fault).for_calls(&[call]).nth(nth).once());
            let result = work(&mut driver, 2, 15, &durable);
            if vfs.fired_counts().is_empty() {
                result.unwrap();
                break;
            }
            points += 1;
            vfs.clear_rules();
            // The engine abandons before it resumes; a store that is only asked again must do as well.
            if nth % 2 == 0 {
                driver.store.abandon();
            }
            let (token, model, snapshots) = durable.lock().clone();
            (driver.token, driver.model, driver.snapshots) = (token, model, snapshots);
            driver.seq += 1000;
            let mut random = TestRng::new(nth);
            driver.flush(&writes(&mut random));
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
