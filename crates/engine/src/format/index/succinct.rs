//! Succinct index block (encoding 1): boundaries and handles of data blocks. Integers are little-endian.
//!
//! ```text
//!  0  1  encoding  u8, 1
//!  1  1  form      u8, form of the boundaries: 0 numbers, 1 strings
//!     v  count     varint, number of data blocks, 1 to 16,384
//!     v  offset    varint, file offset of the first data block; the blocks are contiguous
//!     v  smallest  varint, bytes of the smallest data block with its trailer
//!     n  sizes     Elias-Fano sequence: for each block, the sum of (size − smallest) over it and
//!                  all blocks before it
//!        boundaries, one fewer than blocks; for one block the form is 0 and nothing follows
//!        form 0:
//!     n  map       from keys to numbers, `mixed_radix.rs`
//!     n  numbers   Elias-Fano sequence: the numbers of the boundaries
//!     v  ties      varint, boundaries whose number equals that of the key before them
//!     2t ordinals  u16 each, ordinals of the tied boundaries; the first boundary has ordinal 0
//!     n  tied      tied boundaries as strings, without the prefix of the map
//!        form 1:
//!    v+n prefix    varint length and bytes, common prefix of all boundaries
//!     n  strings   all boundaries, without the prefix
//! ```
//!
//! A boundary separates two consecutive data blocks. Entries at or after the boundary are in the blocks after it. There
//! are two cases:
//! - The last key before the boundary and the first key after it are different user keys. The boundary is then the
//!   shortest prefix of the first key after it that is greater than the last key before it.
//! - Both keys are versions of one user key. The boundary then consists of this user key and the sequence number of the
//!   last version before the boundary.
//!
//! In form 0, `mixed_radix` maps keys and boundaries to numbers. The map preserves the order of keys, but several keys
//! can have the same number. Usually, the largest key before a boundary has a smaller number than the boundary. Keys
//! with the number of the boundary or a larger number are then after the boundary. If the largest key before the
//! boundary has the same number as the boundary, the boundary is a tie. For keys with this number, the search compares
//! the key with the boundary as a string.

use lsmx_base::coding::{Decoder, len_u64, put_bytes, put_varint};
use lsmx_base::key::SeqNo;
use lsmx_base::malformed::Malformed;

use super::boundary_strings::{self, BoundaryStrings};
use super::elias_fano::{self, EliasFano, SequenceAccess};
use super::mixed_radix::{MappedKey, MixedRadixMap, MixedRadixPlan};
use super::separator::{Boundary, Separator, SeparatorSide};
use super::{decode_prefix, offset_in_block};
use crate::format::block::BlockHandle;
use crate::format::data_block::common_prefix;

/// Encoding number of succinct index blocks.
pub(crate) const ENCODING_SUCCINCT: u8 = 1;

const FORM_NUMBERS: u8 = 0;
const FORM_STRINGS: u8 = 1;

/// Total length of the boundaries in bytes at which a block is full, independent of its encoded size.
const BOUNDARY_BYTES_MAX: usize = 1 << 20;

const UNORDERED_SIZES: Malformed = Malformed::Order { what: "sizes of data blocks are" };
const UNORDERED_NUMBERS: Malformed = Malformed::Order { what: "numbers of boundaries are" };

/// Builds succinct index blocks.
#[derive(Debug, Default)]
pub(crate) struct SuccinctIndexBuilder {
    offset: u64,
    sizes: Vec<u64>,
    /// Boundaries between consecutive data blocks. Also contains the boundary after the last added block, unless this
    /// block is the last one of the table.
    boundaries: Vec<Boundary>,
    boundary_bytes: usize,
    /// Estimated encoded size in bytes with boundaries in form 1, without the boundary after the last added block.
    estimated_bytes: usize,
    /// Estimated encoded size in bytes of the boundary after the last added block.
    estimated_last_bytes: usize,
    /// Value of `estimated_bytes` at which [`SuccinctIndexBuilder::is_full`] encodes the block again to measure its
    /// size.
    next_trial_at: usize,
    /// Number of data blocks in the latest trial encoding, and the encoded bytes.
    trial: Option<(usize, Vec<u8>)>,
}

