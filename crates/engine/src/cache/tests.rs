use bytes::Bytes;
use lsmx_base::filter::key_hash;
use lsmx_base::filter::{self, Filter, FilterWidth};
use lsmx_base::key::SeqNo;
use lsmx_base::range_tombstone::RangeTombstone;
use lsmx_base::slice::BlockBytes;

use crate::cache::*;
use crate::format::block::Handle;
use crate::format::index::{IndexBlock, PrefixIndexBuilder, Separator, VersionSide};
use crate::format::range_tombstones::{FragmentedTombstones, encode};

fn a_filter() -> Arc<Filter> {
    let mut hashes = (0..800u64).map(|key| key_hash(&key.to_le_bytes())).collect();
    Arc::new(
        Filter::new(filter::build_filter(&mut hashes, FilterWidth::Fuse8).unwrap().into()).unwrap(),
    )
}

fn an_index() -> Arc<IndexBlock> {
    let mut builder = PrefixIndexBuilder::new();
    for number in 0..100u64 {
        let separator =
            Separator { user_key: number.to_be_bytes().to_vec(), versions: VersionSide::Before };
        builder.add(separator, Handle { offset: number * 4096, bytes: 4096 });
    }
    Arc::new(IndexBlock::new(builder.finish().into()).unwrap())
}

fn some_spans() -> Arc<FragmentedTombstones> {
    let span = RangeTombstone { start: Bytes::new(), end: None, seqs: vec![SeqNo(1)] };
    Arc::new(FragmentedTombstones::decode(&encode(&[span]).into()).unwrap())
}

/// Fills every slot of a new table that has `index_blocks` index blocks.
fn full_table(cache: &Arc<Cache>, index_blocks: usize) -> Arc<TableSlots> {
    let table = TableSlots::new(cache, 0, 0);
    table.fill(&table.range_tombstones, Metadata::RangeTombstones, 0, &some_spans());
    table.fill(&table.filter, Metadata::Filter, 0, &a_filter());
    table.fill(&table.top_index, Metadata::TopIndex, 0, &an_index());
    for ordinal in 0..index_blocks {
        let slot = table.index(ordinal, index_blocks).unwrap();
        table.fill(slot, Metadata::Index, ordinal, &an_index());
    }
    table
}

/// Bytes of blocks.
fn total(cache: &Cache) -> u64 {
    let resident = cache.resident_bytes();
    resident.iter().filter(|&(kind, _)| kind != BlockKind::Open).map(|(_, bytes)| bytes).sum()
}

fn filled_index_slots(table: &TableSlots, count: usize) -> Vec<usize> {
    (0..count).filter(|&at| table.visit(Metadata::Index, at) != Visit::Empty).collect()
}

#[test]
fn data_goes_before_any_metadata() {
    let budget = 1 << 20;
    for cache in BlockCacheKind::ALL.map(|kind| Cache::of_kind(kind, budget)) {
        for offset in 0..1_000 {
            cache.keep_data_block(0, offset, &BlockBytes::copy_from(&[1; 4096]));
        }
        let data_alone = cache.resident_bytes()[BlockKind::Data];
        assert!(data_alone > budget * 3 / 4, "{data_alone}");
        let tables: Vec<_> = (0..10).map(|_| full_table(&cache, 50)).collect();
        let resident = cache.resident_bytes();
        assert!(resident[BlockKind::Data] < data_alone);
        assert!(total(&cache) <= budget);
        for table in &tables {
            assert!(table.filter.get().is_some() && table.top_index.get().is_some());
            let filled = filled_index_slots(table, 50).len();
            assert_eq!(filled, 50, "the budget has room for all indexes");
        }
    }
}

#[test]
fn index_goes_first_then_filters_then_top_index_and_spans_last() {
    let one = Cache::new(u64::MAX >> 8);
    let table = full_table(&one, 10);
    let bytes = one.resident_bytes();
    drop(table);
    let spans = bytes[BlockKind::RangeTombstones];
    let filter = bytes[BlockKind::Filter];
    let top = bytes[BlockKind::TopIndex];
    let index = bytes[BlockKind::Index];
    // With the budget for each in turn, what is resident after everything was read.
    for (budget, kinds) in [
        (spans, 1),
        (spans + top, 2),
        (spans + top + filter, 3),
        (spans + top + filter + index / 2, 4),
    ] {
        let cache = Cache::new(budget);
        let table = full_table(&cache, 10);
        let there = [
            table.visit(Metadata::RangeTombstones, 0) != Visit::Empty,
            table.visit(Metadata::TopIndex, 0) != Visit::Empty,
            table.visit(Metadata::Filter, 0) != Visit::Empty,
            !filled_index_slots(&table, 10).is_empty(),
        ];
        assert_eq!(there, [true, kinds > 1, kinds > 2, kinds > 3], "budget {budget}");
        assert!(total(&cache) <= budget);
    }
}

