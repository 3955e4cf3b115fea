//! Compaction filters: they remove or change values while compactions rewrite them.
//!
//! A compaction passes values to the filter of the keyspace, see
//! [`KeyspaceOptions::compaction_filter`](crate::KeyspaceOptions::compaction_filter). The filter decides whether the
//! compaction keeps, removes or changes a value. The page `docs/guide/compaction-filters.md` shows how to write one.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use lsmx_base::key::SeqNo;
use lsmx_base::slice::Slice;
use lsmx_base::sync::Arc;

use crate::callback::{self, CallbackContext, panic_message};
use crate::error::Result;

/// Error of a compaction filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterError(Cow<'static, str>);

impl FilterError {
    /// Creates an error with a message in lower case without a full stop.
    pub fn new(message: impl Into<Cow<'static, str>>) -> FilterError {
        FilterError(message.into())
    }
}

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for FilterError {}

/// Decision of a compaction filter about a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FilterDecision {
    /// The compaction keeps the value.
    Keep,
    /// The key is deleted. Older values of the key do not become visible.
    Remove,
    /// The contained bytes replace the value. The sequence number does not change.
    Change(Vec<u8>),
}

/// Metadata of a value, and of the compaction that passes the value to a filter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FilterContext {
    /// Sequence number of the value. If the compaction has folded merge operands into the value, this is the sequence
    /// number of the newest operand.
    pub seq: SeqNo,
    /// Level to which the compaction writes.
    pub level: u8,
    /// True if the compaction writes the last sorted run of its key range. A removed value then leaves no tombstone,
    /// unless a snapshot is older than the value.
    pub is_last_run: bool,
    /// Expiry time of the value in microseconds of the database clock, if it expires. A changed value keeps it. Expired
    /// values are not passed to the filter.
    pub expiry_us: Option<u64>,
}

/// Value that a compaction passes to a filter.
///
/// A test of a filter creates one with `FilterValue::from(&bytes[..])`.
pub struct FilterValue<'a> {
    source: FilterValueSource<'a>,
    /// Result of the first read from the blob file.
    read: OnceCell<Result<Slice, FilterError>>,
}

enum FilterValueSource<'a> {
    Table(&'a [u8]),
    BlobFile(&'a dyn Fn() -> Result<Slice>),
}

impl<'a> FilterValue<'a> {
    /// Creates a value that `read` reads from a blob file.
    pub(crate) fn in_blob_file(read: &'a dyn Fn() -> Result<Slice>) -> FilterValue<'a> {
        FilterValue { source: FilterValueSource::BlobFile(read), read: OnceCell::new() }
    }

    /// Returns the bytes of the value. The first call reads a separated value from its blob file.
    ///
    /// # Errors
    /// Fails if the blob file cannot be read.
    pub fn bytes(&self) -> Result<&[u8], FilterError> {
        let read = match self.source {
            FilterValueSource::Table(bytes) => return Ok(bytes),
            FilterValueSource::BlobFile(read) => read,
        };
        let value =
            self.read.get_or_init(|| read().map_err(|error| FilterError::new(error.to_string())));
        value.as_deref().map_err(FilterError::clone)
    }

    /// Returns whether the value is in a blob file.
    #[must_use]
    pub fn is_separated(&self) -> bool {
        matches!(self.source, FilterValueSource::BlobFile(_))
    }
}

impl<'a> From<&'a [u8]> for FilterValue<'a> {
    fn from(bytes: &'a [u8]) -> FilterValue<'a> {
        FilterValue { source: FilterValueSource::Table(bytes), read: OnceCell::new() }
    }
}

impl fmt::Debug for FilterValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FilterValue").field("is_separated", &self.is_separated()).finish()
    }
}

/// Decides which values of a keyspace compactions keep, remove or change.
///
/// A compaction passes a value if it is the newest version of its key among the inputs and no snapshot sees it. The
/// filter sees no tombstones and no merge operands. Operands are passed as a value after the compaction has folded them.
///
/// # Calls
/// The engine decides when it compacts a value. Flushes, trivial moves, garbage collections of blob files and jobs that
/// drop whole files do not call the filter. A value may be passed at any time after its write, many times, or never.
/// The engine discards the decisions of a compaction that fails, and passes a changed value again in later compactions.
/// The application must therefore accept the original value as well as the filtered one.
///
/// While a snapshot is open, only values that were written after it are passed. A transaction in any keyspace keeps a
/// snapshot until it ends. If snapshots and transactions overlap without a gap, compactions pass almost no values, and
/// the filter has no effect.
///
/// A value may be passed although a newer version of its key exists in a memtable or in another run. Readers do not
/// see such a value. In a keyspace with a merge operator, a value is passed only if no newer entry of its key is found in
/// memtables, tables and the operand store. Operands that are written later are merged with the result of the filter.
///
/// # Removals and changes
/// A removal or a change is not a commit: it has no sequence number of its own, and guards ignore it. The results of
/// reads through a snapshot or an iterator do not change. A snapshot that is taken during a compaction may see a
/// removed or changed value. If such a snapshot, or that of a transaction, is open when the compaction ends, the engine
/// discards the results and repeats the merge without the filter.
/// [`CompactionFilterMetrics::repeated_merges`](crate::metrics::CompactionFilterMetrics::repeated_merges) counts these
/// repetitions.
///
/// # Errors
/// If a filter fails or panics, the compaction keeps the value and continues. The event
/// [`Event::CompactionFilterFailed`](crate::Event::CompactionFilterFailed) and the counter
/// [`CompactionFilterMetrics::errors`](crate::metrics::CompactionFilterMetrics::errors) report the failure.
///
/// Filters are called from several threads at the same time. They must not call the database.
///
/// ```
/// use lsmx::CompactionFilter;
/// use lsmx::compaction_filter::{FilterContext, FilterDecision, FilterError, FilterValue};
///
/// /// Removes the sessions of a tenant that has left. Keys start with the name of the tenant.
/// #[derive(Debug)]
/// struct WithoutTenant(Vec<u8>);
///
/// impl CompactionFilter for WithoutTenant {
///     fn name(&self) -> &str {
///         "example.without-tenant"
///     }
///
///     fn filter(
///         &self,
///         key: &[u8],
///         _: &FilterValue<'_>,
///         _: &FilterContext,
///     ) -> Result<FilterDecision, FilterError> {
///         Ok(if key.starts_with(&self.0) { FilterDecision::Remove } else { FilterDecision::Keep })
///     }
/// }
///
/// let filter = WithoutTenant(b"acme/".to_vec());
/// let value = FilterValue::from(&b"session"[..]);
/// let decision = filter.filter(b"acme/7", &value, &FilterContext::default());
/// assert_eq!(decision, Ok(FilterDecision::Remove));
/// ```
pub trait CompactionFilter: Send + Sync + fmt::Debug {
    /// Returns the name, 1 to 255 bytes. Events contain it.
    fn name(&self) -> &str;

