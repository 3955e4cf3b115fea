//! A compaction filter that does not change what readers see.

use lsmx::CompactionFilter;
use lsmx::compaction_filter::{FilterContext, FilterDecision, FilterError, FilterValue};

/// Replaces the values of half of the keys by equal values, keeps the values of a quarter, and fails for the other
/// keys. No value changes, so the model of a history does not depend on which values compactions pass to the filter.
#[derive(Debug)]
pub(crate) struct RewritingFilter;

impl CompactionFilter for RewritingFilter {
    fn name(&self) -> &'static str {
        "rewriting"
    }

    fn filter(
        &self,
        key: &[u8],
        value: &FilterValue<'_>,
        _: &FilterContext,
    ) -> Result<FilterDecision, FilterError> {
        match key.iter().fold(0u8, |sum, byte| sum.wrapping_mul(31).wrapping_add(*byte)) % 4 {
            0 => Ok(FilterDecision::Keep),
            1 => Err(FilterError::new("the key is not accepted")),
            _ => Ok(FilterDecision::Change(value.bytes()?.to_vec())),
        }
    }
}
