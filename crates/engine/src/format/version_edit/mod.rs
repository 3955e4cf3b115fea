//! Version edits: the payload of a manifest record.
//!
//! ```text
//! edit    changes, up to the end of the payload
//! change  tag     u8
//!         length  varint, bytes of the body
//!         body    fields in the order of the variant below: integers as varints, uids and
//!                 checksums as u64 little-endian, names and keys as varint length and bytes,
//!                 an optional field as one byte 0 or 1 and, after 1, the field
//! ```
//!
//! `table_description` describes the encoding of tables.
//!
//! A reader rejects a manifest with an unknown tag below 128, and skips unknown tags from 128 on. A tag that was stored
//! on disk is never reused. Tags 32 to 47 are reserved for blob files, and tags 48 to 63 for operand stores.

mod blob_files;
mod table_description;

use std::sync::Arc;

use bytes::Bytes;
use lsmx_base::coding::{Decoder, put_bytes, put_varint};
use lsmx_compaction::{FileId, Level, RunId, TableMeta};

use crate::operand_store::StoreToken;
pub use blob_files::{BlobFileRecord, BlobReference};
use lsmx_base::key::SeqNo;
use lsmx_base::malformed::Malformed;
use table_description::{get_table_meta, put_table_meta};

/// Maximum size of a keyspace's name, in bytes.
pub const KEYSPACE_NAME_BYTES_MAX: usize = 255;

/// First tag that a build may skip if it does not know it.
const OPTIONAL_TAGS_START: u8 = 128;

/// Returns the metadata of a table. Sequence numbers, uid and checksum equal `id`.
#[cfg(test)]
pub(crate) fn example_table(id: u64, range: lsmx_compaction::KeyRange) -> TableMeta {
    TableMeta {
        bytes: 100,
        entries: 1,
        value_bytes: 1,
        seq_smallest: id,
        seq_largest: id,
        uid: id,
        checksum: id,
        ..TableMeta::new(FileId(id), range)
    }
}

