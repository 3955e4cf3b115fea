//! Which calls fail, and how.

use std::fmt;
use std::io;
use std::path::Path;

use lsmx_base::sync::Arc;
use rand::Rng;
use rand_chacha::ChaCha8Rng;

use crate::vfs::call::VfsCall;

/// What the system says.
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
    /// All of them.
    pub const ALL: [Errno; 4] =
        [Errno::Io, Errno::NoSpace, Errno::TooManyFiles, Errno::FileTooLarge];

    /// The error as the system's own calls would give it.
    #[must_use]
    pub fn error(self) -> io::Error {
        // These have had one number on every Unix since the seventh edition.
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

/// What happens to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// It fails, and nothing is done.
    Error(Errno),
    /// Reads only: fewer bytes come back, as if the file ended there.
    ShortRead,
    /// Reads only: one bit of what comes back is wrong.
    AlteredRead,
    /// Appends only: a part is appended, then the error comes.
    ShortWrite(Errno),
    /// It is done, late: the delay hook runs first.
    Delay,
}

impl Fault {
    fn suits(self, call: VfsCall) -> bool {
        match self {
            Fault::Error(_) | Fault::Delay => true,
            Fault::ShortRead | Fault::AlteredRead => call == VfsCall::Read,
            Fault::ShortWrite(_) => call == VfsCall::Append,
        }
    }
}

/// Decides by path.
type PathPredicate = Arc<dyn Fn(&Path) -> bool + Send + Sync>;

/// Which calls a fault hits. A new rule hits the first call that the fault suits, once.
#[derive(Clone)]
pub struct Rule {
    fault: Fault,
    calls: Option<Vec<VfsCall>>,
    path: Option<PathPredicate>,
    trigger: Trigger,
    repeat: Repeat,
}

#[derive(Clone, Copy, Debug)]
enum Trigger {
    Nth(u64),
    Chance(f64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Repeat {
    Once,
    FromThenOn,
    EachTime,
}

impl Rule {
    /// A rule for this fault.
    #[must_use]
    pub fn new(fault: Fault) -> Rule {
        Rule { fault, calls: None, path: None, trigger: Trigger::Nth(0), repeat: Repeat::Once }
    }

    /// Only these calls match.
    #[must_use]
    pub fn on(mut self, calls: &[VfsCall]) -> Rule {
        self.calls = Some(calls.to_vec());
        self
    }

    /// Only paths with this text in them match. A file goes by the name under which it was opened,
    /// a rename by the old name.
    #[must_use]
    pub fn path_contains(self, text: &str) -> Rule {
        let text = text.to_owned();
        self.path_where(move |path| path.to_string_lossy().contains(&text))
    }

    /// Only paths match of which `matches` says so. It must not call the file system.
    #[must_use]
    pub fn path_where(mut self, matches: impl Fn(&Path) -> bool + Send + Sync + 'static) -> Rule {
        self.path = Some(Arc::new(matches));
        self
    }

    /// The first matching call to be hit, counted from 0.
    #[must_use]
    pub fn nth(mut self, index: u64) -> Rule {
        self.trigger = Trigger::Nth(index);
        self
    }

    /// Each matching call is hit with this probability (0..=1), each time anew.
    #[must_use]
    pub fn chance(mut self, probability: f64) -> Rule {
        self.trigger = Trigger::Chance(probability);
        self.repeat = Repeat::EachTime;
        self
    }

    /// Hits one call and no other.
    #[must_use]
    pub fn once(mut self) -> Rule {
        self.repeat = Repeat::Once;
        self
    }

    /// From the first hit on, every matching call is hit.
    #[must_use]
    pub fn from_then_on(mut self) -> Rule {
        self.repeat = Repeat::FromThenOn;
        self
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rule")
            .field("fault", &self.fault)
            .field("calls", &self.calls)
            .field("trigger", &self.trigger)
            .field("repeat", &self.repeat)
            .finish_non_exhaustive()
    }
}

/// A rule at work.
#[derive(Debug)]
pub(crate) struct Active {
    rule: Rule,
    /// Matching calls met so far.
    met: u64,
    hit: bool,
}

impl Active {
    pub(crate) fn new(rule: Rule) -> Active {
        Active { rule, met: 0, hit: false }
    }

    /// The fault, if this call is hit.
    pub(crate) fn meet(
        &mut self,
        call: VfsCall,
        path: &Path,
        chance: &mut ChaCha8Rng,
    ) -> Option<Fault> {
        let rule = &self.rule;
        let matches = rule.fault.suits(call)
            && rule.calls.as_ref().is_none_or(|calls| calls.contains(&call))
            && rule.path.as_ref().is_none_or(|matches| matches(path));
        if !matches {
            return None;
        }
        let index = self.met;
        self.met += 1;
        let hit = match (self.hit, rule.repeat) {
            (true, Repeat::FromThenOn) => true,
            (true, Repeat::Once) => false,
            _ => match rule.trigger {
                Trigger::Nth(nth) => index == nth,
                Trigger::Chance(probability) => unit(chance) < probability,
            },
        };
        self.hit |= hit;
        hit.then_some(rule.fault)
    }
}

/// A number in 0..1, with 53 random bits: as many as an `f64` holds.
fn unit(chance: &mut ChaCha8Rng) -> f64 {
    (chance.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}
