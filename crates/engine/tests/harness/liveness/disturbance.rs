//! The faults that a test injects into a random workload, such as failed calls, panics and hanging devices.

use std::fmt;

use lsmx::internals::vfs::{Errno, VfsCall};

use super::user_code::{POLICY_SITES, SITES};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Stepped,
    Inline,
    Threads,
}

impl Mode {
    pub(crate) const ALL: [Mode; 3] = [Mode::Stepped, Mode::Inline, Mode::Threads];
}

/// A fault that a test injects into a random workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A file system call fails. If `sticky` is true, all later file system calls also fail until the test clears the
    /// fault.
    Error { call: VfsCall, errno: Errno, sticky: bool },
    /// One read of a file of the given kind returns altered bytes.
    AlteredRead { file: &'static str },
    /// A file system call panics.
    VfsPanic { call: VfsCall },
    /// User code panics at a call named in [`SITES`]. If `sticky` is true, all later calls also panic until the test
    /// clears the fault.
    UserPanic { site: &'static str, sticky: bool },
    /// The compaction policy stops writes and picks no job until the test clears the fault.
    StuckPolicy,
    /// The listener calls `resume` when the database becomes read-only.
    ListenerResumes,
    /// The listener drops the last database handle.
    ListenerDropsHandle,
    /// A call on a file of the given kind hangs until the test releases it.
    Hang { call: VfsCall, file: &'static str },
}

/// File system calls that a test can make fail or panic.
const CALLS: &[VfsCall] = &[
    VfsCall::Create,
    VfsCall::Open,
    VfsCall::Rename,
    VfsCall::HardLink,
    VfsCall::Remove,
    VfsCall::CreateDir,
    VfsCall::List,
    VfsCall::Exists,
    VfsCall::Reserve,
    VfsCall::SyncDir,
    VfsCall::Lock,
    VfsCall::Read,
    VfsCall::Append,
    VfsCall::Sync,
    VfsCall::Len,
];

/// Kinds of files whose reads a test can alter.
const FILES: &[&str] = &["table", "blob", "segment", "manifest", "current", "operands"];

/// File system calls that a test can make hang, each with the kind of file.
const HANGS: &[(VfsCall, &str)] = &[
    (VfsCall::Append, "segment"),
    (VfsCall::Sync, "segment"),
    (VfsCall::Create, "segment"),
    (VfsCall::Append, "manifest"),
    (VfsCall::Sync, "manifest"),
    (VfsCall::Append, "table"),
    (VfsCall::Sync, "table"),
    (VfsCall::Create, "table"),
    (VfsCall::Read, "table"),
    (VfsCall::Remove, "table"),
    (VfsCall::Append, "operands"),
    (VfsCall::Sync, "operands"),
    (VfsCall::Create, "operands"),
    (VfsCall::Reserve, "reserve"),
    (VfsCall::SyncDir, "directory"),
];

impl Kind {
    pub(crate) fn all() -> Vec<Kind> {
        let mut all = Vec::new();
        for &call in CALLS {
            for sticky in [false, true] {
                let errno = if sticky && call.is_mutating() { Errno::NoSpace } else { Errno::Io };
                all.push(Kind::Error { call, errno, sticky });
            }
            all.push(Kind::VfsPanic { call });
        }
        all.extend(FILES.iter().map(|&file| Kind::AlteredRead { file }));
        for site in SITES {
            all.extend([false, true].map(|sticky| Kind::UserPanic { site, sticky }));
        }
        all.extend([Kind::StuckPolicy, Kind::ListenerResumes, Kind::ListenerDropsHandle]);
        all.extend(HANGS.iter().map(|&(call, file)| Kind::Hang { call, file }));
        all
    }

    /// Returns whether a workload with this fault can run in a background mode.
    pub(crate) fn suits(self, mode: Mode) -> bool {
        match self {
            Kind::Hang { .. } => mode == Mode::Threads,
            // In inline mode, the listener runs on the thread of the caller, which still owns a database handle.
            Kind::ListenerDropsHandle => mode != Mode::Inline,
            _ => true,
        }
    }

    pub(crate) fn is_sticky(self) -> bool {
        matches!(self, Kind::Error { sticky: true, .. } | Kind::UserPanic { sticky: true, .. })
    }

    pub(crate) fn needs_policy(self) -> bool {
        self == Kind::StuckPolicy
            || matches!(self, Kind::UserPanic { site, .. } if POLICY_SITES.contains(&site))
    }

    pub(crate) fn needs_store(self) -> bool {
        match self {
            Kind::UserPanic { site, .. } => is_store_site(site),
            Kind::AlteredRead { file } | Kind::Hang { file, .. } => file == "operands",
            _ => false,
        }
    }

    /// Returns whether the call that fails occurs only or mostly when a database is opened.
    pub(crate) fn is_of_open(self) -> bool {
        match self {
            Kind::Error { call, .. } | Kind::VfsPanic { call } => matches!(
                call,
                VfsCall::CreateDir
                    | VfsCall::List
                    | VfsCall::Exists
                    | VfsCall::Lock
                    | VfsCall::Len
                    | VfsCall::Open
                    | VfsCall::Rename
            ),
            Kind::AlteredRead { file } => file != "table" && file != "blob",
            Kind::UserPanic { site, .. } => site == "StoreOpen",
            _ => false,
        }
    }

    /// Returns whether the call that fails occurs only in the first write after an open.
    pub(crate) fn is_of_first_write(self) -> bool {
        matches!(self, Kind::Error { call, .. } | Kind::VfsPanic { call } if call == VfsCall::Reserve)
    }

    /// The fault is injected into a random call. Returns an exclusive upper bound for the number of calls before it.
    pub(crate) fn calls_before_max(self) -> u64 {
        match self {
            Kind::Error { call, .. } | Kind::VfsPanic { call } => match call {
                VfsCall::Append | VfsCall::Sync | VfsCall::Read => 30,
                VfsCall::Create | VfsCall::SyncDir | VfsCall::Remove | VfsCall::Len => 6,
                VfsCall::Open | VfsCall::Exists => 3,
                _ => 1,
            },
            Kind::AlteredRead { file: "table" } => 12,
            Kind::AlteredRead { .. } => 3,
            Kind::UserPanic { site, .. } => match site {
                "StoreOpen" | "StoreAbandon" | "ViewOperands" | "PartialMerge" => 1,
                "StoreMetrics" | "ViewCursor" => 3,
                _ => 8,
            },
            _ => 4,
        }
    }
}

/// Returns whether a call named in [`SITES`] is a method of an operand store or of a view of a store.
pub(crate) fn is_store_site(site: &str) -> bool {
    site.starts_with("Store") || site.starts_with("View")
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let suffix = |sticky: &bool| if *sticky { "-sticky" } else { "" };
        match self {
            Kind::Error { call, sticky, .. } => write!(f, "error-{call:?}{}", suffix(sticky)),
            Kind::AlteredRead { file } => write!(f, "altered-{file}"),
            Kind::VfsPanic { call } => write!(f, "vfs-panic-{call:?}"),
            Kind::UserPanic { site, sticky } => write!(f, "panic-{site}{}", suffix(sticky)),
            Kind::StuckPolicy => write!(f, "stuck-policy"),
            Kind::ListenerResumes => write!(f, "listener-resumes"),
            Kind::ListenerDropsHandle => write!(f, "listener-drops-handle"),
            Kind::Hang { call, file } => write!(f, "hang-{call:?}-{file}"),
        }
    }
}
