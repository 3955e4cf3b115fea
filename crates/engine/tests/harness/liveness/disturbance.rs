//! What disturbs a history, and for how long.

use std::fmt;

use lsmx::internals::vfs::{Errno, VfsCall};

use super::history::is_of_opening;
use super::user_code::Site;

/// Who does background work in a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Stepped,
    Inline,
    Threads,
}

impl Mode {
    pub(crate) const ALL: [Mode; 3] = [Mode::Stepped, Mode::Inline, Mode::Threads];
}

/// One disturbance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A call to the file system fails, once or until the disturbance ends.
    Error { call: VfsCall, errno: Errno, sticky: bool },
    /// One read of a file of this kind returns altered bytes.
    AlteredRead { file: &'static str },
    /// A call to the file system panics.
    VfsPanic { call: VfsCall },
    /// Other user code panics, once or until the disturbance ends.
    UserPanic { site: Site, sticky: bool },
    /// A policy stops writes and picks no job until the disturbance ends.
    StuckPolicy,
    /// The listener resumes the database from the event that it became read-only.
    ListenerResumes,
    /// The listener drops the last handle.
    ListenerDropsHandle,
    /// A call to a file of this kind does not return until it is released.
    Hang { call: VfsCall, file: &'static str },
}

/// The calls to the file system that a history can meet.
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

/// The kinds of files that are read.
const FILES: &[&str] = &["table", "blob", "segment", "manifest", "current", "operands"];

/// Calls that hang, with the kinds of files.
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
    /// All kinds, in a fixed order.
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
        for &site in Site::ALL {
            all.extend([false, true].map(|sticky| Kind::UserPanic { site, sticky }));
        }
        all.extend([Kind::StuckPolicy, Kind::ListenerResumes, Kind::ListenerDropsHandle]);
        all.extend(HANGS.iter().map(|&(call, file)| Kind::Hang { call, file }));
        all
    }

    /// Whether it can be played so.
    pub(crate) fn suits(self, mode: Mode) -> bool {
        match self {
            Kind::Hang { .. } => mode == Mode::Threads,
            // Without other threads a listener runs on the thread of the user, who has a handle.
            Kind::ListenerDropsHandle => mode != Mode::Inline,
            _ => true,
        }
    }

    pub(crate) fn is_sticky(self) -> bool {
        matches!(self, Kind::Error { sticky: true, .. } | Kind::UserPanic { sticky: true, .. })
    }

    pub(crate) fn needs_policy(self) -> bool {
        self == Kind::StuckPolicy
            || matches!(self, Kind::UserPanic { site, .. } if site.is_policy())
    }

    pub(crate) fn needs_store(self) -> bool {
        match self {
            Kind::UserPanic { site, .. } => site.is_store(),
            Kind::AlteredRead { file } | Kind::Hang { file, .. } => file == "operands",
            _ => false,
        }
    }

    /// Whether only an opening makes such a call, or mostly.
    pub(crate) fn opens(self) -> bool {
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
            Kind::UserPanic { site, .. } => is_of_opening(site),
            _ => false,
        }
    }

    /// Whether only the first write after an opening makes such a call.
    pub(crate) fn is_of_first_write(self) -> bool {
        matches!(self, Kind::Error { call, .. } | Kind::VfsPanic { call } if call == VfsCall::Reserve)
    }

    /// Among how many calls the first that is disturbed is drawn.
    pub(crate) fn reach(self) -> u64 {
        match self {
            Kind::Error { call, .. } | Kind::VfsPanic { call } => match call {
                VfsCall::Append | VfsCall::Sync | VfsCall::Read => 30,
                VfsCall::Create | VfsCall::SyncDir | VfsCall::Remove | VfsCall::Len => 6,
                VfsCall::Open | VfsCall::Exists => 3,
                _ => 1,
            },
            Kind::AlteredRead { file: "table" } => 12,
            Kind::AlteredRead { .. } => 3,
            Kind::UserPanic {
                site: Site::StoreOpen | Site::StoreAbandon | Site::ViewOperands | Site::PartialMerge,
                ..
            } => 1,
            Kind::UserPanic { site: Site::StoreMetrics | Site::ViewCursor, .. } => 3,
            Kind::UserPanic { .. } => 8,
            _ => 4,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lasts = |sticky: &bool| if *sticky { "-sticky" } else { "" };
        match self {
            Kind::Error { call, sticky, .. } => write!(f, "error-{call:?}{}", lasts(sticky)),
            Kind::AlteredRead { file } => write!(f, "altered-{file}"),
            Kind::VfsPanic { call } => write!(f, "vfs-panic-{call:?}"),
            Kind::UserPanic { site, sticky } => write!(f, "panic-{site:?}{}", lasts(sticky)),
            Kind::StuckPolicy => write!(f, "stuck-policy"),
            Kind::ListenerResumes => write!(f, "listener-resumes"),
            Kind::ListenerDropsHandle => write!(f, "listener-drops-handle"),
            Kind::Hang { call, file } => write!(f, "hang-{call:?}-{file}"),
        }
    }
}
