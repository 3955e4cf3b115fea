//! Tail of a bucket: records that are in memory and in the log but in no bucket file yet.
//!
//! The fingerprints of all keys are in one array ("fingerprinted bucket tails").

use bytes::Bytes;
use lsmx::{Error, Result};
use lsmx_base::coding::len_u64;
use lsmx_base::filter::key_hash;
use lsmx_base::key::SeqNo;
use lsmx_base::malformed::Malformed;

use super::extent::fingerprint;
use crate::format::record::{Record, RecordRef, for_each_record};
use crate::memory::{MemoryCharge, MemoryUsage};

/// Encoded records in order.
#[derive(Debug)]
pub struct Tail {
    bytes: Bytes,
    /// Offset of each record.
    offsets: Box<[u32]>,
    /// Fingerprint of each record's key. Most lookups find no match here and decode no record.
    fingerprints: Box<[u16]>,
    /// Largest sequence number.
    pub newest: SeqNo,
    _charge: MemoryCharge,
}

/// Memory of a record's offset and fingerprint, in bytes.
const ENTRY_BYTES: usize = size_of::<u32>() + size_of::<u16>();
/// Number of fingerprints that one step of a search compares.
const FINGERPRINTS_PER_STEP: usize = 32;

fn encode_offset(offset: usize) -> Result<u32> {
    u32::try_from(offset).map_err(|_| Error::TooLarge {
        what: "operands of a bucket that are in memory",
        bytes: len_u64(offset),
        limit: u64::from(u32::MAX),
    })
}

impl Tail {
    /// Encodes records, which must be in order. Fails with [`Error::TooLarge`] if an offset exceeds 32 bits.
    pub fn new(records: &[Record], memory: &MemoryUsage) -> Result<Tail> {
        let mut bytes = Vec::with_capacity(records.iter().map(|record| record.size() + 8).sum());
        let mut offsets = Vec::with_capacity(records.len());
        for record in records {
            offsets.push(encode_offset(bytes.len())?);
            record.put(&mut bytes);
        }
        let hashes = records.iter().map(|record| key_hash(&record.key));
        let fingerprints = hashes.map(fingerprint).collect();
        let newest = records.iter().map(|record| record.last).max().unwrap_or_default();
        let _charge = memory.charge(bytes.capacity() + ENTRY_BYTES * offsets.len());
        Ok(Tail { bytes: bytes.into(), offsets: offsets.into(), fingerprints, newest, _charge })
    }

    /// Checks encoded records and returns them as a tail.
    pub fn decode(bytes: &Bytes, memory: &MemoryUsage) -> Result<Tail, Malformed> {
        let (mut offsets, mut fingerprints) = (Vec::new(), Vec::new());
        let mut newest = SeqNo::ZERO;
        for_each_record(bytes, |at, record| {
            // The offset fits into 32 bits, because the bytes come from a frame, whose length has 32 bits.
            offsets.push(u32::try_from(at).unwrap_or(u32::MAX));
            fingerprints.push(fingerprint(key_hash(record.key)));
            newest = newest.max(record.last);
        })?;
        let _charge = memory.charge(bytes.len() + ENTRY_BYTES * offsets.len());
        let (bytes, offsets) = (bytes.clone(), offsets.into());
        Ok(Tail { bytes, offsets, fingerprints: fingerprints.into(), newest, _charge })
    }

    pub fn is_empty(&self) -> bool {
        self.offsets.is_empty()
    }

    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    fn record(&self, index: usize) -> RecordRef<'_> {
        RecordRef::decode_valid(&self.bytes, self.offsets[index] as usize)
    }

    pub fn records(&self) -> impl Iterator<Item = Record> + '_ {
        (0..self.offsets.len()).map(|index| self.record(index).to_record(&self.bytes))
    }

    /// Returns the records of a key with the given fingerprint, newest first.
    pub fn records_of_key<'a>(
        &'a self,
        key: &'a [u8],
        fingerprint: u16,
    ) -> impl Iterator<Item = RecordRef<'a>> + 'a {
        let first = self.find_first_record(key, fingerprint).unwrap_or(self.offsets.len());
        let records = (first..self.offsets.len()).map(|index| self.record(index));
        records.take_while(move |record| record.key == key)
    }

    fn find_first_record(&self, key: &[u8], fingerprint: u16) -> Option<usize> {
        // A step compares all its fingerprints without an early exit, so that the compiler vectorizes it.
        let steps = self.fingerprints.chunks(FINGERPRINTS_PER_STEP).enumerate();
        let matching = steps.filter(|(_, step)| {
            step.iter().fold(false, |matches, other| matches | (*other == fingerprint))
        });
        matching.into_iter().find_map(|(step, fingerprints)| {
            let indexes = (step * FINGERPRINTS_PER_STEP..).zip(fingerprints);
            let equal = indexes.filter(|(_, other)| **other == fingerprint);
            equal.map(|(index, _)| index).find(|index| self.record(*index).key == key)
        })
    }

    /// Returns an owned record. Its key and operand share the memory of the tail.
    pub fn to_record(&self, record: RecordRef<'_>) -> Record {
        record.to_record(&self.bytes)
    }
}
