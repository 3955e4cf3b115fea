//! Prefix extractors: select the key prefixes that filters contain.

use std::ops::Bound;

use lsmx_base::coding::{Decoder, put_u32};
use lsmx_base::malformed::Malformed;

/// Selects the part of each key that filters contain in addition to the full key. See
/// [`KeyspaceOptions::prefix_filter`](crate::KeyspaceOptions::prefix_filter).
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum PrefixExtractor {
    /// The prefix consists of this number of bytes, which must be at least 1. Shorter keys have no prefix.
    Length(u32),
    /// The prefix ends with the first occurrence of this byte. Keys without this byte have no prefix.
    Delimiter(u8),
}

const LENGTH: u8 = 0;
const DELIMITER: u8 = 1;

impl PrefixExtractor {
    /// Returns the prefix of a key, or `None` if the key has no prefix.
    #[inline]
    pub(crate) fn prefix(self, key: &[u8]) -> Option<&[u8]> {
        match self {
            PrefixExtractor::Length(length) => key.get(..usize::try_from(length).ok()?),
            PrefixExtractor::Delimiter(delimiter) => {
                let end = key.iter().position(|&byte| byte == delimiter)?;
                Some(&key[..=end])
            }
        }
    }

    /// Returns the prefix that all keys between two bounds have in common. Returns `None` if two of these keys may have
    /// different prefixes.
    pub(crate) fn prefix_of_range<'a>(
        self,
        lower: Bound<&'a [u8]>,
        upper: Bound<&[u8]>,
    ) -> Option<&'a [u8]> {
        // The extractor returns this prefix for every key that starts with it.
        let prefix = match lower {
            Bound::Included(lower) | Bound::Excluded(lower) => self.prefix(lower)?,
            Bound::Unbounded => return None,
        };
        let all_have_prefix = match upper {
            Bound::Included(upper) => upper.starts_with(prefix),
            Bound::Excluded(upper) => upper.starts_with(prefix) || is_end_of(prefix, upper),
            Bound::Unbounded => prefix.iter().all(|&byte| byte == u8::MAX),
        };
        all_have_prefix.then_some(prefix)
    }

    /// Appends the encoded extractor to `out`.
    pub(crate) fn put(self, out: &mut Vec<u8>) {
        let (kind, parameter) = match self {
            PrefixExtractor::Length(length) => (LENGTH, length),
            PrefixExtractor::Delimiter(delimiter) => (DELIMITER, u32::from(delimiter)),
        };
        out.push(kind);
        put_u32(out, parameter);
    }

    /// Decodes an extractor. Returns `None` if this version of lsmx does not know the kind of the extractor.
    ///
    /// # Errors
    /// Fails if the encoding is malformed.
    pub(crate) fn decode(decoder: &mut Decoder<'_>) -> Result<Option<PrefixExtractor>, Malformed> {
        let kind = decoder.u8("kind of prefixes")?;
        let parameter = decoder.u32("parameter of prefixes")?;
        let invalid = |expected| {
            Malformed::invalid_field("parameter of prefixes", u64::from(parameter), expected)
        };
        Ok(match kind {
            LENGTH if parameter == 0 => return Err(invalid("at least 1")),
            LENGTH => Some(PrefixExtractor::Length(parameter)),
            DELIMITER => {
                let delimiter = u8::try_from(parameter).map_err(|_| invalid("a byte"))?;
                Some(PrefixExtractor::Delimiter(delimiter))
            }
            _ => None,
        })
    }
}

/// Returns whether `end` is the smallest key that is greater than all keys that start with `prefix`.
fn is_end_of(prefix: &[u8], end: &[u8]) -> bool {
    let last = prefix.iter().rposition(|&byte| byte != u8::MAX);
    last.is_some_and(|last| {
        end.len() == last + 1 && end[..last] == prefix[..last] && end[last] == prefix[last] + 1
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use Bound::{Excluded, Included, Unbounded};

    #[test]
    fn prefix_of_key_is_its_start_or_none() {
        let two = PrefixExtractor::Length(2);
        assert_eq!(
            [two.prefix(b"abc"), two.prefix(b"ab"), two.prefix(b"a")],
            [Some(&b"ab"[..]), Some(b"ab"), None]
        );
        let colon = PrefixExtractor::Delimiter(b':');
        assert_eq!(
            [colon.prefix(b"a:b:"), colon.prefix(b":"), colon.prefix(b"ab")],
            [Some(&b"a:"[..]), Some(b":"), None]
        );
    }

    /// Compares ranges between all pairs of short keys with a model that contains all short keys.
    #[test]
    fn prefix_of_range_is_prefix_of_all_its_keys() {
        let bytes = [0, b':', b'b', 0xff];
        let mut keys: Vec<Vec<u8>> = vec![Vec::new()];
        for length in 0..3 {
            let longer = keys
                .iter()
                .filter(|key| key.len() == length)
                .flat_map(|key| bytes.map(|byte| [key.as_slice(), &[byte]].concat()));
            let longer: Vec<_> = longer.collect();
            keys.extend(longer);
        }
        let bounds = |key| [Included(key), Excluded(key), Unbounded];
        let mut ranges_with_prefix = 0;
        for extractor in [
            PrefixExtractor::Length(1),
            PrefixExtractor::Length(2),
            PrefixExtractor::Delimiter(b':'),
        ] {
            for lower in keys.iter().flat_map(|key| bounds(key.as_slice())) {
                for upper in keys.iter().flat_map(|key| bounds(key.as_slice())) {
                    let Some(prefix) = extractor.prefix_of_range(lower, upper) else { continue };
                    ranges_with_prefix += 1;
                    let range = (lower, upper);
                    let inside = keys.iter().filter(|key| {
                        std::ops::RangeBounds::<[u8]>::contains(&range, key.as_slice())
                    });
                    for key in inside {
                        assert_eq!(extractor.prefix(key), Some(prefix), "{key:?} in {range:?}");
                    }
                }
            }
        }
        assert!(ranges_with_prefix > 1_000, "{ranges_with_prefix}");
    }

    #[test]
    fn range_of_one_prefix_is_recognized() {
        let two = PrefixExtractor::Length(2);
        let (a, b) = (&b"ab"[..], &b"ac"[..]);
        assert_eq!(two.prefix_of_range(Included(a), Excluded(b)), Some(a));
        assert_eq!(two.prefix_of_range(Excluded(b"abc"), Included(b"abd")), Some(a));
        assert_eq!(two.prefix_of_range(Included(b"\xff\xff"), Unbounded), Some(&b"\xff\xff"[..]));
        assert_eq!(two.prefix_of_range(Included(b"a"), Excluded(b"b")), None);
        assert_eq!(two.prefix_of_range(Included(a), Included(b)), None);
        assert_eq!(two.prefix_of_range(Unbounded, Excluded(b)), None);
    }

    #[test]
    fn prefix_extractor_round_trips_and_unknown_kind_is_ignored() {
        let decode = |bytes: &[u8]| PrefixExtractor::decode(&mut Decoder::new(bytes));
        for extractor in [PrefixExtractor::Length(7), PrefixExtractor::Delimiter(0xff)] {
            let mut bytes = Vec::new();
            extractor.put(&mut bytes);
            assert_eq!(decode(&bytes), Ok(Some(extractor)));
            assert!(decode(&bytes[..4]).is_err());
        }
        assert_eq!(decode(&[2, 0, 0, 0, 0]), Ok(None));
        assert!(decode(&[LENGTH, 0, 0, 0, 0]).is_err());
        assert!(decode(&[DELIMITER, 0, 1, 0, 0]).is_err());
    }
}
