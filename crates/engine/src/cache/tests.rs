use bytes::Bytes;
use lsmx_base::filter::key_hash;
use lsmx_base::filter::{self, Filter, FilterWidth};
use lsmx_base::key::SeqNo;
use lsmx_base::range_tombstone::RangeTombstone;
use lsmx_base::slice::BlockBytes;

use crate::cache::*;
use crate::format::block::BlockHandle;
use crate::format::index::{IndexBlock, PrefixIndexBuilder, Separator, SeparatorSide};
use crate::format::range_tombstones::{FragmentedTombstones, encode};

fn new_filter() -> Arc<Filter> {
    let mut hashes = (0..800u64).map(|key| key_hash(&key.to_le_bytes())).collect();
    Arc::new(
        Filter::new(filter::build_filter(&mut hashes, FilterWidth::Fuse8).unwrap().into()).unwrap(),
    )
}

fn new_index() -> Arc<IndexBlock> {
    let mut builder = PrefixIndexBuilder::new();
    for number in 0..100u64 {
        let separator =
            Separator { user_key: number.to_be_bytes().to_vec(), versions: SeparatorSide::Before };
        builder.add(separator, BlockHandle { offset: number * 4096, bytes: 4096 });
    }
    Arc::new(IndexBlock::new(builder.finish().into()).unwrap())
}

fn new_range_tombstones() -> Arc<FragmentedTombstones> {
    let span = RangeTombstone { start: Bytes::new(), end: None, seqs: vec![SeqNo(1)] };
    Arc::new(FragmentedTombstones::decode(&encode(&[span]).into()).unwrap())
}

/// Creates a table with `index_blocks` index blocks whose slots are all filled.
fn full_table(cache: &Arc<BlockCache>, index_blocks: usize) -> Arc<TableMetadataSlots> {
    let table = TableMetadataSlots::new(cache, 0, 0);
    table.fill(&table.range_tombstones, MetadataKind::RangeTombstones, 0, &new_range_tombstones());
    table.fill(&table.filter, MetadataKind::Filter, 0, &new_filter());
    table.fill(&table.top_index, MetadataKind::TopIndex, 0, &new_index());
    for ordinal in 0..index_blocks {
        let slot = table.index_slot(ordinal, index_blocks).unwrap();
        table.fill(slot, MetadataKind::Index, ordinal, &new_index());
    }
    table
}

/// Returns the total memory of all cached blocks in bytes.
fn total_bytes(cache: &BlockCache) -> u64 {
    let resident = cache.resident_bytes();
    resident.iter().filter(|&(kind, _)| kind != BlockKind::Open).map(|(_, bytes)| bytes).sum()
}

fn filled_index_slots(table: &TableMetadataSlots, count: usize) -> Vec<usize> {
    (0..count).filter(|&at| table.take_state(MetadataKind::Index, at) != SlotState::Empty).collect()
}

#[test]
fn metadata_displaces_data_blocks() {
    let budget = 1 << 20;
    for cache in BlockCacheKind::ALL.map(|kind| BlockCache::with_cache_kind(kind, budget)) {
        for offset in 0..1_000 {
            cache.insert_data_block(0, offset, &BlockBytes::copy_from(&[1; 4096]));
        }
        let data_alone = cache.resident_bytes()[BlockKind::Data];
        assert!(data_alone > budget * 3 / 4, "{data_alone}");
        let tables: Vec<_> = (0..10).map(|_| full_table(&cache, 50)).collect();
        let resident = cache.resident_bytes();
        assert!(resident[BlockKind::Data] < data_alone);
        assert!(total_bytes(&cache) <= budget);
        for table in &tables {
            assert!(table.filter.get().is_some() && table.top_index.get().is_some());
            let filled = filled_index_slots(table, 50).len();
            assert_eq!(filled, 50, "the budget has room for all indexes");
        }
    }
}

/// Released memory becomes available even if no metadata is read afterwards, because all of it is in memory.
#[test]
fn released_memory_is_assigned_to_data_blocks() {
    let budget = 1 << 20;
    for kind in BlockCacheKind::ALL {
        let cache = BlockCache::with_open_tables_in_budget(kind, budget);
        let capacity = || cache.data_capacity.load(Ordering::Relaxed);
        let tables: Vec<_> = (0..10).map(|_| full_table(&cache, 50)).collect();
        let with_filters = capacity();
        tables.iter().for_each(|table| table.release_filter());
        assert!(with_filters < capacity() && capacity() < budget);
        drop(tables);
        assert_eq!(capacity(), budget);
        cache.reserve_transaction_bytes(budget / 2, budget).unwrap();
        assert_eq!(capacity(), budget / 2);
        cache.release_transaction_bytes(budget / 2);
        assert_eq!(capacity(), budget);
    }
}

#[test]
fn eviction_order_is_index_filter_top_index_range_tombstones() {
    let one = BlockCache::new(u64::MAX >> 8);
    let table = full_table(&one, 10);
    let bytes = one.resident_bytes();
    drop(table);
    let spans = bytes[BlockKind::RangeTombstones];
    let filter = bytes[BlockKind::Filter];
    let top = bytes[BlockKind::TopIndex];
    let index = bytes[BlockKind::Index];
    // Each budget has room for one more kind of metadata than the previous one.
    for (budget, kinds) in [
        (spans, 1),
        (spans + top, 2),
        (spans + top + filter, 3),
        (spans + top + filter + index / 2, 4),
    ] {
        let cache = BlockCache::new(budget);
        let table = full_table(&cache, 10);
        let there = [
            table.take_state(MetadataKind::RangeTombstones, 0) != SlotState::Empty,
            table.take_state(MetadataKind::TopIndex, 0) != SlotState::Empty,
            table.take_state(MetadataKind::Filter, 0) != SlotState::Empty,
            !filled_index_slots(&table, 10).is_empty(),
        ];
        assert_eq!(there, [true, kinds > 1, kinds > 2, kinds > 3], "budget {budget}");
        assert!(total_bytes(&cache) <= budget);
    }
}

