//! Keys and values in memory, in the order of their addition or sorted.
//!
//! A buffer has a bound on its allocated memory. Its two vectors grow by doubling up to a small part of the bound. They then
//! grow once to the rest of the bound, in the proportion of the entries so far. While a vector grows, its old and its new
//! memory fit into the bound together.

/// Positions of one entry in the bytes of its buffer.
#[derive(Clone, Copy, Debug)]
struct BufferedEntry {
    key_at: usize,
    value_at: usize,
    end: usize,
}

/// The vectors grow by doubling up to the bound divided by this number.
const DOUBLING_DIVISOR: usize = 16;
/// Each vector gets at least the rest of the bound divided by this number, so that entries of other sizes also fit.
const SHARE_MIN_DIVISOR: usize = 8;

/// A buffer of entries.
#[derive(Debug, Default)]
pub(super) struct EntryBuffer {
    bytes: Vec<u8>,
    entries: Vec<BufferedEntry>,
    /// Bound on the memory of both vectors, in bytes.
    memory_bytes_max: usize,
}

impl EntryBuffer {
    /// Returns an empty buffer with a bound on its memory, in bytes.
    pub(super) fn new(memory_bytes_max: u64) -> EntryBuffer {
        let memory_bytes_max = usize::try_from(memory_bytes_max).unwrap_or(usize::MAX);
        EntryBuffer { memory_bytes_max, ..EntryBuffer::default() }
    }

    /// Adds an entry. Returns false if the entry would exceed the memory bound. The owner then clears the buffer and adds
    /// the entry again.
    ///
    /// An empty buffer accepts each entry, so a single large entry may exceed the bound.
    #[must_use]
    pub(super) fn push(&mut self, key: &[u8], value: &[u8]) -> bool {
        if !self.reserve(key.len() + value.len()) {
            return false;
        }
        let key_at = self.bytes.len();
        let value_at = key_at + key.len();
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
        self.entries.push(BufferedEntry { key_at, value_at, end: value_at + value.len() });
        true
    }

    /// Allocates memory for one more entry with this many bytes. Returns false if the buffer is full.
    fn reserve(&mut self, bytes: usize) -> bool {
        let needed = (self.bytes.len() + bytes, self.entries.len() + 1);
        if needed.0 <= self.bytes.capacity() && needed.1 <= self.entries.capacity() {
            return true;
        }
        if self.is_empty() {
            self.free();
        }
        let grown = self.grown_capacities(needed).or(self.is_empty().then_some(needed));
        let Some((bytes, entries)) = grown else { return false };
        self.bytes.reserve_exact(bytes.saturating_sub(self.bytes.len()));
        self.entries.reserve_exact(entries.saturating_sub(self.entries.len()));
        true
    }

    /// Returns the capacities to which the vectors grow, in bytes and entries. Returns `None` if the old and the new
    /// memory would exceed the bound. `needed` are the required capacities.
    fn grown_capacities(&self, needed: (usize, usize)) -> Option<(usize, usize)> {
        let (max, allocated) = (self.memory_bytes_max, self.allocated_bytes());
        let doubled = (
            doubled_capacity(needed.0, self.bytes.capacity()),
            doubled_capacity(needed.1, self.entries.capacity()),
        );
        let peak = doubled.0.saturating_add(entries_bytes(doubled.1)).saturating_add(allocated);
        if peak <= max / DOUBLING_DIVISOR {
            return Some(doubled);
        }
        let rest = max.saturating_sub(allocated);
        let entry_bytes_mean = (needed.0 + entries_bytes(needed.1)) / needed.1;
        let share_min = rest / SHARE_MIN_DIVISOR;
        let share = entries_bytes(rest / entry_bytes_mean).clamp(share_min, rest - share_min);
        let entries = share / size_of::<BufferedEntry>();
        let bytes = rest - entries_bytes(entries);
        (needed.0 <= bytes && needed.1 <= entries).then_some((bytes, entries))
    }

    /// Frees the memory of an empty buffer.
    fn free(&mut self) {
        (self.bytes, self.entries) = (Vec::new(), Vec::new());
    }

    /// Returns the memory of the entries, in bytes.
    fn used_bytes(&self) -> usize {
        self.bytes.len() + entries_bytes(self.entries.len())
    }

