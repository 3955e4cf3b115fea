//! Random keys and operations.

use std::sync::Arc;

use lsmx::ReadOptions;
use lsmx::vfs::CrashImage;

use super::change::Bytes;
use super::checked_cursor::CursorMove;
use super::operations::{
    KEYSPACES, Limit, OTHER_NAMES, Operation, Place, RestartKind, Span, TransactionKind,
    UpdateWrite, Value, WITHOUT_OPERANDS, Write, time_to_live,
};
use super::settings::{
    DbSettings, KeyspaceSettings, random_latency_sampling, random_policy, random_read_options,
};
use crate::rng::TestRng;

/// Draws keys with common prefixes, extreme bytes and extreme lengths.
fn draw_keys(rng: &mut TestRng, count: usize) -> Vec<Bytes> {
    let mut keys: Vec<Vec<u8>> = Vec::new();
    let has_long_keys = rng.is_true_with_percent(4);
    let shared = rng.below(40);
    let shared = rng.bytes(shared);
    while keys.len() < count {
        let number = keys.len();
        let mut key = match rng.below(14) {
            0 => Vec::new(),
            1 => vec![0; rng.below(5)],
            2 => vec![0xff; rng.below(5)],
            3 => vec![b'a'; rng.below(12)],
            4 => [&[0xff; 3][..], &[rng.below(4)]].concat(),
            5 => [&vec![0; rng.below(3)][..], &[rng.below(3)]].concat(),
            // The key is another key with one byte added or removed at the end.
            6 if number > 0 => [&rng.choose(&keys)[..], &[0]].concat(),
            7 if number > 0 => {
                let mut key = rng.choose(&keys).clone();
                key.pop();
                key
            }
            8 => format!("key-{number:05}").into_bytes(),
            9 => (number as u64).to_be_bytes().to_vec(),
            10 => [&shared[..], &rng.bytes(1)].concat(),
            11 => [&shared[..], format!("{}", rng.below(count)).as_bytes()].concat(),
            12 => {
                let len = rng.below(30);
                rng.bytes(len)
            }
            _ => rng.bytes(1),
        };
        if has_long_keys && number < 2 {
            // Long keys slow down all jobs, so they are shorter if the history has few keys.
            let bytes = if count < 40 { 4 << 10 } else { 64 << 10 };
            key = vec![[b'a', b'b'][number]; bytes];
        }
        key.truncate(64 << 10);
        keys.push(key);
    }
    keys.into_iter().map(Arc::from).collect()
}

/// Draws a set of keys, and `count` operations that use them.
pub(super) fn draw_operations(rng: &mut TestRng, count: usize) -> (Vec<Bytes>, Vec<Operation>) {
    let mut generator = Generator::new(rng);
    let operations = (0..count as u64).map(|tag| {
        generator.tag = tag;
        generator.draw_operation()
    });
    let mut operations: Vec<_> = operations.collect();
    if generator.has_keyspaces && generator.has_expiry {
        // Most histories would otherwise create the only keyspace with a default time to live late or never.
        let default_ttl = Some(time_to_live(generator.rng.below(2)));
        let settings = KeyspaceSettings { default_ttl, ..KeyspaceSettings::random(generator.rng) };
        operations.insert(0, Operation::CreateKeyspace(WITHOUT_OPERANDS, settings));
    }
    let key_count = generator.key_count;
    (draw_keys(rng, key_count), operations)
}

/// Draws random operations. Each generator uses only a random subset of the kinds of operations.
struct Generator<'a> {
    rng: &'a mut TestRng,
    /// Number of the current operation.
    tag: u64,
    key_count: usize,
    /// Percentage of write operations.
    writes: usize,
    value_bytes_max: usize,
    has_snapshots: bool,
    has_iterators: bool,
    has_restarts: bool,
    has_power_losses: bool,
    has_keyspaces: bool,
    has_range_deletes: bool,
    has_expiry: bool,
}

