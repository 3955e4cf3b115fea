//! Operand stores of keyspaces: how they are opened, converted to, and what verification asks of them.

use std::collections::BTreeSet;
use std::path::Path;

use lsmx_base::key::SeqNo;
use lsmx_base::malformed::Malformed;
use lsmx_base::sync::{Arc, AtomicBool, AtomicU64};

use crate::cache::BlockCache;
use crate::db::open::fd_limit::check_available_for_store;
use crate::db::open::recovery;
use crate::db::{DbInner, Keyspace, check_reentry};
use crate::env::{Background, Env};
use crate::error::{Error, Result, UserCode};
use crate::format::file_name::{CURRENT, FILE_NUMBER_MAX, FileName};
use crate::format::version_edit::Change;
use crate::jobs::operand_store::collect;
use crate::manifest::{KeyspaceState, ManifestState};
use crate::operand_store::{ContainedStore, OperandStore, OperandStoreFactory, Place, Token};
use crate::options::keyspace::{KeyspaceOptions, Persisted};
use crate::options::memory_plan::MemoryPlan;
use crate::state::DbState;
use crate::state::table_factory::TableFactory;
use crate::state::work_queue::WorkKind;
use crate::table::FdCacheVfs;
use crate::tree::Tree;
use crate::tree::merge_resolver::Merging;
use crate::tree::operands::{Attached, Counts, Folds};
use crate::tree::version::FileNumbers;
use crate::tree::version::{Life, StoreFiles, operand_file_name};
use crate::vfs::Vfs;

/// Smallest share of a memory budget that a store is given.
const STORE_BYTES_MIN: u64 = 1 << 20;
/// A store is given this part of what cached blocks and open tables share.
const STORES_PER_CACHE: u64 = 2;

/// Where a store is opened.
pub(crate) struct StoreOpener<'a> {
    pub(crate) space: &'a TableFactory,
    pub(crate) memory: MemoryPlan,
    pub(crate) direct_reads: bool,
    pub(crate) read_only: bool,
}

impl StoreOpener<'_> {
    /// Opens the store of a keyspace as of a token.
    pub(crate) fn open(
        &self,
        keyspace: &str,
        merging: &Arc<Merging>,
        factory: &Arc<dyn OperandStoreFactory>,
        token: Option<Token>,
    ) -> Result<Arc<Attached>> {
        let space = self.space;
        let descriptors = Arc::clone(&space.descriptors);
        let pooled = Arc::new(FdCacheVfs::new(Arc::clone(&space.vfs), descriptors));
        let files = StoreFiles::pooled(
            &pooled,
            Arc::new(space.paced_store(&pooled)),
            space.dir.clone(),
            Arc::clone(&space.files),
            Arc::clone(&space.janitor),
        );
        let place = self.place(keyspace, merging, &files);
        let code = || UserCode::OperandStore(factory.name().to_owned());
        let opened = Error::catch_user(code, || factory.open(place, token)).flatten();
        let store = opened.inspect_err(|_| files.discard_made())?;
        let closed = Arc::clone(space.descriptors.closed_flag());
        let store: Arc<dyn OperandStore> = ContainedStore::new(store, factory.name(), closed);
        files.found(store.live_files());
        let attached = Attached {
            factory: Arc::clone(factory),
            store,
            life: Life::new(files),
            opened: token,
            collecting: AtomicBool::new(false),
            cache: Arc::clone(&space.cache),
            charged: AtomicU64::new(0),
            rewritten_bytes: Arc::clone(&space.beside_bytes),
            rewritten: AtomicU64::new(0),
        };
        attached.charge();
        Ok(Arc::new(attached))
    }

    /// What a store has to do with the world.
    pub(crate) fn place(
        &self,
        keyspace: &str,
        merging: &Arc<Merging>,
        files: &Arc<StoreFiles>,
    ) -> Place {
        Place {
            keyspace: keyspace.to_owned(),
            files: Arc::clone(files) as Arc<_>,
            env: self.space.env.clone(),
            folds: Arc::new(Folds(Arc::clone(merging))),
            counts: Arc::new(Counts(Arc::clone(&self.space.cache))),
            memory_bytes: Some(memory_bytes(self.memory)),
            direct_reads: self.direct_reads,
            read_only: self.read_only,
        }
    }
}

/// Bytes that a store should stay within.
fn memory_bytes(memory: MemoryPlan) -> u64 {
    let share = memory.cache / STORES_PER_CACHE;
    if memory.budget.is_some() { share.max(STORE_BYTES_MIN) } else { share }
}

/// Fails if a keyspace has another store than the one that is given.
pub(crate) fn check_store_name(keyspace: &str, known: &str, given: &str) -> Result<()> {
    if known == given {
        return Ok(());
    }
    Err(Error::Contradiction {
        first: format!("operand_store = {given}"),
        second: format!("operand_store = {known} of keyspace {keyspace:?}"),
        why: "what one store has written another cannot read",
    })
}

/// A store that was opened for a keyspace before the lock that changes keyspaces was taken.
pub(crate) struct OpenedStore {
    /// The keyspace, if there was one.
    pub(crate) tree: Option<u32>,
    pub(crate) attached: Arc<Attached>,
}

