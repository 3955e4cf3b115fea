//! Opens the trees that a manifest lists, with their tables, blob files and operand stores.

use std::collections::BTreeMap;
use std::path::Path;

use lsmx_base::key::SeqNo;
use lsmx_base::malformed::Malformed;
use lsmx_base::sync::Arc;
use lsmx_compaction::FileId;

use crate::db::operand_store::{self, StoreOpener};
use crate::error::{Error, Result};
use crate::format::version_edit::BlobReference;
use crate::manifest::{KeyspaceState, ManifestState};
use crate::metrics::OperationLatencies;
use crate::operand_store::StoreToken;
use crate::options::db::{DEFAULT_KEYSPACE, Options};
use crate::options::policy::StoredPolicy;
use crate::options::stored::StoredOptions;
use crate::state::keyspaces::Keyspaces;
use crate::state::table_factory::TableFactory;
use crate::tree::blob_set::{BlobFile, BlobUsage};
use crate::tree::keyspace_name::KeyspaceName;
use crate::tree::operand_store_slot::UnavailableStore;
use crate::tree::table_file::TableFile;
use crate::tree::version::Version;
use crate::tree::{OpenId, Tree, TreeContext};

/// Opens the trees of a database.
pub(crate) struct TreeOpener<'a> {
    pub(crate) tables: &'a TableFactory,
    pub(crate) options: &'a Options,
    pub(crate) state: &'a ManifestState,
    /// Path of the manifest from which `state` was read, for error messages.
    pub(crate) manifest: &'a Path,
    pub(crate) open_id: OpenId,
    pub(crate) latencies: &'a Arc<OperationLatencies>,
    pub(crate) read_only: bool,
    /// Trees of the previous view of a follower, in the order of their ids. Their open files are reused.
    pub(crate) before: &'a [Arc<Tree>],
    /// True if the trees share the memtables and tables of `before`, because the manifest lists the same files.
    pub(crate) is_extension: bool,
}

