//! Fault injection: selected calls fail as on a failing disk, on a full disk, or without free file descriptors.
//!
//! A call that fails has no effect, with two exceptions. A short write appends a part of the bytes. A failed sync
//! chooses one of two outcomes for the unsynced bytes at random. Both outcomes occur in real kernels:
//!
//! - The bytes stay dirty. A later successful sync stores them.
//! - The bytes are dropped. The disk never receives the bytes, although later syncs succeed. A second random choice
//!   decides whether readers still see the bytes (clean pages in the page cache) or zeros (evicted pages). The length
//!   of the file does not change, and later appends follow the dropped bytes.
//!
//! Dropping unsynced bytes requires a file system that implements `File::drop_unsynced`, such as
//! [`MemVfs`](crate::vfs::MemVfs).

mod rule;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use rule::ActiveRule;
pub use rule::{Errno, Fault, FaultRule};

use lsmx_base::sync::{Arc, AtomicBool, Mutex, Ordering};

use crate::vfs::call::VfsCall;
use crate::vfs::counting::{CallCounters, CallCounts};
use crate::vfs::layer::{FileLayer, OpenMode, VfsLayer};
use crate::vfs::{File, Vfs};

/// Callback of [`Fault::Delay`]. The callback may block or advance a simulated clock.
pub type DelayHook = Arc<dyn Fn(VfsCall, &Path) + Send + Sync>;

/// A file system that injects faults according to rules. Clones share rules and counts. A new rule also applies to
/// files that are already open.
#[derive(Clone, Debug)]
pub struct FaultVfs {
    inner: Arc<dyn Vfs>,
    injector: Arc<FaultInjector>,
}

#[derive(Debug)]
struct FaultInjector {
    calls: CallCounters,
    refuses_direct_reads: AtomicBool,
    state: Mutex<FaultState>,
}

struct FaultState {
    rules: Vec<ActiveRule>,
    fired: BTreeMap<Fault, u64>,
    rng: ChaCha8Rng,
    delay_hook: Option<DelayHook>,
}

impl fmt::Debug for FaultState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultState")
            .field("rules", &self.rules)
            .field("fired", &self.fired)
            .finish_non_exhaustive()
    }
}

impl FaultVfs {
    /// Wraps `inner`. Without a rule no call fails. The seed determines all random decisions.
    #[must_use]
    pub fn new(inner: Arc<dyn Vfs>, seed: u64) -> FaultVfs {
        let state = FaultState {
            rules: Vec::new(),
            fired: BTreeMap::new(),
            rng: ChaCha8Rng::seed_from_u64(seed),
            delay_hook: None,
        };
        let injector = FaultInjector {
            calls: CallCounters::default(),
            refuses_direct_reads: AtomicBool::new(false),
            state: Mutex::new(state),
        };
        FaultVfs { inner, injector: Arc::new(injector) }
    }

    /// Adds a rule. The rule counts only calls that follow. If several rules fire at one call, the oldest rule
    /// determines the fault. A delay is applied in addition to the fault of another rule.
    pub fn add_rule(&self, rule: FaultRule) {
        self.injector.state.lock().rules.push(ActiveRule::new(rule));
    }

    /// Removes all rules. Bytes dropped by failed syncs stay lost.
    pub fn clear_rules(&self) {
        self.injector.state.lock().rules.clear();
    }

    /// Fails all later direct reads with `InvalidInput`. Files can still be opened for direct reads, as on some file
    /// systems without direct reads.
    pub fn refuse_direct_reads(&self) {
        self.injector.refuses_direct_reads.store(true, Ordering::Relaxed);
    }

    /// Sets the callback of [`Fault::Delay`]. Without a callback, a delay only increments its count.
    pub fn set_delay_hook(&self, hook: Option<DelayHook>) {
        self.injector.state.lock().delay_hook = hook;
    }

