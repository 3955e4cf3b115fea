//! Inputs to begin with: the files of a database, and the pieces they consist of.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use lsmx_base::coding::{get_u32, len_u64, to_usize};
use lsmx_base::file_name::FileName;

use crate::format::BlockKind;
use crate::format::blob::{
    BLOB_HEADER_BYTES, BLOB_TRAILER_BYTES, BlobHeader, BlobRecord, ValuePointer, put_record,
    record_bytes,
};
use crate::format::block::{self, BlockHandle, Compression};
use crate::format::footer::{FOOTER_BYTES, Footer};
use crate::format::log_record::RECORD_HEADER_BYTES;
use crate::format::manifest_header::MANIFEST_HEADER_BYTES;
use crate::format::properties::TableProperties;
use crate::format::segment_header::SEGMENT_HEADER_BYTES;
use crate::format::workload_trace::{TRACE_HEADER_BYTES, TRACE_MAGIC};
use crate::fuzzing::api::api_seeds;
use crate::fuzzing::repair::{self, handles};

/// Seeds by the names of the targets.
#[derive(Debug, Default)]
struct Corpus(BTreeMap<&'static str, Vec<Vec<u8>>>);

impl Corpus {
    fn add(&mut self, targets: &[&'static str], bytes: &[u8]) {
        for target in targets {
            self.0.entry(target).or_default().push(bytes.to_vec());
        }
    }

    /// A block, whose contents are a seed for `target`.
    fn block(
        &mut self,
        (table, uid): (&[u8], u64),
        handle: BlockHandle,
        kind: BlockKind,
        target: &'static str,
    ) -> Option<bytes::Bytes> {
        let start = to_usize("offset", handle.offset).ok()?;
        let stored = table.get(start..to_usize("end", handle.end_offset().ok()?).ok()?)?.to_vec();
        let contents = block::decode_block(stored, kind, uid, handle.offset).ok()?;
        for compression in [Compression::None, Compression::Lz4] {
            let (mut sealed, mut scratch) = (contents.to_vec(), Vec::new());
            let (uid, offset) = (repair::UID, repair::OFFSET);
            block::encode_block(&mut sealed, kind, compression, uid, offset, &mut scratch);
            self.add(&["block", "block_repaired"], &sealed);
        }
        self.add(&[target], &contents);
        Some(contents)
    }

    fn table(&mut self, bytes: &[u8]) -> Option<()> {
        self.add(&["table", "table_repaired"], bytes);
        let footer = &bytes[bytes.len().checked_sub(FOOTER_BYTES)?..];
        self.add(&["footer", "footer_repaired"], footer);
        let footer = Footer::decode(footer).ok()?;
        let place = (bytes, footer.uid);
        let contents = self.block(place, footer.properties, BlockKind::Open, "properties")?;
        let properties = TableProperties::decode(&contents).ok()?;
        if let Some(handle) = properties.filter {
            self.block(place, handle, BlockKind::Filter, "filter");
        }
        if let Some(handle) = properties.range_tombstones {
            self.block(place, handle, BlockKind::RangeTombstones, "range_tombstones");
        }
        let top = properties.top_index?;
        self.block(place, top, BlockKind::TopIndex, "index_block");
        let mut copy = bytes.to_vec();
        for index in handles(&mut copy, footer.uid, top, BlockKind::TopIndex) {
            self.block(place, index, BlockKind::Index, "index_block");
            for data in handles(&mut copy, footer.uid, index, BlockKind::Index).take(2) {
                self.block(place, data, BlockKind::Data, "data_block");
            }
        }
        Some(())
    }

    /// A blob file, its records, and pointers to them.
    fn blob(&mut self, bytes: &[u8]) -> Option<()> {
        self.add(&["blob", "blob_repaired"], bytes);
        let uid = BlobHeader::decode(bytes.get(..BLOB_HEADER_BYTES)?).ok()?.uid;
        let end = bytes.len().checked_sub(BLOB_TRAILER_BYTES)?;
        let mut at = BLOB_HEADER_BYTES;
        while at < end {
            let length = to_usize("record", record_bytes(&bytes[at..]).ok()?).ok()?;
            let record = BlobRecord::decode(bytes.get(at..at + length)?, uid, len_u64(at)).ok()?;
            let (offset, mut scratch) = (repair::OFFSET, Vec::new());
            let value_bytes = record.value_bytes().ok()?;
            let value = record.value(value_bytes).ok()?;
            let mut moved = Vec::new();
            let entry = (record.key, record.seq);
            let stored = (&*value, record.compression);
            put_record(&mut moved, (repair::UID, offset), entry, stored, &mut scratch);
            self.add(&["blob_record", "blob_record_repaired"], &moved);
            let mut pointer = Vec::new();
            let bytes = len_u64(length);
            ValuePointer { file: 9, offset, bytes, value_bytes }.put(&mut pointer);
            self.add(&["value_pointer"], &pointer);
            at += length;
        }
        Some(())
    }

    /// The payloads of a log's records.
    fn payloads(&mut self, bytes: &[u8], header_bytes: usize, target: &'static str) -> Option<()> {
        let mut at = header_bytes;
        loop {
            let payload_at = at + RECORD_HEADER_BYTES;
            let payload_bytes = to_usize("payload", u64::from(get_u32(bytes, at + 8)?)).ok()?;
            let payload = bytes.get(payload_at..payload_at + payload_bytes)?;
            if !payload.is_empty() {
                self.add(&[target], payload);
            }
            at = payload_at + payload_bytes;
        }
    }
}

/// Takes the files of a database, closed or not, apart into inputs for each target.
#[must_use]
pub fn seeds(files: &BTreeMap<PathBuf, Vec<u8>>) -> BTreeMap<&'static str, Vec<Vec<u8>>> {
    let mut corpus = Corpus::default();
    for (path, bytes) in files {
        let name = path.file_name().and_then(|name| Path::new(name).to_str());
        let Some(name) = name else { continue };
        corpus.add(&["file_name"], name.as_bytes());
        match FileName::parse(name) {
            Some(FileName::Table(_)) => {
                corpus.table(bytes);
            }
            Some(FileName::Blob(_)) => {
                corpus.blob(bytes);
            }
            Some(FileName::Segment(_)) => {
                corpus.add(&["wal", "wal_repaired", "recovery_wal"], bytes);
                corpus.payloads(bytes, SEGMENT_HEADER_BYTES, "batch");
            }
            Some(FileName::Manifest(_)) => {
                corpus.add(&["manifest", "manifest_repaired", "recovery_manifest"], bytes);
                corpus.payloads(bytes, MANIFEST_HEADER_BYTES, "edit");
            }
            Some(FileName::Current) => corpus.add(&["current"], bytes),
            None if bytes.starts_with(&TRACE_MAGIC) => {
                corpus.add(&["trace", "trace_repaired"], bytes);
                corpus.payloads(bytes, TRACE_HEADER_BYTES, "trace_items");
            }
            _ => {}
        }
    }
    for sequence in api_seeds() {
        corpus.add(&["api"], &sequence);
    }
    for spec in lsmx_compaction::PolicySpec::all_presets() {
        corpus.add(&["policy_spec"], spec.to_string().as_bytes());
        corpus.add(&["policy_file"], format!("policy = \"{spec}\"\n").as_bytes());
        for parameter in spec.preset().into_iter().flat_map(|preset| preset.parameters()) {
            let name = parameter.name();
            let value = spec.value(*parameter).map(|value| parameter.format(value));
            let value = value.unwrap_or_default();
            corpus.add(&["policy_spec"], format!("{}({name}={value})", spec.name()).as_bytes());
        }
    }
    let composed = lsmx_compaction::PolicySpec::from_primitives;
    for spec in lsmx_compaction::PolicySpec::all_presets() {
        if let Ok(spec) = composed("seed", spec.primitives()) {
            corpus.add(&["policy_spec"], spec.to_string().as_bytes());
            corpus.add(&["policy_file"], crate::fuzzing::file_of(&spec).as_bytes());
        }
    }
    corpus.0
}