/// Estimated size in bytes of the lengths and the handle of one data block with boundaries in form 1.
const ESTIMATED_OVERHEAD_BYTES: usize = 3;

impl SuccinctIndexBuilder {
    /// Returns the number of data blocks added so far.
    pub(crate) fn count(&self) -> usize {
        self.sizes.len()
    }

    /// Returns the sizes of the data blocks in bytes.
    pub(crate) fn block_sizes(&self) -> &[u64] {
        &self.sizes
    }

    /// Estimates the size of the finished block in bytes.
    pub(crate) fn bytes(&self) -> usize {
        match &self.trial {
            Some((count, trial)) => trial.len() * self.count() / count,
            None => self.estimated_bytes,
        }
    }

    /// Adds a data block and the boundary after it. The data block starts where the previous data block ends.
    /// `boundary` is `None` for the last data block of the table.
    pub(crate) fn add(&mut self, handle: BlockHandle, boundary: Option<Boundary>) {
        if self.sizes.is_empty() {
            self.offset = handle.offset;
        }
        self.sizes.push(handle.bytes);
        if let Some(boundary) = boundary {
            let last = self.boundaries.last().map_or(&[][..], |last| &last.user_key);
            let suffix = boundary.user_key.len() - common_prefix(last, &boundary.user_key);
            self.estimated_bytes += std::mem::replace(
                &mut self.estimated_last_bytes,
                suffix + ESTIMATED_OVERHEAD_BYTES,
            );
            self.boundary_bytes += boundary.user_key.len();
            self.boundaries.push(boundary);
        }
    }

    /// Returns true if the block has about `target` bytes or has reached one of its limits. May encode the block to
    /// measure its size.
    pub(crate) fn is_full(&mut self, target: usize) -> bool {
        if self.count() >= elias_fano::COUNT_MAX || self.boundary_bytes >= BOUNDARY_BYTES_MAX {
            return true;
        }
        if self.estimated_bytes < self.next_trial_at.max(target) {
            return false;
        }
        let trial = self.encode();
        let bytes = trial.len();
        self.trial = Some((self.count(), trial));
        // A block within 1/16 of the target is full. Otherwise, another trial would be necessary after a few more
        // boundaries.
        if bytes + bytes / 16 >= target {
            return true;
        }
        // The next trial is due when the estimate reaches the value that corresponds to the target size, according to
        // this trial. It is due at the latest when the estimate has doubled, because later boundaries may be longer.
        let ahead = self.estimated_bytes.saturating_mul(target) / bytes.max(1);
        self.next_trial_at = ahead.clamp(self.estimated_bytes + 1, 2 * self.estimated_bytes + 1);
        false
    }

    /// Returns the encoded block without the boundary after the last data block. Resets the builder.
    pub(crate) fn finish(&mut self) -> Vec<u8> {
        let built = std::mem::take(self);
        match built.trial {
            Some((count, trial)) if count == built.sizes.len() => trial,
            _ => built.encode(),
        }
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = vec![ENCODING_SUCCINCT, FORM_NUMBERS];
        put_varint(&mut out, len_u64(self.sizes.len()));
        put_varint(&mut out, self.offset);
        let smallest = self.sizes.iter().copied().min().unwrap_or(0);
        put_varint(&mut out, smallest);
        let mut sum = 0;
        let larger = self.sizes.iter().map(|size| {
            sum += size - smallest;
            sum
        });
        elias_fano::encode(&larger.collect::<Vec<_>>(), SequenceAccess::ByIndex, &mut out);
        let inside = self.sizes.len().saturating_sub(1).min(self.boundaries.len());
        let boundaries = &self.boundaries[..inside];
        let (Some(first), Some(last)) = (boundaries.first(), boundaries.last()) else { return out };
        // The prefix must not contain the last byte of a boundary, because this byte distinguishes the boundary from
        // the preceding key.
        let cut = boundaries
            .iter()
            .filter(|boundary| boundary.last_seq_before().is_none())
            .map(|boundary| boundary.user_key.len() - 1)
            .fold(common_prefix(&first.user_key, &last.user_key), usize::min);
        let prefix = &first.user_key[..cut];
        let mut as_strings = Vec::new();
        put_bytes(&mut as_strings, prefix);
        boundary_strings::encode(boundaries.iter(), cut, &mut as_strings);
        if let Some(as_numbers) = encode_boundary_numbers(boundaries, prefix)
            && as_numbers.len() <= as_strings.len()
        {
            out.extend(as_numbers);
        } else {
            out[1] = FORM_STRINGS;
            out.append(&mut as_strings);
        }
        out
    }
}