/// One change of a version edit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Creates a keyspace. The id must be reserved, or must never have been used.
    CreateKeyspace {
        /// Id of the keyspace in the WAL and in later changes.
        id: u32,
        /// Name, UTF-8 of at most [`KEYSPACE_NAME_BYTES_MAX`] bytes.
        name: String,
        /// Encoded options, which the manifest does not interpret.
        options: String,
    },
    /// Drops a keyspace with all its files. Its id is not reused.
    DropKeyspace {
        /// Id of the keyspace.
        id: u32,
    },
    /// Replaces the name of a keyspace. Since format version 2.
    RenameKeyspace {
        /// Id of the keyspace.
        keyspace: u32,
        /// New name, as in [`Change::CreateKeyspace`].
        name: String,
    },
    /// Replaces the options of a keyspace.
    SetOptions {
        /// Id of the keyspace.
        keyspace: u32,
        /// Encoded options.
        options: String,
    },
    /// Adds a file to a run. If the level has no run with this id, the file starts a new run, which becomes the newest
    /// run of the level.
    AddFile {
        /// Id of the keyspace.
        keyspace: u32,
        /// Level of the run.
        level: Level,
        /// Id of the run.
        run: RunId,
        /// The file.
        file: Arc<TableMeta>,
    },
    /// Removes a file from the tree. A run without files is removed at the end of the edit.
    RemoveFile {
        /// Id of the keyspace.
        keyspace: u32,
        /// The file.
        id: FileId,
    },
    /// Sets the order of all runs of a level at the end of the edit.
    RunOrder {
        /// Id of the keyspace.
        keyspace: u32,
        /// The level.
        level: Level,
        /// All runs of the level, newest first.
        runs: Vec<RunId>,
    },
    /// Sets the position of round-robin file selection in a level.
    Cursor {
        /// Id of the keyspace.
        keyspace: u32,
        /// The level.
        level: Level,
        /// End key of the last job out of the level.
        key: Option<Bytes>,
    },
    /// Sets the id of the next run of a keyspace.
    RunIdNext {
        /// Id of the keyspace.
        keyspace: u32,
        /// Id of the next run.
        next: u64,
    },
    /// States that tables contain all writes of a keyspace up to `seq`. WAL replay skips these writes.
    FlushedThrough {
        /// Id of the keyspace.
        keyspace: u32,
        /// Last sequence number in tables.
        seq: SeqNo,
    },
    /// Sets the WAL segment at which replay starts. Older segments are obsolete.
    WalOldest {
        /// Id of the segment.
        segment: u64,
    },
    /// States that a WAL segment exists. Its header and all older segments are on stable storage.
    WalSegment {
        /// Id of the segment.
        id: u64,
    },
    /// States that a WAL segment is synced up to `bytes`, and that all valid bytes of older segments are synced.
    WalMark {
        /// Id of the segment.
        segment: u64,
        /// Synced bytes.
        bytes: u64,
    },
    /// Sets an exclusive upper bound of all file numbers.
    FileNumberNext(u64),
    /// Sets the largest sequence number that the files of the edit may contain. Later writes get larger numbers.
    LastSeq(SeqNo),
    /// Sets the largest time seen so far, in microseconds.
    ClockUs(u64),
    /// States that the database was closed and that all its data is on stable storage.
    CleanClose {
        /// Last sequence number.
        last_seq: SeqNo,
    },
    /// States that the database was opened for writing after a clean close.
    Opened,
    /// Sets the id of the next keyspace. Manifest snapshots write it, so that ids are not reused.
    KeyspaceIdNext(u32),
    /// Reserves the id of a keyspace that is created later. The reservation ends when the database is opened again. The
    /// id must never have been used. Since format version 2.
    ReserveKeyspaceId(u32),
    /// Sets the state of the operand store of a keyspace.
    OperandToken {
        /// Id of the keyspace.
        keyspace: u32,
        /// Token of the state that the store prepared. `None` if all operands of the store have moved to tables.
        token: Option<StoreToken>,
    },
    /// Adds a blob file to a keyspace.
    AddBlob {
        /// Id of the keyspace.
        keyspace: u32,
        /// The file.
        blob: BlobFileRecord,
    },
    /// Removes a blob file from its keyspace.
    RemoveBlob {
        /// Id of the keyspace.
        keyspace: u32,
        /// The file.
        id: FileId,
    },
    /// Sets the references of a table to blob files. They are valid until the table is removed.
    References {
        /// Id of the keyspace.
        keyspace: u32,
        /// The table.
        table: FileId,
        /// References, ordered by number of the blob file.
        blobs: Arc<[BlobReference]>,
    },
}

impl Change {
    /// Returns the id of the keyspace that the change affects, if any.
    #[must_use]
    pub fn keyspace(&self) -> Option<u32> {
        match self {
            Change::CreateKeyspace { id, .. } | Change::DropKeyspace { id } => Some(*id),
            Change::RenameKeyspace { keyspace, .. }
            | Change::SetOptions { keyspace, .. }
            | Change::AddFile { keyspace, .. }
            | Change::RemoveFile { keyspace, .. }
            | Change::RunOrder { keyspace, .. }
            | Change::Cursor { keyspace, .. }
            | Change::RunIdNext { keyspace, .. }
            | Change::FlushedThrough { keyspace, .. }
            | Change::OperandToken { keyspace, .. }
            | Change::AddBlob { keyspace, .. }
            | Change::RemoveBlob { keyspace, .. }
            | Change::References { keyspace, .. } => Some(*keyspace),
            Change::WalOldest { .. }
            | Change::WalSegment { .. }
            | Change::WalMark { .. }
            | Change::FileNumberNext(_)
            | Change::LastSeq(_)
            | Change::ClockUs(_)
            | Change::CleanClose { .. }
            | Change::Opened
            | Change::KeyspaceIdNext(_)
            | Change::ReserveKeyspaceId(_) => None,
        }
    }
}

/// An atomic change of the manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VersionEdit {
    /// Changes, applied in this order.
    pub changes: Vec<Change>,
}

impl From<Vec<Change>> for VersionEdit {
    fn from(changes: Vec<Change>) -> VersionEdit {
        VersionEdit { changes }
    }
}

