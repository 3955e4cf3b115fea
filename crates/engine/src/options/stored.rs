//! Options of a keyspace as stored in the manifest.

use std::collections::BTreeMap;

use lsmx_base::key::SeqNo;
use serde::{Deserialize, Serialize};

use crate::manifest::ManifestState;
use crate::options::keyspace::KeyspaceOptions;
use crate::wal::DurableSegment;

/// Options of a keyspace that the manifest stores, as JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StoredOptions {
    /// Text of the [`StoredPolicy`](crate::options::policy::StoredPolicy).
    pub(crate) policy: String,
    /// Name of the merge operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) merge_operator: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) operand_store: Option<StoredOperandStore>,
    /// Whether values were ever separated.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) value_separation: bool,
}

impl StoredOptions {
    /// Returns the stored form of the options of a new keyspace.
    pub fn new(options: &KeyspaceOptions) -> StoredOptions {
        let operator = options.merge_operator.as_ref();
        let store = options.operand_store.as_ref();
        StoredOptions {
            policy: options.stored_policy().unwrap_or_default().to_string(),
            merge_operator: operator.map(|operator| operator.name().to_owned()),
            operand_store: store.map(|store| StoredOperandStore::Name(store.name().to_owned())),
            value_separation: options.value_separation.is_some(),
        }
    }

    /// Returns the name of the operand store.
    pub(crate) fn store_name(&self) -> Option<&str> {
        self.operand_store.as_ref().map(StoredOperandStore::name)
    }

    /// Returns the kept log, if one must be delivered to the operand store.
    pub(crate) fn kept_log(&self) -> Option<&KeptLog> {
        match &self.operand_store {
            Some(StoredOperandStore::Behind { log, .. }) => Some(log),
            _ => None,
        }
    }

    pub fn encode(&self) -> String {
        // The struct always has a JSON form.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Decodes the output of [`StoredOptions::encode`]. Fields of newer builds are ignored.
    pub(crate) fn decode(text: &str) -> Option<StoredOptions> {
        serde_json::from_str(text).ok()
    }
}

/// Operand store of a keyspace, as stored in the manifest.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum StoredOperandStore {
    /// Name of a store that contains the operands of all flushes.
    Name(String),
    /// A store that was missing at an open.
    ///
    /// Older builds do not know this form, so they refuse the database. Otherwise, they would delete the segments in
    /// `log`.
    Behind {
        name: String,
        /// Log that must be delivered to the store.
        log: KeptLog,
    },
}

impl StoredOperandStore {
    pub(crate) fn new(name: String, log: Option<KeptLog>) -> StoredOperandStore {
        match log {
            None => StoredOperandStore::Name(name),
            Some(log) => StoredOperandStore::Behind { name, log },
        }
    }

    fn name(&self) -> &str {
        match self {
            StoredOperandStore::Name(name) | StoredOperandStore::Behind { name, .. } => name,
        }
    }
}

/// WAL segments kept for a keyspace whose operand store was missing at an open.
///
/// Recovery delivers the operands in the WAL to operand stores. Without the store, it copies the commits to separate
/// segments that the stored options name, and retires the WAL as usual. The keyspace refuses writes until its store is
/// open, so the segments contain everything that its tables and its store lack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeptLog {
    /// Tables and the operand store contain all operations of the keyspace up to this sequence number.
    pub(crate) after: u64,
    /// Numbers and valid lengths of the segments, oldest first.
    segments: Vec<(u64, u64)>,
}

impl KeptLog {
    /// Creates a log of segments that are on stable storage, oldest first.
    pub(crate) fn new(after: SeqNo, segments: &[DurableSegment]) -> KeptLog {
        let segments = segments.iter().map(|segment| (segment.id, segment.bytes)).collect();
        KeptLog { after: after.0, segments }
    }

    /// Returns the segments, oldest first.
    pub(crate) fn segments(&self) -> Vec<DurableSegment> {
        self.segments.iter().map(|&(id, bytes)| DurableSegment { id, bytes }).collect()
    }

    /// Returns the number of segments.
    pub(crate) fn count(&self) -> u64 {
        self.segments.len() as u64
    }

    /// Returns the valid bytes of all segments.
    pub(crate) fn bytes(&self) -> u64 {
        self.segments.iter().map(|&(_, bytes)| bytes).sum()
    }

    /// Returns whether the log contains the segment.
    pub(crate) fn contains(&self, segment: u64) -> bool {
        self.segments.iter().any(|&(id, _)| id == segment)
    }
}

/// Returns the kept logs of all keyspaces, by keyspace id.
pub(crate) fn kept_logs(state: &ManifestState) -> BTreeMap<u32, KeptLog> {
    let logs = state.keyspaces.iter().filter_map(|(&id, keyspace)| {
        let stored = StoredOptions::decode(&keyspace.options)?;
        stored.kept_log().map(|log| (id, log.clone()))
    });
    logs.collect()
}
