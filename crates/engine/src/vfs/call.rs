//! Kinds of calls of [`Vfs`](crate::vfs::Vfs) and [`File`](crate::vfs::File), used to count calls and to select calls
//! for fault injection.

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
    /// [`Vfs::reserve_space`](crate::vfs::Vfs::reserve_space).
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
    /// Returns whether the call may change files, names, or the state on stable storage. [`VfsCall::Lock`] may create
    /// the file.
    #[must_use]
    pub fn is_mutating(self) -> bool {
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