impl VersionEdit {
    /// Encodes the edit.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let (mut out, mut body) = (Vec::new(), Vec::new());
        for change in &self.changes {
            body.clear();
            let tag = change.encode_body(&mut body);
            out.push(tag);
            put_bytes(&mut out, &body);
        }
        out
    }

    /// Decodes the payload of a manifest record.
    ///
    /// # Errors
    /// Fails if the payload is malformed, or if it contains an unknown tag below 128.
    pub fn decode(payload: &[u8]) -> Result<VersionEdit, Malformed> {
        let mut input = Decoder::new(payload);
        let mut changes = Vec::new();
        while !input.is_empty() {
            let tag = input.u8("tag of a manifest change")?;
            let mut body = Decoder::new(input.bytes("manifest change")?);
            if let Some(change) = Change::decode_body(tag, &mut body)? {
                if !body.is_empty() {
                    return Err(Malformed::invalid_field(
                        "bytes after the last field of a manifest change",
                        body.remaining() as u64,
                        "0",
                    ));
                }
                changes.push(change);
            }
        }
        Ok(VersionEdit { changes })
    }
}

impl Change {
    /// Appends the fields, and returns the tag.
    fn encode_body(&self, out: &mut Vec<u8>) -> u8 {
        match self {
            Change::CreateKeyspace { id, name, options } => {
                put_varint(out, u64::from(*id));
                put_bytes(out, name.as_bytes());
                put_bytes(out, options.as_bytes());
                1
            }
            Change::DropKeyspace { id } => {
                put_varint(out, u64::from(*id));
                2
            }
            Change::SetOptions { keyspace, options } => {
                put_varint(out, u64::from(*keyspace));
                put_bytes(out, options.as_bytes());
                3
            }
            Change::AddFile { keyspace, level, run, file } => {
                put_varint(out, u64::from(*keyspace));
                out.push(level.0);
                put_varint(out, run.0);
                put_table_meta(out, file);
                4
            }
            Change::RemoveFile { keyspace, id } => {
                put_varint(out, u64::from(*keyspace));
                put_varint(out, id.0);
                5
            }
            Change::RunOrder { keyspace, level, runs } => {
                put_varint(out, u64::from(*keyspace));
                out.push(level.0);
                put_varint(out, runs.len() as u64);
                for run in runs {
                    put_varint(out, run.0);
                }
                6
            }
            Change::Cursor { keyspace, level, key } => {
                put_varint(out, u64::from(*keyspace));
                out.push(level.0);
                put_optional(out, key.as_ref(), |out, key| put_bytes(out, key));
                7
            }
            Change::RunIdNext { keyspace, next } => {
                put_varint(out, u64::from(*keyspace));
                put_varint(out, *next);
                8
            }
            Change::FlushedThrough { keyspace, seq } => {
                put_varint(out, u64::from(*keyspace));
                put_varint(out, seq.0);
                9
            }
            Change::WalOldest { segment } => {
                put_varint(out, *segment);
                10
            }
            Change::WalSegment { id } => {
                put_varint(out, *id);
                11
            }
            Change::WalMark { segment, bytes } => {
                put_varint(out, *segment);
                put_varint(out, *bytes);
                12
            }
            Change::FileNumberNext(number) => {
                put_varint(out, *number);
                13
            }
            Change::LastSeq(seq) => {
                put_varint(out, seq.0);
                14
            }
            Change::ClockUs(time) => {
                put_varint(out, *time);
                15
            }
            Change::CleanClose { last_seq } => {
                put_varint(out, last_seq.0);
                16
            }
            Change::Opened => 17,
            Change::KeyspaceIdNext(id) => {
                put_varint(out, u64::from(*id));
                18
            }
            Change::RenameKeyspace { keyspace, name } => {
                put_varint(out, u64::from(*keyspace));
                put_bytes(out, name.as_bytes());
                19
            }
            Change::ReserveKeyspaceId(id) => {
                put_varint(out, u64::from(*id));
                20
            }
            Change::OperandToken { keyspace, token } => {
                put_varint(out, u64::from(*keyspace));
                put_optional(out, *token, |out, token| {
                    token.0.into_iter().for_each(|number| put_varint(out, number));
                });
                48
            }
            Change::AddBlob { keyspace, blob } => {
                put_varint(out, u64::from(*keyspace));
                blob.encode(out);
                32
            }
            Change::RemoveBlob { keyspace, id } => {
                put_varint(out, u64::from(*keyspace));
                put_varint(out, id.0);
                33
            }
            Change::References { keyspace, table, blobs } => {
                put_varint(out, u64::from(*keyspace));
                put_varint(out, table.0);
                blob_files::put_blob_references(out, blobs);
                34
            }
        }
    }

