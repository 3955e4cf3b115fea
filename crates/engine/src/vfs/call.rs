//! The calls of [`Vfs`](crate::vfs::Vfs) and [`File`](crate::vfs::File) as values, to count and to match.

use lsmx_base::sync::ShardedCounter;

macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A call to the file system.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum VfsCall {
            $($(#[$doc])* $name,)*
        }

        impl VfsCall {
            /// All of them.
            pub const ALL: &'static [VfsCall] = &[$(VfsCall::$name,)*];
        }

        const CALLS: usize = VfsCall::ALL.len();
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
    /// Whether it may change what is on the disk.
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

/// How often each call was made, at some moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallCounts([u64; CALLS]);

impl CallCounts {
    /// How often this one was.
    #[must_use]
    pub fn of(&self, call: VfsCall) -> u64 {
        self.0[call as usize]
    }

    /// How often any of these was.
    #[must_use]
    pub fn of_any(&self, calls: &[VfsCall]) -> u64 {
        calls.iter().map(|call| self.of(*call)).sum()
    }

    /// All calls together.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.of_any(VfsCall::ALL)
    }
}

/// One counter for each call.
#[derive(Debug, Default)]
pub(crate) struct CallCounters([ShardedCounter; CALLS]);

impl CallCounters {
    pub(crate) fn add(&self, call: VfsCall, count: u64) {
        self.0[call as usize].add(count);
    }

    pub(crate) fn get(&self) -> CallCounts {
        CallCounts(std::array::from_fn(|at| self.0[at].sum()))
    }
}
