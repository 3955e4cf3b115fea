//! Tests of compaction filters.

use std::sync::{Arc, Mutex};

use lsmx::compaction_filter::{FilterContext, FilterDecision, FilterError, FilterValue};
use lsmx::merge_operator::Append;
use lsmx::metrics::CompactionFilterMetrics;
use lsmx::vfs::MemVfs;
use lsmx::{
    CompactionFilter, Db, Error, Event, KeyspaceOptions, SeqNo, Snapshot, ValueSeparation,
    WriteBatch,
};
use lsmx_testkit::simple_store::SimpleStore;
use lsmx_testkit::{EventLog, case_seeds, with_silent_panics};

use crate::harness::compaction_filters::{decide, play_history};
use crate::harness::database::{
    self, assert_clean, compact, entries, files, inline, metrics, settle, small, try_open,
};
use crate::harness::small_database::lock;

/// A filter that calls a function and records the arguments of each call.
struct FnFilter<F> {
    decide: F,
    calls: Mutex<Vec<(String, FilterContext)>>,
}

impl<F> std::fmt::Debug for FnFilter<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FnFilter").finish_non_exhaustive()
    }
}

impl<F> CompactionFilter for FnFilter<F>
where
    F: Fn(&[u8], &FilterValue<'_>) -> Result<FilterDecision, FilterError> + Send + Sync,
{
    fn name(&self) -> &'static str {
        "test.fn"
    }

    fn filter(
        &self,
        key: &[u8],
        value: &FilterValue<'_>,
        context: &FilterContext,
    ) -> Result<FilterDecision, FilterError> {
        lock(&self.calls).push((String::from_utf8_lossy(key).into_owned(), *context));
        (self.decide)(key, value)
    }
}