impl Keyspace {
    /// Brings the operands that live in the keyspace's store into its tree, where they stay from then on,
    /// and lets the store go: later openings do without it. Memtables are flushed to the store first.
    /// Nothing is done where there is no store. Until it ends [`Db::snapshot`](crate::Db::snapshot) waits.
    ///
    /// # Errors
    /// [`Error::SnapshotsHeld`] while a snapshot is registered; [`Error::NoOperandStore`];
    /// [`Error::KeyspaceDropped`], [`Error::OpenedReadOnly`], [`Error::ReadOnly`] with the cause,
    /// [`Error::Closed`]; [`Error::Corrupt`] and [`Error::Io`] if something cannot be read or written: all is
    /// as before.
    pub fn operands_to_tree(&self) -> Result<()> {
        self.inner().operands_to_tree(self.tree())
    }
}

/// No snapshot is registered, and none comes.
struct NoSnapshots<'a>(&'a DbState);

impl<'a> NoSnapshots<'a> {
    fn begin(store: &'a DbState) -> Result<NoSnapshots<'a>> {
        match store.sequence.begin_leaving(SeqNo::ZERO) {
            true => Ok(NoSnapshots(store)),
            false => Err(Error::SnapshotsHeld { what: "a move of operands to the tree" }),
        }
    }
}

impl Drop for NoSnapshots<'_> {
    fn drop(&mut self) {
        self.0.sequence.end_leaving();
        self.0.progress.notify();
    }
}

impl DbInner {
    fn operands_to_tree(&self, tree: &Arc<Tree>) -> Result<()> {
        check_reentry("operands_to_tree")?;
        self.check_writable()?;
        self.begin_operation();
        tree.check_takes_writes()?;
        let moved = {
            // No resumption, no drop, no other way of changing what the keyspace is.
            let _turn = self.lock_admin(None)?;
            self.state.error_state.check_writable()?;
            tree.check_takes_writes()?;
            self.move_operands(tree)
        };
        self.scheduler.run_inline();
        moved
    }

    fn move_operands(&self, tree: &Arc<Tree>) -> Result<()> {
        let store = &self.state;
        // What the log holds is no later than the edit.
        self.committer.sync(None)?;
        let Some(turn) = tree.beside.turn(&store.env, &store.progress) else { return Ok(()) };
        // `Db::snapshot` waits until `_no_snapshots` is dropped, and a listener may call it.
        let _events = store.hold_events();
        let _no_snapshots = NoSnapshots::begin(store)?;
        let persisted = Persisted { operand_store: None, ..tree.persisted() };
        let options = persisted.encode();
        let changes = vec![Change::SetOptions { keyspace: tree.id, options }];
        collect::move_all_to_tree(store, tree, &turn, changes)?;
        turn.attached.life.set_over();
        tree.beside.detach();
        let forgotten = self.forget_store(tree);
        store.emit_pending_events();
        store.work.push(WorkKind::Compaction, tree.id);
        forgotten
    }

    /// Has the options of a keyspace do without the store that it let go. Somebody may have changed them
    /// meanwhile, of what they were with it.
    fn forget_store(&self, tree: &Tree) -> Result<()> {
        let _one_at_a_time = self.keyspace_changes.lock();
        let settings = tree.settings();
        let (mut options, policy) = (settings.options.clone(), settings.stored_policy.clone());
        options.operand_store = None;
        tree.set_settings(options, policy);
        let options = tree.persisted().encode();
        let same = |state: &ManifestState| {
            state.keyspaces.get(&tree.id).is_none_or(|at| at.options == options)
        };
        if self.state.manifest.with_state(same) {
            return Ok(());
        }
        self.append_edit(vec![Change::SetOptions { keyspace: tree.id, options }])
    }

    /// Where the stores of this database are.
    pub(crate) fn store_opener(&self) -> StoreOpener<'_> {
        StoreOpener {
            space: &self.state.tables,
            memory: self.memory,
            direct_reads: self.options.direct_reads,
            read_only: self.read_only.is_some(),
        }
    }

    /// Opens the store that options name, if the keyspace has not got it already. Takes no lock, for the
    /// store reads files and gives way meanwhile.
    ///
    /// # Errors
    /// [`Error::NoOperandStore`] if it needs one that the options do not name; [`Error::Contradiction`] if
    /// they name another; those of the store.
    pub(crate) fn open_operand_store(
        &self,
        name: &str,
        options: &KeyspaceOptions,
    ) -> Result<Option<OpenedStore>> {
        let tree = self.state.trees.read().by_name(name).cloned();
        let known = tree.as_ref().and_then(|tree| tree.beside.name());
        let Some(factory) = &options.operand_store else {
            return match &tree {
                Some(tree) => tree.beside.check().map(|()| None),
                None => Ok(None),
            };
        };
        if let Some(known) = &known {
            check_store_name(name, known, factory.name())?;
        }
        if self.read_only.is_some() && known.is_none() {
            // Nothing lives in it, and nothing is going to.
            return Ok(None);
        }
        let merging = match &tree {
            Some(tree) if tree.beside.attached().is_some() => return Ok(None),
            Some(tree) => Arc::clone(&tree.merging),
            None => Arc::new(Merging::new(name.to_owned(), options.merge_operator.clone())),
        };
        let (vfs, stores) = (&*self.state.vfs, self.state.tables.descriptors.store_count());
        check_available_for_store(vfs, &self.state.dir, self.options.background, stores)?;
        let id = tree.as_ref().map(|tree| tree.id);
        let state = |id| {
            self.state.manifest.with_state(|state| Some(state.keyspaces.get(&id)?.operand_token))
        };
        let token = id.and_then(state).flatten();
        let attached = self.store_opener().open(name, &merging, factory, token);
        let attached =
            attached.map_err(|error| recovery::named(error, &self.state.manifest.path()))?;
        let live = attached.store.live_files().into_iter();
        self.state.claim_files(live.map(|(kind, number)| operand_file_name(kind, number)));
        Ok(Some(OpenedStore { tree: id, attached }))
    }

    /// Has readers and flushes know of a store that was opened for this tree.
    pub(crate) fn attach(&self, tree: &Tree, attached: Arc<Attached>) {
        let view = attached.first_view();
        // The view comes first: no flush may have delivered before it is there.
        tree.change(|current| current.clone().beside(Some(view.clone())));
        tree.beside.attach(attached);
    }
}

