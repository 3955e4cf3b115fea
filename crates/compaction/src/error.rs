//! What can be wrong with a shape, a job or a spec.

/// An error of this crate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A policy name that is not known.
    #[error("unknown policy {name:?}; known: {known}")]
    UnknownPolicy {
        /// What was asked for.
        name: String,
        /// All names, separated by commas.
        known: String,
    },
}
