//! Keys and values in memory, in the order of their addition or sorted.

use lsmx_base::coding::len_u64;

/// Positions of one entry in the bytes of its buffer.
#[derive(Clone, Copy, Debug)]
struct BufferedEntry {
    key_at: usize,
    value_at: usize,
    end: usize,
}

/// A buffer of entries.
#[derive(Debug, Default)]
pub(super) struct EntryBuffer {
    bytes: Vec<u8>,
    entries: Vec<BufferedEntry>,
}

impl EntryBuffer {
    /// Adds an entry.
    pub(super) fn push(&mut self, key: &[u8], value: &[u8]) {
        let key_at = self.bytes.len();
        let value_at = key_at + key.len();
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
        self.entries.push(BufferedEntry { key_at, value_at, end: value_at + value.len() });
    }

    /// Returns the memory of the entries, in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        len_u64(self.bytes.len() + self.entries.len() * size_of::<BufferedEntry>())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Removes all entries and keeps the memory.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.entries.clear();
    }

    /// Sorts the entries by key. Of several entries with one key, only the last one added remains.
    pub(super) fn sort(&mut self) {
        let EntryBuffer { bytes, entries } = self;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sort_keeps_last_added_entry_of_each_key() {
        let mut buffer = EntryBuffer::default();
        for (key, value) in [("b", "1"), ("a", "2"), ("b", "3"), ("", ""), ("b", ""), ("", "4")] {
            buffer.push(key.as_bytes(), value.as_bytes());
        }
        buffer.sort();
        let sorted: Vec<_> = buffer.iter().collect();
        assert_eq!(sorted, [(&b""[..], &b"4"[..]), (b"a", b"2"), (b"b", b"")]);
    }

    /// The empty key with an empty value has no bytes. It once did not replace an earlier value of the empty key.
    #[test]
    fn sort_entry_without_bytes_replaces_earlier_value() {
        for (first, last) in [("x", ""), ("", "x")] {
            let mut buffer = EntryBuffer::default();
            buffer.push(b"", first.as_bytes());
            buffer.push(b"", last.as_bytes());
            buffer.sort();
            assert_eq!(buffer.iter().collect::<Vec<_>>(), [(&b""[..], last.as_bytes())]);
        }
    }

    #[test]
    fn sort_empty_entries_of_one_key_keeps_one() {
        let mut buffer = EntryBuffer::default();
        buffer.push(b"", b"");
        buffer.push(b"", b"");
        buffer.sort();
        assert_eq!(buffer.iter().count(), 1);
    }
}
