//! Checks that a version depends only on bytes that were synced successfully.

use crate::common::{Driver, Write, check_view, disk};
use lsmx::internals::vfs::{CrashImage, Errno, Fault, FaultRule, FaultVfs, VfsCall};
use lsmx::operand_store::OperandReadTier;
use lsmx::vfs::MemVfs;
use lsmx::{Error, SeqNo};
use lsmx_base::sync::Arc;
use lsmx_delta::DeltaOptions;

fn round(keys: u64, bytes: usize) -> Vec<Write> {
    let write = |number| Write::Operand { key: format!("key{number:04}").into_bytes(), bytes };
    (0..keys).map(write).collect()
}

fn check_after_crashes(driver: &mut Driver, mem: &MemVfs, seed: u64) {
    for image in CrashImage::ALL {
        driver.reopen_on(Arc::new(mem.crash(image, seed))).unwrap();
        driver.check().unwrap();
        driver.verify().unwrap();
    }
}

/// A new log refers to bucket pages of earlier deliveries. If a sync of these pages fails, the next delivery must
/// succeed and must not refer to them.
#[test]
fn failed_sync_pages_are_not_reused() {
    // The seed determines which pages a failed sync drops.
    for seed in 0..8 {
        let mem = disk();
        let vfs = FaultVfs::new(Arc::new(mem.clone()), seed);
        let options =
            DeltaOptions::default().bucket_bytes(4096).log_bytes_max(3000).cache_bytes(4000);
        let mut driver = Driver::on(mem.clone(), Arc::new(vfs.clone()), options);
        driver.flush(&round(30, 30));
        let fault = Fault::Error(Errno::Io);
        vfs.add_rule(
            FaultRule::new(fault).for_calls(&[VfsCall::Sync]).path_contains(".bucket").once(),
        );
        let failed = loop {
            match driver.deliver(&round(30, 30)) {
                Ok((prepared, model)) => driver.commit(&prepared, model),
                Err(error) => break error,
            }
        };
        assert!(failed.to_string().contains(".bucket"), "{failed}");
        // Until the next commit, readers may use pages that the failed sync lost. The records of these pages are also
        // in the log.
        for _ in 0..3 {
            driver.flush(&round(30, 30));
            driver.check().unwrap();
        }
        check_after_crashes(&mut driver, &mem, seed);
    }
}

/// Regression: after a failed sync, a read from memory opened and read the log, to recover the lost pages.
#[test]
fn read_from_memory_after_failed_sync_opens_no_file() {
    let mem = disk();
    let vfs = FaultVfs::new(Arc::new(mem.clone()), 1);
    let options = DeltaOptions::default().bucket_bytes(4096).log_bytes_max(3000).cache_bytes(0);
    let mut driver = Driver::on(mem, Arc::new(vfs.clone()), options);
    let rule = || FaultRule::new(Fault::Error(Errno::Io));
    vfs.add_rule(rule().for_calls(&[VfsCall::Sync]).path_contains(".bucket").once());
    while let Ok((prepared, model)) = driver.deliver(&round(30, 30)) {
        driver.commit(&prepared, model);
    }
    let view = driver.store.view();
    let read = |reads| {
        let mut refused = 0;
        for key in driver.model.keys.keys() {
            match view.read_operands(key, SeqNo::MAX, reads, &mut Vec::new()) {
                Err(Error::WouldBlock) => refused += 1,
                result => result.unwrap(),
            }
            match view.clone().cursor(SeqNo::MAX, reads).seek(key, SeqNo::MAX) {
                Err(Error::WouldBlock) => refused += 1,
                result => result.unwrap(),
            }
        }
        refused
    };
    vfs.add_rule(rule().for_calls(&[VfsCall::Open]).path_contains(".operands").from_then_on());
    assert!(read(OperandReadTier::Memory) > 0, "no read needs the log");
    vfs.clear_rules();
    assert_eq!(read(OperandReadTier::Storage), 0);
    driver.check().unwrap();
}

/// The store closes bucket files when too many are open. It must sync them first, because a log may refer to them.
#[test]
fn sync_more_buckets_than_descriptors_syncs_all() {
    const FILES: u64 = 1300;
    let options = DeltaOptions::default().bucket_bytes(512).log_bytes_max(1024).cache_bytes(0);
    let mut driver = Driver::new(options);
    let mem = driver.mem.clone();
    for _ in 0..3 {
        driver.flush(&round(FILES, 80));
    }
    let files = driver.store.live_files().len();
    assert!(files > usize::try_from(FILES).unwrap(), "{files}");
    for image in [CrashImage::Drop, CrashImage::Torn, CrashImage::Sectors] {
        driver.reopen_on(Arc::new(mem.crash(image, 1))).unwrap();
        driver.verify().unwrap();
        let view = driver.store.view();
        check_view(&view, &driver.model, driver.model.through, 0).unwrap();
    }
}