    /// Returns the number of calls, failed ones included.
    ///
    /// A test can run once without rules to count the calls, and then run once per call with a rule that fails this
    /// call.
    #[must_use]
    pub fn call_counts(&self) -> CallCounts {
        self.injector.calls.get()
    }

    /// Returns the number of times that each fault had an effect. Omits faults that never had an effect.
    #[must_use]
    pub fn fired_counts(&self) -> BTreeMap<Fault, u64> {
        self.injector.state.lock().fired.clone()
    }
}

impl FaultInjector {
    /// Counts a call, runs the delay hook if a delay fires, and returns the fault of the call.
    fn match_rules(&self, call: VfsCall, path: &Path) -> Option<Fault> {
        self.calls.add(call, 1);
        let mut state = self.state.lock();
        let FaultState { rules, rng, .. } = &mut *state;
        let mut fault = None;
        let mut delayed = false;
        for rule in rules {
            match rule.match_call(call, path, rng) {
                Some(Fault::Delay) => delayed = true,
                Some(found) if fault.is_none() => fault = Some(found),
                _ => {}
            }
        }
        if delayed {
            *state.fired.entry(Fault::Delay).or_default() += 1;
            let hook = state.delay_hook.clone();
            // The hook may wait, so it runs without the lock.
            drop(state);
            if let Some(hook) = hook {
                hook(call, path);
            }
        }
        fault
    }

    fn record_fired(&self, fault: Fault) {
        *self.state.lock().fired.entry(fault).or_default() += 1;
    }

    /// Returns the error of the oldest rule that fires at this call. Reads and appends do not use this function,
    /// because they also have faults other than errors.
    fn fail_if_rule_matches(&self, call: VfsCall, path: &Path) -> io::Result<()> {
        match self.match_rules(call, path) {
            Some(fault @ Fault::Error(errno)) => {
                self.record_fired(fault);
                Err(errno.error())
            }
            _ => Ok(()),
        }
    }

    fn draw_bool(&self) -> bool {
        self.state.lock().rng.next_u32() & 1 == 1
    }

    /// Returns a random number below `bound`; 0 if `bound` is 0.
    fn draw_below(&self, bound: usize) -> usize {
        let drawn = self.state.lock().rng.next_u64() % (bound.max(1) as u64);
        // The number is smaller than `bound`, so it fits.
        usize::try_from(drawn).unwrap_or(0)
    }
}

impl VfsLayer for FaultVfs {
    fn inner(&self) -> &dyn Vfs {
        &*self.inner
    }

    fn before_call(&self, call: VfsCall, path: &Path) -> io::Result<()> {
        self.injector.fail_if_rule_matches(call, path)
    }

    fn intercept_open(&self, mode: OpenMode, path: &Path) -> io::Result<Arc<dyn File>> {
        let inner = mode.open(&*self.inner, path)?;
        let injector = self.injector.clone();
        Ok(Arc::new(FaultFile { inner, path: path.to_owned(), mode, injector }))
    }
}

#[derive(Debug)]
struct FaultFile {
    inner: Arc<dyn File>,
    path: PathBuf,
    mode: OpenMode,
    injector: Arc<FaultInjector>,
}

impl FileLayer for FaultFile {
    fn inner(&self) -> &dyn File {
        &*self.inner
    }

    fn before_call(&self, call: VfsCall) -> io::Result<()> {
        match call {
            VfsCall::Read | VfsCall::Append | VfsCall::Sync => Ok(()),
            _ => self.injector.fail_if_rule_matches(call, &self.path),
        }
    }

