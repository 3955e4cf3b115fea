//! Fails chosen calls, as a bad disk, a full one or an exhausted process would.
//!
//! A call that fails is not done, with two exceptions: a short write appends a part, and **a sync
//! that fails** decides by coin what becomes of the bytes that were not synced, as real kernels do:
//!
//! - They stay dirty; a later sync that answers `Ok` stores them.
//! - They are dropped: the disk never gets them, and every later sync answers `Ok` all the same.
//!   By a second coin, readers go on seeing them (the page cache keeps them, now marked clean) or
//!   see zeros from then on (the pages were evicted, and the disk has a hole there). The length
//!   stays in both cases, and later appends go behind them.
//!
//! Dropping needs a file system that can; see `File::drop_unsynced`. On the real one it is
//! skipped.

mod rule;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use lsmx_base::sync::{Arc, Mutex};
use rule::Active;
pub use rule::{Errno, Fault, Rule};

use crate::vfs::call::{CallCounters, CallCounts, VfsCall};
use crate::vfs::{File, LockGuard, Vfs};

/// Called for [`Fault::Delay`]; may wait or move a clock.
pub type DelayHook = Arc<dyn Fn(VfsCall, &Path) + Send + Sync>;

/// A file system that fails as it is told. Clones share rules and counts; rules hold for files
/// that are already open as well.
#[derive(Clone, Debug)]
pub struct FaultVfs {
    inner: Arc<dyn Vfs>,
    faults: Arc<Faults>,
}

#[derive(Debug)]
struct Faults {
    calls: CallCounters,
    state: Mutex<State>,
}

struct State {
    rules: Vec<Active>,
    fired: BTreeMap<Fault, u64>,
    chance: ChaCha8Rng,
    delay: Option<DelayHook>,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("rules", &self.rules)
            .field("fired", &self.fired)
            .finish_non_exhaustive()
    }
}

impl FaultVfs {
    /// Wraps `inner`; without a rule every call goes through. The seed decides every coin.
    #[must_use]
    pub fn new(inner: Arc<dyn Vfs>, seed: u64) -> FaultVfs {
        let state = State {
            rules: Vec::new(),
            fired: BTreeMap::new(),
            chance: ChaCha8Rng::seed_from_u64(seed),
            delay: None,
        };
        let faults = Faults { calls: CallCounters::default(), state: Mutex::new(state) };
        FaultVfs { inner, faults: Arc::new(faults) }
    }

    /// Adds a rule; it counts matching calls from now on. Where several rules would fire at one
    /// call, the one added first does; delays come on top.
    pub fn add(&self, rule: Rule) {
        self.faults.state.lock().rules.push(Active::new(rule));
    }

    /// Takes all rules away: the disk is well again. What failed syncs dropped stays lost.
    pub fn clear(&self) {
        self.faults.state.lock().rules.clear();
    }

    /// What [`Fault::Delay`] does; without it a delay only counts.
    pub fn set_delay(&self, hook: Option<DelayHook>) {
        self.faults.state.lock().delay = hook;
    }

    /// Calls made so far, failed ones included. A sweep runs once without rules to learn how many
    /// there are, or adds 1 to `k` until nothing fires any more.
    #[must_use]
    pub fn calls(&self) -> CallCounts {
        self.faults.calls.get()
    }

    /// How often each fault did something. One that is not here never did.
    #[must_use]
    pub fn fired(&self) -> BTreeMap<Fault, u64> {
        self.faults.state.lock().fired.clone()
    }

    fn wrap(&self, inner: Arc<dyn File>, path: &Path) -> Arc<dyn File> {
        Arc::new(FaultFile { inner, path: path.to_owned(), faults: self.faults.clone() })
    }
}

impl Faults {
    /// Counts a call, delays it if told, and returns the fault that hits it.
    fn meet(&self, call: VfsCall, path: &Path) -> Option<Fault> {
        self.calls.add(call, 1);
        let mut state = self.state.lock();
        let State { rules, chance, .. } = &mut *state;
        let mut fault = None;
        let mut delayed = false;
        for rule in rules {
            match rule.meet(call, path, chance) {
                Some(Fault::Delay) => delayed = true,
                Some(found) if fault.is_none() => fault = Some(found),
                _ => {}
            }
        }
        if delayed {
            *state.fired.entry(Fault::Delay).or_default() += 1;
            let hook = state.delay.clone();
            // The hook may wait, so no lock is held.
            drop(state);
            if let Some(hook) = hook {
                hook(call, path);
            }
        }
        fault
    }

