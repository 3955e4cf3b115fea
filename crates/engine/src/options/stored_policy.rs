//! The compaction policy of a keyspace as the manifest keeps it.

use std::fmt;
use std::str::FromStr;

use lsmx_base::sync::Arc;
use lsmx_compaction::{CompactionPolicy, Debt, Job, PolicySpec, RunningJobs, TreeShape};

/// Text before the name of a custom policy. No name of a preset contains a colon, so builds that do not know
/// this form refuse it.
const CUSTOM_PREFIX: &str = "custom:";

/// The compaction policy of a keyspace.
#[derive(Clone, Debug)]
pub enum Policy {
    /// A preset or a composed policy.
    Spec(PolicySpec),
    /// A policy of the caller's own type. Keyspaces store its name.
    Custom(Arc<dyn CompactionPolicy>),
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.stored().fmt(f)
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
    /// Returns the form that the manifest stores.
    pub(crate) fn stored(&self) -> StoredPolicy {
        match self {
            Policy::Spec(spec) => StoredPolicy::Spec(spec.clone()),
            Policy::Custom(policy) => StoredPolicy::Custom(policy.name().to_owned()),
        }
    }

    /// Returns the policy if it is of the caller's own type.
    pub(crate) fn custom(&self) -> Option<&Arc<dyn CompactionPolicy>> {
        match self {
            Policy::Spec(_) => None,
            Policy::Custom(policy) => Some(policy),
        }
    }
}

/// A policy by its spec, or the name of a custom one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum StoredPolicy {
    /// A preset or composed policy, which its spec describes whole.
    Spec(PolicySpec),
    /// A policy of the caller's own type, which the caller gives at each open.
    Custom(String),
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
        }
    }
}

impl FromStr for StoredPolicy {
    type Err = lsmx_compaction::Error;

    fn from_str(text: &str) -> Result<StoredPolicy, lsmx_compaction::Error> {
        match text.strip_prefix(CUSTOM_PREFIX) {
            Some(name) => Ok(StoredPolicy::Custom(name.to_owned())),
            None => text.parse().map(StoredPolicy::Spec),
        }
    }
}

/// Stands in for a custom policy that was not given: it picks no job and stops no write.
#[derive(Debug)]
pub(crate) struct AbsentPolicy(pub(crate) String);

impl CompactionPolicy for AbsentPolicy {
    fn name(&self) -> &str {
        &self.0
    }

    fn pick(&self, _: &TreeShape, _: &RunningJobs) -> Option<Job> {
        None
    }

    fn debt(&self, _: &TreeShape, _: &RunningJobs) -> Debt {
        Debt::default()
    }

    fn must_stop(&self, _: &TreeShape) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_policy_reads_back_and_a_custom_one_is_no_spec() {
        for text in
            ["leveled", "tiering(T=3)", "custom:mine", "custom:leveled", "custom:a (b=\"c\")"]
        {
            let stored: StoredPolicy = text.parse().unwrap();
            assert_eq!(stored.to_string(), text);
            assert_eq!(text.parse::<PolicySpec>().is_ok(), !text.starts_with(CUSTOM_PREFIX));
        }
    }
}
