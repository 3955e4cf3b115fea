//! Merge operators for which the order of operands counts, so that one that is lost, doubled or out of
//! its place shows.

use std::sync::Arc;

use lsmx::merge_operator::Append;
use lsmx::{MergeOperator, MergeResult};

/// Longest value of a [`Snake`].
const SNAKE_BYTES: usize = 600;

/// Appends without merging partially; where the value would become too long, there is none.
#[derive(Debug)]
struct Snake;

impl MergeOperator for Snake {
    fn name(&self) -> &'static str {
        "snake"
    }

    fn full_merge(&self, _: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> MergeResult {
        Ok(operands.iter().fold(base.map(<[u8]>::to_vec), |value, operand| {
            let mut value = value.unwrap_or_default();
            value.extend_from_slice(operand);
            (value.len() <= SNAKE_BYTES).then_some(value)
        }))
    }
}

/// The operator of a keyspace, by its place in the list of names.
pub fn operator(keyspace: usize) -> Arc<dyn MergeOperator> {
    match keyspace % 2 {
        0 => Arc::new(Append::with_separator(b"|")),
        _ => Arc::new(Snake),
    }
}