/// The files of a store in another directory, for a copy: what is let go of there is removed by nobody.
pub(crate) fn files_in_dir(space: &TableFactory, dir: &Path) -> Arc<StoreFiles> {
    StoreFiles::new(
        Arc::clone(&space.vfs),
        Arc::clone(&space.vfs),
        dir.to_owned(),
        Arc::clone(&space.files),
        Arc::default(),
    )
}

/// What verification found of a keyspace's operand store.
pub(crate) enum StoreCheck {
    /// It has none.
    Nothing,
    /// All is in order; it consists of these files.
    Checked(BTreeSet<FileName>),
    /// It has one that was not given.
    Unchecked,
}

/// Checks the operand store of a keyspace in a closed database with the one of its name.
pub(crate) fn verify_store(
    vfs: &Arc<dyn Vfs>,
    dir: &Path,
    keyspace: &KeyspaceState,
    stores: &[Arc<dyn OperandStoreFactory>],
) -> Result<StoreCheck> {
    let Some(persisted) = Persisted::decode(&keyspace.options) else {
        let expected = "options this build knows";
        let what = Malformed::Field { what: "options of a keyspace", found: 0, expected };
        return Err(Error::malformed(what, &dir.join(CURRENT), 0));
    };
    let Some(name) = persisted.store_name() else { return Ok(StoreCheck::Nothing) };
    let Some(token) = keyspace.operand_token else {
        return Ok(StoreCheck::Checked(BTreeSet::new()));
    };
    let Some(factory) = stores.iter().find(|store| store.name() == name) else {
        return Ok(StoreCheck::Unchecked);
    };
    let place = || place_to_read(vfs, dir, &keyspace.name);
    factory.verify(place(), token).map_err(|error| recovery::named(error, &dir.join(CURRENT)))?;
    live_files_of(factory, place(), token).map(StoreCheck::Checked)
}

/// The files that the operand store of a keyspace consists of; none without a store.
///
/// # Errors
/// When it cannot be opened.
pub(crate) fn live_store_files(
    vfs: &Arc<dyn Vfs>,
    dir: &Path,
    keyspace: &KeyspaceState,
    stores: &[Arc<dyn OperandStoreFactory>],
) -> Result<BTreeSet<FileName>> {
    let persisted = Persisted::decode(&keyspace.options);
    let name = persisted.as_ref().and_then(Persisted::store_name);
    let factory = stores.iter().find(|store| name == Some(store.name()));
    match (factory, keyspace.operand_token) {
        (Some(factory), Some(token)) => {
            live_files_of(factory, place_to_read(vfs, dir, &keyspace.name), token)
        }
        _ => Ok(BTreeSet::new()),
    }
}

fn live_files_of(
    factory: &Arc<dyn OperandStoreFactory>,
    place: Place,
    token: Token,
) -> Result<BTreeSet<FileName>> {
    let live = factory.open(place, Some(token))?.live_files();
    Ok(live.into_iter().map(|(kind, number)| operand_file_name(kind, number)).collect())
}

/// Where a store of a closed database is looked at.
fn place_to_read(vfs: &Arc<dyn Vfs>, dir: &Path, keyspace: &str) -> Place {
    let numbers = Arc::new(FileNumbers::new(FILE_NUMBER_MAX));
    let (vfs, dir) = (Arc::clone(vfs), dir.to_owned());
    Place {
        keyspace: keyspace.to_owned(),
        files: StoreFiles::new(Arc::clone(&vfs), vfs, dir, numbers, Arc::default()),
        env: Env::new(Background::Inline, Some(0)),
        folds: Arc::new(Folds(Arc::new(Merging::new(keyspace.to_owned(), None)))),
        counts: Arc::new(Counts(BlockCache::new(0))),
        memory_bytes: None,
        direct_reads: false,
        read_only: true,
    }
}
