//! A compaction filter that does not change what readers see.

use lsmx::CompactionFilter;
use lsmx::compaction_filter::{FilterContext, FilterDecision, FilterError, FilterValue};

/// A filter that leaves all values as they are, but takes each path of the code: for half of the keys it returns a
/// copy of the value as a change, for a quarter it keeps the value, and for the others it fails.
///
/// Compactions are free in which values they pass to a filter. A model can therefore predict reads only if the filter
/// changes nothing.
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