    fn intercept_read(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        if self.mode == OpenMode::ReadDirect
            && self.injector.refuses_direct_reads.load(Ordering::Relaxed)
        {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let Some(fault) = self.injector.match_rules(VfsCall::Read, &self.path) else {
            return self.inner.read_at(buffer, offset);
        };
        if let Fault::Error(errno) = fault {
            self.injector.record_fired(fault);
            return Err(errno.error());
        }
        let mut bytes = vec![0; buffer.len()];
        let mut read = self.inner.read_at(&mut bytes, offset)?;
        // A fault cannot shorten or alter a read of zero bytes, so such a read is not counted.
        if read > 0 {
            match fault {
                Fault::ShortRead => read = self.injector.draw_below(read),
                _ => bytes[self.injector.draw_below(read)] ^= 1 << self.injector.draw_below(8),
            }
            self.injector.record_fired(fault);
        }
        buffer[..read].copy_from_slice(&bytes[..read]);
        Ok(read)
    }

    fn intercept_append(&self, bytes: &[u8]) -> io::Result<()> {
        match self.injector.match_rules(VfsCall::Append, &self.path) {
            Some(fault @ Fault::Error(errno)) => {
                self.injector.record_fired(fault);
                Err(errno.error())
            }
            Some(fault @ Fault::ShortWrite(errno)) => {
                // Appends at least one byte and omits at least one byte, if there are two or more.
                let part = match bytes.len() {
                    0 | 1 => 0,
                    len => 1 + self.injector.draw_below(len - 1),
                };
                self.inner.append(&bytes[..part])?;
                self.injector.record_fired(fault);
                Err(errno.error())
            }
            _ => self.inner.append(bytes),
        }
    }

    fn intercept_sync(&self) -> io::Result<()> {
        let failed = self.injector.fail_if_rule_matches(VfsCall::Sync, &self.path);
        if failed.is_ok() {
            return self.inner.sync();
        }
        if self.injector.draw_bool() {
            self.inner.drop_unsynced(self.injector.draw_bool());
        }
        failed
    }
}

#[cfg(test)]
mod tests {
    use lsmx_base::sync::AtomicU64;

    use super::*;
    use crate::vfs::MemVfs;
    use crate::vfs::mem::CrashImage;

    fn path(text: &str) -> &Path {
        Path::new(text)
    }

    fn disk(seed: u64) -> (MemVfs, FaultVfs) {
        let mem = MemVfs::new();
        (mem.clone(), FaultVfs::new(Arc::new(mem), seed))
    }

    fn fired(vfs: &FaultVfs, fault: Fault) -> u64 {
        vfs.fired_counts().get(&fault).copied().unwrap_or(0)
    }

    const EIO: Fault = Fault::Error(Errno::Io);

    #[test]
    fn fault_vfs_without_rules_forwards_all_calls() {
        let (mem, vfs) = disk(0);
        let file = vfs.create(path("f")).unwrap();
        file.append(b"abc").unwrap();
        file.sync().unwrap();
        vfs.sync_dir(path("")).unwrap();
        assert_eq!(mem.crash(CrashImage::Drop, 0).read_all(path("f")).unwrap(), b"abc");
        assert!(vfs.fired_counts().is_empty());
        assert_eq!(vfs.call_counts().total(), 4);
    }

    #[test]
    fn rule_nth_fails_one_call_without_effect() {
        let (mem, vfs) = disk(0);
        vfs.add_rule(FaultRule::new(EIO).for_calls(&[VfsCall::Append]).path_contains("wal").nth(1));
        let other = vfs.create(path("other")).unwrap();
        let wal = vfs.create(path("wal-1")).unwrap();
        let results: Vec<bool> = (0..4)
            .map(|_| {
                other.append(b"o").unwrap();
                wal.append(b"w").is_ok()
            })
            .collect();
        assert_eq!(results, [true, false, true, true]);
        assert_eq!(mem.read_all(path("wal-1")).unwrap(), b"www");
        assert_eq!(mem.read_all(path("other")).unwrap(), b"oooo");
        assert_eq!(vfs.fired_counts(), [(EIO, 1)].into());
        assert_eq!(vfs.call_counts().count_of(VfsCall::Append), 8);
    }