    fn fire(&self, fault: Fault) {
        *self.state.lock().fired.entry(fault).or_default() += 1;
    }

    /// For calls that can only fail or not.
    fn pass(&self, call: VfsCall, path: &Path) -> io::Result<()> {
        match self.meet(call, path) {
            Some(fault @ Fault::Error(errno)) => {
                self.fire(fault);
                Err(errno.error())
            }
            // Rules give other faults only to reads and appends.
            _ => Ok(()),
        }
    }

    fn coin(&self) -> bool {
        self.state.lock().chance.next_u32() & 1 == 1
    }

    /// A number below `bound`, or 0.
    fn below(&self, bound: usize) -> usize {
        let drawn = self.state.lock().chance.next_u64() % (bound.max(1) as u64);
        // Smaller than `bound`, so it fits.
        usize::try_from(drawn).unwrap_or(0)
    }
}

impl Vfs for FaultVfs {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        self.faults.pass(VfsCall::Create, path)?;
        Ok(self.wrap(self.inner.create(path)?, path))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        self.faults.pass(VfsCall::Open, path)?;
        Ok(self.wrap(self.inner.open(path)?, path))
    }

    fn open_direct(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        self.faults.pass(VfsCall::Open, path)?;
        Ok(self.wrap(self.inner.open_direct(path)?, path))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.faults.pass(VfsCall::Rename, from)?;
        self.inner.rename(from, to)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.faults.pass(VfsCall::HardLink, from)?;
        self.inner.hard_link(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.faults.pass(VfsCall::Remove, path)?;
        self.inner.remove(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.faults.pass(VfsCall::Remove, path)?;
        self.inner.remove_dir(path)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.faults.pass(VfsCall::CreateDir, path)?;
        self.inner.create_dir(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        self.faults.pass(VfsCall::List, path)?;
        self.inner.list(path)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.faults.pass(VfsCall::Exists, path)?;
        self.inner.exists(path)
    }

    fn reserve(&self, path: &Path, bytes: u64) -> io::Result<()> {
        self.faults.pass(VfsCall::Reserve, path)?;
        self.inner.reserve(path, bytes)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.faults.pass(VfsCall::SyncDir, path)?;
        self.inner.sync_dir(path)
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn LockGuard>> {
        self.faults.pass(VfsCall::Lock, path)?;
        self.inner.lock(path)
    }

    fn open_files_limit(&self) -> Option<u64> {
        self.inner.open_files_limit()
    }

    fn lock_shared(&self, path: &Path) -> io::Result<Box<dyn LockGuard>> {
        self.faults.pass(VfsCall::LockShared, path)?;
        self.inner.lock_shared(path)
    }
}

#[derive(Debug)]
struct FaultFile {
    inner: Arc<dyn File>,
    path: PathBuf,
    faults: Arc<Faults>,
}

impl File for FaultFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let Some(fault) = self.faults.meet(VfsCall::Read, &self.path) else {
            return self.inner.read_at(buffer, offset);
        };
        if let Fault::Error(errno) = fault {
            self.faults.fire(fault);
            return Err(errno.error());
        }
        let mut bytes = vec![0; buffer.len()];
        let mut read = self.inner.read_at(&mut bytes, offset)?;
        // Where nothing was read, there is nothing to cut or alter.
        if read > 0 {
            match fault {
                Fault::ShortRead => read = self.faults.below(read),
                _ => bytes[self.faults.below(read)] ^= 1 << self.faults.below(8),
            }
            self.faults.fire(fault);
        }
        buffer[..read].copy_from_slice(&bytes[..read]);
        Ok(read)
    }

    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        match self.faults.meet(VfsCall::Append, &self.path) {
            Some(fault @ Fault::Error(errno)) => {
                self.faults.fire(fault);
                Err(errno.error())
            }
            Some(fault @ Fault::ShortWrite(errno)) => {
                // At least one byte of two or more, so that the part is one.
                let part = if bytes.len() < 2 { 0 } else { 1 + self.faults.below(bytes.len() - 1) };
                self.inner.append(&bytes[..part])?;
                self.faults.fire(fault);
                Err(errno.error())
            }
            _ => self.inner.append(bytes),
        }
    }

    fn sync(&self) -> io::Result<()> {
        let failed = self.faults.pass(VfsCall::Sync, &self.path);
        if failed.is_ok() {
            return self.inner.sync();
        }
        if self.faults.coin() {
            self.inner.drop_unsynced(self.faults.coin());
        }
        failed
    }

    fn len(&self) -> io::Result<u64> {
        self.faults.pass(VfsCall::Len, &self.path)?;
        self.inner.len()
    }

    fn grow_ahead(&self) {
        self.inner.grow_ahead();
    }

    fn stop_growing(&self) {
        self.inner.stop_growing();
    }

    fn will_need(&self, offset: u64, bytes: u64) -> bool {
        self.inner.will_need(offset, bytes)
    }

    fn forget(&self, offset: u64, bytes: u64) {
        self.inner.forget(offset, bytes);
    }

    fn drop_unsynced(&self, cached: bool) -> bool {
        self.inner.drop_unsynced(cached)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vfs::{Image, MemVfs};
    use lsmx_base::sync::{AtomicU64, Ordering};

    fn path(text: &str) -> &Path {
        Path::new(text)
    }

    fn disk(seed: u64) -> (MemVfs, FaultVfs) {
        let mem = MemVfs::new();
        (mem.clone(), FaultVfs::new(Arc::new(mem), seed))
    }

    fn fired(vfs: &FaultVfs, fault: Fault) -> u64 {
        vfs.fired().get(&fault).copied().unwrap_or(0)
    }

    const EIO: Fault = Fault::Error(Errno::Io);

    #[test]
    fn without_rules_everything_goes_through() {
        let (mem, vfs) = disk(0);
        let file = vfs.create(path("f")).unwrap();
        file.append(b"abc").unwrap();
        file.sync().unwrap();
        vfs.sync_dir(path("")).unwrap();
        assert_eq!(mem.crash(Image::Drop, 0).read_all(path("f")).unwrap(), b"abc");
        assert!(vfs.fired().is_empty());
        assert_eq!(vfs.calls().total(), 4);
    }

    #[test]
    fn the_kth_matching_call_fails_once_and_is_not_done() {
        let (mem, vfs) = disk(0);
        vfs.add(Rule::new(EIO).on(&[VfsCall::Append]).path_contains("wal").nth(1));
        let other = vfs.create(path("other")).unwrap();
        let wal = vfs.create(path("wal-1")).unwrap();
        let answers: Vec<bool> = (0..4)
            .map(|_| {
                other.append(b"o").unwrap();
                wal.append(b"w").is_ok()
            })
            .collect();
        assert_eq!(answers, [true, false, true, true]);
        assert_eq!(mem.read_all(path("wal-1")).unwrap(), b"www");
        assert_eq!(mem.read_all(path("other")).unwrap(), b"oooo");
        assert_eq!(vfs.fired(), [(EIO, 1)].into());
        assert_eq!(vfs.calls().of(VfsCall::Append), 8);
    }

    #[test]
    fn from_then_on_lasts_until_the_rules_are_cleared() {
        let (_, vfs) = disk(0);
        let full = Fault::Error(Errno::NoSpace);
        vfs.add(Rule::new(full).on(&[VfsCall::Create, VfsCall::Append]).nth(2).from_then_on());
        let file = vfs.create(path("f")).unwrap();
        file.append(b"1").unwrap();
        assert_eq!(file.append(b"2").unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert!(vfs.create(path("g")).is_err());
        assert!(vfs.open(path("f")).is_ok());
        vfs.clear();
        file.append(b"3").unwrap();
        assert_eq!(fired(&vfs, full), 2);
    }

    #[test]
    fn every_call_can_fail_with_every_error() {
        for &call in VfsCall::ALL {
            for errno in Errno::ALL {
                let (mem, vfs) = disk(0);
                mem.set_capacity(Some(1_000));
                let file = vfs.create(path("f")).unwrap();
                vfs.add(Rule::new(Fault::Error(errno)).on(&[call]));
                let mut failures = Vec::new();
                let mut note = |call, answer: io::Result<()>| {
                    if let Err(error) = answer {
                        assert_eq!(error.raw_os_error(), errno.error().raw_os_error());
                        failures.push(call);
                    }
                };
                note(VfsCall::Create, vfs.create(path("g")).map(drop));
                note(VfsCall::Open, vfs.open(path("f")).map(drop));
                note(VfsCall::Exists, vfs.exists(path("f")).map(drop));
                note(VfsCall::List, vfs.list(path("")).map(drop));
                note(VfsCall::Lock, vfs.lock(path("l")).map(drop));
                note(VfsCall::LockShared, vfs.lock_shared(path("f")).map(drop));
                note(VfsCall::HardLink, vfs.hard_link(path("f"), path("k")));
                note(VfsCall::Reserve, vfs.reserve(path("room"), 100));
                note(VfsCall::CreateDir, vfs.create_dir(path("d")));
                note(VfsCall::Append, file.append(b"x"));
                note(VfsCall::Read, file.read_at(&mut [0], 0).map(drop));
                note(VfsCall::Len, file.len().map(drop));
                note(VfsCall::Sync, file.sync());
                note(VfsCall::Rename, vfs.rename(path("f"), path("h")));
                note(
                    VfsCall::Remove,
                    vfs.remove(path(if call == VfsCall::Rename { "f" } else { "h" })),
                );
                note(VfsCall::SyncDir, vfs.sync_dir(path("")));
                assert_eq!(failures, [call]);
            }
        }
    }

    #[test]
    fn chance_hits_about_that_share_and_the_same_calls_for_the_same_seed() {
        let run = |seed| {
            let (_, vfs) = disk(seed);
            vfs.add(Rule::new(EIO).on(&[VfsCall::Exists]).chance(0.25));
            (0..1_000).map(|_| vfs.exists(path("f")).is_err()).collect::<Vec<bool>>()
        };
        let hits = run(1).iter().filter(|hit| **hit).count();
        assert!((200..300).contains(&hits), "{hits}");
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }

    #[test]
    fn chance_once_hits_once_and_from_then_on_for_ever() {
        let (_, vfs) = disk(3);
        vfs.add(Rule::new(EIO).on(&[VfsCall::Exists]).chance(0.5).once());
        vfs.add(Rule::new(EIO).on(&[VfsCall::List]).chance(0.5).from_then_on());
        assert_eq!((0..100).filter(|_| vfs.exists(path("f")).is_err()).count(), 1);
        let lists: Vec<bool> = (0..100).map(|_| vfs.list(path("")).is_err()).collect();
        assert!(lists[99] && lists.is_sorted());
    }

    #[test]
    fn a_short_read_ends_like_a_truncated_file() {
        let (_, vfs) = disk(0);
        let file = vfs.create(path("f")).unwrap();
        file.append(b"abcdef").unwrap();
        vfs.add(Rule::new(Fault::ShortRead).from_then_on());
        for _ in 0..50 {
            let mut buffer = [b'-'; 6];
            let read = file.read_at(&mut buffer, 0).unwrap();
            assert!(read < 6);
            assert_eq!(buffer[..read], b"abcdef"[..read]);
            assert_eq!(buffer[read..], b"------"[read..]);
        }
        assert_eq!(file.read_at(&mut [0], 6).unwrap(), 0);
        assert_eq!(fired(&vfs, Fault::ShortRead), 50, "the read past the end lost nothing");
    }

    #[test]
    fn an_altered_read_differs_in_one_bit_and_the_disk_does_not() {
        let (mem, vfs) = disk(0);
        let file = vfs.create(path("f")).unwrap();
        file.append(b"abcdef").unwrap();
        vfs.add(Rule::new(Fault::AlteredRead).from_then_on());
        for _ in 0..50 {
            let mut buffer = [0; 6];
            assert_eq!(file.read_at(&mut buffer, 0).unwrap(), 6);
            let flipped: u32 =
                buffer.iter().zip(b"abcdef").map(|(read, byte)| (read ^ byte).count_ones()).sum();
            assert_eq!(flipped, 1);
        }
        assert_eq!(mem.read_all(path("f")).unwrap(), b"abcdef");
    }

    #[test]
    fn a_short_write_appends_a_part_and_fails() {
        let (mem, vfs) = disk(0);
        let file = vfs.create(path("f")).unwrap();
        let fault = Fault::ShortWrite(Errno::NoSpace);
        vfs.add(Rule::new(fault).from_then_on());
        for _ in 0..50 {
            let before = mem.read_all(path("f")).unwrap().len();
            assert!(file.append(b"abcd").is_err());
            let bytes = mem.read_all(path("f")).unwrap();
            assert!((1..4).contains(&(bytes.len() - before)));
            assert_eq!(bytes[before..], b"abcd"[..bytes.len() - before]);
        }
        assert_eq!(fired(&vfs, fault), 50);
    }

    #[test]
    fn a_delay_calls_the_hook_and_then_the_call_is_done() {
        let (_, vfs) = disk(0);
        let delays = Arc::new(AtomicU64::new(0));
        let count = delays.clone();
        let hook_disk = vfs.clone();
        vfs.set_delay(Some(Arc::new(move |call, _| {
            assert_eq!(call, VfsCall::Create);
            // No lock is held: the hook may use the file system.
            let _ = hook_disk.calls();
            let _ = hook_disk.fired();
            count.fetch_add(1, Ordering::Relaxed);
        })));
        vfs.add(Rule::new(Fault::Delay).on(&[VfsCall::Create]).nth(1));
        vfs.add(Rule::new(EIO).on(&[VfsCall::Create]).nth(1));
        vfs.create(path("a")).unwrap();
        assert!(vfs.create(path("b")).is_err(), "late, and failed");
        vfs.create(path("c")).unwrap();
        assert_eq!(delays.load(Ordering::Relaxed), 1);
        assert_eq!(vfs.fired(), [(EIO, 1), (Fault::Delay, 1)].into());
    }

    #[test]
    fn after_a_failed_sync_the_bytes_are_lost_by_coin_and_later_syncs_are_good() {
        let (mut kept, mut seen, mut unseen) = (0, 0, 0);
        for seed in 0..200 {
            let (mem, vfs) = disk(seed);
            let file = vfs.create(path("f")).unwrap();
            vfs.sync_dir(path("")).unwrap();
            vfs.add(Rule::new(EIO).on(&[VfsCall::Sync]));
            file.append(b"lost?").unwrap();
            assert!(file.sync().is_err());
            assert_eq!(mem.crash(Image::Drop, 0).read_all(path("f")).unwrap(), b"");
            file.sync().unwrap();
            let disk = mem.crash(Image::Drop, 0).read_all(path("f")).unwrap();
            let live = mem.read_all(path("f")).unwrap();
            match (&disk[..], &live[..]) {
                (b"lost?", b"lost?") => kept += 1,
                (b"\0\0\0\0\0", b"lost?") => seen += 1,
                (b"\0\0\0\0\0", b"\0\0\0\0\0") => unseen += 1,
                other => panic!("{other:?}"),
            }
        }
        assert!(kept > 60 && seen > 25 && unseen > 25, "{kept} {seen} {unseen}");
    }

    #[test]
    fn a_sweep_over_k_ends_when_nothing_fires_any_more() {
        let workload = |vfs: &FaultVfs| -> io::Result<()> {
            let file = vfs.create(path("f"))?;
            file.append(b"x")?;
            file.sync()?;
            vfs.sync_dir(path(""))
        };
        let mut k = 0;
        loop {
            let (_, vfs) = disk(0);
            vfs.add(Rule::new(EIO).nth(k));
            let answer = workload(&vfs);
            if vfs.fired().is_empty() {
                answer.unwrap();
                break;
            }
            assert!(answer.is_err());
            k += 1;
        }
        assert_eq!(k, 4);
    }
}