impl<F> FnFilter<F> {
    fn new(decide: F) -> Arc<FnFilter<F>>
    where
        F: Fn(&[u8], &FilterValue<'_>) -> Result<FilterDecision, FilterError> + Send + Sync,
    {
        Arc::new(FnFilter { decide, calls: Mutex::default() })
    }

    /// Returns the keys of all calls since the last call of this method.
    fn take_keys(&self) -> Vec<String> {
        lock(&self.calls).drain(..).map(|(key, _)| key).collect()
    }
}

fn open(disk: &MemVfs, keyspace: KeyspaceOptions) -> Db {
    database::open(disk, inline().keyspace_defaults(keyspace))
}

/// Returns the pairs of the default keyspace as `key=value`.
fn pairs(db: &Db) -> Vec<String> {
    let pair = |(key, value): (lsmx::Slice, lsmx::Slice)| {
        format!("{}={}", key.escape_ascii(), value.escape_ascii())
    };
    entries(db.default_keyspace().iter()).into_iter().map(pair).collect()
}

fn counts(db: &Db) -> CompactionFilterMetrics {
    metrics(db).compaction_filter
}

fn put_all(db: &Db, pairs: &[(&str, &str)]) {
    for (key, value) in pairs {
        db.put(key, value).unwrap();
    }
}

/// A filter that decides by the first byte of the value, see [`decide`].
fn by_value() -> Arc<impl CompactionFilter> {
    FnFilter::new(|_, value| decide(value.bytes()?))
}

#[test]
fn filter_removes_and_changes_values_in_compactions_only() {
    let disk = MemVfs::new();
    let db = open(&disk, small().compaction_filter(by_value()));
    put_all(&db, &[("a", "r1"), ("b", "c2"), ("c", "k3"), ("d", "r4")]);
    db.delete("d").unwrap();
    db.flush().unwrap();
    assert_eq!(pairs(&db), ["a=r1", "b=c2", "c=k3"], "a flush does not call the filter");
    compact(&db).unwrap();
    assert_eq!(pairs(&db), ["b=k2", "c=k3"]);
    assert!(db.get("a").unwrap().is_none());
    let total = metrics(&db).total();
    assert_eq!((total.entries, total.tombstones), (2, 0));
    let expected = CompactionFilterMetrics {
        passed: 3,
        removed: 1,
        changed: 1,
        ..CompactionFilterMetrics::default()
    };
    assert_eq!(counts(&db), expected);
    // A manual compaction passes the values of the last run again.
    compact(&db).unwrap();
    assert_eq!(counts(&db), CompactionFilterMetrics { passed: 5, ..expected });
    assert!(db.metrics().to_string().contains("compaction filter: 5 values passed, 1 removed"));
    db.close(None).unwrap();
    assert_clean(&disk);
}

#[test]
fn filter_context_has_sequence_number_level_and_last_run() {
    let filter = FnFilter::new(|_, _| Ok(FilterDecision::Keep));
    let db = open(&MemVfs::new(), small().compaction_filter(Arc::clone(&filter)));
    db.put("a", "1").unwrap();
    let seq = db.snapshot().seq();
    db.put("b", "2").unwrap();
    compact(&db).unwrap();
    let calls = std::mem::take(&mut *lock(&filter.calls));
    let seqs: Vec<_> = calls.iter().map(|(key, context)| (key.as_str(), context.seq)).collect();
    assert_eq!(seqs, [("a", seq), ("b", SeqNo(seq.0 + 1))]);
    assert!(calls.iter().all(|(_, context)| context.is_last_run && context.level > 0));
}

#[test]
fn value_that_a_snapshot_sees_is_not_passed() {
    let filter = FnFilter::new(|_, value| decide(value.bytes()?));
    let db = open(&MemVfs::new(), small().compaction_filter(Arc::clone(&filter)));
    put_all(&db, &[("a", "r1"), ("b", "r2")]);
    let snapshot = db.snapshot();
    put_all(&db, &[("b", "r3"), ("c", "r4")]);
    compact(&db).unwrap();
    assert_eq!(filter.take_keys(), ["b", "c"]);
    assert_eq!(pairs(&db), ["a=r1"]);
    let seen = |key: &str| snapshot.get(&db.default_keyspace(), key).unwrap();
    assert_eq!(seen("a").as_deref(), Some(&b"r1"[..]));
    assert_eq!(seen("b").as_deref(), Some(&b"r2"[..]));
    drop(snapshot);
    compact(&db).unwrap();
    assert_eq!((pairs(&db), metrics(&db).total().entries), (vec![], 0));
}

#[test]
fn snapshot_during_the_merge_repeats_the_merge_without_filter() {
    let (shared, held) = (Arc::new(Mutex::new(None::<Db>)), Arc::new(Mutex::new(None::<Snapshot>)));
    let filter = {
        let (shared, held) = (Arc::clone(&shared), Arc::clone(&held));
        FnFilter::new(move |key, value| {
            if key == b"b"
                && let Some(db) = lock(&shared).take()
            {
                *lock(&held) = Some(db.snapshot());
            }
            decide(value.bytes()?)
        })
    };
    let db = open(&MemVfs::new(), small().compaction_filter(filter));
    put_all(&db, &[("a", "r1"), ("b", "c2"), ("c", "k3")]);
    *lock(&shared) = Some(db.clone());
    compact(&db).unwrap();
    assert_eq!(pairs(&db), ["a=r1", "b=c2", "c=k3"]);
    let repeated = CompactionFilterMetrics { repeated_merges: 1, ..Default::default() };
    assert_eq!(counts(&db), repeated);
    let snapshot = lock(&held).take().unwrap();
    assert_eq!(entries(snapshot.iter(&db.default_keyspace())).len(), 3);
    drop(snapshot);
    compact(&db).unwrap();
    assert_eq!(pairs(&db), ["b=k2", "c=k3"]);
}

#[test]
fn failed_and_panicking_calls_keep_the_value_and_are_reported() {
    let filter = FnFilter::new(|key, value| {
        assert!(key != b"p", "a bad key");
        decide(value.bytes()?)
    });
    let log = EventLog::default();
    let options = inline().listener(Arc::new(log.clone()));
    let options = options.keyspace_defaults(small().compaction_filter(filter));
    let db = database::open(&MemVfs::new(), options);
    put_all(&db, &[("a", "r1"), ("e", "e2"), ("p", "r3")]);
    with_silent_panics(|| compact(&db)).unwrap();
    assert_eq!(pairs(&db), ["e=e2", "p=r3"]);
    assert_eq!((counts(&db).errors, counts(&db).removed), (2, 1));
    let failed = log.select(|event| match event {
        Event::CompactionFilterFailed(failed) => Some((failed.clone(), event.to_string())),
        _ => None,
    });
    let [(failed, text)] = failed.as_slice() else { panic!("{failed:?}") };
    assert_eq!((failed.failures, failed.key.as_slice()), (2, &b"e"[..]));
    assert_eq!((failed.filter.as_str(), failed.keyspace.as_str()), ("test.fn", "default"));
    assert!(text.contains("first for key \"e\": the value begins with an e"), "{text}");
    db.put("more", "k").unwrap();
    assert_eq!(db.health().read_only.map(|error| error.to_string()), None);
}

#[test]
fn filter_is_taken_from_the_options_of_each_open() {
    let disk = MemVfs::new();
    let db = open(&disk, small().compaction_filter(by_value()));
    put_all(&db, &[("a", "r1"), ("b", "c2")]);
    let name = |db: &Db| db.default_keyspace().options().compaction_filter;
    assert_eq!(name(&db).as_deref(), Some("test.fn"));
    db.close(None).unwrap();
    let db = open(&disk, small());
    compact(&db).unwrap();
    assert_eq!((name(&db), pairs(&db)), (None, vec!["a=r1".to_owned(), "b=c2".to_owned()]));
    // An open keyspace gets a filter.
    db.keyspace("default", small().compaction_filter(by_value())).unwrap();
    compact(&db).unwrap();
    assert_eq!((name(&db).as_deref(), pairs(&db)), (Some("test.fn"), vec!["b=k2".to_owned()]));
}

#[test]
fn filter_of_the_default_keyspace_is_not_used_for_others() {
    let disk = MemVfs::new();
    let db = open(&disk, small().compaction_filter(by_value()));
    db.keyspace("other", small()).unwrap().put("a", "r1").unwrap();
    db.close(None).unwrap();
    let db = open(&disk, small().compaction_filter(by_value()));
    let other = db.open_keyspace("other", None).unwrap();
    assert_eq!(other.options().compaction_filter, None);
    other.compact_range::<&[u8]>(..).unwrap();
    assert_eq!(other.get("a").unwrap().as_deref(), Some(&b"r1"[..]));
}

/// A filter whose name is too short.
#[derive(Debug)]
struct Nameless;

impl CompactionFilter for Nameless {
    fn name(&self) -> &'static str {
        ""
    }