/// Encodes boundaries in form 0. Returns `None` if each boundary separates two versions of one user key.
fn encode_boundary_numbers(boundaries: &[Boundary], prefix: &[u8]) -> Option<Vec<u8>> {
    let plan = MixedRadixPlan::smallest_plan(boundaries, prefix.len())?;
    let mut out = Vec::new();
    plan.encode(prefix, &mut out);
    elias_fano::encode(&plan.numbers, SequenceAccess::ByValue, &mut out);
    put_varint(&mut out, len_u64(plan.ties.len()));
    for &tie in &plan.ties {
        // The conversion succeeds, because an ordinal is less than `COUNT_MAX`.
        let ordinal = u16::try_from(tie).unwrap_or(u16::MAX);
        out.extend_from_slice(&ordinal.to_le_bytes());
    }
    let tied = plan.ties.iter().map(|&tie| &boundaries[tie]);
    boundary_strings::encode(tied, prefix.len(), &mut out);
    Some(out)
}

/// Decoded form of the boundaries of a block.
#[derive(Clone, Debug)]
enum BoundaryForm {
    /// The index has one data block and therefore no boundaries.
    None,
    Numbers {
        map: MixedRadixMap,
        numbers: EliasFano,
        ordinals_at: u32,
        ties: BoundaryStrings,
    },
    Strings {
        prefix_at: u32,
        prefix_bytes: u32,
        all: BoundaryStrings,
    },
}

/// Contents of a succinct index block. A search reads the encoded bytes.
#[derive(Clone, Debug)]
pub(super) struct SuccinctIndex {
    pub(super) block: Box<[u8]>,
    offset: u64,
    smallest: u64,
    sizes: EliasFano,
    form: BoundaryForm,
}

impl SuccinctIndex {
    /// Copies the contents of a block. Sequences and strings are checked only when they are read.
    pub(super) fn new(block: &[u8]) -> Result<SuccinctIndex, Malformed> {
        let mut decoder = Decoder::new(block);
        decoder.u8("index encoding")?;
        let form = decoder.u8("form of boundaries")?;
        let count = decoder.length("index entries")?;
        if count == 0 || count > elias_fano::COUNT_MAX {
            return Err(Malformed::invalid_field("index entries", len_u64(count), "1 to 16384"));
        }
        let offset = decoder.varint("block offset")?;
        let smallest = decoder.varint("smallest block size")?;
        let sizes = EliasFano::decode(&mut decoder, count, SequenceAccess::ByIndex)?;
        // Check that no sum in `handle_at` can overflow.
        BlockHandle { offset, bytes: 0 }
            .end_offset()
            .ok()
            .zip(smallest.checked_mul(len_u64(count)))
            .and_then(|(offset, bytes)| offset.checked_add(bytes)?.checked_add(sizes.last()))
            .ok_or(Malformed::invalid_field("block offset", offset, "an offset inside the file"))?;
        let form = match (count, form) {
            (1, FORM_NUMBERS) => BoundaryForm::None,
            (_, FORM_NUMBERS) => {
                let map = MixedRadixMap::decode(block, &mut decoder)?;
                let numbers = EliasFano::decode(&mut decoder, count - 1, SequenceAccess::ByValue)?;
                let ties = decoder.length("tied boundaries")?;
                let ordinals_at = decoder.offset();
                if ties >= count {
                    return Err(Malformed::invalid_field(
                        "tied boundaries",
                        len_u64(ties),
                        "at most the number of boundaries",
                    ));
                }
                decoder.take_bytes("tied boundaries", ties * size_of::<u16>())?;
                let ordinals_at = offset_in_block(ordinals_at)?;
                BoundaryForm::Numbers {
                    map,
                    numbers,
                    ordinals_at,
                    ties: BoundaryStrings::decode(&mut decoder, ties)?,
                }
            }
            (2.., FORM_STRINGS) => {
                let prefix = decode_prefix(&mut decoder)?.len();
                let prefix_at = offset_in_block(decoder.offset() - prefix)?;
                let all = BoundaryStrings::decode(&mut decoder, count - 1)?;
                BoundaryForm::Strings { prefix_at, prefix_bytes: offset_in_block(prefix)?, all }
            }
            _ => {
                return Err(Malformed::invalid_field(
                    "form of boundaries",
                    u64::from(form),
                    "0 (numbers), or 1 (strings) for at least two blocks",
                ));
            }
        };
        decoder.finish("bytes after the index")?;
        Ok(SuccinctIndex { block: block.into(), offset, smallest, sizes, form })
    }

