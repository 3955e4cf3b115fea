//! Kinds of calls of [`Vfs`](crate::vfs::Vfs) and [`File`](crate::vfs::File), for counting and for fault rules.

use lsmx_base::sync::ShardedCounter;

macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Kind of a call to the file system.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum VfsCall {
            $($(#[$doc])* $name,)*
        }

        impl VfsCall {
            /// All kinds.
            pub const ALL: &'static [VfsCall] = &[$(VfsCall::$name,)*];
        }

        const CALL_KINDS: usize = VfsCall::ALL.len();
    };
}

calls! {
    /// [`Vfs::create`](crate::vfs::Vfs::create).
    Create,
    /// [`Vfs::open`](crate::vfs::Vfs::open).
    Open,
    /// [`Vfs::rename`](crate::vfs::Vfs::rename).
    Rename,
    /// [`Vfs::hard_link`](crate::vfs::Vfs::hard_link).
    HardLink,
    /// [`Vfs::remove`](crate::vfs::Vfs::remove) and [`Vfs::remove_dir`](crate::vfs::Vfs::remove_dir).
    Remove,
    /// [`Vfs::create_dir`](crate::vfs::Vfs::create_dir).
    CreateDir,
    /// [`Vfs::list`](crate::vfs::Vfs::list).
    List,
    /// [`Vfs::exists`](crate::vfs::Vfs::exists).
    Exists,
    /// [`Vfs::reserve`](crate::vfs::Vfs::reserve).
    Reserve,
    /// [`Vfs::sync_dir`](crate::vfs::Vfs::sync_dir).
    SyncDir,
    /// [`Vfs::lock`](crate::vfs::Vfs::lock).
    Lock,
    /// [`Vfs::lock_shared`](crate::vfs::Vfs::lock_shared).
    LockShared,
    /// [`File::read_at`](crate::vfs::File::read_at).
    Read,
    /// [`File::append`](crate::vfs::File::append).
    Append,
    /// [`File::sync`](crate::vfs::File::sync).
    Sync,
    /// [`File::len`](crate::vfs::File::len).
    Len,
}

impl VfsCall {
    /// Returns whether the call may change files, names or locks.
    #[must_use]
    pub fn is_change(self) -> bool {
        match self {
            VfsCall::Create
            | VfsCall::Rename
            | VfsCall::HardLink
            | VfsCall::Remove
            | VfsCall::CreateDir
            | VfsCall::Reserve
            | VfsCall::SyncDir
            | VfsCall::Lock
            | VfsCall::Append
            | VfsCall::Sync => true,
            VfsCall::Open
            | VfsCall::List
            | VfsCall::Exists
            | VfsCall::LockShared
            | VfsCall::Read
            | VfsCall::Len => false,
        }
    }
}

/// Number of calls, or of bytes, by kind of call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallCounts([u64; CALL_KINDS]);

impl CallCounts {
    /// Returns the count of one kind.
    #[must_use]
    pub fn of(&self, call: VfsCall) -> u64 {
        self.0[call as usize]
    }

    /// Returns the sum of the counts of some kinds.
    #[must_use]
    pub fn sum_of(&self, calls: &[VfsCall]) -> u64 {
        calls.iter().map(|call| self.of(*call)).sum()
    }

    /// Returns the sum of all counts.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.sum_of(VfsCall::ALL)
    }
}

/// A counter for each kind of call.
#[derive(Debug, Default)]
pub(crate) struct CallCounters([ShardedCounter; CALL_KINDS]);

impl CallCounters {
    pub(crate) fn add(&self, call: VfsCall, count: u64) {
        self.0[call as usize].add(count);
    }

    pub(crate) fn get(&self) -> CallCounts {
        CallCounts(std::array::from_fn(|index| self.0[index].sum()))
    }
}
