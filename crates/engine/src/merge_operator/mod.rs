//! Merge operators: update a value without reading it first.
//!
//! A merge stores an *operand*. Reads and compactions combine the operands of a key with the value of the key. The
//! merge operator of a keyspace defines how values and operands are combined, see
//! [`KeyspaceOptions::merge_operator`](crate::KeyspaceOptions::merge_operator). The page
//! `docs/guide/merge-operators.md` explains how to use and implement merge operators.

pub(crate) mod builtin;

use std::borrow::Cow;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use lsmx_base::sync::Arc;

use crate::callback::{self, CallbackContext, panic_message};

pub use crate::merge_operator::builtin::{Append, Counter, FieldUpdate, Max, Min, SetUnion};

/// Number of operands of one key in a memtable at which the writer merges them, so that reads have to merge few
/// operands. If `n` threads write the key concurrently, the number may exceed this limit by `n`.
#[cfg_attr(feature = "internals", visibility::make(pub))]
pub(crate) const CHAIN_OPERANDS_MAX: u32 = 32;
/// Total size in bytes of the operands of one key in a memtable at which the writer merges them.
#[cfg_attr(feature = "internals", visibility::make(pub))]
pub(crate) const CHAIN_BYTES_MAX: u64 = 64 << 10;

/// Error that a merge operator returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergeError(Cow<'static, str>);

impl MergeError {
    /// Creates an error. The message should start with a lower-case letter and have no full stop.
    pub fn new(message: impl Into<Cow<'static, str>>) -> MergeError {
        MergeError(message.into())
    }
}

impl fmt::Display for MergeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for MergeError {}

/// Result of a full merge: the new value, or `None` if the key has no value.
pub type MergeResult = Result<Option<Vec<u8>>, MergeError>;

/// Combines values and operands of a keyspace.
///
/// # Requirements
/// 1. *Merges are deterministic.* Equal arguments give equal results, in every process that opens the database. An
///    operator must not use a clock, random numbers or mutable state. An operator that gives other results needs
///    another name.
/// 2. *Partial merges do not change results.* If `partial_merge(k, a, b)` is `Some(c)`, the operands `…, a, b, …` and
///    `…, c, …` give the same value for every base. The engine may merge adjacent operands in any grouping, but it
///    never reorders operands.
/// 3. *Merges in several steps do not change results.* If `x` is merged with the base, and then `y` with the result,
///    the value is the same as that of merging `x, y` with the base. If a step returns `None`, the base of the next
///    step is `None`.
///
/// If an operator fails or panics, reads of the key fail with [`Error::MergeFailed`](crate::Error::MergeFailed) until
/// the key is put or deleted. Reads of other keys still work, and iterators can continue after the key. Compactions
/// keep the operands of the key.
///
/// The engine calls an operator from several threads concurrently. An operator must not call the database.
///
/// ```
/// use lsmx::merge_operator::MergeResult;
/// use lsmx::{MergeError, MergeOperator};
///
/// /// Toggles one byte: each operand is combined with the value by exclusive or.
/// #[derive(Debug)]
/// struct Toggle;
///
/// impl MergeOperator for Toggle {
///     fn name(&self) -> &str {
///         "example.toggle"
///     }
///
///     fn full_merge(&self, _: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> MergeResult {
///         base.iter().chain(operands).try_fold(0, |value, bytes| match bytes {
///             [byte] => Ok(value ^ byte),
///             _ => Err(MergeError::new("an operand is not one byte")),
///         }).map(|value| Some(vec![value]))
///     }
///
///     // Two operands are equivalent to one. The engine replaces them early, without a read of the value.
///     fn partial_merge(&self, _: &[u8], older: &[u8], newer: &[u8]) -> Option<Vec<u8>> {
///         match (older, newer) {
///             ([older], [newer]) => Some(vec![older ^ newer]),
///             _ => None,
///         }
///     }
/// }
/// ```
pub trait MergeOperator: Send + Sync + fmt::Debug {
    /// Returns the name of the operator, which has 1 to 255 bytes. The keyspace stores the name.
    fn name(&self) -> &str;

