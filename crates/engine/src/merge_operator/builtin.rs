//! Built-in merge operators. All of them support partial merges.

use std::collections::BTreeSet;

use lsmx_base::coding::{Decoder, put_bytes};

use crate::merge_operator::{MergeError, MergeOperator, MergeResult};

/// Merge operator that adds integers. Values and operands are 8 bytes in little-endian order. A missing value counts as
/// 0.
///
/// The sum wraps around at 2^64. Signed operands therefore also work: the operand `-1i64` decrements the value. A value
/// or an operand with another length is an error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counter;

fn decode_number(what: &str, bytes: &[u8]) -> Result<u64, MergeError> {
    let number = <[u8; 8]>::try_from(bytes).map(u64::from_le_bytes);
    number.map_err(|_| MergeError::new(format!("{what} has {} bytes, a counter 8", bytes.len())))
}

impl MergeOperator for Counter {
    fn name(&self) -> &'static str {
        "lsmx.counter"
    }

    fn full_merge(&self, _: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> MergeResult {
        let base = base.map_or(Ok(0), |base| decode_number("the value", base))?;
        let sum = operands.iter().try_fold(base, |sum, operand| {
            Ok(sum.wrapping_add(decode_number("an operand", operand)?))
        })?;
        Ok(Some(sum.to_le_bytes().to_vec()))
    }

    fn partial_merge(&self, _: &[u8], older: &[u8], newer: &[u8]) -> Option<Vec<u8>> {
        let older = decode_number("the older operand", older).ok()?;
        let newer = decode_number("the newer operand", newer).ok()?;
        Some(older.wrapping_add(newer).to_le_bytes().to_vec())
    }
}

/// Merge operator that appends operands to the value, with a separator between them. If there is no value, the first
/// operand becomes the value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Append {
    separator: Vec<u8>,
    name: String,
}

impl Default for Append {
    /// Returns an operator without a separator.
    fn default() -> Append {
        Append { separator: Vec::new(), name: "lsmx.append".to_owned() }
    }
}

impl Append {
    /// Creates an operator with a separator. The separator is part of the name of the operator.
    #[must_use]
    pub fn with_separator(separator: &[u8]) -> Append {
        let name = format!("lsmx.append({})", separator.escape_ascii());
        Append { separator: separator.to_vec(), name }
    }
}

impl MergeOperator for Append {
    fn name(&self) -> &str {
        &self.name
    }

    fn full_merge(&self, _: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> MergeResult {
        let parts: Vec<&[u8]> = base.into_iter().chain(operands.iter().copied()).collect();
        Ok(Some(parts.join(&self.separator[..])))
    }

    fn partial_merge(&self, _: &[u8], older: &[u8], newer: &[u8]) -> Option<Vec<u8>> {
        Some([older, newer].join(&self.separator[..]))
    }
}

/// Merge operator that keeps the largest of the value and the operands, in byte order. Numbers must be encoded in
/// big-endian order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Max;

impl MergeOperator for Max {
    fn name(&self) -> &'static str {
        "lsmx.max"
    }

    fn full_merge(&self, _: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> MergeResult {
        Ok(base.into_iter().chain(operands.iter().copied()).max().map(<[u8]>::to_vec))
    }

    fn partial_merge(&self, _: &[u8], older: &[u8], newer: &[u8]) -> Option<Vec<u8>> {
        Some(older.max(newer).to_vec())
    }
}

/// Merge operator that keeps the smallest of the value and the operands, in byte order. Numbers must be encoded in
/// big-endian order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Min;

impl MergeOperator for Min {
    fn name(&self) -> &'static str {
        "lsmx.min"
    }

    fn full_merge(&self, _: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> MergeResult {
        Ok(base.into_iter().chain(operands.iter().copied()).min().map(<[u8]>::to_vec))
    }

    fn partial_merge(&self, _: &[u8], older: &[u8], newer: &[u8]) -> Option<Vec<u8>> {
        Some(older.min(newer).to_vec())
    }
}

/// Merge operator that overwrites bytes of the value at given offsets. If the value is too short, it is extended with
/// zeros.
///
/// An operand is a sequence of fields. A field consists of the offset, the number of bytes, and the bytes. The offset
/// and the number of bytes are `u32` in little-endian order. [`FieldUpdate::operand`] encodes an operand with one
/// field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldUpdate {
    /// Maximum size of a value in bytes. A field that ends after this limit is an error. Default: 1 MiB.
    ///
    /// The limit is not part of the name of the operator. Applications may increase it later.
    pub value_bytes_max: u32,
}

impl Default for FieldUpdate {
    fn default() -> FieldUpdate {
        FieldUpdate { value_bytes_max: 1 << 20 }
    }
}

/// Offset and bytes of a field.
type Field<'a> = (usize, &'a [u8]);

