//! Merge operators: a write that says how a value changes, without reading it.
//!
//! A merge stores an *operand*. What a key's operands amount to is worked out when it is read, and
//! by the jobs that rewrite its versions anyway. How they fold is the operator's business, which a
//! keyspace is given with [`KeyspaceOptions::merge_operator`](crate::KeyspaceOptions::merge_operator).
//! `docs/guide/merge-operators.md` shows how to use and how to write one.

pub(crate) mod builtin;

use std::borrow::Cow;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use lsmx_base::sync::Arc;

use crate::callback::{self, CallbackContext, panic_message};

pub use crate::merge_operator::builtin::{Append, Counter, FieldUpdate, Max, Min, SetUnion};

/// Operands of a key in one memtable at which the writer folds them, so that no reader has to walk
/// more of them there. Several writers of one key at the same time may exceed it by their number.
pub const CHAIN_OPERANDS_MAX: u32 = 32;
/// Bytes of a key's operands in one memtable at which the writer folds them.
pub const CHAIN_BYTES_MAX: u64 = 64 << 10;
/// Longest name of an operator, in bytes.
pub const OPERATOR_NAME_BYTES_MAX: usize = 255;

/// Why operands do not fold: the operator's own words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergeError(Cow<'static, str>);

impl MergeError {
    /// An error that says this: lower case, no full stop.
    pub fn new(why: impl Into<Cow<'static, str>>) -> MergeError {
        MergeError(why.into())
    }
}

impl fmt::Display for MergeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for MergeError {}

/// How the operands of a keyspace fold.
///
/// # Laws
/// 1. *Deterministic.* Equal arguments give equal results, in every process that opens the database,
///    for as long as the name stays the same. No clock, no randomness, no state.
/// 2. *Partial merges change nothing.* Whenever `partial_merge(k, a, b)` is `Some(c)`, then for every
///    base and all operands before and after, folding `… a, b …` and folding `… c …` give the same
///    value. Operands may be paired in any grouping, never in another order.
/// 3. *In steps as at once.* Folding `x` onto the base, and then `y` onto the result, gives what
///    folding `x, y` gives; a result of `None` is the absent base of the next step.
///
/// An operator may fail on bytes that make no sense to it. Then reading the key is
/// [`Error::MergeFailed`](crate::Error::MergeFailed) until it is put or deleted; all other keys are
/// read as ever, by ranges too, which go on after it; jobs go on and keep the operands as they are. A panic counts as a failure.
/// Operators are called by readers, writers and jobs at the same time, and must not call the
/// database.
pub trait MergeOperator: Send + Sync + fmt::Debug {
    /// Its name, which the keyspace remembers: 1 to [`OPERATOR_NAME_BYTES_MAX`] bytes. Another way
    /// of folding needs another name.
    fn name(&self) -> &str;

    /// The value that a key has after these operands, oldest first and at least one, change `base`,
    /// its value before; `None` on either side stands for a key without a value.
    ///
    /// # Errors
    /// When the bytes make no sense.
    fn full_merge(
        &self,
        key: &[u8],
        base: Option<&[u8]>,
        operands: &[&[u8]],
    ) -> Result<Option<Vec<u8>>, MergeError>;

    /// One operand that does what `older` and then `newer` do, or `None` if there is none. Operators
    /// that have one keep their operands few without ever reading a base.
    fn partial_merge(&self, key: &[u8], older: &[u8], newer: &[u8]) -> Option<Vec<u8>> {
        let _ = (key, older, newer);
        None
    }
}

impl<T: MergeOperator + ?Sized> MergeOperator for Arc<T> {
    fn name(&self) -> &str {
        (**self).name()
    }

    fn full_merge(
        &self,
        key: &[u8],
        base: Option<&[u8]>,
        operands: &[&[u8]],
    ) -> Result<Option<Vec<u8>>, MergeError> {
        (**self).full_merge(key, base, operands)
    }

    fn partial_merge(&self, key: &[u8], older: &[u8], newer: &[u8]) -> Option<Vec<u8>> {
        (**self).partial_merge(key, older, newer)
    }
}

/// Calls a user's operator; a panic is an answer like any other.
fn guarded<T>(call: impl FnOnce() -> T) -> Result<T, MergeError> {
    let _inside = callback::enter(CallbackContext::MergeOperator);
    // The operator is borrowed and has no state by law, so nothing half done can be seen.
    catch_unwind(AssertUnwindSafe(call)).map_err(|panic| {
        MergeError::new(format!("the merge operator panicked: {}", panic_message(&*panic)))
    })
}

/// A full merge whose result has at most `limit` bytes.
pub(crate) fn full(
    operator: &dyn MergeOperator,
    key: &[u8],
    base: Option<&[u8]>,
    operands: &[&[u8]],
    limit: usize,
) -> Result<Option<Vec<u8>>, MergeError> {
    let value = guarded(|| operator.full_merge(key, base, operands))??;
    match &value {
        Some(value) if value.len() > limit => {
            let bytes = value.len();
            Err(MergeError::new(format!(
                "the value would have {bytes} bytes, the limit is {limit}"
            )))
        }
        _ => Ok(value),
    }
}

/// A partial merge whose result has at most `limit` bytes; a failure counts as "there is none".
pub(crate) fn partial(
    operator: &dyn MergeOperator,
    key: &[u8],
    older: &[u8],
    newer: &[u8],
    limit: usize,
) -> Option<Vec<u8>> {
    let merged = guarded(|| operator.partial_merge(key, older, newer)).ok().flatten();
    merged.filter(|merged| merged.len() <= limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Moody;

    impl MergeOperator for Moody {
        fn name(&self) -> &'static str {
            "moody"
        }
        fn full_merge(
            &self,
            _: &[u8],
            _: Option<&[u8]>,
            operands: &[&[u8]],
        ) -> Result<Option<Vec<u8>>, MergeError> {
            assert!(operands[0] != b"panic", "not this one");
            Ok(Some(vec![0; 10]))
        }
        fn partial_merge(&self, _: &[u8], older: &[u8], _: &[u8]) -> Option<Vec<u8>> {
            assert!(older != b"panic", "nor this one");
            Some(vec![0; 10])
        }
    }

    #[test]
    fn panics_and_oversized_results_are_failures() {
        let full = |operand: &[u8], limit| full(&Moody, b"k", None, &[operand], limit);
        assert_eq!(full(b"fine", 10), Ok(Some(vec![0; 10])));
        assert!(full(b"fine", 9).unwrap_err().to_string().contains("10 bytes, the limit is 9"));
        assert!(full(b"panic", 10).unwrap_err().to_string().contains("not this one"));
        assert!(partial(&Moody, b"k", b"fine", b"", 10).is_some());
        assert_eq!(partial(&Moody, b"k", b"fine", b"", 9), None);
        assert_eq!(partial(&Moody, b"k", b"panic", b"", 10), None);
    }
}
