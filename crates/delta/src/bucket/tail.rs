//! Records of a bucket that are not in a file of it yet: the log has them.

use bytes::Bytes;
use lsmx::{Error, Malformed, Result, SeqNo};
use lsmx_base::coding::{Decoder, len_u64};
use lsmx_base::filter::key_hash;

use super::extent::fingerprint;
use crate::charge::{Charge, Memory};
use crate::format::record::{self, Record, RecordRef};

/// Records in order, encoded, and where each begins.
#[derive(Debug)]
pub(crate) struct Tail {
    bytes: Bytes,
    starts: Box<[u32]>,
    /// Of the key of each: few lookups find anything, and those that do not need not look at the records.
    prints: Box<[u16]>,
    /// Number of the newest record.
    pub(crate) last: SeqNo,
    _charge: Charge,
}

/// Bytes of a record beside its own.
const PLACE_BYTES: usize = size_of::<u32>() + size_of::<u16>();
/// Fingerprints that are compared at once.
const AT_ONCE: usize = 32;

fn start(at: usize) -> Result<u32> {
    u32::try_from(at).map_err(|_| Error::TooLarge {
        what: "operands of a bucket that are in memory",
        bytes: len_u64(at),
        limit: u64::from(u32::MAX),
    })
}

impl Tail {
    /// Of records in order.
    pub(crate) fn new(records: &[Record], memory: &Memory) -> Result<Tail> {
        let mut bytes = Vec::with_capacity(records.iter().map(|record| record.size() + 8).sum());
        let mut starts = Vec::with_capacity(records.len());
        for record in records {
            starts.push(start(bytes.len())?);
            record.put(&mut bytes);
        }
        let prints = records.iter().map(|record| fingerprint(key_hash(&record.key))).collect();
        let last = records.iter().map(|record| record.last).max().unwrap_or_default();
        let _charge = memory.charge(bytes.capacity() + PLACE_BYTES * starts.len());
        Ok(Tail { bytes: bytes.into(), starts: starts.into(), prints, last, _charge })
    }

    /// Of encoded records.
    pub(crate) fn decode(bytes: &Bytes, memory: &Memory) -> Result<Tail, Malformed> {
        let (mut starts, mut prints, mut last) = (Vec::new(), Vec::new(), SeqNo::ZERO);
        record::for_each(bytes, |at, record| {
            // Of the contents of a frame, whose length has 32 bits.
            starts.push(u32::try_from(at).unwrap_or(u32::MAX));
            prints.push(fingerprint(key_hash(record.key)));
            last = last.max(record.last);
        })?;
        let _charge = memory.charge(bytes.len() + PLACE_BYTES * starts.len());
        let (bytes, starts, prints) = (bytes.clone(), starts.into(), prints.into());
        Ok(Tail { bytes, starts, prints, last, _charge })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// All records, encoded.
    pub(crate) fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    fn get(&self, index: usize) -> RecordRef<'_> {
        let at = self.starts[index] as usize;
        let mut decoder = Decoder::new(&self.bytes[at..]);
        // Encoded here, or decoded once when the tail was made.
        #[expect(clippy::expect_used, reason = "the invariant stands above")]
        record::get(&mut decoder).expect("a record that was checked")
    }

    pub(crate) fn records(&self) -> impl Iterator<Item = Record> + '_ {
        (0..self.starts.len()).map(|index| self.get(index).shared(&self.bytes))
    }

    /// The records of a key, newest first; `print` is its fingerprint.
    pub(crate) fn of_key<'a>(
        &'a self,
        key: &'a [u8],
        print: u16,
    ) -> impl Iterator<Item = RecordRef<'a>> + 'a {
        let first = self.first_of(key, print).unwrap_or(self.starts.len());
        (first..self.starts.len()).map(|index| self.get(index)).take_while(move |it| it.key == key)
    }

    /// Where the records of a key begin, if there are any.
    fn first_of(&self, key: &[u8], print: u16) -> Option<usize> {
        // One chunk after the other without a way out, so that many are compared at once.
        let chunks = self.prints.chunks(AT_ONCE).enumerate();
        let alike = chunks.filter(|(_, prints)| {
            prints.iter().fold(false, |alike, other| alike | (*other == print))
        });
        alike.into_iter().find_map(|(chunk, prints)| {
            let indices = (chunk * AT_ONCE..).zip(prints).filter(|(_, other)| **other == print);
            indices.map(|(index, _)| index).find(|index| self.get(*index).key == key)
        })
    }

    pub(crate) fn shared(&self, record: RecordRef<'_>) -> Record {
        record.shared(&self.bytes)
    }
}