    pub(super) fn count(&self) -> usize {
        self.sizes.count()
    }

    /// Returns the block that can contain (`user_key`, `seq`), as ordinal and handle.
    #[inline]
    pub(super) fn seek(
        &self,
        user_key: &[u8],
        seq: SeqNo,
    ) -> Result<(usize, BlockHandle), Malformed> {
        let ordinal = self.count_boundaries_at_or_before(user_key, seq)?;
        Ok((ordinal, self.handle_at(ordinal)?))
    }

    /// Returns the handle of the block with this ordinal, or `None` if there is no such block.
    pub(super) fn handle(&self, ordinal: usize) -> Result<Option<BlockHandle>, Malformed> {
        if ordinal >= self.count() {
            return Ok(None);
        }
        self.handle_at(ordinal).map(Some)
    }

    #[inline]
    fn handle_at(&self, ordinal: usize) -> Result<BlockHandle, Malformed> {
        let pair = self.sizes.get_with_previous(&self.block, ordinal);
        // `new` checked that the sums below do not overflow, provided that the stored sums are in ascending order and
        // at most the last one. The filter checks this condition.
        let pair = pair.filter(|&(before, with)| before <= with && with <= self.sizes.last());
        let (before, with) = pair.ok_or(UNORDERED_SIZES)?;
        let offset = self.offset + len_u64(ordinal) * self.smallest + before;
        Ok(BlockHandle { offset, bytes: self.smallest + (with - before) })
    }

    /// Returns the number of boundaries that are at or before (`user_key`, `seq`).
    #[inline]
    fn count_boundaries_at_or_before(
        &self,
        user_key: &[u8],
        seq: SeqNo,
    ) -> Result<usize, Malformed> {
        let boundaries = self.count() - 1;
        match &self.form {
            BoundaryForm::None => Ok(0),
            BoundaryForm::Numbers { map, numbers, ordinals_at, ties } => {
                let (number, rest) = match map.map_key(&self.block, user_key) {
                    MappedKey::Before => return Ok(0),
                    MappedKey::Number(number, rest) => (number, rest),
                    MappedKey::After => return Ok(boundaries),
                };
                let equal = numbers.equal_range(&self.block, number).ok_or(UNORDERED_NUMBERS)?;
                if equal.is_empty() {
                    return Ok(equal.start);
                }
                // All boundaries with this number are ties, except possibly the first of them.
                let passed = ties.count_at_or_before(&self.block, rest, seq)?;
                let ordinal_of = |index| self.tied_boundary_ordinal(*ordinals_at, index);
                if let Some(last) = passed.checked_sub(1)
                    && ordinal_of(last)? >= equal.start
                {
                    return Ok((ordinal_of(last)? + 1).min(boundaries));
                }
                let first_is_tie = passed < ties.count() && ordinal_of(passed)? == equal.start;
                Ok(equal.start + usize::from(!first_is_tie))
            }
            BoundaryForm::Strings { prefix_at, prefix_bytes, all } => {
                let prefix = self.boundary_prefix(*prefix_at, *prefix_bytes);
                match user_key.strip_prefix(prefix) {
                    Some(rest) => all.count_at_or_before(&self.block, rest, seq),
                    None if user_key < prefix => Ok(0),
                    None => Ok(boundaries),
                }
            }
        }
    }

