//! Opens and verifies the operand stores of keyspaces, and moves their operands back to the tree.

use std::collections::BTreeSet;
use std::path::Path;

use lsmx_base::file_name::{CURRENT, FILE_NUMBER_MAX, FileName};
use lsmx_base::key::SeqNo;
use lsmx_base::malformed::Malformed;
use lsmx_base::sync::{Arc, AtomicBool, AtomicU64};

use crate::cache::BlockCache;
use crate::db::inner::{DbInner, check_reentry};
use crate::db::open::fd_limit::{
    IDLE_DESCRIPTORS, check_descriptors_available, needed_descriptors,
};
use crate::env::{Background, Env};
use crate::error::{Error, Result, UserCode};
use crate::format::version_edit::Change;
use crate::jobs::operand_store::collect;
use crate::manifest::{KeyspaceState, ManifestState};
use crate::operand_store::{
    OperandStore, OperandStoreFactory, PanicGuardStore, StoreContext, StoreToken, StoredRecord,
};
use crate::options::keyspace::KeyspaceOptions;
use crate::options::memory_plan::MemoryPlan;
use crate::options::stored::StoredOptions;
use crate::state::DbState;
use crate::state::table_factory::TableFactory;
use crate::state::work_queue::WorkKind;
use crate::table::FdCacheVfs;
use crate::tree::Tree;
use crate::tree::file_numbers::FileNumbers;
use crate::tree::keyspace_name::KeyspaceName;
use crate::tree::merge_resolver::MergeResolver;
use crate::tree::operand_files::{OperandStoreFiles, StoreLifetime, operand_file_name};
use crate::tree::operand_store_slot::{AttachedStore, BucketReadCounters, ResolverMerger};
use crate::vfs::Vfs;

/// Minimum memory limit of a store in bytes, if the database has a memory budget.
const STORE_BYTES_MIN: u64 = 1 << 20;
/// Ratio of the block cache size to the memory limit of one store.
const CACHE_PER_STORE: u64 = 2;

/// Opens the operand stores of one database.
pub(crate) struct StoreOpener<'a> {
    pub(crate) tables: &'a TableFactory,
    pub(crate) memory: MemoryPlan,
    pub(crate) direct_reads: bool,
    pub(crate) read_only: bool,
}

impl StoreOpener<'_> {
    /// Opens the store of a keyspace. `token` identifies the stored state to open; `None` creates an empty store.
    pub(crate) fn open(
        &self,
        keyspace: &str,
        merging: &Arc<MergeResolver>,
        factory: &Arc<dyn OperandStoreFactory>,
        token: Option<StoreToken>,
    ) -> Result<Arc<AttachedStore>> {
        let tables = self.tables;
        let descriptors = Arc::clone(&tables.descriptors);
        let pooled = Arc::new(FdCacheVfs::new(Arc::clone(&tables.vfs), descriptors));
        let vfs = Arc::clone(&pooled) as Arc<_>;
        let (dir, numbers) = (tables.dir.clone(), Arc::clone(&tables.files));
        let files = Arc::new(OperandStoreFiles {
            paced: Arc::new(tables.rate_limited_store_vfs(&pooled)),
            obsolete_files: Arc::clone(&tables.obsolete_files),
            descriptors: Some(Arc::clone(pooled.cache())),
            ..OperandStoreFiles::without_limits(vfs, dir, numbers)
        });
        let context = self.context(keyspace, merging, &files);
        let code = || UserCode::OperandStore(factory.name().to_owned());
        let opened = Error::catch_user_panic(code, || factory.open(context, token)).flatten();
        let store = opened.inspect_err(|_| files.discard_created_files())?;
        let closed = Arc::clone(tables.descriptors.database_closed_flag());
        let store: Arc<dyn OperandStore> = PanicGuardStore::new(store, factory.name(), closed);
        files.add_found_file(store.live_files());
        let attached = AttachedStore {
            factory: Arc::clone(factory),
            store,
            lifetime: StoreLifetime::new(files),
            opened: token,
            is_collecting: AtomicBool::new(false),
            is_abandoned: AtomicBool::new(false),
            collection_count: AtomicU64::new(0),
            cache: Arc::clone(&tables.cache),
            charged_bytes: AtomicU64::new(0),
            total_rewrite_bytes: Arc::clone(&tables.store_rewrite_bytes),
            rewrite_bytes: AtomicU64::new(0),
        };
        attached.update_memory_charge();
        Ok(Arc::new(attached))
    }

    /// Returns the context that is passed to the factory of a store.
    pub(crate) fn context(
        &self,
        keyspace: &str,
        merging: &Arc<MergeResolver>,
        files: &Arc<OperandStoreFiles>,
    ) -> StoreContext {
        StoreContext {
            keyspace: keyspace.to_owned(),
            files: Arc::clone(files) as Arc<_>,
            env: self.tables.env.clone(),
            merger: Arc::new(ResolverMerger(Arc::clone(merging))),
            read_counters: Arc::new(BucketReadCounters(Arc::clone(&self.tables.cache))),
            memory_bytes: Some(store_memory_bytes(self.memory)),
            direct_reads: self.direct_reads,
            read_only: self.read_only,
        }
    }
}

