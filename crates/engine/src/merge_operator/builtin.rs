//! The ready-made operators. All of them merge partially, so their operands stay few.

use std::collections::BTreeSet;

use lsmx_base::coding::{Decoder, put_bytes};

use crate::merge_operator::{MergeError, MergeOperator};

/// Adds: values and operands are 8 bytes, a number in little-endian order; an absent value is 0.
///
/// The sum wraps around at 2^64, which makes it good for `u64` and `i64` alike: add `-1i64` to
/// subtract. Bytes of another length are an error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counter;

fn number(what: &str, bytes: &[u8]) -> Result<u64, MergeError> {
    let number = <[u8; 8]>::try_from(bytes).map(u64::from_le_bytes);
    number.map_err(|_| MergeError::new(format!("{what} has {} bytes, a counter 8", bytes.len())))
}

impl MergeOperator for Counter {
    fn name(&self) -> &'static str {
        "lsmx.counter"
    }

    fn full_merge(
        &self,
        _: &[u8],
        base: Option<&[u8]>,
        operands: &[&[u8]],
    ) -> Result<Option<Vec<u8>>, MergeError> {
        let base = base.map_or(Ok(0), |base| number("the value", base))?;
        let sum = operands
            .iter()
            .try_fold(base, |sum, operand| Ok(sum.wrapping_add(number("an operand", operand)?)))?;
        Ok(Some(sum.to_le_bytes().to_vec()))
    }

    fn partial_merge(&self, _: &[u8], older: &[u8], newer: &[u8]) -> Option<Vec<u8>> {
        let (older, newer) = (number("older", older).ok()?, number("newer", newer).ok()?);
        Some(older.wrapping_add(newer).to_le_bytes().to_vec())
    }
}

/// Appends operands to the value, with a separator between any two parts; the first operand of an
/// absent value becomes the value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Append {
    separator: Vec<u8>,
    name: String,
}

impl Default for Append {
    fn default() -> Append {
        Append::new()
    }
}

impl Append {
    /// Nothing between the parts.
    #[must_use]
    pub fn new() -> Append {
        Append { separator: Vec::new(), name: "lsmx.append".to_owned() }
    }

    /// These bytes between the parts. They are part of the operator's name.
    #[must_use]
    pub fn separated(separator: &[u8]) -> Append {
        let name = format!("lsmx.append({})", separator.escape_ascii());
        Append { separator: separator.to_vec(), name }
    }

    fn join<'a>(&self, first: Option<&'a [u8]>, others: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
        let mut joined = first.map(<[u8]>::to_vec);
        for part in others {
            match &mut joined {
                Some(joined) => {
                    joined.extend_from_slice(&self.separator);
                    joined.extend_from_slice(part);
                }
                None => joined = Some(part.to_vec()),
            }
        }
        joined.unwrap_or_default()
    }
}

impl MergeOperator for Append {
    fn name(&self) -> &str {
        &self.name
    }

    fn full_merge(
        &self,
        _: &[u8],
        base: Option<&[u8]>,
        operands: &[&[u8]],
    ) -> Result<Option<Vec<u8>>, MergeError> {
        Ok(Some(self.join(base, operands.iter().copied())))
    }

    fn partial_merge(&self, _: &[u8], older: &[u8], newer: &[u8]) -> Option<Vec<u8>> {
        Some(self.join(Some(older), std::iter::once(newer)))
    }
}

/// Keeps the largest of value and operands, byte by byte; numbers in big-endian order compare so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Max;

impl MergeOperator for Max {
    fn name(&self) -> &'static str {
        "lsmx.max"
    }

    fn full_merge(
        &self,
        _: &[u8],
        base: Option<&[u8]>,
        operands: &[&[u8]],
    ) -> Result<Option<Vec<u8>>, MergeError> {
        Ok(base.into_iter().chain(operands.iter().copied()).max().map(<[u8]>::to_vec))
    }

    fn partial_merge(&self, _: &[u8], older: &[u8], newer: &[u8]) -> Option<Vec<u8>> {
        Some(older.max(newer).to_vec())
    }
}

/// Keeps the smallest of value and operands, byte by byte; numbers in big-endian order compare so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Min;

