//! Decodes histories from bytes, for fuzzers.

use std::time::Duration;

use lsmx::env::Background;
use lsmx::metrics::LatencySampling;
use lsmx::vfs::CrashImage;
use lsmx::{
    BlockCacheKind, Compression, FilterBits, FilterLastRun, MemtableKind, PolicySpec,
    PrefixExtractor, ReadOptions, ReadTier, RmwMode, ValueSeparation, WriteControl,
};

use super::History;
use super::checked_cursor::CursorMove;
use super::counts::CaseCounts;
use super::operations::{
    KEYSPACES, Limit, OTHER_NAMES, Operation, Place, RestartKind, Span, TransactionKind,
    UpdateWrite, Value, WITHOUT_OPERANDS, Write, time_to_live,
};
use super::settings::{DbSettings, KeyspaceSettings};
use crate::simple_store::SimpleStore;

/// All keys that the operations use, in ascending order. Some keys are prefixes of other keys, and some contain the
/// smallest or the largest byte value.
const KEYS: [&[u8]; 16] = [
    b"",
    b"\0",
    b"\0\0",
    b"a",
    b"a\0",
    b"aa",
    b"aaaaaaaaaaaaaaaa",
    b"aaaaaaaaaaaaaaab",
    b"ab",
    b"b",
    b"key-0001",
    b"key-0002",
    b"key-00020",
    b"\xfe\xff",
    b"\xff",
    b"\xff\xff",
];
/// Maximum number of operations in a history. Short histories are easier to analyse.
const OPERATIONS_MAX: usize = 64;

/// Decodes operations. After the end of the input, all bytes read as 0.
struct OperationDecoder<'a> {
    input: &'a [u8],
    /// Number of decoded values.
    values: u64,
    settings: DbSettings,
}