    /// Applies operands to a value, and returns the new value.
    ///
    /// `operands` contains at least one operand, and the oldest operand is the first. `base` is `None` if the key has
    /// no value. The result is `None` if the key has no value after the merge.
    ///
    /// # Errors
    /// Fails if the value or an operand is invalid.
    fn full_merge(&self, key: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> MergeResult;

    /// Returns one operand that is equivalent to `older` followed by `newer`. Returns `None` if there is no such
    /// operand. The default implementation always returns `None`.
    ///
    /// If an operator implements this method, the engine can reduce the number of operands per key without reading the
    /// value.
    fn partial_merge(&self, key: &[u8], older: &[u8], newer: &[u8]) -> Option<Vec<u8>> {
        let _ = (key, older, newer);
        None
    }
}

impl<T: MergeOperator + ?Sized> MergeOperator for Arc<T> {
    fn name(&self) -> &str {
        (**self).name()
    }

    fn full_merge(&self, key: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> MergeResult {
        (**self).full_merge(key, base, operands)
    }

    fn partial_merge(&self, key: &[u8], older: &[u8], newer: &[u8]) -> Option<Vec<u8>> {
        (**self).partial_merge(key, older, newer)
    }
}

/// Calls a merge operator. Converts a panic to an error.
fn catch_panic<T>(call: impl FnOnce() -> T) -> Result<T, MergeError> {
    let _inside = callback::enter(CallbackContext::MergeOperator);
    // The operator is only borrowed and has no mutable state. A panic therefore cannot leave inconsistent state.
    catch_unwind(AssertUnwindSafe(call)).map_err(|panic| {
        MergeError::new(format!("the merge operator panicked: {}", panic_message(&*panic)))
    })
}

/// Calls [`MergeOperator::full_merge`]. Fails if the result has more than `bytes_max` bytes.
pub(crate) fn full_merge(
    operator: &dyn MergeOperator,
    key: &[u8],
    base: Option<&[u8]>,
    operands: &[&[u8]],
    bytes_max: usize,
) -> MergeResult {
    let value = catch_panic(|| operator.full_merge(key, base, operands))??;
    match value.as_ref().map(Vec::len) {
        Some(bytes) if bytes > bytes_max => Err(MergeError::new(format!(
            "the value would have {bytes} bytes, the limit is {bytes_max}"
        ))),
        _ => Ok(value),
    }
}

/// Calls [`MergeOperator::partial_merge`]. Returns `None` if the operator panics, or if the result has more than
/// `bytes_max` bytes.
pub(crate) fn partial_merge(
    operator: &dyn MergeOperator,
    key: &[u8],
    older: &[u8],
    newer: &[u8],
    bytes_max: usize,
) -> Option<Vec<u8>> {
    let merged = catch_panic(|| operator.partial_merge(key, older, newer)).ok().flatten();
    merged.filter(|merged| merged.len() <= bytes_max)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Operator that panics if an operand is `panic`. Otherwise, it returns ten bytes.
    #[derive(Debug)]
    struct PanickingOperator;

    impl MergeOperator for PanickingOperator {
        fn name(&self) -> &'static str {
            "panicking"
        }

        fn full_merge(&self, _: &[u8], _: Option<&[u8]>, operands: &[&[u8]]) -> MergeResult {
            assert!(operands[0] != b"panic", "bad operand");
            Ok(Some(vec![0; 10]))
        }

        fn partial_merge(&self, _: &[u8], older: &[u8], _: &[u8]) -> Option<Vec<u8>> {
            assert!(older != b"panic", "bad older operand");
            Some(vec![0; 10])
        }
    }

    #[test]
    fn merge_panics_or_result_is_too_large_fails() {
        let operator = &PanickingOperator;
        let full = |operand: &[u8], limit| full_merge(operator, b"k", None, &[operand], limit);
        assert_eq!(full(b"fine", 10), Ok(Some(vec![0; 10])));
        assert!(full(b"fine", 9).unwrap_err().to_string().contains("10 bytes, the limit is 9"));
        assert!(full(b"panic", 10).unwrap_err().to_string().contains("bad operand"));
        assert!(partial_merge(operator, b"k", b"fine", b"", 10).is_some());
        assert_eq!(partial_merge(operator, b"k", b"fine", b"", 9), None);
        assert_eq!(partial_merge(operator, b"k", b"panic", b"", 10), None);
    }
}