/// Returns the opener of an open database.
pub(crate) fn store_opener(inner: &DbInner) -> StoreOpener<'_> {
    StoreOpener {
        tables: &inner.state.tables,
        memory: inner.memory,
        direct_reads: inner.options.direct_reads,
        read_only: inner.read_only.is_some(),
    }
}

/// Returns the memory limit of one store, in bytes.
fn store_memory_bytes(memory: MemoryPlan) -> u64 {
    let bytes = memory.cache_bytes / CACHE_PER_STORE;
    if memory.budget_bytes.is_some() { bytes.max(STORE_BYTES_MIN) } else { bytes }
}

/// Fails if the name of a store differs from the store name in the manifest.
pub(crate) fn check_store_name(keyspace: &str, stored: &str, name: &str) -> Result<()> {
    if stored == name {
        return Ok(());
    }
    Err(Error::Contradiction {
        first: format!("operand_store = {name}"),
        second: format!("operand_store = {stored} of keyspace {keyspace:?}"),
        why: "an operand store cannot read the files of another one",
    })
}

/// An operand store that was opened before `DbInner::keyspace_changes` was locked.
pub(crate) struct OpenedStore {
    /// Id of the keyspace. `None` if the keyspace does not exist yet.
    pub(crate) tree: Option<u32>,
    pub(crate) attached: Arc<AttachedStore>,
}

/// Returns the state of the operand store of a keyspace that the manifest records.
pub(crate) fn stored_token(state: &DbState, keyspace: u32) -> Option<StoreToken> {
    state.manifest.with_state(|manifest| manifest.keyspaces.get(&keyspace)?.operand_token)
}

/// Opens the operand store in `options` for a keyspace, unless the store is already open. If the keyspace does not
/// exist yet, the store shares `keyspace` with the tree that is created later.
///
/// The caller must hold no lock, because the open of a store reads files and may yield to other threads.
///
/// # Errors
/// [`Error::NoOperandStore`] if the keyspace needs a store and the options have none. [`Error::Contradiction`] if the
/// options have another store. Errors of the store.
pub(crate) fn open_operand_store(
    inner: &DbInner,
    keyspace: &Arc<KeyspaceName>,
    options: &KeyspaceOptions,
) -> Result<Option<OpenedStore>> {
    let (state, keyspace) = (&inner.state, Arc::clone(keyspace));
    let name = &*keyspace.get();
    let tree = state.trees.read().by_name(name).cloned();
    let Some(factory) = &options.operand_store else {
        return match &tree {
            Some(tree) => tree.operand_store.check().map(|()| None),
            None => Ok(None),
        };
    };
    let stored_name = tree.as_ref().and_then(|tree| tree.operand_store.name());
    if let Some(stored_name) = &stored_name {
        check_store_name(name, stored_name, factory.name())?;
    }
    if inner.read_only.is_some() && stored_name.is_none() {
        // A read-only database does not add an operand store to a keyspace.
        return Ok(None);
    }
    let merging = match &tree {
        Some(tree) if tree.operand_store.attached().is_some() => return Ok(None),
        Some(tree) => Arc::clone(&tree.merge_resolver),
        None => Arc::new(MergeResolver::new(keyspace, options.merge_operator.clone())),
    };
    let (vfs, stores) = (&*state.vfs, state.tables.descriptors.store_count());
    // The process must have enough descriptors to open the database again with one more store.
    let needed = needed_descriptors(inner.options.background, stores.saturating_add(1));
    check_descriptors_available(vfs, &state.dir, needed - IDLE_DESCRIPTORS)?;
    let id = tree.as_ref().map(|tree| tree.id);
    let token = id.and_then(|id| stored_token(state, id));
    let attached = store_opener(inner).open(name, &merging, factory, token);
    let attached = attached.map_err(|error| error.or_missing(&state.manifest.path()))?;
    let live = attached.store.live_files().into_iter();
    state.claim_files(live.map(|(kind, number)| operand_file_name(kind, number)));
    Ok(Some(OpenedStore { tree: id, attached }))
}