impl MergeOperator for Min {
    fn name(&self) -> &'static str {
        "lsmx.min"
    }

    fn full_merge(
        &self,
        _: &[u8],
        base: Option<&[u8]>,
        operands: &[&[u8]],
    ) -> Result<Option<Vec<u8>>, MergeError> {
        Ok(base.into_iter().chain(operands.iter().copied()).min().map(<[u8]>::to_vec))
    }

    fn partial_merge(&self, _: &[u8], older: &[u8], newer: &[u8]) -> Option<Vec<u8>> {
        Some(older.min(newer).to_vec())
    }
}

/// Writes bytes into the value at an offset; a value that ends before is filled up with zeros.
///
/// [`FieldUpdate::operand`] makes an operand: fields one after the other, each a `u32` offset, the
/// length of its bytes as a `u32`, both little-endian, and the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldUpdate {
    value_bytes_max: u32,
}

/// Default bound of [`FieldUpdate`] on the length of a value: 1 MiB.
const FIELD_VALUE_BYTES_MAX: u32 = 1 << 20;

impl Default for FieldUpdate {
    fn default() -> FieldUpdate {
        FieldUpdate::new()
    }
}

/// Where a field begins, and what it is to hold.
type Field<'a> = (usize, &'a [u8]);

impl FieldUpdate {
    /// Fields that end within the first MiB.
    #[must_use]
    pub fn new() -> FieldUpdate {
        FieldUpdate { value_bytes_max: FIELD_VALUE_BYTES_MAX }
    }

    /// Fields that end within this many bytes; one that ends later is an error. Not part of the
    /// operator's name: it may be raised later.
    #[must_use]
    pub fn up_to(value_bytes_max: u32) -> FieldUpdate {
        FieldUpdate { value_bytes_max }
    }

    /// The operand that writes `bytes` at `offset`. A field of 2^32 bytes or more is cut, but no
    /// write would take it.
    #[must_use]
    pub fn operand(offset: u32, bytes: &[u8]) -> Vec<u8> {
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let mut operand = Vec::with_capacity(8 + bytes.len());
        operand.extend_from_slice(&offset.to_le_bytes());
        operand.extend_from_slice(&length.to_le_bytes());
        operand.extend(bytes.iter().take(length as usize));
        operand
    }

    fn fields(self, operand: &[u8]) -> Result<Vec<Field<'_>>, MergeError> {
        let malformed = |_| MergeError::new("an operand ends inside a field");
        let mut rest = Decoder::new(operand);
        let mut fields = Vec::new();
        while !rest.is_empty() {
            let offset = rest.u32("offset").map_err(malformed)?;
            let length = rest.u32("length").map_err(malformed)?;
            let end = u64::from(offset) + u64::from(length);
            if end > u64::from(self.value_bytes_max) {
                let limit = self.value_bytes_max;
                return Err(MergeError::new(format!(
                    "a field ends at {end}, the limit is {limit}"
                )));
            }
            fields.push((offset as usize, rest.take("field", length as usize).map_err(malformed)?));
        }
        Ok(fields)
    }
}

impl MergeOperator for FieldUpdate {
    fn name(&self) -> &'static str {
        "lsmx.field-update"
    }

    fn full_merge(
        &self,
        _: &[u8],
        base: Option<&[u8]>,
        operands: &[&[u8]],
    ) -> Result<Option<Vec<u8>>, MergeError> {
        let mut value = base.unwrap_or_default().to_vec();
        for operand in operands {
            for (offset, bytes) in self.fields(operand)? {
                let end = offset + bytes.len();
                if value.len() < end {
                    value.resize(end, 0);
                }
                value[offset..end].copy_from_slice(bytes);
            }
        }
        Ok(Some(value))
    }

    /// All fields of both, but those that a newer one wholly covers.
    fn partial_merge(&self, _: &[u8], older: &[u8], newer: &[u8]) -> Option<Vec<u8>> {
        let (older, newest) = (self.fields(older).ok()?, self.fields(newer).ok()?);
        let covers = |field: &Field<'_>, by: &Field<'_>| {
            by.0 <= field.0 && field.0 + field.1.len() <= by.0 + by.1.len()
        };
        let mut merged = Vec::new();
        for field in older {
            if !newest.iter().any(|by| covers(&field, by)) {
                merged.extend(FieldUpdate::operand(u32::try_from(field.0).ok()?, field.1));
            }
        }
        merged.extend_from_slice(newer);
        Some(merged)
    }
}