    /// Decodes a change. Returns `None` for an unknown change that may be skipped.
    fn decode_body(tag: u8, body: &mut Decoder<'_>) -> Result<Option<Change>, Malformed> {
        let change = match tag {
            1 => Change::CreateKeyspace {
                id: get_u32(body, "keyspace id")?,
                name: get_text(body, "keyspace name")?,
                options: get_text(body, "keyspace options")?,
            },
            2 => Change::DropKeyspace { id: get_u32(body, "keyspace id")? },
            3 => Change::SetOptions {
                keyspace: get_u32(body, "keyspace id")?,
                options: get_text(body, "keyspace options")?,
            },
            4 => Change::AddFile {
                keyspace: get_u32(body, "keyspace id")?,
                level: Level(body.u8("level")?),
                run: RunId(body.varint("run id")?),
                file: Arc::new(get_table_meta(body)?),
            },
            5 => Change::RemoveFile {
                keyspace: get_u32(body, "keyspace id")?,
                id: FileId(body.varint("file id")?),
            },
            6 => Change::RunOrder {
                keyspace: get_u32(body, "keyspace id")?,
                level: Level(body.u8("level")?),
                runs: get_run_order(body)?,
            },
            7 => Change::Cursor {
                keyspace: get_u32(body, "keyspace id")?,
                level: Level(body.u8("level")?),
                key: get_optional(body, |body| get_key(body, "cursor"))?,
            },
            8 => Change::RunIdNext {
                keyspace: get_u32(body, "keyspace id")?,
                next: body.varint("next run id")?,
            },
            9 => Change::FlushedThrough {
                keyspace: get_u32(body, "keyspace id")?,
                seq: SeqNo(body.varint("flushed-through number")?),
            },
            10 => Change::WalOldest { segment: body.varint("oldest segment")? },
            11 => Change::WalSegment { id: body.varint("segment id")? },
            12 => Change::WalMark {
                segment: body.varint("marked segment")?,
                bytes: body.varint("marked bytes")?,
            },
            13 => Change::FileNumberNext(body.varint("next file number")?),
            14 => Change::LastSeq(SeqNo(body.varint("last sequence number")?)),
            15 => Change::ClockUs(body.varint("clock")?),
            16 => Change::CleanClose { last_seq: SeqNo(body.varint("last sequence number")?) },
            17 => Change::Opened,
            18 => Change::KeyspaceIdNext(get_u32(body, "next keyspace id")?),
            19 => Change::RenameKeyspace {
                keyspace: get_u32(body, "keyspace id")?,
                name: get_text(body, "keyspace name")?,
            },
            20 => Change::ReserveKeyspaceId(get_u32(body, "reserved keyspace id")?),
            48 => Change::OperandToken {
                keyspace: get_u32(body, "keyspace id")?,
                token: get_optional(body, get_store_token)?,
            },
            32 => Change::AddBlob {
                keyspace: get_u32(body, "keyspace id")?,
                blob: BlobFileRecord::decode(body)?,
            },
            33 => Change::RemoveBlob {
                keyspace: get_u32(body, "keyspace id")?,
                id: FileId(body.varint("blob file id")?),
            },
            34 => Change::References {
                keyspace: get_u32(body, "keyspace id")?,
                table: FileId(body.varint("file id")?),
                blobs: blob_files::get_blob_references(body)?.into(),
            },
            OPTIONAL_TAGS_START.. => return Ok(None),
            unknown => {
                return Err(Malformed::invalid_field(
                    "tag of a manifest change",
                    u64::from(unknown),
                    "a known tag, or 128 or more",
                ));
            }
        };
        Ok(Some(change))
    }
}

