//! Write-back: with [`RmwMode::Adaptive`], a point lookup that combines merge operands stores its result in the
//! memtable.
//!
//! The result becomes the folded value of the newest operand, if this operand is in the active memtable. A folded value
//! is the value of the key at the sequence number of an operand. Storing it does not change the results of reads. A
//! flush writes the folded value to a table as a put. Older versions are then dropped, and the operand is not passed to
//! the operand store, unless a snapshot needs them.
//!
//! Nothing is stored if the base of the operands has an expiry time, because the combined value depends on the time of
//! the read. After a job has removed such a base, nothing is stored while a reader uses a super version that contains it.
//!
//! The value is stored only if the newest operand is in the active memtable. A sealed memtable is flushed soon, so a value
//! in it would save few lookups. For an operand in a table, the value would need a new sequence number. A transaction that
//! has read the key would then see a conflict, although no caller has written the key.

use lsmx_base::coding::len_u64;
use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::{EntryKind, SeqNo};
use lsmx_base::slice::Slice;

use crate::env::YieldKind;
use crate::lookup::point::{self, CombinedOperands, ReadScope};
use crate::memtable::Memtable;
use crate::options::keyspace::RmwMode;
use crate::state::DbState;
use crate::tree::Tree;
use crate::tree::counters::add;
use crate::tree::snapshots::ReadPoint;
use crate::tree::super_version::SuperVersion;

/// Minimum number of gets of a key that read files and combined operands before the value is stored. A copy of a value
/// that is read only once would waste memory.
const GETS_MIN: u32 = 2;
/// A get that read only memtables stores the value if the operands have at least 1 / `OPERAND_PART` of the bytes of the
/// value. Otherwise combining the operands is too cheap to justify a copy of the value.
const OPERAND_PART: u64 = 4;

/// Result of a point lookup that read the newest version of a key and combined operands.
#[derive(Clone, Copy, Debug)]
pub(super) struct CombinedGet<'a> {
    pub(super) key: &'a [u8],
    pub(super) value: Option<&'a Slice>,
    pub(super) operands: CombinedOperands,
    /// Sequence number of the read.
    pub(super) seq: SeqNo,
}

/// Stores the result of a get as the folded value of the newest operand, if the conditions in the module documentation
/// hold. `view` is the super version of the get.
#[cold]
pub(super) fn write_back(state: &DbState, tree: &Tree, view: &SuperVersion, get: CombinedGet<'_>) {
    let settings = tree.settings();
    let CombinedGet { key, value, operands, seq } = get;
    if settings.options.rmw_mode != RmwMode::Adaptive || operands.has_expiring_base {
        return;
    }
    // The get is counted even if the newest operand is in a file. The first get after the next merge can then store the
    // value.
    let is_read_often = !operands.searched_files || tree.combined_gets.count(key) >= GETS_MIN;
    let value_bytes = value.map_or(0, |value| len_u64(value.len()));
    let is_long = operands.searched_files || operands.bytes >= value_bytes / OPERAND_PART;
    if !(operands.newest_in_memtable && is_read_often && is_long) {
        return;
    }
    // A get does not schedule a flush, so it must not fill the memtable.
    let memtable = &view.active;
    if memtable.bytes().saturating_add(value_bytes) > settings.options.memtable_bytes {
        return;
    }
    let Some(_reservation) = state.memtables.reserve(value_bytes, false) else { return };
    // An entry of another kind already has a folded value, set by a concurrent get or writer.
    let Some((newest, EntryKind::Merge, _)) = memtable.get(key, seq) else { return };
    let value = match failpoint::is_on(Failpoint::FoldedValueStale) {
        true => point::get(
            tree,
            view,
            key,
            ReadPoint::without_time(SeqNo(newest.0 - 1)),
            ReadScope::Memory,
        ),
        false => Ok(value.cloned()),
    };
    state.env.yield_point(YieldKind::UserOperation);
    let value = value.unwrap_or_default();
    if tree.store_combined_value(|| set_folded_value(state, memtable, key, newest, value)) {
        add(&tree.merge_resolver.write_backs, 1);
    }
}

/// Sets the folded value of the operand at `seq` and adds its bytes to the memory counters. The folded value is the
/// result of combining the operand with all older versions of the key. Returns false if the operand does not exist or
/// already has a folded value.
pub(super) fn set_folded_value(
    state: &DbState,
    memtable: &Memtable,
    key: &[u8],
    seq: SeqNo,
    value: Option<Slice>,
) -> bool {
    let Some(added_bytes) = memtable.set_folded_value(key, seq, value) else { return false };
    state.memtables.add(added_bytes);
    if !memtable.add_bytes(added_bytes) {
        state.memtables.subtract(added_bytes);
    }
    true
}

#[cfg(test)]
mod tests {
    use lsmx_base::sync::Arc;