/// Unites sets: value and operands are items, each with its length as a varint before it. The value
/// has every item once, in byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetUnion;

impl SetUnion {
    /// A set as value or operand, such as one of a single new item.
    #[must_use]
    pub fn encode<I: AsRef<[u8]>>(items: impl IntoIterator<Item = I>) -> Vec<u8> {
        let items: Vec<I> = items.into_iter().collect();
        let items: BTreeSet<&[u8]> = items.iter().map(AsRef::as_ref).collect();
        SetUnion::encode_sorted(&items)
    }

    /// The items of a value, in its order.
    ///
    /// # Errors
    /// When the bytes are no set.
    pub fn items(value: &[u8]) -> Result<Vec<&[u8]>, MergeError> {
        let mut rest = Decoder::new(value);
        let mut items = Vec::new();
        while !rest.is_empty() {
            let item = rest.bytes("item");
            items.push(item.map_err(|_| MergeError::new("a set ends inside an item"))?);
        }
        Ok(items)
    }

    fn encode_sorted(items: &BTreeSet<&[u8]>) -> Vec<u8> {
        let mut value = Vec::new();
        items.iter().for_each(|item| put_bytes(&mut value, item));
        value
    }

    fn unite(sets: &[&[u8]]) -> Result<Vec<u8>, MergeError> {
        let mut all = BTreeSet::new();
        for set in sets {
            all.extend(SetUnion::items(set)?);
        }
        Ok(SetUnion::encode_sorted(&all))
    }
}

