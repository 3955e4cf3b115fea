//! Fault rules. A rule selects calls and determines the fault of these calls.

use std::fmt;
use std::io;
use std::path::Path;

use lsmx_base::sync::Arc;
use rand::Rng;
use rand_chacha::ChaCha8Rng;

use crate::vfs::call::VfsCall;

/// An error of the operating system that a fault can return.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Errno {
    /// EIO: the device failed.
    Io,
    /// ENOSPC: the disk is full.
    NoSpace,
    /// EMFILE: the process has too many files open.
    TooManyFiles,
    /// EFBIG: the file is larger than the process or the file system allows.
    FileTooLarge,
}

impl Errno {
    /// All errors.
    pub const ALL: [Errno; 4] =
        [Errno::Io, Errno::NoSpace, Errno::TooManyFiles, Errno::FileTooLarge];

    /// Returns the error that a system call would return.
    #[must_use]
    pub fn error(self) -> io::Error {
        // These error numbers are the same on every Unix.
        #[cfg(unix)]
        return io::Error::from_raw_os_error(match self {
            Errno::Io => 5,
            Errno::NoSpace => 28,
            Errno::TooManyFiles => 24,
            Errno::FileTooLarge => 27,
        });
        #[cfg(not(unix))]
        return match self {
            Errno::Io => io::Error::other("input/output error"),
            Errno::NoSpace => io::ErrorKind::StorageFull.into(),
            Errno::TooManyFiles => io::Error::other("too many open files"),
            Errno::FileTooLarge => io::ErrorKind::FileTooLarge.into(),
        };
    }
}

/// Effect of a rule on a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// The call fails and has no effect.
    Error(Errno),
    /// Reads only: returns fewer bytes than requested, as if the file ended earlier.
    ShortRead,
    /// Reads only: flips one bit of the returned bytes.
    AlteredRead,
    /// Appends only: appends a part of the bytes, then fails.
    ShortWrite(Errno),
    /// The call succeeds after the delay hook has run.
    Delay,
}

impl Fault {
    fn applies_to(self, call: VfsCall) -> bool {
        match self {
            Fault::Error(_) | Fault::Delay => true,
            Fault::ShortRead | Fault::AlteredRead => call == VfsCall::Read,
            Fault::ShortWrite(_) => call == VfsCall::Append,
        }
    }
}

type PathPredicate = Arc<dyn Fn(&Path) -> bool + Send + Sync>;

/// Selects the calls that a fault affects. By default, this is only the first call to which the fault can apply.
#[derive(Clone)]
pub struct FaultRule {
    fault: Fault,
    calls: Option<Vec<VfsCall>>,
    path: Option<PathPredicate>,
    trigger: FaultTrigger,
    repeat: FaultRepeat,
}

/// Selects the matching calls at which a rule fires: the call with an index, or each call with a probability.
#[derive(Clone, Copy, Debug)]
enum FaultTrigger {
    Nth(u64),
    Chance(f64),
}

/// Determines whether a rule that has fired can fire again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FaultRepeat {
    Once,
    FromThenOn,
    EachTime,
}

impl FaultRule {
    /// Creates a rule that fires once, at the first call that the fault can apply to.
    #[must_use]
    pub fn new(fault: Fault) -> FaultRule {
        FaultRule {
            fault,
            calls: None,
            path: None,
            trigger: FaultTrigger::Nth(0),
            repeat: FaultRepeat::Once,
        }
    }

    /// Restricts the rule to these calls.
    #[must_use]
    pub fn for_calls(mut self, calls: &[VfsCall]) -> FaultRule {
        self.calls = Some(calls.to_vec());
        self
    }

    /// Restricts the rule to paths that contain `text`. For calls of a file, the path is the one by which the file was
    /// opened. For a rename, the path is the old name.
    #[must_use]
    pub fn path_contains(self, text: &str) -> FaultRule {
        let text = text.to_owned();
        self.path_where(move |path| path.to_string_lossy().contains(&text))
    }

    /// Restricts the rule to paths that satisfy a predicate. The predicate must not call the file system.
    #[must_use]
    pub fn path_where(
        mut self,
        matches: impl Fn(&Path) -> bool + Send + Sync + 'static,
    ) -> FaultRule {
        self.path = Some(Arc::new(matches));
        self
    }

    /// Fires at the matching call with this index. The first matching call has index 0.
    #[must_use]
    pub fn nth(mut self, index: u64) -> FaultRule {
        self.trigger = FaultTrigger::Nth(index);
        self
    }

    /// Fires at each matching call with this probability, from 0 to 1.
    #[must_use]
    pub fn chance(mut self, probability: f64) -> FaultRule {
        self.trigger = FaultTrigger::Chance(probability);
        self.repeat = FaultRepeat::EachTime;
        self
    }

    /// Fires at most once.
    #[must_use]
    pub fn once(mut self) -> FaultRule {
        self.repeat = FaultRepeat::Once;
        self
    }

    /// After the rule has fired once, fires at every later matching call.
    #[must_use]
    pub fn from_then_on(mut self) -> FaultRule {
        self.repeat = FaultRepeat::FromThenOn;
        self
    }
}

impl fmt::Debug for FaultRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultRule")
            .field("fault", &self.fault)
            .field("calls", &self.calls)
            .field("trigger", &self.trigger)
            .field("repeat", &self.repeat)
            .finish_non_exhaustive()
    }
}

/// A rule with its counters.
#[derive(Debug)]
pub(crate) struct ActiveRule {
    rule: FaultRule,
    /// Number of matching calls so far.
    matched: u64,
    /// Whether the rule has fired at least once.
    has_fired: bool,
}

impl ActiveRule {
    pub(crate) fn new(rule: FaultRule) -> ActiveRule {
        ActiveRule { rule, matched: 0, has_fired: false }
    }

    /// Counts a call if it matches, and returns the fault if the rule fires.
    pub(crate) fn match_call(
        &mut self,
        call: VfsCall,
        path: &Path,
        rng: &mut ChaCha8Rng,
    ) -> Option<Fault> {
        let rule = &self.rule;
        let matches = rule.fault.applies_to(call)
            && rule.calls.as_ref().is_none_or(|calls| calls.contains(&call))
            && rule.path.as_ref().is_none_or(|matches| matches(path));
        if !matches {
            return None;
        }
        let index = self.matched;
        self.matched += 1;
        let fires = match (self.has_fired, rule.repeat) {
            (true, FaultRepeat::FromThenOn) => true,
            (true, FaultRepeat::Once) => false,
            _ => match rule.trigger {
                FaultTrigger::Nth(nth) => index == nth,
                FaultTrigger::Chance(probability) => draw_fraction(rng) < probability,
            },
        };
        self.has_fired |= fires;
        fires.then_some(rule.fault)
    }
}

/// Returns a number in 0..1 with 53 random bits, the precision of an `f64`.
fn draw_fraction(rng: &mut ChaCha8Rng) -> f64 {
    (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}
