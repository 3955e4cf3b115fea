//! Compares a store with a model after random deliveries, collections, snapshots, reopens and copies.

use crate::common::{Driver, Model, Write, check_view, store_context};
use lsmx::operand_store::{OperandStoreFactory, OperandView};
use lsmx::vfs::Vfs;
use lsmx_base::sync::Arc;
use lsmx_delta::{DeltaOptions, DeltaStoreFactory};
use lsmx_testkit::delta::StoreDir;
use lsmx_testkit::scaled;
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};

#[derive(Clone, Debug)]
enum Step {
    Flush(Vec<Write>),
    /// Two deliveries that are committed together.
    FlushTwice(Vec<Write>, Vec<Write>),
    /// A prepared delivery that is abandoned.
    Abandon(Vec<Write>),
    /// A delivery that is dropped before it is prepared.
    DropDelivery(Vec<Write>),
    /// Runs a collection if one is due. The operand is a delivery after the start of the collection.
    Collect(Option<Vec<Write>>),
    /// A collection that is dropped before it is prepared.
    DropCollection,
    /// A prepared collection that is abandoned.
    AbandonCollection,
    Snapshot,
    Release,
    Pin,
    Unpin,
    Reopen,
    Copy,
    CollectAll,
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => (0..40_u8).prop_map(|number| format!("key{number:02}").into_bytes()),
        1 => (0..3_u8).prop_map(|number| format!("key{number:02}").into_bytes()),
        1 => Just(Vec::new()),
    ]
}

fn write() -> impl Strategy<Value = Write> {
    prop_oneof![
        12 => (key(), 0..40_usize).prop_map(|(key, bytes)| Write::Operand { key, bytes }),
        1 => (key(), 200..900_usize).prop_map(|(key, bytes)| Write::Operand { key, bytes }),
        3 => key().prop_map(|key| Write::DeleteMarker { key }),
        1 => (key(), proptest::option::of(key())).prop_map(|(start, end)| Write::RangeDeleteMarker { start, end }),
    ]
}

fn writes() -> impl Strategy<Value = Vec<Write>> {
    proptest::collection::vec(write(), 0..40)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => writes().prop_map(Step::Flush),
        1 => (writes(), writes()).prop_map(|(a, b)| Step::FlushTwice(a, b)),
        1 => writes().prop_map(Step::Abandon),
        1 => writes().prop_map(Step::DropDelivery),
        5 => proptest::option::of(writes()).prop_map(Step::Collect),
        1 => Just(Step::DropCollection),
        1 => Just(Step::AbandonCollection),
        2 => Just(Step::Snapshot),
        2 => Just(Step::Release),
        2 => Just(Step::Pin),
        2 => Just(Step::Unpin),
        2 => Just(Step::Reopen),
        1 => Just(Step::Copy),
        1 => Just(Step::CollectAll),
    ]
}

fn options() -> impl Strategy<Value = DeltaOptions> {
    let cache = prop_oneof![Just(0), Just(500), Just(1 << 20)];
    let bytes = prop_oneof![Just(512), Just(1024), Just(3000)];
    let buckets = prop_oneof![Just(4), Just(7), Just(1000)];
    let log = prop_oneof![Just(1024), Just(8000), Just(1 << 20)];
    let share = prop_oneof![Just(0.5), Just(0.8)];
    (cache, bytes, buckets, log, share).prop_map(|(cache, bytes, buckets, log, share)| {
        DeltaOptions::default()
            .cache_bytes(cache)
            .bucket_bytes(bytes)
            .buckets_max(buckets)
            .log_bytes_max(log)
            .split_threshold(share)
    })
}

/// A pinned view, the model at the time of the view, and the sequence number of its reader.
struct Pinned(Arc<dyn OperandView>, Model, u64);

/// Counts of rare cases over all test runs.
#[derive(Default)]
struct Seen {
    rewrites: u64,
    splits: u64,
    merges: u64,
    to_tree: u64,
    cache_hits: u64,
    snapshots_kept: u64,
}

impl Seen {
    fn add(&mut self, driver: &Driver) {
        let metrics = driver.store.metrics();
        self.rewrites += metrics.rewrites;
        self.splits += metrics.splits;
        self.merges += metrics.merges;
        self.to_tree += metrics.to_tree;
        self.cache_hits += metrics.cache_hits;
        self.snapshots_kept += u64::from(!driver.snapshots.is_empty() && metrics.rewrites > 0);
    }
}