    #[test]
    fn rule_from_then_on_fires_until_cleared() {
        let (_, vfs) = disk(0);
        let full = Fault::Error(Errno::NoSpace);
        vfs.add_rule(
            FaultRule::new(full)
                .for_calls(&[VfsCall::Create, VfsCall::Append])
                .nth(2)
                .from_then_on(),
        );
        let file = vfs.create(path("f")).unwrap();
        file.append(b"1").unwrap();
        assert_eq!(file.append(b"2").unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert!(vfs.create(path("g")).is_err());
        assert!(vfs.open(path("f")).is_ok());
        vfs.clear_rules();
        file.append(b"3").unwrap();
        assert_eq!(fired(&vfs, full), 2);
    }

    #[test]
    fn rule_for_each_call_and_errno_fails_that_call() {
        for &call in VfsCall::ALL {
            for errno in Errno::ALL {
                let (mem, vfs) = disk(0);
                mem.set_capacity(Some(1_000));
                let file = vfs.create(path("f")).unwrap();
                vfs.add_rule(FaultRule::new(Fault::Error(errno)).for_calls(&[call]));
                let mut failures = Vec::new();
                let mut record = |call, result: io::Result<()>| {
                    if let Err(error) = result {
                        assert_eq!(error.raw_os_error(), errno.error().raw_os_error());
                        failures.push(call);
                    }
                };
                record(VfsCall::Create, vfs.create(path("g")).map(drop));
                record(VfsCall::Open, vfs.open(path("f")).map(drop));
                record(VfsCall::Exists, vfs.exists(path("f")).map(drop));
                record(VfsCall::List, vfs.list(path("")).map(drop));
                record(VfsCall::Lock, vfs.lock(path("l")).map(drop));
                record(VfsCall::LockShared, vfs.lock_shared(path("f")).map(drop));
                record(VfsCall::HardLink, vfs.hard_link(path("f"), path("k")));
                record(VfsCall::Reserve, vfs.reserve_space(path("reserved"), 100));
                record(VfsCall::CreateDir, vfs.create_dir(path("d")));
                record(VfsCall::Append, file.append(b"x"));
                record(VfsCall::Read, file.read_at(&mut [0], 0).map(drop));
                record(VfsCall::Len, file.len().map(drop));
                record(VfsCall::Sync, file.sync());
                record(VfsCall::Rename, vfs.rename(path("f"), path("h")));
                record(
                    VfsCall::Remove,
                    vfs.remove(path(if call == VfsCall::Rename { "f" } else { "h" })),
                );
                record(VfsCall::SyncDir, vfs.sync_dir(path("")));
                assert_eq!(failures, [call]);
            }
        }
    }

    #[test]
    fn rule_chance_fires_at_its_rate_and_repeats_with_the_seed() {
        let run = |seed| {
            let (_, vfs) = disk(seed);
            vfs.add_rule(FaultRule::new(EIO).for_calls(&[VfsCall::Exists]).chance(0.25));
            (0..1_000).map(|_| vfs.exists(path("f")).is_err()).collect::<Vec<bool>>()
        };
        let hits = run(1).iter().filter(|hit| **hit).count();
        assert!((200..300).contains(&hits), "{hits}");
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }

    #[test]
    fn rule_chance_with_once_or_from_then_on_repeats_accordingly() {
        let (_, vfs) = disk(3);
        vfs.add_rule(FaultRule::new(EIO).for_calls(&[VfsCall::Exists]).chance(0.5).once());
        vfs.add_rule(FaultRule::new(EIO).for_calls(&[VfsCall::List]).chance(0.5).from_then_on());
        assert_eq!((0..100).filter(|_| vfs.exists(path("f")).is_err()).count(), 1);
        let lists: Vec<bool> = (0..100).map(|_| vfs.list(path("")).is_err()).collect();
        assert!(lists[99] && lists.is_sorted());
    }

    #[test]
    fn short_read_returns_a_prefix() {
        let (_, vfs) = disk(0);
        let file = vfs.create(path("f")).unwrap();
        file.append(b"abcdef").unwrap();
        vfs.add_rule(FaultRule::new(Fault::ShortRead).from_then_on());
        for _ in 0..50 {
            let mut buffer = [b'-'; 6];
            let read = file.read_at(&mut buffer, 0).unwrap();
            assert!(read < 6);
            assert_eq!(buffer[..read], b"abcdef"[..read]);
            assert_eq!(buffer[read..], b"------"[read..]);
        }
        assert_eq!(file.read_at(&mut [0], 6).unwrap(), 0);
        assert_eq!(fired(&vfs, Fault::ShortRead), 50, "a read past the end does not count");
    }

    #[test]
    fn altered_read_flips_one_bit_and_leaves_the_disk() {
        let (mem, vfs) = disk(0);
        let file = vfs.create(path("f")).unwrap();
        file.append(b"abcdef").unwrap();
        vfs.add_rule(FaultRule::new(Fault::AlteredRead).from_then_on());
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
    fn short_write_appends_a_part_and_fails() {
        let (mem, vfs) = disk(0);
        let file = vfs.create(path("f")).unwrap();
        let fault = Fault::ShortWrite(Errno::NoSpace);
        vfs.add_rule(FaultRule::new(fault).from_then_on());
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
    fn delay_runs_the_hook_before_the_call() {
        let (_, vfs) = disk(0);
        let delays = Arc::new(AtomicU64::new(0));
        let count = delays.clone();
        let hook_disk = vfs.clone();
        vfs.set_delay_hook(Some(Arc::new(move |call, _| {
            assert_eq!(call, VfsCall::Create);
            // The hook runs without a lock, so it may use the file system.
            let _ = hook_disk.call_counts();
            let _ = hook_disk.fired_counts();
            count.fetch_add(1, Ordering::Relaxed);
        })));
        vfs.add_rule(FaultRule::new(Fault::Delay).for_calls(&[VfsCall::Create]).nth(1));
        vfs.add_rule(FaultRule::new(EIO).for_calls(&[VfsCall::Create]).nth(1));
        vfs.create(path("a")).unwrap();
        assert!(vfs.create(path("b")).is_err(), "delayed and failed");
        vfs.create(path("c")).unwrap();
        assert_eq!(delays.load(Ordering::Relaxed), 1);
        assert_eq!(vfs.fired_counts(), [(EIO, 1), (Fault::Delay, 1)].into());
    }

    #[test]
    fn failed_sync_drops_bytes_at_random_and_later_syncs_succeed() {
        let (mut kept, mut seen, mut unseen) = (0, 0, 0);
        for seed in 0..200 {
            let (mem, vfs) = disk(seed);
            let file = vfs.create(path("f")).unwrap();
            vfs.sync_dir(path("")).unwrap();
            vfs.add_rule(FaultRule::new(EIO).for_calls(&[VfsCall::Sync]));
            file.append(b"lost?").unwrap();
            assert!(file.sync().is_err());
            assert_eq!(mem.crash(CrashImage::Drop, 0).read_all(path("f")).unwrap(), b"");
            file.sync().unwrap();
            let disk = mem.crash(CrashImage::Drop, 0).read_all(path("f")).unwrap();
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
    fn sweep_over_k_ends_when_no_fault_fires() {
        let workload = |vfs: &FaultVfs| -> io::Result<()> {
            let file = vfs.create(path("f"))?;
            file.append(b"x")?;
            file.sync()?;
            vfs.sync_dir(path(""))
        };
        let mut k = 0;
        loop {
            let (_, vfs) = disk(0);
            vfs.add_rule(FaultRule::new(EIO).nth(k));
            let result = workload(&vfs);
            if vfs.fired_counts().is_empty() {
                result.unwrap();
                break;
            }
            assert!(result.is_err());
            k += 1;
        }
        assert_eq!(k, 4);
    }
}