impl OperationDecoder<'_> {
    fn next_byte(&mut self) -> Option<u8> {
        let (first, rest) = self.input.split_first()?;
        self.input = rest;
        Some(*first)
    }

    fn next_below(&mut self, end: usize) -> usize {
        usize::from(self.next_byte().unwrap_or(0)) % end
    }

    fn next_limit(&mut self) -> Limit {
        match self.next_below(2 * KEYS.len() + 1).checked_sub(1) {
            None => Limit::Open,
            Some(index) if index < KEYS.len() => Limit::At(index),
            Some(index) => Limit::Past(index - KEYS.len()),
        }
    }

    fn next_span(&mut self) -> Span {
        Span { keyspace: self.next_keyspace(), from: self.next_limit(), to: self.next_limit() }
    }

    /// Decodes one of the keyspaces that exist from the start.
    fn next_keyspace(&mut self) -> usize {
        [0, 1, WITHOUT_OPERANDS][self.next_below(3)]
    }

    fn next_place(&mut self) -> Place {
        Place { keyspace: self.next_keyspace(), key: self.next_below(KEYS.len()) }
    }

    /// Decodes the index of a snapshot, or `None` for the current contents.
    fn next_snapshot(&mut self) -> Option<usize> {
        self.next_below(4).checked_sub(1)
    }

    fn next_writes(&mut self) -> Vec<Write> {
        (0..self.next_below(6)).map(|_| self.next_write()).collect()
    }

    fn next_steps(&mut self) -> Vec<i8> {
        let bits = self.next_below(256);
        (0..8).map(|bit| if bits >> bit & 1 == 1 { 1 } else { -1 }).collect()
    }

    fn next_read_options(&mut self) -> ReadOptions {
        let bits = self.next_below(256);
        ReadOptions {
            tier: if bits & 1 == 1 { ReadTier::Memory } else { ReadTier::Storage },
            fill_cache: [None, Some(false), Some(true), None][bits >> 1 & 3],
            read_ahead_bytes_max: [None, Some(0), Some(300), None][bits >> 3 & 3],
            deadline: (bits >> 5 & 1 == 1).then_some(Duration::ZERO),
        }
    }

    fn next_moves(&mut self) -> Vec<CursorMove<usize>> {
        let count = self.next_below(8);
        let mut next_move = |_| match self.next_below(8) {
            0 => CursorMove::Seek(self.next_below(KEYS.len())),
            1 => CursorMove::SeekForPrev(self.next_below(KEYS.len())),
            2 => CursorMove::SeekToFirst,
            3 => CursorMove::SeekToLast,
            4 | 5 => CursorMove::Next,
            _ => CursorMove::Prev,
        };
        (0..count).map(&mut next_move).collect()
    }

    /// Decodes a read with a cursor, an iterator or read options.
    fn next_read(&mut self) -> Operation {
        match self.next_below(9) {
            0 => Operation::GetWith(self.next_place(), self.next_read_options()),
            1 => {
                let (snapshot, keyspace) = (self.next_snapshot(), self.next_keyspace());
                let keys = (0..self.next_below(6)).map(|_| self.next_below(KEYS.len())).collect();
                Operation::MultiGet(snapshot, keyspace, keys)
            }
            2 => Operation::Prefix(self.next_place(), self.next_below(4)),
            3 => Operation::PrefixCursor(self.next_place(), self.next_below(4), self.next_moves()),
            4 => Operation::OpenIterator(self.next_snapshot(), self.next_span()),
            5 => {
                // An iterator does not continue after a deadline.
                let options = ReadOptions { deadline: None, ..self.next_read_options() };
                Operation::StepIterator(self.next_below(3), Some(options), self.next_steps())
            }
            6 => Operation::DropIterator(self.next_below(3)),
            8 => Operation::ContainsKey(self.next_snapshot(), self.next_place()),
            _ => {
                let (snapshot, span) = (self.next_snapshot(), self.next_span());
                Operation::Cursor(snapshot, span, self.next_read_options(), self.next_moves())
            }
        }
    }

    fn next_bulk_load(&mut self) -> Operation {
        let keyspace = self.next_keyspace();
        let mut next_entry = |_| (self.next_below(KEYS.len()), self.next_value());
        let entries = (0..6).map(&mut next_entry).collect();
        Operation::BulkLoad(keyspace, entries, self.next_below(2) == 1)
    }

    fn next_value(&mut self) -> Value {
        self.values += 1;
        Value { tag: self.values, bytes: self.next_below(64) }
    }

    fn next_write(&mut self) -> Write {
        let (kind, keyspace) = (self.next_below(6), self.next_keyspace());
        if kind == 0 {
            let (from, to) = (self.next_limit(), self.next_limit());
            return Write::DeleteRange(Span { keyspace, from, to });
        }
        let place = Place { keyspace, key: self.next_below(KEYS.len()) };
        match kind {
            1 => Write::Delete(place),
            2 | 3 => Write::Merge(place, self.next_value()),
            _ => Write::Put(place, self.next_value()),
        }
    }

    fn restart(&self, kind: RestartKind) -> Operation {
        Operation::Restart(kind, self.settings.clone())
    }

    /// Decodes the next operation. Returns `None` at the end of the input.
    fn next_operation(&mut self) -> Option<Operation> {
        let kind = self.next_byte()? % 32;
        Some(match kind {
            0 => Operation::Flush,
            1 => {
                let span = self.next_span();
                Operation::Scan(None, span, None, self.next_steps())
            }
            2 => Operation::Snapshot,
            3 => Operation::DropSnapshot(self.next_below(3)),
            4 => Operation::CompactRange(self.next_span()),
            5 => {
                let (keyspace, presets) = (self.next_keyspace(), PolicySpec::all_presets());
                let policy = &presets[self.next_below(256) % presets.len()];
                // With a small size ratio, even small trees have several levels.
                let policy = policy.clone().with_size_ratio(2).unwrap_or(policy.clone());
                Operation::SetPolicy(keyspace, policy.to_string())
            }
            6 => Operation::Sync,
            7 if self.next_below(2) == 0 => self.restart(RestartKind::Close),
            7 => self.restart(RestartKind::Drop),
            8 => {
                let image = CrashImage::ALL[self.next_below(CrashImage::ALL.len())];
                let seed = u64::from(self.next_byte().unwrap_or(0));
                self.restart(RestartKind::PowerLoss(image, seed))
            }
            31 => {
                let count = 1 + self.next_below(6);
                let mut writes = Vec::new();
                for _ in 0..count {
                    let place = self.next_place();
                    writes.push(match self.next_below(4) {
                        0 => Write::Delete(place),
                        _ => Write::Put(place, self.next_value()),
                    });
                }
                Operation::Ingest(writes, 1 + self.next_below(2), false)
            }
            27 => {
                let (source, target) = (self.next_keyspace(), 1 + self.next_below(2));
                Operation::CloneKeyspace(source, target, self.settings.keyspaces.clone())
            }
            28 => {
                Operation::RenameKeyspace(1, self.next_below(KEYSPACES.len() + OTHER_NAMES.len()))
            }
            29 => {
                let (place, value) = (self.next_place(), self.next_value());
                let write = match self.next_below(4) {
                    hours @ 0..2 => Write::PutUntil(place, value, hours as u64),
                    hours => Write::PutWithTtl(place, value, hours as u64 - 2),
                };
                Operation::Write(vec![write], false)
            }
            30 => Operation::AdvanceClock,
            9..12 => Operation::Batch(self.next_writes(), kind == 9),
            12 => Operation::Transaction(TransactionKind::Optimistic, self.next_writes(), false),
            15 | 16 => self.next_read(),
            17 => self.next_bulk_load(),
            18 => {
                let bits = self.next_byte().unwrap_or(0);
                let settings = settings_from_bits(bits, self.settings.keyspaces.store);
                Operation::SetOptions(self.next_keyspace(), settings.keyspaces)
            }
            19 => Operation::Transaction(TransactionKind::Locking, self.next_writes(), false),
            20 => {
                let (place, bits) = (self.next_place(), self.next_below(16));
                let write = match (bits & 1, bits >> 2) {
                    (0, _) => UpdateWrite::Write(Write::Delete(place)),
                    (_, 0) => UpdateWrite::Write(Write::Put(place, self.next_value())),
                    (_, 1) => UpdateWrite::PutKeepExpiry(place, self.next_value()),
                    (_, 2) => UpdateWrite::Write(Write::PutUntil(place, self.next_value(), 0)),
                    _ => UpdateWrite::Write(Write::PutWithTtl(place, self.next_value(), 0)),
                };
                Operation::Update(write, bits & 2 == 2)
            }
            21 => {
                let (snapshot, place) = (self.next_snapshot(), self.next_place());
                Operation::GuardedBatch(snapshot, place, self.next_writes())
            }
            _ => Operation::Write(vec![self.next_write()], kind == 13),
        })
    }
}