    /// Returns the allocated memory, in bytes.
    fn allocated_bytes(&self) -> usize {
        self.bytes.capacity() + entries_bytes(self.entries.capacity())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Removes all entries. Keeps the memory if the entries used most of it. Otherwise, the proportion of the vectors was
    /// wrong, or an entry exceeded the bound.
    pub(super) fn clear(&mut self) {
        let max = self.memory_bytes_max;
        let keeps_memory = self.used_bytes() >= max - max / 4 && self.allocated_bytes() <= max;
        self.bytes.clear();
        self.entries.clear();
        if !keeps_memory {
            self.free();
        }
    }

    /// Sorts the entries by key. Of several entries with one key, only the last one added remains.
    pub(super) fn sort(&mut self) {
        let EntryBuffer { bytes, entries, .. } = self;
        let key = |entry: &BufferedEntry| &bytes[entry.key_at..entry.value_at];
        // Entries of one key are sorted by descending position, so that `dedup_by` keeps the one that was added last.
        // An entry without bytes has the same `end` as the entry before it, so `value_at` is compared first.
        let position = |entry: &BufferedEntry| (entry.value_at, entry.end);
        entries.sort_unstable_by(|a, b| key(a).cmp(key(b)).then(position(b).cmp(&position(a))));
        entries.dedup_by(|later, earlier| key(later) == key(earlier));
    }

    /// Returns the keys and values.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.entries.iter().map(|entry| {
            (&self.bytes[entry.key_at..entry.value_at], &self.bytes[entry.value_at..entry.end])
        })
    }
}

/// Returns the capacity of a vector that grows by doubling if needed.
fn doubled_capacity(needed: usize, capacity: usize) -> usize {
    if needed <= capacity { capacity } else { needed.max(2 * capacity) }
}

fn entries_bytes(count: usize) -> usize {
    count * size_of::<BufferedEntry>()
}

#[cfg(test)]
mod tests {
    use lsmx_testkit::TestRng;

    use super::*;

    const MEMORY_BYTES: usize = 1 << 20;

    fn buffer() -> EntryBuffer {
        EntryBuffer::new(MEMORY_BYTES as u64)
    }

    /// Bug: the bound applied to the added bytes. The vectors had up to twice this memory, and while one of them grew, also
    /// its old memory.
    #[test]
    fn push_old_and_new_memory_of_growing_buffer_obey_the_bound() {
        let mut rng = TestRng::new(5);
        for value_bytes_max in [1, 40, 400, 40_000, 400_000] {
            let (mut buffer, mut cleared) = (buffer(), 0);
            while cleared < 5 {
                let value = vec![1; rng.below(value_bytes_max)];
                let before = (buffer.bytes.capacity(), entries_bytes(buffer.entries.capacity()));
                if !buffer.push(b"key", &value) {
                    let used = buffer.used_bytes() + value.len();
                    assert!(used > MEMORY_BYTES / 4 * 3, "{used} with values of {value_bytes_max}");
                    buffer.clear();
                    assert!(buffer.push(b"key", &value));
                    cleared += 1;
                    continue;
                }
                let after = (buffer.bytes.capacity(), entries_bytes(buffer.entries.capacity()));
                let old_bytes = if before.0 == after.0 { 0 } else { before.0 };
                let old_entries = if before.1 == after.1 { 0 } else { before.1 };
                let peak = after.0 + after.1 + old_entries.max(old_bytes);
                assert!(peak <= MEMORY_BYTES, "{peak} after values of {value_bytes_max}");
            }
        }
    }

    #[test]
    fn push_large_entry_is_accepted_alone() {
        let large = vec![1; 2 * MEMORY_BYTES];
        let mut buffer = buffer();
        assert!(buffer.push(b"a", b"small"));
        assert!(!buffer.push(b"b", &large));
        buffer.clear();
        assert!(buffer.push(b"b", &large));
        assert!(!buffer.push(b"c", b"small"));
        buffer.clear();
        assert!(buffer.allocated_bytes() <= MEMORY_BYTES);
        for number in 0..1_000_u32 {
            assert!(buffer.push(&number.to_be_bytes(), b"small"));
        }
    }

    #[test]
    fn sort_keeps_last_added_entry_of_each_key() {
        let mut buffer = buffer();
        for (key, value) in [("b", "1"), ("a", "2"), ("b", "3"), ("", ""), ("b", ""), ("", "4")] {
            assert!(buffer.push(key.as_bytes(), value.as_bytes()));
        }
        buffer.sort();
        let sorted: Vec<_> = buffer.iter().collect();
        assert_eq!(sorted, [(&b""[..], &b"4"[..]), (b"a", b"2"), (b"b", b"")]);
    }

    /// The empty key with an empty value has no bytes. It once did not replace an earlier value of the empty key.
    #[test]
    fn sort_entry_without_bytes_replaces_earlier_value() {
        for (first, last) in [("x", ""), ("", "x")] {
            let mut buffer = buffer();
            assert!(buffer.push(b"", first.as_bytes()));
            assert!(buffer.push(b"", last.as_bytes()));
            buffer.sort();
            assert_eq!(buffer.iter().collect::<Vec<_>>(), [(&b""[..], last.as_bytes())]);
        }
    }

    #[test]
    fn sort_empty_entries_of_one_key_keeps_one() {
        let mut buffer = buffer();
        assert!(buffer.push(b"", b"") && buffer.push(b"", b""));
        buffer.sort();
        assert_eq!(buffer.iter().count(), 1);
    }
}