    #[inline]
    fn tied_boundary_ordinal(&self, ordinals_at: u32, index: usize) -> Result<usize, Malformed> {
        let at = ordinals_at as usize + index * size_of::<u16>();
        let ordinal = self.block.get(at..).and_then(<[u8]>::first_chunk);
        let ordinal = ordinal.ok_or(Malformed::Order { what: "tied boundaries are" })?;
        Ok(usize::from(u16::from_le_bytes(*ordinal)))
    }

    fn boundary_prefix(&self, at: u32, bytes: u32) -> &[u8] {
        &self.block[at as usize..(at + bytes) as usize]
    }

    /// Returns the handles of all blocks in key order, each with the separator after the block. The last block has no
    /// separator.
    ///
    /// # Errors
    /// Fails if the builder cannot have written this encoding.
    pub(super) fn entries(&self) -> Result<Vec<(Option<Separator>, BlockHandle)>, Malformed> {
        self.sizes.decode_all(&self.block).ok_or(UNORDERED_SIZES)?;
        let mut separators = match &self.form {
            BoundaryForm::None => Vec::new(),
            BoundaryForm::Numbers { map, numbers, ordinals_at, ties } => {
                self.decode_number_separators(map, numbers, *ordinals_at, ties)?
            }
            BoundaryForm::Strings { prefix_at, prefix_bytes, all } => {
                let prefix = self.boundary_prefix(*prefix_at, *prefix_bytes);
                all.decode_all(&self.block)?
                    .into_iter()
                    .map(|rest| separator(prefix, rest))
                    .collect()
            }
        }
        .into_iter();
        (0..self.count()).map(|ordinal| Ok((separators.next(), self.handle_at(ordinal)?))).collect()
    }

    fn decode_number_separators(
        &self,
        map: &MixedRadixMap,
        numbers: &EliasFano,
        ordinals_at: u32,
        ties: &BoundaryStrings,
    ) -> Result<Vec<Separator>, Malformed> {
        let prefix = map.prefix(&self.block);
        let mut separators = Vec::with_capacity(numbers.count());
        let numbers = numbers.decode_all(&self.block).ok_or(UNORDERED_NUMBERS)?;
        // If the map has a base, keys before the first boundary have the number 0. No boundary may have this number.
        if numbers.first() == Some(&0) && map.has_base() {
            return Err(UNORDERED_NUMBERS);
        }
        for (ordinal, &number) in numbers.iter().enumerate() {
            let Some(key) = map.smallest_key(&self.block, number) else {
                return Err(Malformed::invalid_field(
                    "number of a boundary",
                    number,
                    "the number of some key",
                ));
            };
            // If several boundaries have the same number, all of them except the first must be ties.
            let is_repeated = ordinal > 0 && numbers[ordinal - 1] == number;
            separators.push((is_repeated, separator(prefix, (key, None))));
        }
        let mut next = 0;
        for (index, rest) in ties.decode_all(&self.block)?.into_iter().enumerate() {
            let ordinal = self.tied_boundary_ordinal(ordinals_at, index)?;
            let entry = separators.get_mut(ordinal).filter(|_| ordinal >= next);
            let Some(entry) = entry else {
                return Err(Malformed::Order { what: "tied boundaries are" });
            };
            let key = [prefix, &rest.0].concat();
            let mapped = map.map_key(&self.block, &key);
            if !matches!(mapped, MappedKey::Number(number, _) if number == numbers[ordinal]) {
                return Err(Malformed::Order { what: "tied boundaries and their numbers are" });
            }
            *entry = (false, separator(prefix, rest));
            next = ordinal + 1;
        }
        if separators.iter().any(|(is_repeated, _)| *is_repeated) {
            return Err(Malformed::Order { what: "boundaries with one number are" });
        }
        Ok(separators.into_iter().map(|(_, separator)| separator).collect())
    }
}

fn separator(prefix: &[u8], (rest, seq): boundary_strings::DecodedBoundary) -> Separator {
    let versions = seq.map_or(SeparatorSide::After, SeparatorSide::Split);
    Separator { user_key: [prefix, &rest].concat(), versions }
}