#[test]
fn clock_skips_used_slots() {
    let one = new_index().resident_bytes();
    let cache = BlockCache::new(10 * one);
    let table = TableMetadataSlots::new(&cache, 0, 0);
    let fill = |ordinal: usize| {
        let slot = table.index_slot(ordinal, 200).unwrap();
        if slot.get().is_none() {
            table.fill(slot, MetadataKind::Index, ordinal, &new_index());
            return true;
        }
        false
    };
    // Block 0 is read before each of the other blocks. The other blocks are read once.
    let mut reads_of_hot = 0;
    for cold in 1..200 {
        reads_of_hot += usize::from(fill(0));
        fill(cold);
    }
    assert!(reads_of_hot <= 2, "the block in use was read {reads_of_hot} times");
    assert!(total_bytes(&cache) <= 10 * one);
}

#[test]
fn zero_budget_caches_nothing() {
    for cache in BlockCacheKind::ALL.map(|kind| BlockCache::with_cache_kind(kind, 0)) {
        let table = full_table(&cache, 3);
        cache.insert_data_block(0, 0, &BlockBytes::copy_from(b"block"));
        assert_eq!(cache.get_data_block(0, 0), None);
        assert_eq!(total_bytes(&cache), 0);
        assert!(filled_index_slots(&table, 3).is_empty());
    }
}

#[test]
fn dropped_table_leaves_counters_and_queues() {
    let cache = BlockCache::new(1 << 24);
    for _ in 0..500 {
        let table = full_table(&cache, 20);
        assert!(total_bytes(&cache) > 0);
        drop(table);
        assert_eq!(total_bytes(&cache), 0);
    }
    let queues = cache.clock_queues.lock();
    assert!(queues.iter().all(|queue| queue.len() < 200), "slots of dropped tables accumulate");
}

#[test]
fn released_filter_is_subtracted() {
    let cache = BlockCache::new(1 << 24);
    let table = full_table(&cache, 0);
    table.release_filter();
    assert_eq!(cache.resident_bytes()[BlockKind::Filter], 0);
    table.fill(&table.filter, MetadataKind::Filter, 0, &new_filter());
    assert_eq!(cache.resident_bytes()[BlockKind::Filter], new_filter().resident_bytes());
    // A second fill of a slot is not counted.
    table.fill(&table.filter, MetadataKind::Filter, 0, &new_filter());
    assert_eq!(cache.resident_bytes()[BlockKind::Filter], new_filter().resident_bytes());
}

#[test]
fn concurrent_fills_keep_the_byte_count_exact() {
    const ROUNDS: usize = if cfg!(miri) { 100 } else { 3_000 };
    let one = new_index().resident_bytes();
    let cache = BlockCache::new(7 * one);
    let table = TableMetadataSlots::new(&cache, 0, 0);
    std::thread::scope(|scope| {
        for thread in 0..4usize {
            let (table, index) = (&table, new_index());
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let ordinal = (thread * 7 + round * 13) % 40;
                    let slot = table.index_slot(ordinal, 40).unwrap();
                    if slot.get().is_none() {
                        table.fill(slot, MetadataKind::Index, ordinal, &index);
                    }
                }
            });
        }
    });
    let filled = filled_index_slots(&table, 40).len() as u64;
    assert_eq!(cache.resident_bytes()[BlockKind::Index], filled * one);
    drop(table);
    assert_eq!(total_bytes(&cache), 0);
}

#[test]
fn table_numbers_are_unique() {
    for cache in BlockCacheKind::ALL.map(|kind| BlockCache::with_cache_kind(kind, 1 << 20)) {
        let (a, b) = (cache.next_cache_id(), cache.next_cache_id());
        assert_ne!(a, b);
        cache.insert_data_block(a, 0, &BlockBytes::copy_from(b"of a"));
        assert_eq!(cache.get_data_block(b, 0), None);
        assert_eq!(cache.get_data_block(a, 0), Some(BlockBytes::copy_from(b"of a")));
    }
}

/// A filter that is loaded and released repeatedly is in the queue only once, and its bytes are subtracted each time.
#[test]
fn slot_filled_and_emptied_repeatedly_is_queued_once() {
    let cache = BlockCache::new(1 << 30);
    let table = TableMetadataSlots::new(&cache, 0, 0);
    let filter = new_filter();
    for _ in 0..10_000 {
        table.fill(&table.filter, MetadataKind::Filter, 0, &filter);
        table.release_filter();
    }
    let queued = |kind| cache.clock_queues.lock()[kind as usize].len();
    assert_eq!((queued(MetadataKind::Filter), total_bytes(&cache)), (1, 0));
    table.fill(&table.filter, MetadataKind::Filter, 0, &filter);
    assert_eq!((queued(MetadataKind::Filter), total_bytes(&cache) > 0), (1, true));
    drop(table);
    assert_eq!((total_bytes(&cache), cache.open_table_bytes()), (0, 0));
    // The queues do not accumulate slots of dropped tables.
    for _ in 0..10_000 {
        drop(full_table(&cache, 1));
    }
    assert!(
        MetadataKind::ALL.iter().all(|kind| queued(*kind) < 10),
        "slots of dropped tables remain"
    );
}
