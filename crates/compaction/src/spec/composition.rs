//! Composition: named primitives that describe a policy.

use crate::composed::{PolicyPrimitives, check_primitives};
use crate::error::Error;
use crate::presets::Preset;

/// Maximum length of a name in bytes.
const NAME_BYTES_MAX: usize = 64;

/// A composition: primitives of a policy, with a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyComposition {
    /// Name of the policy in results and errors.
    pub name: String,
    /// Primitives of the policy.
    pub primitives: PolicyPrimitives,
}

impl PolicyComposition {
    /// Creates a policy from a name and primitives, and checks both.
    ///
    /// # Errors
    ///
    /// Fails with [`Error::InvalidSpec`] for an invalid name and with [`Error::InvalidCombination`] for invalid
    /// primitives.
    pub fn new(
        name: impl Into<String>,
        primitives: PolicyPrimitives,
    ) -> Result<PolicyComposition, Error> {
        let name = name.into();
        check_name(&name).map_err(|what| Error::InvalidSpec { line: 1, column: 1, what })?;
        check_primitives(&primitives)?;
        Ok(PolicyComposition { name, primitives })
    }
}

/// Checks the name of a composition. Returns a description of the mistake if the name is not allowed.
pub(super) fn check_name(name: &str) -> Result<(), String> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"+-._".contains(&byte);
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(is_allowed) {
        return Err(format!(
            "name {name:?} is not 1 to {NAME_BYTES_MAX} letters, digits and + - . _"
        ));
    }
    let mut presets = Preset::ALL.into_iter().chain(Preset::DROPPING);
    if presets.any(|preset| preset.has_name_or_alias(name)) {
        return Err(format!("name {name:?} is that of a preset"));
    }
    Ok(())
}