/// Attaches an open store to a tree.
pub(crate) fn attach(tree: &Tree, attached: Arc<AttachedStore>) {
    let view = attached.initial_view();
    // The view is set before the store is attached, because a flush passes operands to an attached store at once.
    tree.update_super_version(|current| current.clone().with_operand_view(Some(view.clone())));
    tree.operand_store.attach(attached);
}

/// Blocks new snapshots while it exists.
struct SnapshotBlock<'a>(&'a DbState);

impl<'a> SnapshotBlock<'a> {
    /// Blocks new snapshots until the returned guard is dropped. Fails if a snapshot exists.
    fn begin(state: &'a DbState) -> Result<SnapshotBlock<'a>> {
        match state.sequence.begin_entry_removal(SeqNo::ZERO) {
            true => Ok(SnapshotBlock(state)),
            false => Err(Error::SnapshotsHeld { what: "a move of operands to the tree" }),
        }
    }
}

impl Drop for SnapshotBlock<'_> {
    fn drop(&mut self) {
        self.0.sequence.end_entry_removal();
        self.0.progress.notify();
    }
}

/// Moves all operands of a keyspace from its store to its tree and detaches the store.
pub(crate) fn operands_to_tree(inner: &DbInner, tree: &Arc<Tree>) -> Result<()> {
    check_reentry("operands_to_tree")?;
    inner.check_writable()?;
    inner.begin_operation();
    tree.check_accepts_writes()?;
    let moved = {
        let _lock = inner.lock_admin(None)?;
        inner.state.error_state.check_writable()?;
        tree.check_accepts_writes()?;
        move_operands(inner, tree)
    };
    inner.scheduler.run_inline();
    moved
}

fn move_operands(inner: &DbInner, tree: &Arc<Tree>) -> Result<()> {
    let state = &inner.state;
    // Earlier commits must be durable before the manifest edit.
    inner.committer.sync(None)?;
    let Some(turn) = tree.operand_store.reserve(&state.env, &state.progress) else { return Ok(()) };
    // Events are delivered later. A listener may call `Db::snapshot`, which waits until `_snapshot_block` is dropped.
    let _events = state.defer_events();
    let _snapshot_block = SnapshotBlock::begin(state)?;
    let options = StoredOptions { operand_store: None, ..tree.stored_options() }.encode();
    let changes = vec![Change::SetOptions { keyspace: tree.id, options }];
    collect::move_all_to_tree(state, tree, &turn, changes)?;
    turn.attached.lifetime.set_obsolete();
    tree.operand_store.detach();
    let removed = remove_store_from_options(inner, tree);
    state.emit_pending_events();
    state.work.push(WorkKind::Compaction, tree.id);
    removed
}

/// Removes the operand store from the options of a keyspace.
///
/// Another thread may have changed the options during the move of the operands. A manifest edit is appended only if the
/// options in the manifest differ.
fn remove_store_from_options(inner: &DbInner, tree: &Tree) -> Result<()> {
    let _changes = inner.keyspace_changes.lock();
    let settings = tree.settings();
    let (mut options, policy) = (settings.options.clone(), settings.stored_policy.clone());
    options.operand_store = None;
    tree.set_settings(options, policy);
    let options = tree.stored_options().encode();
    let is_stored = |manifest: &ManifestState| {
        manifest.keyspaces.get(&tree.id).is_none_or(|keyspace| keyspace.options == options)
    };
    if inner.state.manifest.with_state(is_stored) {
        return Ok(());
    }
    inner.append_edit(vec![Change::SetOptions { keyspace: tree.id, options }])
}

/// Returns the file access of a store copy in the directory `dir` of `vfs`. Files that the copy discards are not
/// deleted.
pub(crate) fn files_in_dir(
    tables: &TableFactory,
    vfs: Arc<dyn Vfs>,
    dir: &Path,
) -> Arc<OperandStoreFiles> {
    Arc::new(OperandStoreFiles::without_limits(vfs, dir.to_owned(), Arc::clone(&tables.files)))
}

/// Result of verifying the operand store of a keyspace.
pub(crate) enum StoreCheck {
    /// The keyspace has no store.
    NoStore,
    /// The store is intact and has these files.
    Checked(BTreeSet<FileName>),
    /// The options have no factory for the store.
    Unchecked,
}

/// Verifies the operand store of a keyspace in a closed database.
pub(crate) fn verify_store(
    vfs: &Arc<dyn Vfs>,
    dir: &Path,
    keyspace: &KeyspaceState,
    factories: &[Arc<dyn OperandStoreFactory>],
) -> Result<StoreCheck> {
    let persisted = decode_stored_options(dir, keyspace)?;
    let Some(name) = persisted.store_name() else { return Ok(StoreCheck::NoStore) };
    let Some(token) = keyspace.operand_token else {
        return Ok(StoreCheck::Checked(BTreeSet::new()));
    };
    let Some(factory) = factories.iter().find(|factory| factory.name() == name) else {
        return Ok(StoreCheck::Unchecked);
    };
    let context = read_only_context(vfs, dir, &keyspace.name);
    factory.verify(context, token).map_err(|error| error.or_missing(&dir.join(CURRENT)))?;
    live_files(vfs, dir, keyspace, factory, token).map(StoreCheck::Checked)
}