/// Returns database options. Each bit of `bits` selects one option.
fn settings_from_bits(bits: u8, store: Option<SimpleStore>) -> DbSettings {
    let is_set = |bit: u8| bits >> bit & 1 == 1;
    let separation = ValueSeparation { threshold_bytes: 20, ..ValueSeparation::default() };
    DbSettings {
        cache_bytes: if is_set(4) { 0 } else { 64 << 10 },
        cache_kind: BlockCacheKind::Quick,
        warm_up: false,
        open_files_max: None,
        io_rate: None,
        idle_us: None,
        wal_bytes_max: None,
        segment_bytes: 500,
        sync_every_bytes: 8 << 20,
        write_control: WriteControl::Smooth,
        subcompactions_max: None,
        direct_compactions: is_set(5),
        latency_sampling: LatencySampling::OneIn(1),
        metrics_file: None,
        keyspaces: KeyspaceSettings {
            policy: None,
            memtable_bytes: if is_set(0) { 1 << 10 } else { 16 << 10 },
            memtable_kind: MemtableKind::BLinkTree,
            table_bytes: 256,
            block_bytes: 64,
            restart_interval: if is_set(1) { 2 } else { 16 },
            block_tags: true,
            compression: vec![if is_set(2) { Compression::Lz4 } else { Compression::None }],
            filter_last_run: FilterLastRun::Off,
            filter_bits: FilterBits::Fuse8,
            prefix_filter: Some(PrefixExtractor::Length(1)),
            store,
            rmw_mode: if is_set(6) { RmwMode::Adaptive } else { RmwMode::Fixed },
            separation: is_set(3).then_some(separation),
            has_filter: is_set(7),
            delete_persistence: is_set(5).then_some(Duration::from_millis(10)),
            default_ttl: (!is_set(2)).then(|| time_to_live(0)),
        },
    }
}

impl History {
    /// Decodes a history of operations on three keyspaces, one of them without a merge operator. The first byte selects
    /// options, and the other bytes encode the operations.
    ///
    /// The history compares all contents with the model after each operation.
    #[must_use]
    pub fn from_bytes(input: &[u8], store: Option<SimpleStore>) -> History {
        let (bits, input) = input.split_first().unwrap_or((&0, &[]));
        let settings = settings_from_bits(*bits, store);
        let create = |index| Operation::CreateKeyspace(index, settings.keyspaces.clone());
        let created = [create(1), create(WITHOUT_OPERANDS)];
        let mut decoder = OperationDecoder { input, values: 0, settings: settings.clone() };
        let decoded = std::iter::from_fn(|| decoder.next_operation()).take(OPERATIONS_MAX);
        let checked = decoded.flat_map(|operation| [operation, Operation::CheckAll]);
        History {
            seed: 0,
            background: Background::Inline,
            operations: created.into_iter().chain(checked).collect(),
            first_settings: settings.clone(),
            last_settings: settings,
            keys: KEYS.map(Into::into).into(),
            uses_delta: store.is_some(),
        }
    }