impl FieldUpdate {
    /// Encodes an operand with one field, which writes `bytes` at `offset`.
    ///
    /// If `bytes` is longer than 2^32 − 1 bytes, the rest is ignored. Such an operand is an error in any case, because
    /// it exceeds the maximum size of a value.
    #[must_use]
    pub fn operand(offset: u32, bytes: &[u8]) -> Vec<u8> {
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let mut operand = Vec::with_capacity(8 + bytes.len());
        operand.extend_from_slice(&offset.to_le_bytes());
        operand.extend_from_slice(&length.to_le_bytes());
        operand.extend(bytes.iter().take(length as usize));
        operand
    }

    fn decode_fields(self, operand: &[u8]) -> Result<Vec<Field<'_>>, MergeError> {
        let malformed = |_| MergeError::new("an operand ends inside a field");
        let mut rest = Decoder::new(operand);
        let mut fields = Vec::new();
        while !rest.is_empty() {
            let offset = rest.u32("offset").map_err(malformed)?;
            let length = rest.u32("length").map_err(malformed)?;
            let end = u64::from(offset) + u64::from(length);
            let limit = self.value_bytes_max;
            if end > u64::from(limit) {
                let message = format!("a field ends at {end}, the limit is {limit}");
                return Err(MergeError::new(message));
            }
            fields.push((
                offset as usize,
                rest.take_bytes("field", length as usize).map_err(malformed)?,
            ));
        }
        Ok(fields)
    }
}

impl MergeOperator for FieldUpdate {
    fn name(&self) -> &'static str {
        "lsmx.field-update"
    }

    fn full_merge(&self, _: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> MergeResult {
        let mut value = base.unwrap_or_default().to_vec();
        for operand in operands {
            for (offset, bytes) in self.decode_fields(operand)? {
                let end = offset + bytes.len();
                if value.len() < end {
                    value.resize(end, 0);
                }
                value[offset..end].copy_from_slice(bytes);
            }
        }
        Ok(Some(value))
    }

    /// Concatenates the fields of both operands. Older fields that are completely covered by one newer field are
    /// omitted.
    fn partial_merge(&self, _: &[u8], older: &[u8], newer: &[u8]) -> Option<Vec<u8>> {
        let (older, newer_fields) =
            (self.decode_fields(older).ok()?, self.decode_fields(newer).ok()?);
        let covers = |newer: &Field<'_>, older: &Field<'_>| {
            newer.0 <= older.0 && older.0 + older.1.len() <= newer.0 + newer.1.len()
        };
        let mut merged = Vec::new();
        for field in older {
            if !newer_fields.iter().any(|newer| covers(newer, &field)) {
                merged.extend(FieldUpdate::operand(u32::try_from(field.0).ok()?, field.1));
            }
        }
        merged.extend_from_slice(newer);
        Some(merged)
    }
}

/// Merge operator that computes the union of sets. Values and operands are sequences of items. Each item is preceded by
/// its length as a varint.
///
/// A merged value contains each item once. The items are in byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetUnion;

impl SetUnion {
    /// Encodes a set as a value or an operand.
    #[must_use]
    pub fn encode<I: AsRef<[u8]>>(items: impl IntoIterator<Item = I>) -> Vec<u8> {
        let items: Vec<I> = items.into_iter().collect();
        let items: BTreeSet<&[u8]> = items.iter().map(AsRef::as_ref).collect();
        SetUnion::encode_sorted(&items)
    }

    /// Decodes the items of a set in the order in which they are stored.
    ///
    /// # Errors
    /// Fails if `value` is not an encoded set.
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

    fn merge_sets<'a>(sets: impl Iterator<Item = &'a [u8]>) -> Result<Vec<u8>, MergeError> {
        let mut all_items = BTreeSet::new();
        for set in sets {
            all_items.extend(SetUnion::items(set)?);
        }
        Ok(SetUnion::encode_sorted(&all_items))
    }
}

