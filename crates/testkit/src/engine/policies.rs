//! Fuzz targets for the text forms of compaction policies.

use lsmx_compaction::PolicySpec;
use lsmx_compaction::spec::{PolicyComposition, to_toml};

/// Parses the input as the one-line form of a policy and checks the policy.
pub(super) fn check_policy_text(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Ok(spec) = text.parse::<PolicySpec>() {
        check_policy_spec(&spec);
    }
}

/// Parses the input as a TOML policy file and checks the policy.
pub(super) fn check_policy_toml(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let Ok(spec) = PolicySpec::from_toml(text) else { return };
    check_policy_spec(&spec);
    if spec.preset().is_none() {
        assert_eq!(PolicySpec::from_toml(&policy_toml(&spec)).as_ref(), Ok(&spec), "{spec}");
    }
}

/// Returns a TOML file that composes the policy from its primitives.
pub(super) fn policy_toml(spec: &PolicySpec) -> String {
    to_toml(&PolicyComposition { name: spec.name().to_owned(), primitives: spec.primitives() })
}

/// Checks that the text of the policy parses to the same policy, and that the policy can be built.
fn check_policy_spec(spec: &PolicySpec) {
    assert_eq!(spec.to_string().parse().as_ref(), Ok(spec), "{spec}");
    assert_eq!(spec.build().name(), spec.name());
}