    /// Runs the history.
    ///
    /// # Panics
    /// If a result differs from the model.
    pub fn check(&self) {
        if let Err((index, why)) = self.run(&self.operations, &mut CaseCounts::default()) {
            panic!("operation {index}: {why}\n{:?}", self.operations);
        }
    }
}

/// Returns encoded sequences of operations that reach rare states.
#[must_use]
pub fn byte_seeds() -> Vec<Vec<u8>> {
    let put = |keyspace, key, bytes| [14, 4, keyspace, key, bytes];
    let merge = |keyspace, key, bytes| [14, 2, keyspace, key, bytes];
    let delete = |keyspace, key| [14, 1, keyspace, key];
    let compact_all = |keyspace| [4, keyspace, 0, 0];
    // Flushes overlapping tables and changes the policy after each flush.
    let rounds = (0..6).flat_map(|round| {
        let puts = (0..5).flat_map(|key| put(round % 2, (key * 3 + round) % 16, 60));
        puts.chain([0, 5, round % 2, round * 5]).collect::<Vec<u8>>()
    });
    vec![
        // Flushes a table and writes a range tombstone and a point tombstone over it. Reads with iterators in both
        // directions, before and after a compaction.
        [
            &[1][..],
            &put(0, 3, 40),
            &put(0, 4, 30),
            &put(0, 9, 30),
            &[0],
            &delete(0, 9),
            &[14, 0, 0, 4, 6],
            &[1, 0, 0, 0, 0x5a],
            &compact_all(0),
            &[1, 0, 4, 20, 0xaa],
        ]
        .concat(),
        // Writes merge operands with and without a base value. Flushes and compacts while a snapshot exists, and
        // compacts again without it.
        [
            &[0][..],
            &merge(0, 3, 5),
            &merge(1, 3, 50),
            &[2],
            &merge(0, 3, 6),
            &[0],
            &merge(1, 3, 60),
            &delete(0, 3),
            &merge(0, 3, 4),
            &[0],
            &compact_all(0),
            &[3, 0],
            &compact_all(1),
            &[7, 0],
        ]
        .concat(),
        // Writes batches to both keyspaces with values in blob files, and simulates several kinds of power loss.
        [
            &[8][..],
            &[10, 3, 4, 0, 1, 50, 4, 1, 1, 20, 2, 0, 2, 8],
            &[13, 4, 0, 5, 9],
            &[10, 2, 1, 0, 1, 0, 1, 0, 0],
            &[8, 2, 7],
            &put(1, 9, 30),
            &[8, 5, 1, 6],
            &put(0, 0, 10),
            &[0, 8, 0, 3],
            &put(0, 0, 11),
            &[8, 6, 9, 7, 1],
        ]
        .concat(),
        [1].into_iter().chain(rounds).chain(compact_all(0)).chain([7, 1, 7, 0]).collect(),
        // Writes values with a default time to live, of an update and of a locking transaction too. Loads values that do
        // not expire. Reads with cursors and read options before and after the values expire and the power fails.
        [
            &[0][..],
            &put(2, 3, 20),
            &[20, 2, 4, 1, 30],
            &[19, 2, 4, 2, 5, 9, 1, 2, 3],
            &[17, 2, 6, 10, 7, 10, 8, 10, 9, 10, 10, 10, 11, 10, 0],
            &[0],
            &put(2, 3, 25),
            &[15, 7, 0, 2, 0, 0, 0, 5, 2, 4, 4, 6, 3],
            &[30],
            &[16, 3, 2, 6, 2, 2, 0, 6, 4],
            &[15, 0, 2, 7, 1],
            &[18, 4, 2],
            &put(2, 3, 26),
            &[8, 2, 7],
            &[30],
            &compact_all(2),
            &[21, 0, 2, 3, 1, 4, 2, 3, 5],
        ]
        .concat(),
    ]
}