    fn filter(
        &self,
        _: &[u8],
        _: &FilterValue<'_>,
        _: &FilterContext,
    ) -> Result<FilterDecision, FilterError> {
        Ok(FilterDecision::Keep)
    }
}

#[test]
fn filter_without_a_name_is_refused() {
    let options = inline().keyspace_defaults(small().compaction_filter(Nameless));
    let refused = try_open(&MemVfs::new(), options);
    assert!(matches!(refused, Err(Error::InvalidOption { name: "compaction_filter", .. })));
}

#[test]
fn separated_values_are_read_on_request_and_become_garbage() {
    let separation = ValueSeparation { threshold_bytes: 10, ..ValueSeparation::default() };
    let filter = FnFilter::new(|key, value| match key {
        b"a" | b"b" => decide(value.bytes()?),
        _ if value.is_separated() => Ok(FilterDecision::Remove),
        _ => Ok(FilterDecision::Keep),
    });
    let disk = MemVfs::new();
    let db = open(&disk, small().value_separation(separation).compaction_filter(filter));
    let long = |first: &str| first.to_owned() + &"x".repeat(50);
    for (key, first) in [("a", "r"), ("b", "c"), ("c", "k")] {
        db.put(key, long(first)).unwrap();
    }
    db.put("d", "short").unwrap();
    db.flush().unwrap();
    assert_eq!(metrics(&db).value_log.blob_files, 1);
    compact(&db).unwrap();
    assert_eq!(pairs(&db), [format!("b={}", long("k")), "d=short".to_owned()]);
    let log = metrics(&db).value_log;
    assert_eq!((log.blob_files, counts(&db).removed), (1, 2));
    assert!(log.blob_referenced_bytes > 50, "{log:?}");
    db.delete("b").unwrap();
    compact(&db).unwrap();
    db.wait_idle().unwrap();
    assert_eq!(metrics(&db).value_log.blob_files, 0);
    assert_eq!(files(&disk, ".blob").len(), 0);
    db.close(None).unwrap();
    assert_clean(&disk);
}

