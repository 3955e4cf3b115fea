//! Tail of a bucket: the newest records, which are in memory and in the store's log, but not yet in a bucket file.
//!
//! An array holds a 16-bit fingerprint of each record's key. A lookup searches this array before it decodes records.

use bytes::Bytes;
use lsmx::Result;
use lsmx_base::filter::key_hash;
use lsmx_base::key::SeqNo;
use lsmx_base::malformed::Malformed;

use super::extent::fingerprint;
use crate::format::record::{Record, RecordRef, SortedRecords};
use crate::memory::{MemoryCharge, MemoryUsage};

/// Newest records of a bucket, in memory.
#[derive(Debug)]
pub struct Tail {
    records: SortedRecords,
    /// Fingerprint of each record's key. Most lookups of absent keys find no match, and then decode no record.
    fingerprints: Box<[u16]>,
    /// Largest sequence number of the records, or 0.
    pub newest: SeqNo,
    /// Smallest sequence number of the delete markers.
    pub oldest_marker: Option<SeqNo>,
    _charge: MemoryCharge,
}

/// Memory for the offset and the fingerprint of a record, in bytes.
const ENTRY_BYTES: usize = size_of::<u32>() + size_of::<u16>();
/// Number of fingerprints that are compared in one step of a search.
const FINGERPRINTS_PER_STEP: usize = 32;

impl Tail {
    /// Encodes records, which must be in order. Fails with [`lsmx::Error::TooLarge`] if they need more than 4 GiB.
    pub fn new(records: &[Record], memory: &MemoryUsage) -> Result<Tail> {
        Ok(Tail::from_encoded(SortedRecords::encode(records)?, memory))
    }

    /// Checks encoded records and returns them as a tail.
    pub fn decode(bytes: &Bytes, memory: &MemoryUsage) -> Result<Tail, Malformed> {
        Ok(Tail::from_encoded(SortedRecords::decode(bytes.clone())?, memory))
    }

    fn from_encoded(records: SortedRecords, memory: &MemoryUsage) -> Tail {
        let fingerprints = records.iter().map(|record| fingerprint(key_hash(record.key)));
        let fingerprints = fingerprints.collect();
        let newest = records.iter().map(|record| record.last).max().unwrap_or_default();
        let markers = records.iter().filter(|record| record.operand.is_none());
        let oldest_marker = markers.map(|marker| marker.last).min();
        let _charge = memory.charge(records.bytes().len() + ENTRY_BYTES * records.len());
        Tail { records, fingerprints, newest, oldest_marker, _charge }
    }

    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    pub fn bytes(&self) -> &Bytes {
        self.records.bytes()
    }

    pub fn encoded(&self) -> &SortedRecords {
        &self.records
    }

    pub fn records(&self) -> impl Iterator<Item = Record> + '_ {
        (0..self.records.len()).map(|index| self.records.owned_record(index))
    }

    /// Returns the records of a key with the given fingerprint, newest first.
    pub fn records_of_key<'a>(
        &'a self,
        key: &'a [u8],
        fingerprint: u16,
    ) -> impl Iterator<Item = RecordRef<'a>> + 'a {
        let first = self.find_first_record(key, fingerprint).unwrap_or(self.records.len());
        let records = (first..self.records.len()).map(|index| self.records.record(index));
        records.take_while(move |record| record.key == key)
    }

    fn find_first_record(&self, key: &[u8], fingerprint: u16) -> Option<usize> {
        // All fingerprints of a step are compared without an early exit, so that the compiler vectorizes the loop.
        let steps = self.fingerprints.chunks(FINGERPRINTS_PER_STEP).enumerate();
        let matching = steps.filter(|(_, step)| {
            step.iter().fold(false, |matches, other| matches | (*other == fingerprint))
        });
        matching.into_iter().find_map(|(step, fingerprints)| {
            let indexes = (step * FINGERPRINTS_PER_STEP..).zip(fingerprints);
            let equal = indexes.filter(|(_, other)| **other == fingerprint);
            equal.map(|(index, _)| index).find(|index| self.records.record(*index).key == key)
        })
    }

    /// Returns an owned record. The key and the operand share the memory of the tail.
    pub fn to_record(&self, record: RecordRef<'_>) -> Record {
        record.to_record(self.bytes())
    }
}