    use super::*;
    use crate::db::{Db, Keyspace, Update};
    use crate::env::Background;
    use crate::merge_operator::Append;
    use crate::options::db::Options;
    use crate::options::keyspace::KeyspaceOptions;
    use crate::vfs::MemVfs;

    const MEMTABLE_BYTES: u64 = 48 << 10;

    fn open(mode: RmwMode) -> (Db, Keyspace) {
        let keyspace = KeyspaceOptions::default()
            .memtable_bytes(MEMTABLE_BYTES)
            .merge_operator(Append::default())
            .rmw_mode(mode);
        let options = Options::default().background(Background::Inline).keyspace_defaults(keyspace);
        let db = Db::open("db", options.vfs(Arc::new(MemVfs::new()))).unwrap();
        let keyspace = db.default_keyspace();
        (db, keyspace)
    }

    fn write_backs(db: &Db) -> u64 {
        db.metrics().keyspaces["default"].merges.write_backs
    }

    /// Reads the key `k` `gets` times and asserts that each read returns `value`.
    fn get(db: &Db, gets: usize, value: &str) {
        for _ in 0..gets {
            assert_eq!(db.get("k").unwrap().as_deref(), Some(value.as_bytes()));
        }
    }

    #[test]
    fn second_get_stores_value_at_operand_in_memtable() {
        let (db, keyspace) = open(RmwMode::Adaptive);
        db.put("k", "long value").unwrap();
        db.flush().unwrap();
        keyspace.merge("k", "+").unwrap();
        get(&db, 1, "long value+");
        assert_eq!(write_backs(&db), 0);
        let before = db.snapshot();
        get(&db, 3, "long value+");
        assert_eq!(write_backs(&db), 1);
        // One operand has less than a quarter of the bytes of the value. Two operands have more.
        keyspace.merge("k", "++").unwrap();
        get(&db, 3, "long value+++");
        assert_eq!(write_backs(&db), 1);
        keyspace.merge("k", "++").unwrap();
        get(&db, 3, "long value+++++");
        assert_eq!(write_backs(&db), 2);
        assert_eq!(before.get(&keyspace, "k").unwrap().as_deref(), Some(&b"long value+"[..]));
        db.flush().unwrap();
        get(&db, 1, "long value+++++");
        assert_eq!(before.get(&keyspace, "k").unwrap().as_deref(), Some(&b"long value+"[..]));
    }

    #[test]
    fn operands_in_files_stay_and_gets_write_nothing() {
        let (db, keyspace) = open(RmwMode::Adaptive);
        db.put("k", "value").unwrap();
        // The snapshot prevents the flush from combining the operand with the value.
        let before = db.snapshot();
        keyspace.merge("k", "+").unwrap();
        db.flush().unwrap();
        let seq = db.snapshot().seq();
        get(&db, 5, "value+");
        assert_eq!((write_backs(&db), db.snapshot().seq()), (0, seq));
        // The gets of the key were counted, so the first get after an update stores the value.
        keyspace.merge("k", "+").unwrap();
        get(&db, 1, "value++");
        assert_eq!(write_backs(&db), 1);
        assert_eq!(before.get(&keyspace, "k").unwrap().as_deref(), Some(&b"value"[..]));
    }

    #[test]
    fn fixed_mode_and_other_reads_store_nothing() {
        for mode in [RmwMode::Fixed, RmwMode::Adaptive] {
            let (db, keyspace) = open(mode);
            keyspace.merge("k", "value").unwrap();
            for _ in 0..5 {
                if mode == RmwMode::Fixed {
                    get(&db, 1, "value");
                }
                assert_eq!(keyspace.iter().count(), 1);
                assert_eq!(keyspace.multi_get(["k"]).unwrap()[0].as_deref(), Some(&b"value"[..]));
                assert!(keyspace.fetch_update("k", |_| Update::Keep).unwrap().is_some());
                assert_eq!(db.snapshot().get(&keyspace, "k").unwrap().unwrap(), b"value");
            }
            assert_eq!(write_backs(&db), 0);
        }
    }

    #[test]
    fn gets_do_not_fill_memtable() {
        let (db, keyspace) = open(RmwMode::Adaptive);
        let value = [7; 1000];
        for key in 0..100u8 {
            db.put([key], value).unwrap();
        }
        db.flush().unwrap();
        for key in 0..100u8 {
            keyspace.merge([key], "+").unwrap();
        }
        for _ in 0..3 {
            for key in 0..100u8 {
                assert_eq!(db.get([key]).unwrap().map(|value| value.len()), Some(1001));
            }
        }
        assert!((1..50).contains(&write_backs(&db)), "{}", write_backs(&db));
        assert!(db.metrics().keyspaces["default"].memtable_bytes <= MEMTABLE_BYTES);
    }
}