fn put_optional<T>(out: &mut Vec<u8>, value: Option<T>, put: impl FnOnce(&mut Vec<u8>, T)) {
    out.push(u8::from(value.is_some()));
    if let Some(value) = value {
        put(out, value);
    }
}

fn get_optional<'a, T>(
    body: &mut Decoder<'a>,
    get: impl FnOnce(&mut Decoder<'a>) -> Result<T, Malformed>,
) -> Result<Option<T>, Malformed> {
    match body.u8("presence of an optional field")? {
        0 => Ok(None),
        1 => get(body).map(Some),
        found => Err(Malformed::invalid_field(
            "presence of an optional field",
            u64::from(found),
            "0 or 1",
        )),
    }
}

fn get_store_token(body: &mut Decoder<'_>) -> Result<StoreToken, Malformed> {
    let mut token = StoreToken::default();
    for number in &mut token.0 {
        *number = body.varint("token of an operand store")?;
    }
    Ok(token)
}

fn get_u32(body: &mut Decoder<'_>, what: &'static str) -> Result<u32, Malformed> {
    let found = body.varint(what)?;
    u32::try_from(found).map_err(|_| Malformed::invalid_field(what, found, "at most 2^32 - 1"))
}

fn get_key(body: &mut Decoder<'_>, what: &'static str) -> Result<Bytes, Malformed> {
    Ok(Bytes::copy_from_slice(body.bytes(what)?))
}

fn get_text(body: &mut Decoder<'_>, what: &'static str) -> Result<String, Malformed> {
    let bytes = body.bytes(what)?;
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text.to_owned()),
        Err(error) => Err(Malformed::invalid_field(
            what,
            error.valid_up_to() as u64,
            "UTF-8, which ends at this byte",
        )),
    }
}

fn get_run_order(body: &mut Decoder<'_>) -> Result<Vec<RunId>, Malformed> {
    let count = body.length("runs of a level")?;
    // The count is untrusted, so no memory is reserved for it. The loop ends at the end of the body.
    let mut runs = Vec::new();
    for _ in 0..count {
        runs.push(RunId(body.varint("run id")?));
    }
    Ok(runs)
}

#[cfg(test)]
mod tests {
    use lsmx_compaction::{ExpiringBytes, ExpirySummary, KeyRange};

    use super::*;
    use crate::format::copies_with_flipped_bit;