impl TreeOpener<'_> {
    /// Opens all trees and adds them to `trees`.
    ///
    /// # Errors
    /// A file is missing or damaged, or a keyspace has an operand store of another name. `trees` then holds the
    /// trees opened before the error.
    pub(crate) fn open_all(&self, trees: &mut Keyspaces) -> Result<()> {
        for (&id, keyspace) in &self.state.keyspaces {
            if let Some(before) = self.tree_before(id).filter(|_| self.is_extension) {
                let version = Arc::clone(&before.super_version().version);
                let tree = self.open_tree(id, keyspace, version)?;
                tree.share_memtables(before);
                trees.insert(Arc::new(tree));
                continue;
            }
            keyspace.tree.check_invariants()?;
            let tables = self.open_tables(id, keyspace)?;
            let empty = Version::empty(&self.tables.deferred_drop);
            let version = Arc::new(Version::new(keyspace.tree.clone(), &empty, &tables)?);
            trees.insert(Arc::new(self.open_tree(id, keyspace, version)?));
        }
        Ok(())
    }

    /// Returns the tree with this id in the previous view of a follower.
    fn tree_before(&self, id: u32) -> Option<&Arc<Tree>> {
        let found = self.before.binary_search_by_key(&id, |tree| tree.id);
        found.ok().map(|at| &self.before[at])
    }

    fn open_tree(&self, id: u32, keyspace: &KeyspaceState, version: Arc<Version>) -> Result<Tree> {
        let persisted = self.decode_options(keyspace)?;
        let options = self.options.initial_options(&keyspace.name, &persisted);
        let options = self.options.memory_plan().limit_sizes(options);
        let stored_policy = || StoredPolicy::from_text(&persisted.policy);
        let policy = options.stored_policy().unwrap_or_else(stored_policy);
        let (env, latencies) = (self.tables.env.clone(), Arc::clone(self.latencies));
        let origin = TreeContext { open_id: self.open_id, env, latencies };
        let name = KeyspaceName::new(&*keyspace.name);
        let mut tree = Tree::new(origin, id, name, options, policy, version, SeqNo(1));
        if keyspace.name != DEFAULT_KEYSPACE {
            tree.set_awaits_options();
        }
        if persisted.value_separation {
            tree.set_separated_values();
        }
        if let Some(operator) = &persisted.merge_operator {
            tree.merge_resolver.set_stored_name(operator.clone())?;
        }
        if let Some(before) = self.tree_before(id) {
            let resolver = Arc::get_mut(&mut tree.merge_resolver);
            let resolver = resolver.expect("no other thread has the new tree");
            resolver.share_operator(&before.merge_resolver);
        }
        tree.operand_store.set_kept_log(persisted.kept_log().cloned());
        self.open_operand_store(&tree, persisted.store_name(), keyspace.operand_token)?;
        let settings = Arc::clone(&tree.settings());
        tree.check_default_ttl(&settings.options)?;
        tree.check_delete_persistence(&settings.options, &settings.stored_policy)?;
        Ok(tree)
    }

    fn decode_options(&self, keyspace: &KeyspaceState) -> Result<StoredOptions> {
        StoredOptions::decode(&keyspace.options).ok_or_else(|| {
            let expected = "options that this build can read";
            let what = Malformed::invalid_field("options of a keyspace", 0, expected);
            Error::malformed(what, self.manifest, 0)
        })
    }

    /// Opens the operand store of a tree. If the store is missing from the options or cannot be opened, the open of the
    /// database still succeeds, but calls on the keyspace fail.
    fn open_operand_store(
        &self,
        tree: &Tree,
        stored_name: Option<&str>,
        token: Option<StoreToken>,
    ) -> Result<()> {
        if stored_name.is_none() && token.is_some() {
            let what = "token of an operand store that the options do not name";
            let what = Malformed::invalid_field(what, u64::from(tree.id), "none");
            return Err(Error::malformed(what, self.manifest, 0));
        }
        let set_unavailable = |store: &str, cause: Option<Error>| {
            let (keyspace, cause) = (tree.name(), cause.map(Arc::new));
            let lacking = UnavailableStore { keyspace, store: store.to_owned(), cause };
            let view = lacking.clone().view(token);
            tree.operand_store.set_unavailable(lacking);
            tree.update_super_version(|current| {
                current.clone().with_operand_view(Some(view.clone()))
            });
        };
        if self.tables.obsolete_files.follower_pin().is_some()
            && let Some(stored) = stored_name
        {
            let cause = Error::FollowerUnsupported { what: "operand stores" };
            set_unavailable(stored, Some(cause));
            return Ok(());
        }
        let factory = tree.settings().options.operand_store.clone().or_else(|| {
            let mut stores = self.options.operand_stores.iter();
            stores.find(|store| stored_name == Some(store.name())).cloned()
        });
        let factory = match (stored_name, factory) {
            (None, Some(factory)) if !self.read_only => factory,
            // A read-only open does not add an operand store to a keyspace.
            (None, _) => return Ok(()),
            (Some(stored), Some(factory)) => {
                operand_store::check_store_name(&tree.name(), stored, factory.name())?;
                factory
            }
            (Some(stored), None) => {
                set_unavailable(stored, None);
                return Ok(());
            }
        };
        let context = StoreOpener {
            tables: self.tables,
            memory: self.options.memory_plan(),
            direct_reads: self.options.direct_reads,
            read_only: self.read_only,
        };
        let attached = context.open(&tree.name(), &tree.merge_resolver, &factory, token);
        match (attached.map_err(|error| error.or_missing(self.manifest)), stored_name) {
            (Ok(attached), _) => {
                operand_store::attach(tree, attached);
                Ok(())
            }
            (Err(error), Some(stored)) => {
                set_unavailable(stored, Some(error));
                Ok(())
            }
            // The options add an operand store to the keyspace, but the store cannot be created, so the open of the
            // database fails.
            (Err(error), None) => Err(error),
        }
    }

    fn open_tables(&self, id: u32, keyspace: &KeyspaceState) -> Result<Vec<Arc<TableFile>>> {
        let before = self.tree_before(id).map(|tree| Arc::clone(&tree.super_version().version));
        let blobs = self.open_blobs(id, keyspace, before.as_deref())?;
        let tables = keyspace.tree.files().map(|file| {
            let references = keyspace.value_log.references_of_table(file.id);
            let open = before.as_ref().and_then(|version| version.table(file.id));
            let is_same = |open: &&Arc<TableFile>| {
                **open.shape() == **file
                    && open.blobs().iter().map(BlobUsage::reference).eq(references.iter().cloned())
            };
            if let Some(open) = open.filter(is_same) {
                return Ok(Arc::clone(open));
            }
            let table = self.tables.open(file, resolve_blob_references(&blobs, references));
            table.map_err(|error| error.or_missing(self.manifest))
        });
        tables.collect()
    }

    fn open_blobs(
        &self,
        id: u32,
        keyspace: &KeyspaceState,
        before: Option<&Version>,
    ) -> Result<OpenBlobFilesById> {
        let blobs = keyspace.value_log.blob_files().map(|blob| {
            if let Some(open) = before.and_then(|version| version.blobs().file(blob.id)) {
                return Ok((blob.id, Arc::clone(open)));
            }
            let opened = self.tables.open_blob(id, blob);
            opened.map(|file| (blob.id, file)).map_err(|error| error.or_missing(self.manifest))
        });
        blobs.collect()
    }
}

/// Open blob files of a keyspace.
type OpenBlobFilesById = BTreeMap<FileId, Arc<BlobFile>>;

/// Returns the blob files that a table references. All of them are in `blobs`, because the manifest rejects an edit
/// with references to unknown files.
fn resolve_blob_references(
    blobs: &OpenBlobFilesById,
    references: &[BlobReference],
) -> Vec<BlobUsage> {
    let uses = references.iter().filter_map(|reference| {
        let file = Arc::clone(blobs.get(&reference.blob)?);
        Some(BlobUsage { file, bytes: reference.bytes, records: reference.records })
    });
    uses.collect()
}