impl MergeOperator for SetUnion {
    fn name(&self) -> &'static str {
        "lsmx.set-union"
    }

    fn full_merge(
        &self,
        _: &[u8],
        base: Option<&[u8]>,
        operands: &[&[u8]],
    ) -> Result<Option<Vec<u8>>, MergeError> {
        let sets: Vec<&[u8]> = base.into_iter().chain(operands.iter().copied()).collect();
        SetUnion::unite(&sets).map(Some)
    }

    fn partial_merge(&self, _: &[u8], older: &[u8], newer: &[u8]) -> Option<Vec<u8>> {
        SetUnion::unite(&[older, newer]).ok()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn full(
        operator: &dyn MergeOperator,
        base: Option<&[u8]>,
        operands: &[Vec<u8>],
    ) -> Result<Option<Vec<u8>>, MergeError> {
        let operands: Vec<&[u8]> = operands.iter().map(Vec::as_slice).collect();
        operator.full_merge(b"key", base, &operands)
    }

    /// The laws of [`MergeOperator`], for one base and list of operands and one way to split it.
    fn laws(operator: &dyn MergeOperator, base: Option<&[u8]>, operands: &[Vec<u8>], split: usize) {
        let all = full(operator, base, operands);
        assert_eq!(all, full(operator, base, operands), "deterministic");
        let at = split % (operands.len() + 1);
        if at > 0 && at < operands.len() {
            if let Ok(first) = full(operator, base, &operands[..at]) {
                assert_eq!(all, full(operator, first.as_deref(), &operands[at..]), "in steps");
            }
            let merged = operator.partial_merge(b"key", &operands[at - 1], &operands[at]);
            if let Some(merged) = merged {
                let mut fewer = operands.to_vec();
                fewer.splice(at - 1..=at, [merged]);
                assert_eq!(all, full(operator, base, &fewer), "partial");
                laws(operator, base, &fewer, split / 2);
            }
        }
    }

    fn bytes(max: usize) -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(any::<u8>(), 0..max)
    }

    fn numbers() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![9 => any::<u64>().prop_map(|n| n.to_le_bytes().to_vec()), 1 => bytes(10)]
    }

    fn fields() -> impl Strategy<Value = Vec<u8>> {
        let field = (0u32..40, bytes(20)).prop_map(|(at, bytes)| FieldUpdate::operand(at, &bytes));
        prop_oneof![9 => field, 1 => bytes(12)]
    }

    fn sets() -> impl Strategy<Value = Vec<u8>> {
        let set = prop::collection::vec(bytes(3), 0..4).prop_map(SetUnion::encode);
        prop_oneof![9 => set, 1 => bytes(5)]
    }

    fn cases(
        one: impl Strategy<Value = Vec<u8>> + Clone,
    ) -> impl Strategy<Value = (Option<Vec<u8>>, Vec<Vec<u8>>, usize)> {
        (prop::option::of(one.clone()), prop::collection::vec(one, 1..7), 0usize..1000)
    }

    proptest! {
        #[test]
        fn counters_keep_the_laws((base, operands, split) in cases(numbers().boxed())) {
            laws(&Counter, base.as_deref(), &operands, split);
        }

        #[test]
        fn bytes_keep_the_laws((base, operands, split) in cases(bytes(6).boxed())) {
            let separated = Append::separated(b", ");
            let all: [&dyn MergeOperator; 4] = [&Append::new(), &separated, &Max, &Min];
            for operator in all {
                laws(operator, base.as_deref(), &operands, split);
            }
        }

        #[test]
        fn fields_keep_the_laws((base, operands, split) in cases(fields().boxed())) {
            laws(&FieldUpdate::new(), base.as_deref(), &operands, split);
            laws(&FieldUpdate::up_to(30), base.as_deref(), &operands, split);
        }

        #[test]
        fn sets_keep_the_laws((base, operands, split) in cases(sets().boxed())) {
            laws(&SetUnion, base.as_deref(), &operands, split);
        }
    }

    #[test]
    fn counters_wrap_and_refuse_other_lengths() {
        let minus_one = (-1i64).to_le_bytes().to_vec();
        let add =
            |base: u64, operand: Vec<u8>| full(&Counter, Some(&base.to_le_bytes()), &[operand]);
        assert_eq!(add(7, minus_one.clone()), Ok(Some(6u64.to_le_bytes().to_vec())));
        assert_eq!(add(0, minus_one), Ok(Some(u64::MAX.to_le_bytes().to_vec())));
        assert!(add(0, vec![1]).is_err());
        assert!(full(&Counter, Some(b"1"), &[vec![0; 8]]).is_err());
    }

    #[test]
    fn fields_are_written_in_place_and_growth_is_zeros() {
        let update = |base, operand| full(&FieldUpdate::up_to(8), base, &[operand]);
        let at = FieldUpdate::operand;
        assert_eq!(update(Some(b"abcdef"), at(2, b"XY")), Ok(Some(b"abXYef".to_vec())));
        assert_eq!(update(None, at(3, b"X")), Ok(Some(b"\0\0\0X".to_vec())));
        assert_eq!(update(Some(b"a"), at(6, b"XY")), Ok(Some(b"a\0\0\0\0\0XY".to_vec())));
        assert!(update(None, at(7, b"XY")).is_err(), "past the bound");
        assert!(update(None, at(u32::MAX, b"XY")).is_err());
        assert!(update(None, vec![0; 7]).is_err());
        let covered = FieldUpdate::new().partial_merge(b"", &at(3, b"a"), &at(2, b"xyz"));
        assert_eq!(covered, Some(at(2, b"xyz")), "what is overwritten is forgotten");
    }

    #[test]
    fn sets_are_sorted_and_have_no_item_twice() {
        let set = full(&SetUnion, None, &[SetUnion::encode(["b", "a"]), SetUnion::encode(["a"])]);
        let set = set.unwrap().unwrap();
        assert_eq!(SetUnion::items(&set).unwrap(), [b"a", b"b"]);
        assert!(SetUnion::items(&[5, 1]).is_err());
    }

    #[test]
    fn appended_parts_have_a_separator_between_them() {
        let parts = [b"b".to_vec(), b"c".to_vec()];
        let comma = Append::separated(b",");
        assert_eq!(full(&comma, Some(b"a"), &parts), Ok(Some(b"a,b,c".to_vec())));
        assert_eq!(full(&comma, None, &parts), Ok(Some(b"b,c".to_vec())));
        assert_eq!(full(&Append::new(), Some(b""), &parts), Ok(Some(b"bc".to_vec())));
        assert_ne!(comma.name(), Append::separated(b";").name());
    }
}