    /// Decides whether the compaction keeps, removes or changes a value.
    ///
    /// # Errors
    /// Fails if the filter cannot decide. The compaction keeps the value.
    fn filter(
        &self,
        key: &[u8],
        value: &FilterValue<'_>,
        context: &FilterContext,
    ) -> Result<FilterDecision, FilterError>;
}

impl<T: CompactionFilter + ?Sized> CompactionFilter for Arc<T> {
    fn name(&self) -> &str {
        (**self).name()
    }

    fn filter(
        &self,
        key: &[u8],
        value: &FilterValue<'_>,
        context: &FilterContext,
    ) -> Result<FilterDecision, FilterError> {
        (**self).filter(key, value, context)
    }
}

/// Calls [`CompactionFilter::filter`]. Returns an error if the filter panics or returns a value of more than
/// `bytes_max` bytes.
pub(crate) fn call_filter(
    filter: &dyn CompactionFilter,
    key: &[u8],
    value: &FilterValue<'_>,
    context: &FilterContext,
    bytes_max: usize,
) -> Result<FilterDecision, FilterError> {
    let _inside = callback::enter(CallbackContext::CompactionFilter);
    // Unwind safety: the engine reads no state of the filter.
    let decision = catch_unwind(AssertUnwindSafe(|| filter.filter(key, value, context)));
    let decision = decision.map_err(|panic| {
        FilterError::new(format!("the compaction filter panicked: {}", panic_message(&*panic)))
    })??;
    match &decision {
        FilterDecision::Change(value) if value.len() > bytes_max => {
            let bytes = value.len();
            Err(FilterError::new(format!(
                "the value would have {bytes} bytes, the limit is {bytes_max}"
            )))
        }
        _ => Ok(decision),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::error::Error;

    /// Panics at the value `panic`, reads no value of the key `unread`, and otherwise appends an exclamation mark.
    #[derive(Debug)]
    struct Exclaiming;

    impl CompactionFilter for Exclaiming {
        fn name(&self) -> &'static str {
            "exclaiming"
        }

        fn filter(
            &self,
            key: &[u8],
            value: &FilterValue<'_>,
            _: &FilterContext,
        ) -> Result<FilterDecision, FilterError> {
            if key == b"unread" {
                return Ok(FilterDecision::Remove);
            }
            let value = value.bytes()?;
            assert!(value != b"panic", "bad value");
            Ok(FilterDecision::Change([value, b"!"].concat()))
        }
    }

    fn call(
        key: &[u8],
        value: &FilterValue<'_>,
        bytes_max: usize,
    ) -> Result<FilterDecision, String> {
        let called = call_filter(&Exclaiming, key, value, &FilterContext::default(), bytes_max);
        called.map_err(|error| error.to_string())
    }

    #[test]
    fn filter_panics_or_result_is_too_large_fails() {
        let fine = FilterValue::from(&b"fine"[..]);
        assert_eq!(call(b"k", &fine, 5), Ok(FilterDecision::Change(b"fine!".to_vec())));
        assert!(call(b"k", &fine, 4).unwrap_err().contains("5 bytes, the limit is 4"));
        let panic = FilterValue::from(&b"panic"[..]);
        assert!(call(b"k", &panic, 9).unwrap_err().contains("panicked: bad value"));
        assert_eq!(callback::context_name(), None);
    }

    #[test]
    fn filter_value_in_blob_file_is_read_once_and_only_if_needed() {
        let reads = Cell::new(0);
        let read = || {
            reads.set(reads.get() + 1);
            Ok(Slice::from(&b"far"[..]))
        };
        let value = FilterValue::in_blob_file(&read);
        assert!(value.is_separated());
        assert_eq!(call(b"unread", &value, 9), Ok(FilterDecision::Remove));
        assert_eq!(reads.get(), 0);
        for _ in 0..2 {
            assert_eq!(call(b"k", &value, 9), Ok(FilterDecision::Change(b"far!".to_vec())));
        }
        assert_eq!(reads.get(), 1);
        let unreadable = || Err(Error::Closed);
        let failed = call(b"k", &FilterValue::in_blob_file(&unreadable), 9);
        assert_eq!(failed, Err(Error::Closed.to_string()));
    }
}
