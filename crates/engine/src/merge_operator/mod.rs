//! Merge operators: they update a value without reading it.
//!
//! A merge stores an *operand*. Reads and compactions combine the operands of a key with its value. The merge operator of a
//! keyspace, see [`KeyspaceOptions::merge_operator`](crate::KeyspaceOptions::merge_operator), defines how.
//! The page `docs/guide/merge-operators.md` shows how to use and how to write one.

pub(crate) mod builtin;

use std::borrow::Cow;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use lsmx_base::sync::Arc;

use crate::callback::{self, CallbackContext, panic_message};

pub use crate::merge_operator::builtin::{Append, Counter, FieldUpdate, Max, Min, SetUnion};

/// Number of operands of a key in one memtable at which the writer merges them, so that reads find few. `n` concurrent
/// writers of the key may exceed it by `n`.
#[cfg_attr(feature = "internals", visibility::make(pub))]
pub(crate) const CHAIN_OPERANDS_MAX: u32 = 32;
/// Size of the operands of a key in one memtable at which the writer merges them, in bytes.
#[cfg_attr(feature = "internals", visibility::make(pub))]
pub(crate) const CHAIN_BYTES_MAX: u64 = 64 << 10;

/// Error of a merge operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergeError(Cow<'static, str>);

impl MergeError {
    /// Creates an error with a message in lower case without a full stop.
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

/// Value after a full merge, `None` if the key has no value.
pub type MergeResult = Result<Option<Vec<u8>>, MergeError>;

/// Combines the operands of a keyspace.
///
/// # Laws
/// 1. *Deterministic.* Equal arguments give equal results, in every process that opens the database, as long as the name
///    stays the same. An operator uses no clock, no random numbers and no state.
/// 2. *Partial merges change nothing.* If `partial_merge(k, a, b)` is `Some(c)`, then the operands `…, a, b, …` and
///    `…, c, …` give the same value for every base. Adjacent operands may be merged in any grouping, but not reordered.
/// 3. *Stepwise merges change nothing.* Merging `x` with the base, and then `y` with the result, gives the same value as
///    merging `x, y`. A result of `None` is a base of `None` in the next step.
///
/// If an operator fails or panics, a read of the key fails with [`Error::MergeFailed`](crate::Error::MergeFailed) until
/// the key is put or deleted. Other keys are not affected, and iterators continue after the key. Compactions keep the
/// operands.
///
/// Operators are called from several threads at the same time. They must not call the database.
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
    /// Returns the name, 1 to 255 bytes. The keyspace stores it. An operator with other results
    /// needs another name.
    fn name(&self) -> &str;

    /// Returns the value after applying `operands` to the value `base`.
    ///
    /// There is at least one operand, oldest first. A base or a result of `None` means that the key has no value.
    ///
    /// # Errors
    /// Fails if the bytes are invalid.
    fn full_merge(&self, key: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> MergeResult;

    /// Returns one operand that is equivalent to `older` followed by `newer`, or `None`, which is the default.
    ///
    /// Operators that implement this keep few operands per key, without reads of the base.
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

/// Calls a user's operator. Returns a panic as an error.
fn catch_panic<T>(call: impl FnOnce() -> T) -> Result<T, MergeError> {
    let _inside = callback::enter(CallbackContext::MergeOperator);
    // The operator is borrowed and has no state, so a panic leaves nothing inconsistent.
    catch_unwind(AssertUnwindSafe(call)).map_err(|panic| {
        MergeError::new(format!("the merge operator panicked: {}", panic_message(&*panic)))
    })
}

/// Calls [`MergeOperator::full_merge`]. A result above `bytes_max` is an error.
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

/// Calls [`MergeOperator::partial_merge`]. Returns `None` after a panic, or if the result is larger than `bytes_max`.
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

    /// Panics at the operand `panic`. Otherwise returns ten bytes.
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
