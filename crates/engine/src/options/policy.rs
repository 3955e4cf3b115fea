//! Compaction policy of a keyspace, as given by the user and as stored in the manifest.

use std::fmt;

use lsmx_base::sync::Arc;
use lsmx_compaction::{CompactionPolicy, Debt, Job, PolicySpec, RunningJobs, TreeShape};

/// Prefix of the stored name of a custom policy. Names of presets contain no colon, so older builds reject such a name.
const CUSTOM_PREFIX: &str = "custom:";

/// Compaction policy of a keyspace.
#[derive(Clone, Debug)]
pub enum Policy {
    /// A preset or a composed policy.
    Spec(PolicySpec),
    /// A custom policy. The manifest stores its name.
    Custom(Arc<dyn CompactionPolicy>),
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_stored().fmt(f)
    }
}

impl From<PolicySpec> for Policy {
    fn from(spec: PolicySpec) -> Policy {
        Policy::Spec(spec)
    }
}

impl From<Arc<dyn CompactionPolicy>> for Policy {
    fn from(policy: Arc<dyn CompactionPolicy>) -> Policy {
        Policy::Custom(policy)
    }
}

impl<P: CompactionPolicy + 'static> From<Arc<P>> for Policy {
    fn from(policy: Arc<P>) -> Policy {
        Policy::Custom(policy)
    }
}

impl Policy {
    /// Returns the form stored in the manifest.
    pub(crate) fn to_stored(&self) -> StoredPolicy {
        match self {
            Policy::Spec(spec) => StoredPolicy::Spec(spec.clone()),
            Policy::Custom(policy) => StoredPolicy::Custom(policy.name().to_owned()),
        }
    }
}

/// Compaction policy as stored in the manifest.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum StoredPolicy {
    /// A preset or a composed policy.
    Spec(PolicySpec),
    /// Name of a custom policy, which must be given at each open.
    Custom(String),
    /// Text that this build cannot read, and the error. Another policy must be set.
    Unreadable(String, lsmx_compaction::Error),
}

impl Default for StoredPolicy {
    fn default() -> StoredPolicy {
        StoredPolicy::Spec(PolicySpec::default())
    }
}

impl fmt::Display for StoredPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoredPolicy::Spec(spec) => spec.fmt(f),
            StoredPolicy::Custom(name) => write!(f, "{CUSTOM_PREFIX}{name}"),
            StoredPolicy::Unreadable(text, _) => f.write_str(text),
        }
    }
}

impl StoredPolicy {
    /// Reads the text of a stored policy.
    pub(crate) fn from_text(text: &str) -> StoredPolicy {
        match text.strip_prefix(CUSTOM_PREFIX) {
            Some(name) => StoredPolicy::Custom(name.to_owned()),
            None => PolicySpec::from_stored(text).map_or_else(
                |error| StoredPolicy::Unreadable(text.to_owned(), error),
                StoredPolicy::Spec,
            ),
        }
    }
}

/// Replacement for a custom policy that was not given, and for a policy that this build cannot read. It picks no job
/// and stops no write.
#[derive(Debug)]
pub(crate) struct MissingPolicy(pub(crate) String);

impl CompactionPolicy for MissingPolicy {
    fn name(&self) -> &str {
        &self.0
    }

    fn pick(&self, _: &TreeShape, _: &RunningJobs) -> Option<Job> {
        None
    }

    fn debt(&self, _: &TreeShape, _: &RunningJobs) -> Debt {
        Debt::default()
    }

    fn must_stop_writes(&self, _: &TreeShape) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_policy_text_round_trips_and_custom_is_no_spec() {
        for text in [
            "leveled",
            "tiering(T=3)",
            "custom:mine",
            "custom:leveled",
            "custom:a (b=\"c\")",
            "later(T=3)",
            "{later = 3}",
        ] {
            let stored = StoredPolicy::from_text(text);
            assert_eq!(stored.to_string(), text);
            assert_eq!(text.parse::<PolicySpec>().is_ok(), matches!(stored, StoredPolicy::Spec(_)));
        }
    }
}