impl Generator<'_> {
    fn new(rng: &mut TestRng) -> Generator<'_> {
        Generator {
            tag: 0,
            key_count: *rng.choose(&[3, 12, 40, 150, 400]),
            writes: *rng.choose(&[30, 50, 70, 95]),
            value_bytes_max: *rng.choose(&[1, 20, 60, 60, 400]),
            has_snapshots: rng.is_true_with_percent(60),
            has_iterators: rng.is_true_with_percent(60),
            has_restarts: rng.is_true_with_percent(70),
            has_power_losses: rng.is_true_with_percent(40),
            has_keyspaces: rng.is_true_with_percent(60),
            has_range_deletes: rng.is_true_with_percent(60),
            has_expiry: rng.is_true_with_percent(50),
            rng,
        }
    }

    fn is_true_with_percent(&mut self, percent: u64) -> bool {
        self.rng.is_true_with_percent(percent)
    }

    fn draw_keyspace(&mut self) -> usize {
        if self.has_keyspaces { self.rng.below(KEYSPACES.len()) } else { 0 }
    }

    /// Draws the index of a key. Half of the draws use only the first eight keys.
    fn draw_key(&mut self) -> usize {
        let is_any = self.is_true_with_percent(50);
        self.rng.below(if is_any { self.key_count } else { self.key_count.min(8) })
    }

    fn draw_place(&mut self) -> Place {
        Place { keyspace: self.draw_keyspace(), key: self.draw_key() }
    }

    fn draw_value(&mut self) -> Value {
        let factor = if self.is_true_with_percent(1) { 20 } else { 1 };
        Value { tag: self.tag, bytes: self.rng.below(self.value_bytes_max * factor + 1) }
    }

    fn draw_limit(&mut self) -> Limit {
        match self.rng.below(4) {
            0 => Limit::Open,
            1 => Limit::Past(self.draw_key()),
            _ => Limit::At(self.draw_key()),
        }
    }

    fn draw_span(&mut self) -> Span {
        let keyspace = self.draw_keyspace();
        Span { keyspace, from: self.draw_limit(), to: self.draw_limit() }
    }

    /// Draws a range delete. Most ranges are narrow, so that other keys remain.
    fn draw_range_delete(&mut self) -> Write {
        let (any, key) = (self.draw_span(), self.draw_key());
        let (from, to) = match self.rng.below(12) {
            0 => (any.from, any.to),
            1 => (Limit::At(key), Limit::At(key)),
            2 => (Limit::At(key), Limit::Past(key)),
            3 => (any.from, Limit::Past(0)),
            _ => {
                let other = self.draw_key();
                (Limit::At(key.min(other)), Limit::Past(key.max(other)))
            }
        };
        Write::DeleteRange(Span { from, to, ..any })
    }

    fn draw_steps(&mut self) -> Vec<i8> {
        let turns = self.rng.below(5);
        (0..turns).map(|_| self.rng.below(13_i8) - 6).collect()
    }

    fn draw_cursor_moves(&mut self) -> Vec<CursorMove<usize>> {
        let count = self.rng.below(20);
        let mut draw_move = |_| {
            let key = self.draw_key();
            CursorMove::random(self.rng, key)
        };
        (0..count).map(&mut draw_move).collect()
    }

    fn draw_writes(&mut self) -> Vec<Write> {
        let count = if self.is_true_with_percent(3) { 80 } else { self.rng.below(6) };
        let mut draw_write = |_| {
            let place = self.draw_place();
            if self.has_range_deletes && self.is_true_with_percent(8) {
                return self.draw_range_delete();
            }
            match self.rng.below(100) {
                0..25 => Write::Delete(place),
                25..60 => Write::Merge(place, self.draw_value()),
                _ => self.draw_put(place),
            }
        };
        (0..count).map(&mut draw_write).collect()
    }

    /// Draws a write of a value, which may expire.
    fn draw_put(&mut self, place: Place) -> Write {
        let value = self.draw_value();
        if !self.has_expiry || !self.is_true_with_percent(40) {
            return Write::Put(place, value);
        }
        let hours = *self.rng.choose(&[0, 0, 1, 1 << 20]);
        match self.is_true_with_percent(50) {
            true => Write::PutUntil(place, value, hours),
            false => Write::PutWithTtl(place, value, hours),
        }
    }

    fn draw_index(&mut self) -> usize {
        self.rng.below(8)
    }

    /// Draws the index of a snapshot for a read or a conditional write. Returns `None` with a probability of 100 −
    /// `percent` per cent.
    fn draw_snapshot(&mut self, percent: u64) -> Option<usize> {
        self.is_true_with_percent(percent).then(|| self.draw_index())
    }

    fn draw_db_settings(&mut self) -> DbSettings {
        DbSettings::random(self.rng)
    }

    fn draw_kill(&mut self) -> RestartKind {
        match self.has_power_losses && self.is_true_with_percent(50) {
            true => RestartKind::PowerLoss(*self.rng.choose(&CrashImage::ALL), self.rng.next_u64()),
            false => RestartKind::Kill,
        }
    }

    fn draw_operation(&mut self) -> Operation {
        if self.rng.below(100) < self.writes { self.draw_write() } else { self.draw_other() }
    }

    fn draw_write(&mut self) -> Operation {
        let place = self.draw_place();
        match self.rng.below(100) {
            0..42 => {
                let write = self.draw_put(place);
                Operation::Write(vec![write], self.is_true_with_percent(2))
            }
            42..66 => {
                let count = if self.is_true_with_percent(5) { self.rng.below(80) } else { 1 };
                let merges = (0..count).map(|_| Write::Merge(place, self.draw_value())).collect();
                Operation::Write(merges, self.is_true_with_percent(2))
            }
            66..70 => {
                let update = match self.rng.below(100) {
                    0..15 => UpdateWrite::Write(Write::Delete(place)),
                    15..45 => UpdateWrite::PutKeepExpiry(place, self.draw_value()),
                    _ => UpdateWrite::Write(self.draw_put(place)),
                };
                Operation::Update(update, self.is_true_with_percent(50))
            }
            70..73 if self.has_range_deletes => {
                let write = self.draw_range_delete();
                Operation::Write(vec![write], self.is_true_with_percent(5))
            }
            73 if self.has_range_deletes && self.is_true_with_percent(10) => {
                Operation::Clear(place.keyspace)
            }
            70..88 => Operation::Write(vec![Write::Delete(place)], false),
            88..93 => Operation::Batch(self.draw_writes(), self.is_true_with_percent(5)),
            93..96 => {
                let kind = match self.is_true_with_percent(40) {
                    true => TransactionKind::Locking,
                    false => TransactionKind::Optimistic,
                };
                Operation::Transaction(kind, self.draw_writes(), self.is_true_with_percent(5))
            }
            _ => {
                let snapshot = self.draw_snapshot(60);
                Operation::GuardedBatch(snapshot, place, self.draw_writes())
            }
        }
    }

    /// Draws an ingest or a bulk load.
    fn draw_ingest(&mut self) -> Operation {
        let count = 1 + if self.is_true_with_percent(10) {
            self.rng.below(200)
        } else {
            self.rng.below(12)
        };
        if self.is_true_with_percent(30) {
            let keyspace = self.draw_keyspace();
            let entries = (0..count).map(|_| (self.draw_key(), self.draw_value())).collect();
            return Operation::BulkLoad(keyspace, entries, self.is_true_with_percent(50));
        }
        let mut draw_write = |_| {
            let place = self.draw_place();
            match self.is_true_with_percent(25) {
                true => Write::Delete(place),
                false => Write::Put(place, self.draw_value()),
            }
        };
        let writes = (0..count).map(&mut draw_write).collect();
        Operation::Ingest(writes, 1 + self.rng.below(3), self.is_true_with_percent(20))
    }

    fn draw_other(&mut self) -> Operation {
        let place = self.draw_place();
        let keyspace = place.keyspace;
        match self.rng.below(1000) {
            0..40 if self.has_expiry => Operation::AdvanceClock,
            0..350 => Operation::Get(None, place),
            350..400 => {
                let snapshot = self.draw_snapshot(if self.has_snapshots { 30 } else { 0 });
                Operation::ContainsKey(snapshot, place)
            }
            400..420 => Operation::GetWith(place, random_read_options(self.rng)),
            420..450 => {
                let snapshot = self.draw_snapshot(if self.has_snapshots { 30 } else { 0 });
                let (span, options) = (self.draw_span(), random_read_options(self.rng));
                Operation::Cursor(snapshot, span, options, self.draw_cursor_moves())
            }
            450..457 => Operation::PrefixCursor(place, self.rng.below(6), self.draw_cursor_moves()),
            457..460 => Operation::Estimate(self.draw_span()),
            460..490 => self.draw_ingest(),
            490..510 => {
                let (snapshot, count) = (self.draw_snapshot(30), self.rng.below(9));
                let keys = (0..count).map(|_| self.draw_key()).collect();
                Operation::MultiGet(snapshot, keyspace, keys)
            }
            510..514 if self.has_keyspaces => {
                let names = KEYSPACES.len() + OTHER_NAMES.len();
                Operation::RenameKeyspace(keyspace, self.rng.below(names))
            }
            514..518 if self.has_keyspaces => {
                let (target, settings) = (self.draw_keyspace(), KeyspaceSettings::random(self.rng));
                Operation::CloneKeyspace(keyspace, target, settings)
            }
            518 => Operation::SetLatencySampling(random_latency_sampling(self.rng)),
            510..520 => Operation::Ends(keyspace),
            520..532 => Operation::CompactRange(self.draw_span()),
            532..534 => Operation::OperandsToTree(keyspace),
            534..540 if self.has_keyspaces => Operation::DropKeyspace(keyspace),
            540..545 if self.has_restarts => Operation::Checkpoint,
            545..550 if self.has_restarts => Operation::OpenReadOnly,
            550..650 => {
                let limit = self.is_true_with_percent(40).then(|| self.rng.below(40));
                Operation::Scan(None, self.draw_span(), limit, self.draw_steps())
            }
            650..670 => Operation::Prefix(place, self.rng.below(6)),
            670..700 if self.has_snapshots => Operation::Snapshot,
            700..770 if self.has_snapshots => Operation::Get(self.draw_snapshot(100), place),
            770..790 if self.has_snapshots => {
                let snapshot = self.draw_snapshot(100);
                Operation::Scan(snapshot, self.draw_span(), None, self.draw_steps())
            }
            790..815 if self.has_snapshots => Operation::DropSnapshot(self.draw_index()),
            815..830 if self.has_iterators => {
                Operation::OpenIterator(self.draw_snapshot(30), self.draw_span())
            }
            830..890 if self.has_iterators => {
                // An iterator does not continue after a deadline.
                let options = ReadOptions { deadline: None, ..random_read_options(self.rng) };
                let options = self.is_true_with_percent(20).then_some(options);
                Operation::StepIterator(self.draw_index(), options, self.draw_steps())
            }
            890..905 if self.has_iterators => Operation::DropIterator(self.draw_index()),
            905..925 => Operation::Flush,
            925..940 => Operation::WaitIdle,
            940..955 => Operation::Sync,
            955..963 if self.has_keyspaces => {
                Operation::CreateKeyspace(keyspace, KeyspaceSettings::random(self.rng))
            }
            963..966 => Operation::ChangeOptions(keyspace, KeyspaceSettings::random(self.rng)),
            966..969 => Operation::SetOptions(keyspace, KeyspaceSettings::random(self.rng)),
            969..975 => Operation::SetPolicy(keyspace, random_policy(self.rng)),
            975..977 => Operation::DeleteAll(keyspace),
            977..980 => Operation::CheckAll,
            980..986 if self.has_restarts => {
                Operation::Restart(RestartKind::Close, self.draw_db_settings())
            }
            986..988 if self.has_restarts => {
                let deletes = self.rng.below(4);
                let deletes = (0..deletes).map(|_| self.draw_place()).collect();
                let (without, with) = (self.draw_db_settings(), self.draw_db_settings());
                Operation::RestartWithoutOperators(without, deletes, with)
            }
            988..993 if self.has_restarts => {
                Operation::Restart(RestartKind::Drop, self.draw_db_settings())
            }
            993..1000 if self.has_restarts => {
                Operation::Restart(self.draw_kill(), self.draw_db_settings())
            }
            _ => Operation::Get(None, place),
        }
    }
}
