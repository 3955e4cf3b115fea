//! Simulates power losses before every operation of the write-ahead log, while appends race with syncs. Replay must
//! return a prefix of the appended records that includes all synced records.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use lsmx::SeqNo;
use lsmx::internals::vfs::{CrashImage, MemOperationKind};
use lsmx::internals::wal::{
    RecoveryMode, RecoveryReport, ReplayStart, SegmentRegistry, Wal, WalOptions, WalRecord, replay,
};
use lsmx::vfs::{MemVfs, Vfs};
use lsmx_testkit::TestRng;

pub(crate) const DB_UID: u64 = 0x5eed;

pub(crate) fn dir() -> &'static Path {
    Path::new("db")
}

/// The manifest fields that log replay needs, and the range of commits that replay must return.
#[derive(Clone, Debug, Default)]
pub(crate) struct Promises {
    pub(crate) next_number: u64,
    pub(crate) oldest: u64,
    pub(crate) named: Vec<u64>,
    pub(crate) mark: Option<(u64, u64)>,
    /// All commits up to this number are in tables.
    pub(crate) flushed: u64,
    pub(crate) synced: u64,
    pub(crate) attempted: u64,
}

#[derive(Clone, Default)]
pub(crate) struct Ledger(pub(crate) Arc<Mutex<Promises>>);

impl Ledger {
    pub(crate) fn now(&self) -> Promises {
        self.0.lock().unwrap().clone()
    }
    pub(crate) fn change(&self, change: impl FnOnce(&mut Promises)) {
        change(&mut self.0.lock().unwrap());
    }
}

impl SegmentRegistry for Ledger {
    fn allocate_file_number(&self) -> u64 {
        let mut promises = self.0.lock().unwrap();
        promises.next_number += 1;
        promises.next_number
    }
    fn register_segment(&self, id: u64) -> lsmx::Result<()> {
        self.change(|promises| promises.named.push(id));
        Ok(())
    }
}

/// Returns the payload of a commit. Most payloads have less than 90 bytes, and some are larger than a page.
pub(crate) fn payload(seq: u64) -> Vec<u8> {
    let mut rng = TestRng::new(seq);
    let len_max = if seq % 32 == 31 { 5_000 } else { 90 };
    let len = rng.below(len_max);
    rng.bytes(len)
}

pub(crate) fn read_back(
    vfs: &dyn Vfs,
    promises: &Promises,
    mode: RecoveryMode,
) -> lsmx::Result<(Vec<u64>, RecoveryReport)> {
    let expect = ReplayStart {
        oldest_segment: promises.oldest,
        named: promises.named.clone(),
        mark: promises.mark,
        named_by: PathBuf::from("db/MANIFEST-000001"),
    };
    let mut numbers = Vec::new();
    let report = replay(vfs, dir(), DB_UID, &expect, mode, &mut |record| {
        assert_eq!(record.count, 1);
        assert_eq!(record.payload, payload(record.first_seq.0), "of commit {}", record.first_seq);
        numbers.push(record.first_seq.0);
        Ok(())
    })?;
    Ok((numbers, report))
}

/// Replays the log of a disk image and checks the replayed commits against `promises`.
pub(crate) fn check(image: &MemVfs, promises: &Promises) -> Result<(), String> {
    let (numbers, report) = read_back(image, promises, RecoveryMode::Strict)
        .map_err(|error| format!("replay fails: {error:?}"))?;
    if let Some(pair) = numbers.windows(2).find(|pair| pair[1] != pair[0] + 1) {
        return Err(format!("commit {} is followed by {}", pair[0], pair[1]));
    }
    if numbers.first().is_some_and(|first| *first > promises.flushed + 1) {
        return Err(format!("first commit is {}, flushed {}", numbers[0], promises.flushed));
    }
    let last = numbers.last().copied().unwrap_or(0).max(promises.flushed);
    if last < promises.synced || last > promises.attempted {
        let Promises { synced, attempted, .. } = promises;
        return Err(format!("{last} commits, synced {synced}, attempted {attempted}, {report:?}"));
    }
    Ok(())
}

pub(crate) fn options() -> WalOptions {
    WalOptions { segment_bytes: 500, ..WalOptions::default() }
}

pub(crate) fn append(wal: &Wal, ledger: &Ledger, next: &mut u64, count: u64) -> lsmx::Result<()> {
    let payloads: Vec<Vec<u8>> = (*next..*next + count).map(payload).collect();
    let group: Vec<WalRecord<'_>> = (*next..)
        .zip(&payloads)
        .map(|(seq, payload)| WalRecord { first_seq: SeqNo(seq), count: 1, payload })
        .collect();
    *next += count;
    ledger.change(|promises| promises.attempted = *next - 1);
    wal.append(group.into_iter())
}

/// A log to which a second thread appears to append during a sync. The append runs before a file or directory is
/// synced, when the sync holds no lock that an append needs.
pub(crate) struct Racing {
    wal: Wal,
    ledger: Ledger,
    rng: Mutex<TestRng>,
    syncing: AtomicBool,
}

impl Racing {
    fn append(&self, count: u64) -> lsmx::Result<()> {
        let next = self.ledger.now().attempted + 1;
        append(&self.wal, &self.ledger, &mut { next }, count)
    }

    fn draw(&self, below: u64) -> u64 {
        self.rng.lock().unwrap().below(below)
    }

