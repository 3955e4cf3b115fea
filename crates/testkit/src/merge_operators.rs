//! Merge operators that depend on the order of operands. If an operand is lost, repeated or misplaced, the value is
//! different.

use std::sync::Arc;

use lsmx::merge_operator::Append;
use lsmx::{MergeOperator, MergeResult};

/// Appends operands, and supports no partial merge. Deletes a value that becomes longer than `bytes_max`.
#[derive(Debug)]
struct BoundedAppend {
    bytes_max: usize,
}

impl MergeOperator for BoundedAppend {
    fn name(&self) -> &'static str {
        "bounded"
    }

    fn full_merge(&self, _: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> MergeResult {
        Ok(operands.iter().fold(base.map(<[u8]>::to_vec), |value, operand| {
            let mut value = value.unwrap_or_default();
            value.extend_from_slice(operand);
            (value.len() <= self.bytes_max).then_some(value)
        }))
    }
}

/// Returns the merge operator of the keyspace with this index. For odd indexes, the operator deletes values longer than
/// `bytes_max`.
#[must_use]
pub fn merge_operator(keyspace: usize, bytes_max: usize) -> Arc<dyn MergeOperator> {
    match keyspace % 2 {
        0 => Arc::new(Append::with_separator(b"|")),
        _ => Arc::new(BoundedAppend { bytes_max }),
    }
}