#[test]
fn operands_are_passed_after_they_are_folded() {
    let filter = FnFilter::new(|_, value| decide(value.bytes()?));
    let options = small().merge_operator(Append::with_separator(b"|"));
    let db = open(&MemVfs::new(), options.compaction_filter(Arc::clone(&filter)));
    let keyspace = db.default_keyspace();
    put_all(&db, &[("a", "r1"), ("b", "c2"), ("c", "k3")]);
    compact(&db).unwrap();
    assert_eq!(filter.take_keys(), ["a", "b", "c"]);
    for key in ["a", "b"] {
        keyspace.merge(key, "c+").unwrap();
        db.flush().unwrap();
        keyspace.merge(key, "+").unwrap();
    }
    compact(&db).unwrap();
    // The policy may have compacted the keys before the manual compaction.
    let mut keys = filter.take_keys();
    keys.sort();
    keys.dedup();
    assert_eq!(keys, ["a", "b", "c"]);
    assert_eq!(pairs(&db), ["a=k+|+", "b=k2|c+|+", "c=k3"]);
}

#[test]
fn value_with_newer_operands_in_the_store_is_not_passed() {
    let filter = FnFilter::new(|_, value| decide(value.bytes()?));
    let quiet = SimpleStore { collect_after: u64::MAX, to_tree_one_in: 1, lazy: true };
    let options = small().merge_operator(Append::with_separator(b"|")).operand_store(quiet);
    let db = open(&MemVfs::new(), options.compaction_filter(Arc::clone(&filter)));
    let keyspace = db.default_keyspace();
    put_all(&db, &[("a", "r1"), ("b", "r2")]);
    // A flush would fold an operand onto a value in the same memtable.
    db.flush().unwrap();
    keyspace.merge("b", "+").unwrap();
    compact(&db).unwrap();
    assert_eq!(filter.take_keys(), ["a"]);
    assert_eq!(pairs(&db), ["b=r2|+"]);
    // The operand is moved to the tree and folded onto the value.
    keyspace.operands_to_tree().unwrap();
    compact(&db).unwrap();
    assert_eq!((filter.take_keys(), pairs(&db)), (vec!["b".to_owned()], vec![]));
}

#[test]
fn void_operands_of_a_removed_value_stay_void() {
    let quiet = SimpleStore { collect_after: u64::MAX, to_tree_one_in: 1, lazy: true };
    let options = small().merge_operator(Append::with_separator(b"|")).operand_store(quiet);
    let disk = MemVfs::new();
    // The first open has no filter, so that the tree holds a value above operands that its delete marker voids.
    let db = open(&disk, options.clone());
    db.default_keyspace().merge("a", "old").unwrap();
    db.flush().unwrap();
    db.put("a", "r1").unwrap();
    compact(&db).unwrap();
    db.close(None).unwrap();
    let db = open(&disk, options.compaction_filter(by_value()));
    compact(&db).unwrap();
    let value = db.get("a").unwrap();
    assert!(value.is_none() || value.as_deref() == Some(&b"r1"[..]), "{value:?}");
    db.default_keyspace().operands_to_tree().unwrap();
    compact(&db).unwrap();
    assert_eq!(pairs(&db), Vec::<String>::new());
}

#[test]
fn removal_is_not_a_write_for_guards() {
    let db = open(&MemVfs::new(), small().compaction_filter(by_value()));
    let keyspace = db.default_keyspace();
    db.put("a", "r1").unwrap();
    let seq = db.snapshot().seq();
    compact(&db).unwrap();
    assert_eq!(db.get("a").unwrap(), None);
    let mut batch = WriteBatch::new();
    batch.guard(&keyspace, "a", seq);
    batch.put(&keyspace, "a", "k2");
    db.write(batch, lsmx::Durability::Buffered).unwrap();
    settle(&db);
    assert_eq!(pairs(&db), ["a=k2"]);
}

#[test]
fn filtered_histories_equal_the_model() {
    let mut total = CompactionFilterMetrics::default();
    for seed in case_seeds(&[], 200) {
        let metrics = play_history(seed).unwrap_or_else(|what| panic!("{what}"));
        total.passed += metrics.passed;
        total.removed += metrics.removed;
        total.changed += metrics.changed;
        total.errors += metrics.errors;
        total.repeated_merges += metrics.repeated_merges;
    }
    println!("filtered_histories_equal_the_model: {total:?}");
    if lsmx_testkit::scale() >= 1.0 {
        assert!(total.removed > 500 && total.changed > 500, "{total:?}");
        assert!(total.errors > 500 && total.repeated_merges > 20, "{total:?}");
    }
}