    fn every_change() -> VersionEdit {
        let file = TableMeta {
            id: FileId(7),
            range: KeyRange { smallest: Bytes::new(), largest: Bytes::from_static(b"zz") },
            bytes: 4_000_000_000_000,
            entries: 300,
            tombstones: 2,
            value_bytes: 9_000,
            oldest_tombstone_us: Some(17),
            tombstone_seq_smallest: Some(9),
            expiry: None,
            seq_smallest: 1,
            seq_largest: 300,
            last_read_us: 5,
            created_us: 5,
            creation: 6,
            uid: u64::MAX,
            checksum: 1 << 63,
        };
        let no_tombstone =
            TableMeta { oldest_tombstone_us: None, tombstone_seq_smallest: None, ..file.clone() };
        let times = ExpirySummary {
            entries: 7,
            earliest_us: 1,
            median_us: 1 << 50,
            latest_us: u64::MAX,
            bytes: None,
        };
        let expiring = TableMeta { expiry: Some(times), ..file.clone() };
        let bytes = Some(ExpiringBytes { expiring: 80, total: 1 << 40, median_us: 1 });
        let expiring_bytes =
            TableMeta { expiry: Some(ExpirySummary { bytes, ..times }), ..file.clone() };
        let (keyspace, level, run) = (3, Level(6), RunId(900));
        VersionEdit::from(vec![
            Change::CreateKeyspace { id: 3, name: "größe".into(), options: "a = 1\n".into() },
            Change::DropKeyspace { id: u32::MAX },
            Change::RenameKeyspace { keyspace, name: "länge".into() },
            Change::SetOptions { keyspace, options: String::new() },
            Change::AddFile { keyspace, level, run, file: Arc::new(file) },
            Change::AddFile { keyspace, level, run, file: Arc::new(expiring.clone()) },
            Change::AddFile {
                keyspace,
                level,
                run,
                file: Arc::new(TableMeta { tombstone_seq_smallest: None, ..expiring }),
            },
            Change::AddFile { keyspace, level, run, file: Arc::new(expiring_bytes) },
            Change::AddFile { keyspace, level, run, file: Arc::new(no_tombstone) },
            Change::RemoveFile { keyspace, id: FileId(8) },
            Change::RunOrder { keyspace, level, runs: vec![run, RunId(1), RunId(u64::MAX)] },
            Change::Cursor { keyspace, level, key: Some(Bytes::from_static(b"")) },
            Change::Cursor { keyspace, level, key: None },
            Change::RunIdNext { keyspace, next: 901 },
            Change::FlushedThrough { keyspace, seq: SeqNo(300) },
            Change::WalOldest { segment: 4 },
            Change::WalSegment { id: 5 },
            Change::WalMark { segment: 5, bytes: 1 << 40 },
            Change::FileNumberNext(9),
            Change::LastSeq(SeqNo::MAX),
            Change::ClockUs(u64::MAX),
            Change::CleanClose { last_seq: SeqNo(301) },
            Change::Opened,
            Change::KeyspaceIdNext(4),
            Change::ReserveKeyspaceId(4),
            Change::OperandToken { keyspace, token: Some(StoreToken([1, 0, u64::MAX, 300])) },
            Change::OperandToken { keyspace, token: None },
            Change::AddBlob {
                keyspace,
                blob: BlobFileRecord {
                    id: FileId(12),
                    bytes: 5_000_000_000,
                    records: 4,
                    value_bytes: 4_900_000_000,
                    uid: 3,
                    checksum: u64::MAX,
                },
            },
            Change::RemoveBlob { keyspace, id: FileId(12) },
            Change::References {
                keyspace,
                table: FileId(7),
                blobs: [(3, 900), (12, 0)]
                    .map(|(id, bytes)| BlobReference { blob: FileId(id), bytes, records: 2 })
                    .into(),
            },
            Change::References { keyspace, table: FileId(7), blobs: Arc::new([]) },
        ])
    }

    #[test]
    fn version_edit_every_change_round_trips() {
        let edit = every_change();
        assert_eq!(VersionEdit::decode(&edit.encode()), Ok(edit));
        assert_eq!(VersionEdit::decode(&[]), Ok(VersionEdit::default()));
    }

    #[test]
    fn version_edit_truncated_is_error_or_prefix() {
        let edit = every_change();
        let bytes = edit.encode();
        let mut whole = 0;
        for length in 0..bytes.len() {
            if let Ok(prefix) = VersionEdit::decode(&bytes[..length]) {
                assert_eq!(prefix.changes, edit.changes[..whole]);
                assert_eq!(prefix.encode(), bytes[..length]);
                whole += 1;
            }
        }
        assert_eq!(whole, edit.changes.len());
    }

    #[test]
    fn version_edit_flipped_bit_is_error_or_other_edit() {
        let edit = every_change();
        let bytes = edit.encode();
        for (bit, bad) in copies_with_flipped_bit(&bytes) {
            assert_ne!(VersionEdit::decode(&bad).as_ref(), Ok(&edit), "bit {bit}");
        }
    }

    #[test]
    fn version_edit_unknown_tag_is_skipped_from_128() {
        assert_eq!(
            VersionEdit::decode(&[200, 2, 1, 2, 17, 0]),
            Ok(VersionEdit::from(vec![Change::Opened]))
        );
        let must = VersionEdit::decode(&[127, 2, 1, 2, 17, 0]);
        assert!(matches!(must, Err(Malformed::Field { found: 127, .. })));
        let longer = VersionEdit::decode(&[17, 1, 0]);
        assert!(longer.is_err(), "a known change with more fields than this build knows");
    }

    #[test]
    fn version_edit_huge_count_is_error_without_allocation() {
        let mut body = vec![3, 6];
        put_varint(&mut body, u64::MAX >> 1);
        let mut bytes = vec![6];
        put_bytes(&mut bytes, &body);
        assert!(matches!(VersionEdit::decode(&bytes), Err(Malformed::Truncated { .. })));
    }
}
