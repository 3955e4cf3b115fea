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

use rule::Active;
pub use rule::{Errno, Fault, Rule};

use super::call::{CallCounters, CallCounts, VfsCall};
use super::{File, LockGuard, Vfs};
use crate::sync::{Arc, Mutex};

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

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.faults.pass(VfsCall::Rename, from)?;
        self.inner.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.faults.pass(VfsCall::Remove, path)?;
        self.inner.remove(path)
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

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.faults.pass(VfsCall::SyncDir, path)?;
        self.inner.sync_dir(path)
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn LockGuard>> {
        self.faults.pass(VfsCall::Lock, path)?;
        self.inner.lock(path)
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

    fn drop_unsynced(&self, cached: bool) -> bool {
        self.inner.drop_unsynced(cached)
    }
}
