//! Requirements on the types of an application.

use openraft::{Entry, RaftTypeConfig};

use crate::snapshot::stream::SnapshotStream;

/// The type configurations of openraft that this storage supports.
///
/// It is implemented for every configuration whose entries are [`openraft::Entry`] and whose snapshots are [`SnapshotStream`]:
///
/// ```
/// openraft::declare_raft_types!(
///     pub Types: D = String, R = (), SnapshotData = lsmx_raft::SnapshotStream
/// );
/// ```
pub trait StoreConfig: RaftTypeConfig<Entry = Entry<Self>, SnapshotData = SnapshotStream> {}

impl<C: RaftTypeConfig<Entry = Entry<C>, SnapshotData = SnapshotStream>> StoreConfig for C {}