fn play(options: DeltaOptions, steps: Vec<Step>, seen: &mut Seen) {
    let mut driver = Driver::new(options);
    let mut pins: Vec<Pinned> = Vec::new();
    for step in steps {
        match step {
            Step::Flush(writes) => driver.flush(&writes),
            Step::FlushTwice(first, second) => {
                let (_, mut model) = driver.deliver(&first).unwrap();
                let prepared = driver.deliver_on(&mut model, &second).unwrap();
                driver.commit(&prepared, model);
            }
            Step::Abandon(writes) => {
                let _ = driver.deliver(&writes).unwrap();
                driver.store.abandon();
            }
            Step::DropDelivery(writes) => {
                let mut delivery = driver.store.deliver(lsmx::SeqNo(driver.seq)).unwrap();
                for write in &writes {
                    if let Write::Operand { key, .. } = write {
                        delivery.add_operand(key, lsmx::SeqNo(driver.seq), b"taken back").unwrap();
                    }
                }
            }
            Step::Collect(between) => {
                driver.collect(between.as_deref()).unwrap();
            }
            Step::DropCollection => drop(driver.store.collect(&driver.snapshots()).unwrap()),
            Step::AbandonCollection => {
                if let Some(mut collection) = driver.store.collect(&driver.snapshots()).unwrap() {
                    collection.moved_operands().unwrap();
                    collection.prepare().unwrap();
                    driver.store.abandon();
                }
            }
            Step::Snapshot => {
                driver.snapshots.insert(driver.model.through);
            }
            Step::Release => {
                driver.snapshots.pop_first();
            }
            Step::Pin => {
                let at = driver.model.through;
                pins.push(Pinned(driver.store.view(), driver.model.clone(), at));
            }
            Step::Unpin => {
                pins.pop();
            }
            Step::Reopen => {
                pins.clear();
                seen.add(&driver);
                driver.verify().unwrap();
                driver.reopen().unwrap();
            }
            Step::Copy => {
                driver.mem.create_dir("copy".as_ref()).unwrap();
                let target = StoreDir::new(driver.files.vfs.clone(), "copy", 1);
                let token = driver.store.view().copy_to(&*target).unwrap();
                let counts = Arc::default();
                let factory = DeltaStoreFactory::new(driver.options);
                factory.verify(store_context(&target, &counts), token).unwrap();
                let copy = factory.open(store_context(&target, &counts), Some(token)).unwrap();
                let len = driver.model.tree.len();
                check_view(&copy.view(), &driver.model, driver.model.through, len).unwrap();
                for (kind, number) in target.existing_files() {
                    driver
                        .mem
                        .remove(&lsmx::operand_store::OperandFiles::path(&*target, kind, number))
                        .unwrap();
                }
                // The file system cannot remove directories, so the next copy needs a new directory.
                driver.mem.rename("copy".as_ref(), format!("copy{}", driver.seq).as_ref()).unwrap();
                driver.seq += 1;
            }
            Step::CollectAll => {
                if driver.snapshots.is_empty() {
                    driver.collect_all().unwrap();
                    assert!(driver.store.view().is_empty());
                }
            }
        }
        driver.check().unwrap();
        for Pinned(view, model, at) in &pins {
            check_view(view, model, *at, model.tree.len()).unwrap();
        }
    }
    // Without readers, a commit must remove all unused files.
    pins.clear();
    driver.flush(&[]);
    let live = driver.store.live_files().into_iter().collect();
    assert_eq!(driver.files.existing_files(), live);
    driver.verify().unwrap();
    seen.add(&driver);
    driver.reopen().unwrap();
    driver.check().unwrap();
}

#[test]
fn random_operations_match_model() {
    let cases = u32::try_from(scaled(80)).unwrap();
    let config = ProptestConfig { cases, failure_persistence: None, ..Default::default() };
    // The first runner uses a fixed seed, so that every run of the test reaches the minimum counts below.
    let same = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let runners = [TestRunner::new_with_rng(config.clone(), same), TestRunner::new(config)];
    let seen = std::cell::RefCell::new(Seen::default());
    for mut runner in runners {
        let steps = proptest::collection::vec(step(), 1..60);
        let run = runner.run(&(options(), steps), |(options, steps)| {
            play(options, steps, &mut seen.borrow_mut());
            Ok(())
        });
        if let Err(error) = run {
            panic!("{error}");
        }
    }
    let Seen { rewrites, splits, merges, to_tree, cache_hits, snapshots_kept } = seen.into_inner();
    for (name, count) in [
        ("rewrites", rewrites),
        ("splits", splits),
        ("merges", merges),
        ("to tree", to_tree),
        ("cache hits", cache_hits),
        ("snapshots", snapshots_kept),
    ] {
        println!("{name}: {count}");
        assert!(count > 2, "{name} {count}");
    }
}
