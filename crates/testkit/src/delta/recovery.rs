//! Fuzz target that opens an operand store with an arbitrary log.

use lsmx::operand_store::{
    OperandFileKind, OperandReadTier, OperandStore, OperandView, StoreToken,
};
use lsmx::{Result, SeqNo};
use lsmx_base::sync::Arc;
use lsmx_delta::DeltaOptions;
use lsmx_delta::internals::DeltaStore;
use lsmx_delta::internals::StoreView;

use super::store_context::{fuzz_context, is_missing_file, log_token, vfs_with_file};
use crate::fuzzing::{Entry, read_entries};

/// Maximum number of collections that the target runs for one input.
const COLLECTIONS_MAX: usize = 64;
/// Key of the operand that the target delivers after recovery.
const NEW_KEY: &[u8] = b"key of the fuzzer";
const NEW_OPERAND: &[u8] = b"operand";

/// Reads all operands of a view. Checks that forward cursors, backward cursors and lookups return the same operands.
fn read_view(view: &Arc<dyn OperandView>) -> Result<Vec<Entry>> {
    let read = |is_forward| {
        let mut cursor = view.clone().cursor(SeqNo::MAX, OperandReadTier::Storage);
        Ok::<_, lsmx::Error>(
            read_entries(&mut *cursor, is_forward, usize::MAX)?.unwrap_or_default(),
        )
    };
    let forward = read(true)?;
    assert_eq!(forward, read(false)?);
    let mut looked_up = Vec::new();
    for group in forward.chunk_by(|a, b| a.0 == b.0) {
        let (key, kind) = (&group[0].0, group[0].2);
        let mut operands = Vec::new();
        view.read_operands(key, SeqNo::MAX, OperandReadTier::Storage, &mut operands)?;
        let entries =
            operands.into_iter().map(|it| (key.clone(), it.last, kind, it.bytes.to_vec()));
        looked_up.extend(entries);
    }
    assert_eq!(looked_up, forward);
    Ok(forward)
}

/// Returns the largest sequence number that the log of a view contains. Does not read bucket files.
fn newest_seq(view: &StoreView) -> SeqNo {
    let buckets =
        view.buckets.iter().map(|bucket| bucket.tail.newest.max(bucket.collected_through));
    let markers = view.range_markers.iter().map(|marker| marker.seq);
    buckets.chain(markers).fold(view.through, SeqNo::max)
}

/// Delivers an operand, and runs collections until none is due. Returns the last store token, and the operands that the
/// collections moved to the tree.
fn deliver_and_collect(store: &DeltaStore, through: SeqNo) -> Result<(StoreToken, Vec<Entry>)> {
    let mut delivery = store.deliver(through)?;
    delivery.add_operand(NEW_KEY, through, NEW_OPERAND)?;
    let mut token = delivery.prepare()?.token;
    store.mark_committed(token);
    let mut moved = Vec::new();
    for _ in 0..COLLECTIONS_MAX {
        let Some(mut collection) = store.collect(&[through])? else { return Ok((token, moved)) };
        if let Some(mut cursor) = collection.moved_operands()? {
            moved.extend(read_entries(&mut *cursor, true, usize::MAX)?.unwrap_or_default());
        }
        token = collection.prepare()?.token;
        store.mark_committed(token);
    }
    panic!("collections do not end");
}

/// Checks recovery of an operand store from a log. The bucket files to which the log refers do not exist.
///
/// Delivers an operand, runs collections, and reopens the store. The store must return the previous operands and the
/// new one.
pub(super) fn check_recovery_from_log(input: &[u8]) {
    let vfs = vfs_with_file(OperandFileKind::Log, input);
    let options = DeltaOptions::default().bucket_bytes(1024).buckets_max(4);
    let options = options.log_bytes_max(1024).cache_bytes(2000);
    let open = |open_number: u64, token: StoreToken| {
        DeltaStore::open(fuzz_context(&vfs, open_number), Some(token), options)
    };
    let Ok(store) = open(1, log_token(input, input.len())) else { return };
    let before = read_view(&store.view());
    store.metrics();
    store.live_files();
    let through = newest_seq(&store.state.committed_view()).0.checked_add(1).map(SeqNo);
    let Some(through) = through.filter(|through| *through <= SeqNo::MAX) else { return };
    match deliver_and_collect(&store, through) {
        Ok((token, moved)) => {
            let Ok(mut before) = before else { return };
            before.retain(|entry| entry.0 != NEW_KEY);
            let after = read_view(&store.view()).expect("the store was readable before");
            let reopened = open(2, token).expect("a committed log can be opened");
            assert_eq!(read_view(&reopened.view()).expect("the store was readable before"), after);
            let mut all = [moved, after].concat();
            let is_new = |it: &Entry| it.0 == NEW_KEY && it.1 == through && it.3 == NEW_OPERAND;
            assert!(all.iter().any(is_new));
            all.retain(|entry| entry.0 != NEW_KEY);
            all.sort();
            before.sort();
            assert_eq!(all, before, "operands are lost or duplicated");
        }
        Err(error) => assert!(before.is_err() || is_missing_file(&error), "{error:?}"),
    }
}