#[test]
fn the_clock_passes_over_what_is_used() {
    let one = an_index().resident_bytes();
    let cache = Cache::new(10 * one);
    let table = TableSlots::new(&cache, 0, 0);
    let fill = |ordinal: usize| {
        let slot = table.index(ordinal, 200).unwrap();
        if slot.get().is_none() {
            table.fill(slot, Metadata::Index, ordinal, &an_index());
            return true;
        }
        false
    };
    // Block 0 is asked for between any two others, which come only once each.
    let mut reads_of_hot = 0;
    for cold in 1..200 {
        reads_of_hot += usize::from(fill(0));
        fill(cold);
    }
    assert!(reads_of_hot <= 2, "the block in use was read {reads_of_hot} times");
    assert!(total(&cache) <= 10 * one);
}

#[test]
fn a_budget_of_nothing_keeps_nothing() {
    for cache in BlockCacheKind::ALL.map(|kind| Cache::of_kind(kind, 0)) {
        let table = full_table(&cache, 3);
        cache.keep_data_block(0, 0, &BlockBytes::copy_from(b"block"));
        assert_eq!(cache.data_block(0, 0), None);
        assert_eq!(total(&cache), 0);
        assert!(filled_index_slots(&table, 3).is_empty());
    }
}

#[test]
fn a_dropped_table_leaves_the_count_and_the_rounds() {
    let cache = Cache::new(1 << 24);
    for _ in 0..500 {
        let table = full_table(&cache, 20);
        assert!(total(&cache) > 0);
        drop(table);
        assert_eq!(total(&cache), 0);
    }
    let rounds = cache.rounds.lock();
    assert!(rounds.iter().all(|round| round.len() < 200), "places of dropped tables pile up");
}

#[test]
fn a_released_filter_leaves_the_count() {
    let cache = Cache::new(1 << 24);
    let table = full_table(&cache, 0);
    table.release_filter();
    assert_eq!(cache.resident_bytes()[BlockKind::Filter], 0);
    table.fill(&table.filter, Metadata::Filter, 0, &a_filter());
    assert_eq!(cache.resident_bytes()[BlockKind::Filter], a_filter().resident_bytes());
    // A second fill of a full slot is not counted twice.
    table.fill(&table.filter, Metadata::Filter, 0, &a_filter());
    assert_eq!(cache.resident_bytes()[BlockKind::Filter], a_filter().resident_bytes());
}

#[test]
fn threads_that_fill_and_read_leave_a_right_count() {
    const ROUNDS: usize = if cfg!(miri) { 100 } else { 3_000 };
    let one = an_index().resident_bytes();
    let cache = Cache::new(7 * one);
    let table = TableSlots::new(&cache, 0, 0);
    std::thread::scope(|scope| {
        for thread in 0..4usize {
            let (table, index) = (&table, an_index());
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let ordinal = (thread * 7 + round * 13) % 40;
                    let slot = table.index(ordinal, 40).unwrap();
                    if slot.get().is_none() {
                        table.fill(slot, Metadata::Index, ordinal, &index);
                    }
                }
            });
        }
    });
    let filled = filled_index_slots(&table, 40).len() as u64;
    assert_eq!(cache.resident_bytes()[BlockKind::Index], filled * one);
    drop(table);
    assert_eq!(total(&cache), 0);
}

#[test]
fn tables_have_numbers_of_their_own() {
    for cache in BlockCacheKind::ALL.map(|kind| Cache::of_kind(kind, 1 << 20)) {
        let (a, b) = (cache.next_table(), cache.next_table());
        assert_ne!(a, b);
        cache.keep_data_block(a, 0, &BlockBytes::copy_from(b"of a"));
        assert_eq!(cache.data_block(b, 0), None);
        assert_eq!(cache.data_block(a, 0), Some(BlockBytes::copy_from(b"of a")));
    }
}

/// A filter that is loaded and released again and again is listed once, and nothing is counted in the end.
#[test]
fn rounds_slot_filled_and_emptied_many_times_is_listed_once() {
    let cache = Cache::new(1 << 30);
    let table = TableSlots::new(&cache, 0, 0);
    let filter = a_filter();
    for _ in 0..10_000 {
        table.fill(&table.filter, Metadata::Filter, 0, &filter);
        table.release_filter();
    }
    let listed = |kind| cache.rounds.lock()[kind as usize].len();
    assert_eq!((listed(Metadata::Filter), total(&cache)), (1, 0));
    table.fill(&table.filter, Metadata::Filter, 0, &filter);
    assert_eq!((listed(Metadata::Filter), total(&cache) > 0), (1, true));
    drop(table);
    assert_eq!((total(&cache), cache.open_table_bytes()), (0, 0));
    // Places of dropped tables leave as others come.
    for _ in 0..10_000 {
        drop(full_table(&cache, 1));
    }
    assert!(Metadata::ALL.iter().all(|kind| listed(*kind) < 10), "places of dropped tables stay");
}
