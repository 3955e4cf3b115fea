//! Public cursor over the entries of a keyspace.

use std::cell::{Cell, OnceCell, RefCell};
use std::fmt;
use std::ops::{Bound, RangeBounds};

use bytes::Bytes;
use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::slice::Slice;

use crate::error::{Error, Result};
use crate::iter::db_iter::{DbIter, ValueResolver};
use crate::iter::iter_view::IterView;
use crate::iter::key_bounds::{borrowed_bound, key_of_bound, owned_bounds, prefix_upper_bound};
use crate::iter::merging_iter::MergingCursor;
use crate::options::read::ReadOptions;
use crate::table::ScanHints;
use crate::tree::counters::ScanCounter;
use crate::workload_trace::ScanTrace;

/// A cursor over the entries of a keyspace in key order. It borrows keys and values instead of copying them.
///
/// The cursor reads the state of the keyspace at the time of its creation. It keeps the memtables and files of this
/// state until it is dropped. A new cursor has no position. A seek reuses the memory of earlier seeks. A program that
/// performs many seeks should therefore keep one cursor.
///
/// If the cursor has no position, `key` and `value` return `None`, and `next` and `prev` have no effect. After a failed
/// move, the cursor has no position, and `next`, `prev` and `value` return the error until the next seek. With
/// [`ReadTier::Memory`](crate::ReadTier::Memory), a move fails with [`Error::WouldBlock`] if it must read a file or
/// skip many deleted entries.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let db = lsmx::Db::open(dir.path().join("data"), lsmx::Options::default())?;
/// use lsmx::ReadOptions;
///
/// let planets = db.default_keyspace();
/// for name in ["earth", "mars", "venus"] {
///     planets.put(name, "planet")?;
/// }
/// let mut cursor = planets.cursor(&ReadOptions::default())?;
/// cursor.seek("jupiter")?;
/// assert_eq!(cursor.key(), Some(&b"mars"[..]));
/// assert_eq!(cursor.value()?, Some(&b"planet"[..]));
/// cursor.next()?;
/// assert_eq!(cursor.key(), Some(&b"venus"[..]));
/// cursor.seek_for_prev("jupiter")?;
/// assert_eq!(cursor.key(), Some(&b"earth"[..]));
/// cursor.prev()?;
/// assert_eq!(cursor.key(), None);
/// # Ok(())
/// # }
/// ```
pub struct KeyspaceCursor {
    bounds: (Bound<Bytes>, Bound<Bytes>),
    /// `None` before the first seek and after a failed move.
    iter: Option<DbIter<MergingCursor>>,
    position: CursorPosition,
    /// Reads the value of the current entry from the value log.
    values: RefCell<ValueResolver>,
    /// Value of the current entry if it was read from the value log.
    separated_value: OnceCell<Slice>,
    /// Records each seek and the moves after it in a workload trace.
    trace: Option<Box<ScanTrace>>,
    counter: RefCell<ScanCounter>,
    /// Whether the value of the current entry was counted.
    is_value_counted: Cell<bool>,
    /// Declared last, so that it is dropped after `iter`. Its memory is freed in the background.
    view: IterView,
}

/// Position of a [`KeyspaceCursor`].
#[derive(Debug)]
enum CursorPosition {
    /// There is no current entry.
    Unpositioned,
    /// The current entry is the current entry of `iter`.
    AtEntry,
    /// The last move failed with this error.
    Failed(Error),
}

impl KeyspaceCursor {
    /// Creates a cursor over all entries of `view`.
    pub(crate) fn new(
        mut view: IterView,
        options: &ReadOptions,
        trace: Option<Box<ScanTrace>>,
    ) -> KeyspaceCursor {
        view.set_options(options);
        KeyspaceCursor {
            bounds: (Bound::Unbounded, Bound::Unbounded),
            iter: None,
            position: CursorPosition::Unpositioned,
            values: RefCell::new(view.value_resolver()),
            separated_value: OnceCell::new(),
            trace,
            counter: RefCell::new(view.scan_counter()),
            is_value_counted: Cell::new(false),
            view,
        }
    }