/// Result of searching the operand store of a keyspace for a key.
pub(crate) enum StoreSearch {
    /// The keyspace has no store.
    NoStore,
    /// The store was searched completely and has these files.
    Searched {
        /// Files of the store.
        files: BTreeSet<FileName>,
        /// Records of the key.
        records: Vec<StoredRecord>,
    },
    /// The options have no factory for the store, or the factory has no search.
    Unsearched,
}

/// Searches the operand store of a keyspace in a closed database for a key.
pub(crate) fn search_store(
    vfs: &Arc<dyn Vfs>,
    dir: &Path,
    keyspace: &KeyspaceState,
    factories: &[Arc<dyn OperandStoreFactory>],
    key: &[u8],
) -> Result<StoreSearch> {
    let stored = decode_stored_options(dir, keyspace)?;
    let Some(name) = stored.store_name() else { return Ok(StoreSearch::NoStore) };
    let Some(token) = keyspace.operand_token else {
        return Ok(StoreSearch::Searched { files: BTreeSet::new(), records: Vec::new() });
    };
    let Some(factory) = factories.iter().find(|factory| factory.name() == name) else {
        return Ok(StoreSearch::Unsearched);
    };
    let context = read_only_context(vfs, dir, &keyspace.name);
    let records = factory.search_key(context, token, key);
    let records = records.map_err(|error| error.or_missing(&dir.join(CURRENT)))?;
    let Some(records) = records else { return Ok(StoreSearch::Unsearched) };
    let files = live_files(vfs, dir, keyspace, factory, token)?;
    Ok(StoreSearch::Searched { files, records })
}

/// Returns the options of a keyspace in a closed database.
fn decode_stored_options(dir: &Path, keyspace: &KeyspaceState) -> Result<StoredOptions> {
    StoredOptions::decode(&keyspace.options).ok_or_else(|| {
        let expected = "options this build knows";
        let malformed = Malformed::Field { what: "options of a keyspace", found: 0, expected };
        Error::malformed(malformed, &dir.join(CURRENT), 0)
    })
}

/// Returns the files of the operand store of a keyspace. The set is empty if the keyspace has no store.
///
/// # Errors
/// If the store cannot be opened.
pub(crate) fn live_store_files(
    vfs: &Arc<dyn Vfs>,
    dir: &Path,
    keyspace: &KeyspaceState,
    factories: &[Arc<dyn OperandStoreFactory>],
) -> Result<BTreeSet<FileName>> {
    let persisted = StoredOptions::decode(&keyspace.options);
    let name = persisted.as_ref().and_then(StoredOptions::store_name);
    let factory = factories.iter().find(|factory| name == Some(factory.name()));
    match (factory, keyspace.operand_token) {
        (Some(factory), Some(token)) => live_files(vfs, dir, keyspace, factory, token),
        _ => Ok(BTreeSet::new()),
    }
}

fn live_files(
    vfs: &Arc<dyn Vfs>,
    dir: &Path,
    keyspace: &KeyspaceState,
    factory: &Arc<dyn OperandStoreFactory>,
    token: StoreToken,
) -> Result<BTreeSet<FileName>> {
    let context = read_only_context(vfs, dir, &keyspace.name);
    let live = factory.open(context, Some(token))?.live_files();
    Ok(live.into_iter().map(|(kind, number)| operand_file_name(kind, number)).collect())
}

/// Returns the context for opening a store of a closed database.
fn read_only_context(vfs: &Arc<dyn Vfs>, dir: &Path, keyspace: &str) -> StoreContext {
    let numbers = Arc::new(FileNumbers::new(FILE_NUMBER_MAX));
    let files = OperandStoreFiles::without_limits(Arc::clone(vfs), dir.to_owned(), numbers);
    StoreContext {
        keyspace: keyspace.to_owned(),
        files: Arc::new(files),
        env: Env::new(Background::Inline, Some(0)),
        merger: Arc::new(ResolverMerger(Arc::new(MergeResolver::new(
            KeyspaceName::new(keyspace),
            None,
        )))),
        read_counters: Arc::new(BucketReadCounters(BlockCache::new(0))),
        memory_bytes: None,
        direct_reads: false,
        read_only: true,
    }
}