impl MergeOperator for SetUnion {
    fn name(&self) -> &'static str {
        "lsmx.set-union"
    }

    fn full_merge(&self, _: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> MergeResult {
        SetUnion::merge_sets(base.into_iter().chain(operands.iter().copied())).map(Some)
    }

    fn partial_merge(&self, _: &[u8], older: &[u8], newer: &[u8]) -> Option<Vec<u8>> {
        SetUnion::merge_sets([older, newer].into_iter()).ok()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn full_merge(
        operator: &dyn MergeOperator,
        base: Option<&[u8]>,
        operands: &[Vec<u8>],
    ) -> MergeResult {
        let operands: Vec<&[u8]> = operands.iter().map(Vec::as_slice).collect();
        operator.full_merge(b"key", base, &operands)
    }

    /// Checks the requirements of [`MergeOperator`] for one base and one list of operands, which is split at one
    /// position.
    fn check_laws(
        operator: &dyn MergeOperator,
        base: Option<&[u8]>,
        operands: &[Vec<u8>],
        split: usize,
    ) {
        let expected_value = full_merge(operator, base, operands);
        assert_eq!(expected_value, full_merge(operator, base, operands), "deterministic");
        let at = split % (operands.len() + 1);
        if at > 0 && at < operands.len() {
            if let Ok(first) = full_merge(operator, base, &operands[..at]) {
                let value = full_merge(operator, first.as_deref(), &operands[at..]);
                assert_eq!(expected_value, value, "stepwise");
            }
            let merged = operator.partial_merge(b"key", &operands[at - 1], &operands[at]);
            if let Some(merged) = merged {
                let mut fewer = operands.to_vec();
                fewer.splice(at - 1..=at, [merged]);
                assert_eq!(expected_value, full_merge(operator, base, &fewer), "partial");
                check_laws(operator, base, &fewer, split / 2);
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
        fn counter_obeys_laws((base, operands, split) in cases(numbers().boxed())) {
            check_laws(&Counter, base.as_deref(), &operands, split);
        }

        #[test]
        fn append_max_min_obey_laws((base, operands, split) in cases(bytes(6).boxed())) {
            let separated = Append::with_separator(b", ");
            let operators: [&dyn MergeOperator; 4] = [&Append::default(), &separated, &Max, &Min];
            for operator in operators {
                check_laws(operator, base.as_deref(), &operands, split);
            }
        }

        #[test]
        fn field_update_obeys_laws((base, operands, split) in cases(fields().boxed())) {
            check_laws(&FieldUpdate::default(), base.as_deref(), &operands, split);
            check_laws(&FieldUpdate { value_bytes_max: 30 }, base.as_deref(), &operands, split);
        }

        #[test]
        fn set_union_obeys_laws((base, operands, split) in cases(sets().boxed())) {
            check_laws(&SetUnion, base.as_deref(), &operands, split);
        }
    }

    #[test]
    fn counter_overflow_wraps_and_other_lengths_fail() {
        let minus_one = (-1i64).to_le_bytes().to_vec();
        let add = |base: u64, operand: Vec<u8>| {
            full_merge(&Counter, Some(&base.to_le_bytes()), &[operand])
        };
        assert_eq!(add(7, minus_one.clone()), Ok(Some(6u64.to_le_bytes().to_vec())));
        assert_eq!(add(0, minus_one), Ok(Some(u64::MAX.to_le_bytes().to_vec())));
        assert!(add(0, vec![1]).is_err());
        assert!(full_merge(&Counter, Some(b"1"), &[vec![0; 8]]).is_err());
    }

    #[test]
    fn field_update_short_value_is_extended_with_zeros() {
        let operator = FieldUpdate { value_bytes_max: 8 };
        let update = |base, operand| full_merge(&operator, base, &[operand]);
        let at = FieldUpdate::operand;
        assert_eq!(update(Some(b"abcdef"), at(2, b"XY")), Ok(Some(b"abXYef".to_vec())));
        assert_eq!(update(None, at(3, b"X")), Ok(Some(b"\0\0\0X".to_vec())));
        assert_eq!(update(Some(b"a"), at(6, b"XY")), Ok(Some(b"a\0\0\0\0\0XY".to_vec())));
        assert!(update(None, at(7, b"XY")).is_err(), "ends after the maximum");
        assert!(update(None, at(u32::MAX, b"XY")).is_err());
        assert!(update(None, vec![0; 7]).is_err());
        let covered = FieldUpdate::default().partial_merge(b"", &at(3, b"a"), &at(2, b"xyz"));
        assert_eq!(covered, Some(at(2, b"xyz")), "the overwritten field is removed");
    }

    #[test]
    fn set_union_value_is_sorted_without_duplicates() {
        let operands = [SetUnion::encode(["b", "a"]), SetUnion::encode(["a"])];
        let set = full_merge(&SetUnion, None, &operands).unwrap().unwrap();
        assert_eq!(SetUnion::items(&set).unwrap(), [b"a", b"b"]);
        assert!(SetUnion::items(&[5, 1]).is_err());
    }

    #[test]
    fn append_with_separator_separates_parts() {
        let parts = [b"b".to_vec(), b"c".to_vec()];
        let comma = Append::with_separator(b",");
        assert_eq!(full_merge(&comma, Some(b"a"), &parts), Ok(Some(b"a,b,c".to_vec())));
        assert_eq!(full_merge(&comma, None, &parts), Ok(Some(b"b,c".to_vec())));
        assert_eq!(full_merge(&Append::default(), Some(b""), &parts), Ok(Some(b"bc".to_vec())));
        assert_ne!(comma.name(), Append::with_separator(b";").name());
    }
}
