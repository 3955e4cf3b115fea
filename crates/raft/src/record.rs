//! Records of the keyspace `raft.meta`, and the encoding of records and log entries.
//!
//! ```text
//! key          value, encoded by postcard
//! "format"     u32, FORMAT_VERSION
//! "vote"       Vote
//! "committed"  LogId, ignored. Earlier builds stored the last committed entry.
//! "purged"     LogId of the last purged log entry
//! "applied"    AppliedState
//! "snapshot"   StoredSnapshot
//! ```
//!
//! A key of the log (`raft.log`) is the index of the entry, u64 big-endian. Its value is the entry, encoded by postcard.

use lsmx::Keyspace;
use openraft::{LogId, RaftTypeConfig, SnapshotMeta, StoredMembership};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::Error;

/// Version of the records and keyspaces.
pub(crate) const FORMAT_VERSION: u32 = 1;

pub(crate) const FORMAT: &str = "format";
pub(crate) const VOTE: &str = "vote";
pub(crate) const PURGED: &str = "purged";
pub(crate) const APPLIED: &str = "applied";
pub(crate) const SNAPSHOT: &str = "snapshot";
/// Name of log entries in errors.
pub(crate) const LOG_ENTRY: &str = "log entry";

/// The state of the state machine besides the data of the application.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(bound = "")]
pub(crate) struct AppliedState<C: RaftTypeConfig> {
    /// Number of the keyspace that contains the data of the application.
    pub(crate) keyspace: u64,
    pub(crate) last_log_id: Option<LogId<C::NodeId>>,
    pub(crate) membership: StoredMembership<C::NodeId, C::Node>,
}

/// The current snapshot.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(bound = "")]
pub(crate) struct StoredSnapshot<C: RaftTypeConfig> {
    pub(crate) meta: SnapshotMeta<C::NodeId, C::Node>,
    /// Name of its directory.
    pub(crate) dir: String,
}

/// Returns the key of a log entry.
pub(crate) fn log_key(index: u64) -> [u8; 8] {
    index.to_be_bytes()
}

/// Encodes a record. `record` is its name in errors.
pub(crate) fn encode(record: &'static str, value: &impl Serialize) -> Result<Vec<u8>, Error> {
    postcard::to_stdvec(value).map_err(|source| Error::Encode { record, source })
}

pub(crate) fn decode<T: DeserializeOwned>(record: &'static str, bytes: &[u8]) -> Result<T, Error> {
    postcard::from_bytes(bytes).map_err(|source| Error::Decode { record, source })
}

/// Reads a record of the keyspace `raft.meta`.
pub(crate) fn read_record<T: DeserializeOwned>(
    meta: &Keyspace,
    record: &'static str,
) -> Result<Option<T>, Error> {
    meta.get(record)?.map(|bytes| decode(record, &bytes)).transpose()
}

#[cfg(test)]
mod tests {
    use openraft::{CommittedLeaderId, Entry, EntryPayload, Membership, Vote};

    use super::*;
    use crate::snapshot::stream::SnapshotStream;

    openraft::declare_raft_types!(Types: D = String, R = (), SnapshotData = SnapshotStream);

    /// Another encoding needs another [`FORMAT_VERSION`].
    #[test]
    fn records_keep_their_encoding() {
        let log_id = LogId::new(CommittedLeaderId::new(1, 2), 300);
        assert_eq!(encode(PURGED, &log_id).unwrap(), [1, 2, 172, 2]);
        assert_eq!(encode(VOTE, &Vote::new_committed(5, 2_u64)).unwrap(), [5, 2, 1]);
        let membership: Membership<u64, openraft::BasicNode> =
            Membership::new(vec![[1].into()], None);
        let membership = StoredMembership::new(Some(log_id), membership);
        let last_log_id = Some(log_id);
        let applied = AppliedState::<Types> { keyspace: 3, last_log_id, membership };
        let expected = [3, 1, 1, 2, 172, 2, 1, 1, 2, 172, 2, 1, 1, 1, 1, 1, 0];
        assert_eq!(encode(APPLIED, &applied).unwrap(), expected);
        let payload = EntryPayload::Normal("ab".to_owned());
        let entry = Entry::<Types> { log_id, payload };
        let expected = [1, 2, 172, 2, 1, 2, b'a', b'b'];
        assert_eq!(encode(LOG_ENTRY, &entry).unwrap(), expected);
    }
}