    /// Limits the cursor to a range of keys. This replaces an earlier limit. The cursor then has no position.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = lsmx::Db::open(dir.path().join("data"), lsmx::Options::default())?;
    /// use lsmx::ReadOptions;
    ///
    /// let numbers = db.default_keyspace();
    /// for number in 0..10u8 {
    ///     numbers.put([number], "")?;
    /// }
    /// let mut cursor = numbers.cursor(&ReadOptions::default())?.with_bounds([3]..[7]);
    /// cursor.seek_to_first()?;
    /// assert_eq!(cursor.key(), Some(&[3][..]));
    /// cursor.seek([8])?;
    /// assert_eq!(cursor.key(), None);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn with_bounds<K: AsRef<[u8]>>(self, range: impl RangeBounds<K>) -> KeyspaceCursor {
        self.with_owned_bounds(owned_bounds(range))
    }

    /// Limits the cursor to keys that start with `prefix`. This replaces an earlier limit. The cursor then has no
    /// position.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = lsmx::Db::open(dir.path().join("data"), lsmx::Options::default())?;
    /// use lsmx::ReadOptions;
    ///
    /// let words = db.default_keyspace();
    /// for word in ["cat", "dog", "dove", "eel"] {
    ///     words.put(word, "")?;
    /// }
    /// let mut cursor = words.cursor(&ReadOptions::default())?.with_prefix("do");
    /// cursor.seek_to_last()?;
    /// assert_eq!(cursor.key(), Some(&b"dove"[..]));
    /// cursor.next()?;
    /// assert_eq!(cursor.key(), None);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn with_prefix(self, prefix: impl AsRef<[u8]>) -> KeyspaceCursor {
        let prefix = prefix.as_ref();
        let lower = Bound::Included(Bytes::copy_from_slice(prefix));
        self.with_owned_bounds((lower, prefix_upper_bound(prefix)))
    }

    fn with_owned_bounds(self, bounds: (Bound<Bytes>, Bound<Bytes>)) -> KeyspaceCursor {
        // `iter` was opened with the range tombstones of the previous bounds, so it must be opened again.
        KeyspaceCursor { bounds, iter: None, position: CursorPosition::Unpositioned, ..self }
    }

    /// Opens the cursors of all sources.
    fn open_iter(&self) -> Result<DbIter<MergingCursor>> {
        let (lower, upper) = &self.bounds;
        let key = |bound: &Bound<Bytes>| key_of_bound(bound.as_ref()).cloned();
        let scan = ScanHints { lower: key(lower), upper: key(upper), ..ScanHints::default() };
        self.view.open_iter((lower, upper), scan, None)
    }

    /// Moves with `step`, and checks whether the new entry is within the bounds.
    fn move_with(
        &mut self,
        step: impl FnOnce(&mut DbIter<MergingCursor>) -> Result<()>,
    ) -> Result<()> {
        self.position = CursorPosition::Unpositioned;
        self.separated_value.take();
        self.view.begin_call();
        self.counter.get_mut().begin_step(self.view.env());
        let moved = match &mut self.iter {
            Some(iter) => step(iter),
            None => self.open_iter().and_then(|iter| step(self.iter.insert(iter))),
        };
        if !matches!(moved, Err(Error::WouldBlock)) {
            self.counter.get_mut().end_step(self.view.env());
        }
        if let Err(error) = moved {
            // After an error, a source may be unusable, such as an operand store that panicked. The next seek therefore
            // opens all sources again.
            self.iter = None;
            self.position = CursorPosition::Failed(error.clone());
            return Err(error);
        }
        let is_within = |iter: &&DbIter<_>| iter.valid() && self.bounds.contains(iter.key());
        if let Some(iter) = self.iter.as_ref().filter(is_within) {
            self.position = CursorPosition::AtEntry;
            self.counter.get_mut().count_entry(iter.key().len());
            self.is_value_counted.set(false);
            if let Some(trace) = &mut self.trace {
                trace.count_entry();
            }
        }
        Ok(())
    }

    /// Moves with `step` if the cursor has a position.
    fn step_with(
        &mut self,
        step: impl FnOnce(&mut DbIter<MergingCursor>) -> Result<()>,
    ) -> Result<()> {
        match &self.position {
            CursorPosition::Unpositioned => Ok(()),
            CursorPosition::AtEntry => self.move_with(step),
            CursorPosition::Failed(error) => Err(error.clone()),
        }
    }

    /// Moves to the first entry at or after `key`. If `key` is `None`, moves to the first entry within the bounds.
    fn seek_forward(&mut self, key: Option<&[u8]>) -> Result<()> {
        if self.keeps_position() {
            return Ok(());
        }
        let lower = self.bounds.0.clone();
        let lower = match (borrowed_bound(&lower), key) {
            (Bound::Included(lower), Some(key)) if key >= lower => Bound::Included(key),
            (Bound::Excluded(lower), Some(key)) if key > lower => Bound::Included(key),
            (Bound::Unbounded, Some(key)) => Bound::Included(key),
            (lower, _) => lower,
        };
        self.trace_seek(false, lower);
        self.move_with(|iter| iter.seek_first_from(lower))
    }

    /// Moves to the last entry at or before `key`. If `key` is `None`, moves to the last entry within the bounds.
    fn seek_backward(&mut self, key: Option<&[u8]>) -> Result<()> {
        if self.keeps_position() {
            return Ok(());
        }
        let upper = self.bounds.1.clone();
        let upper = match (borrowed_bound(&upper), key) {
            (Bound::Included(upper), Some(key)) if key <= upper => Bound::Included(key),
            (Bound::Excluded(upper), Some(key)) if key < upper => Bound::Included(key),
            (Bound::Unbounded, Some(key)) => Bound::Included(key),
            (upper, _) => upper,
        };
        self.trace_seek(true, upper);
        self.move_with(|iter| iter.seek_last_up_to(upper))
    }

    /// Returns whether a failpoint makes seeks keep the current position.
    fn keeps_position(&self) -> bool {
        failpoint::is_on(Failpoint::CursorKeepsPosition)
            && matches!(self.position, CursorPosition::AtEntry)
    }

    /// Starts a new scan in the workload trace.
    fn trace_seek(&mut self, backward: bool, bound: Bound<&[u8]>) {
        if let Some(trace) = &mut self.trace {
            trace.restart(backward, key_of_bound(bound));
        }
    }

    /// Moves to the first entry at or after `key`. If there is none, the cursor then has no position.
    ///
    /// # Errors
    /// Same as [`Keyspace::get`](crate::Keyspace::get).
    pub fn seek(&mut self, key: impl AsRef<[u8]>) -> Result<()> {
        self.seek_forward(Some(key.as_ref()))
    }

    /// Moves to the last entry at or before `key`. If there is none, the cursor then has no position.
    ///
    /// # Errors
    /// Same as [`KeyspaceCursor::seek`].
    pub fn seek_for_prev(&mut self, key: impl AsRef<[u8]>) -> Result<()> {
        self.seek_backward(Some(key.as_ref()))
    }

    /// Moves to the first entry within the bounds.
    ///
    /// # Errors
    /// Same as [`KeyspaceCursor::seek`].
    pub fn seek_to_first(&mut self) -> Result<()> {
        self.seek_forward(None)
    }

    /// Moves to the last entry within the bounds.
    ///
    /// # Errors
    /// Same as [`KeyspaceCursor::seek`].
    pub fn seek_to_last(&mut self) -> Result<()> {
        self.seek_backward(None)
    }

    /// Moves to the next entry. After the last entry, the cursor has no position.
    ///
    /// # Errors
    /// Same as [`KeyspaceCursor::seek`]. If the previous move failed, its error is returned again.
    #[expect(clippy::should_implement_trait, reason = "an iterator cannot return borrowed entries")]
    pub fn next(&mut self) -> Result<()> {
        self.step_with(DbIter::next)
    }

    /// Moves to the previous entry. Before the first entry, the cursor has no position.
    ///
    /// # Errors
    /// Same as [`KeyspaceCursor::next`].
    pub fn prev(&mut self) -> Result<()> {
        self.step_with(DbIter::prev)
    }

    /// Returns the key of the current entry, or `None` if the cursor has no position.
    #[must_use]
    pub fn key(&self) -> Option<&[u8]> {
        let is_positioned = matches!(self.position, CursorPosition::AtEntry);
        self.iter.as_ref().filter(|_| is_positioned).map(DbIter::key)
    }

    /// Returns the value of the current entry, or `None` if the cursor has no position.
    ///
    /// If the value is in the value log, the first call at an entry reads it. A move reads a value from the value log
    /// only if operands must be combined with it.
    ///
    /// # Errors
    /// - If the value cannot be read or its operands cannot be combined, the same errors as
    ///   [`Keyspace::get`](crate::Keyspace::get). The cursor keeps its position.
    /// - If the last move failed, its error.
    pub fn value(&self) -> Result<Option<&[u8]>> {
        let iter = match (&self.position, &self.iter) {
            (CursorPosition::AtEntry, Some(iter)) => iter,
            (CursorPosition::Failed(error), _) => return Err(error.clone()),
            (CursorPosition::Unpositioned | CursorPosition::AtEntry, _) => return Ok(None),
        };
        if let Some(value) = self.separated_value.get() {
            return Ok(Some(value));
        }
        let Some((seq, pointer)) = iter.value_pointer() else {
            let value = iter.stored_value()?;
            self.count_value(value);
            return Ok(Some(value));
        };
        self.view.begin_call();
        let value = self.values.borrow_mut().read((iter.key(), seq), pointer)?;
        self.count_value(&value);
        Ok(Some(self.separated_value.get_or_init(|| value)))
    }

    /// Counts the value of the current entry if it was not counted yet.
    #[inline]
    fn count_value(&self, value: &[u8]) {
        if !self.is_value_counted.replace(true) {
            self.counter.borrow_mut().add_bytes(value.len());
        }
    }
}

impl fmt::Debug for KeyspaceCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyspaceCursor")
            .field("view", &self.view)
            .field("bounds", &self.bounds)
            .field("position", &self.position)
            .field("key", &self.key())
            .finish_non_exhaustive()
    }
}