    fn sync(&self) -> lsmx::Result<()> {
        let appended = self.ledger.now().attempted;
        self.syncing.store(true, Ordering::Relaxed);
        let synced = self.wal.sync();
        self.syncing.store(false, Ordering::Relaxed);
        assert_eq!(synced?.0, appended);
        self.ledger.change(|promises| promises.synced = appended);
        Ok(())
    }

    /// Simulates a second thread that appends or rotates during a sync.
    fn interfere(&self) {
        if self.syncing.swap(false, Ordering::Relaxed) {
            match self.draw(4) {
                0 => self.wal.rotate().unwrap(),
                1 => self.append(1 + self.draw(6)).unwrap(),
                2 => {
                    self.wal.rotate().unwrap();
                    self.append(1 + self.draw(12)).unwrap();
                }
                _ => {}
            }
            self.syncing.store(true, Ordering::Relaxed);
        }
    }
}

/// Runs random appends, syncs, rotations, retirements and restarts. Passes the new log to `began` before the first
/// step.
pub(crate) fn workload(
    vfs: &Arc<dyn Vfs>,
    ledger: &Ledger,
    seed: u64,
    steps: u32,
    began: impl FnOnce(&Arc<Racing>),
) -> lsmx::Result<()> {
    let mut rng = TestRng::new(seed);
    let options = WalOptions { segment_bytes: [500, 6_000, 20_000][at(seed % 3)], ..options() };
    let for_wal = Arc::new(ledger.clone());
    let wal = Wal::create(vfs.clone(), dir(), DB_UID, for_wal, options, SeqNo(1))?;
    let first = wal.sync_first_segment()?;
    ledger.change(|promises| promises.oldest = first);
    let log = Arc::new(Racing {
        wal,
        ledger: ledger.clone(),
        rng: Mutex::new(TestRng::new(!seed)),
        syncing: AtomicBool::new(false),
    });
    began(&log);
    // Average number of syncs per 20 steps. The seed selects few, some or many.
    let syncs = [1, 4, 6][at(seed / 3 % 3)];
    for _ in 0..steps {
        let drawn = rng.below(20);
        match drawn {
            _ if drawn < syncs => log.sync()?,
            0..=15 => log.append(1 + rng.below(4))?,
            16 => log.wal.rotate()?,
            17..=18 => {
                let flushed = ledger.now().synced;
                let retired = log.wal.retire_segments(SeqNo(flushed));
                let oldest = log.wal.oldest_segment();
                ledger.change(|promises| {
                    promises.flushed = flushed;
                    promises.oldest = oldest;
                    promises.named.retain(|&id| id >= oldest);
                });
                for segment in retired {
                    vfs.remove(&dir().join(format!("{:06}.wal", segment.id))).unwrap();
                }
            }
            _ if rng.is_one_in(8) => {
                let mut next = ledger.now().attempted + 1;
                restart(&log.wal, ledger, &mut next)?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// Converts a small number to an index.
pub(crate) fn at(number: u64) -> usize {
    usize::try_from(number).unwrap()
}

/// Restarts the log as `resume()` does. All commits are in tables, and a new chain of segments begins.
pub(crate) fn restart(wal: &Wal, ledger: &Ledger, next: &mut u64) -> lsmx::Result<()> {
    let oldest = wal.restart_in_new_segment(SeqNo(*next))?;
    ledger.change(|promises| {
        promises.flushed = *next - 1;
        promises.synced = *next - 1;
        promises.oldest = oldest;
        promises.named.clear();
    });
    Ok(())
}

pub(crate) fn disk() -> MemVfs {
    let vfs = MemVfs::new();
    vfs.create_dir(dir()).unwrap();
    vfs.sync_dir(Path::new("")).unwrap();
    vfs
}

/// Runs a workload and checks every kind of disk image before every operation. Returns the number of checked images, or
/// a description of the first failure.
pub(crate) fn enumerate_crashes(seed: u64, steps: u32) -> Result<u64, String> {
    let (vfs, ledger) = (disk(), Ledger::default());
    let found = Arc::new(Mutex::new((0, None)));
    let log: Arc<OnceLock<Arc<Racing>>> = Arc::default();
    let (seen, watched, racing) = (found.clone(), ledger.clone(), log.clone());
    vfs.set_observer(Some(Arc::new(move |vfs, operation| {
        let promises = watched.now();
        if promises.oldest == 0 {
            return;
        }
        for image in CrashImage::ALL {
            let crashed = vfs.crash(image, operation.index ^ seed);
            let mut seen = seen.lock().unwrap();
            seen.0 += 1;
            if let Err(broken) = check(&crashed, &promises)
                && seen.1.is_none()
            {
                seen.1 = Some(format!("seed {seed}, {operation:?}, {image:?}: {broken}"));
            }
        }
        if matches!(operation.kind, MemOperationKind::Sync | MemOperationKind::SyncDir)
            && let Some(log) = racing.get()
        {
            log.interfere();
        }
    })));
    let began = |racing: &Arc<Racing>| assert!(log.set(Arc::clone(racing)).is_ok());
    let shared: Arc<dyn Vfs> = Arc::new(vfs.clone());
    let done = workload(&shared, &ledger, seed, steps, began);
    vfs.set_observer(None);
    done.map_err(|error| format!("seed {seed}: {error:?}"))?;
    let (images, broken) = found.lock().unwrap().clone();
    broken.map_or(Ok(images), Err)
}
