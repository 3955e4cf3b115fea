//! Crash images: states of the disk after a power loss.

use std::collections::BTreeMap;
use std::ops::Range;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use lsmx_base::sync::Arc;

use crate::vfs::mem::content::FileContent;
use crate::vfs::mem::node::{DirEntries, DirEntry, DirId, DirNode, FileNode, FileState};
use crate::vfs::mem::{DirTree, MemVfs, ROOT};

/// Number of bytes that a disk writes atomically.
const SECTOR_BYTES: usize = 512;
/// Number of bytes in a page, the unit in which the operating system writes dirty data back.
const PAGE_BYTES: usize = 4096;

/// Outcome for unsynced data and names at a power loss.
///
/// | image | unsynced data | unsynced names |
/// | --- | --- | --- |
/// | `Drop` | lost | undone (a removed file reappears) |
/// | `Keep` | present | done |
/// | `Torn` | the first unsynced append of each file is truncated at a sector boundary or at any byte | undone |
/// | `Zeros` | the length is present, the bytes are zeros | done |
/// | `Garbage` | the length is present, the bytes are random or old | done |
/// | `Sectors` | each sector is present at random, also after a lost sector | each change at random |
/// | `Lag` | present in one file, lost in all others | all done or all undone |
/// | `Pages` | each dirty 4 KiB page is present at random, possibly without its last appends; any former length | each change at random |
///
/// With preallocation ([`File::enable_preallocation`](crate::vfs::File::enable_preallocation)), a file may have its
/// preallocated length in a crash image. Zeros then follow the data. A rename within a directory is one change. A
/// rename across directories is two changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CrashImage {
    /// Only synced data and names survive.
    Drop,
    /// Everything survives.
    Keep,
    /// A part of the first unsynced append of each file survives, and no later append.
    Torn,
    /// Lengths survive, but unsynced bytes are zeros.
    Zeros,
    /// Lengths survive, but unsynced bytes are random or are synced bytes of another file.
    Garbage,
    /// Sectors and names survive at random.
    Sectors,
    /// The unsynced data of one file survives.
    Lag,
    /// Pages and names survive at random.
    Pages,
}

impl CrashImage {
    /// All images.
    pub const ALL: [CrashImage; 8] = [
        CrashImage::Drop,
        CrashImage::Keep,
        CrashImage::Torn,
        CrashImage::Zeros,
        CrashImage::Garbage,
        CrashImage::Sectors,
        CrashImage::Lag,
        CrashImage::Pages,
    ];
}

impl MemVfs {
    /// Returns an independent file system in a state that is possible after a power loss at this moment.
    ///
    /// In the returned file system, all data and names are synced, and no file is locked. Equal seeds give equal
    /// images. This file system does not change.
    #[must_use]
    pub fn crash(&self, image: CrashImage, seed: u64) -> MemVfs {
        let mut rng = CrashRng(ChaCha8Rng::seed_from_u64(seed));
        let _changes = self.0.changes.write();
        let tree = self.0.tree.lock();
        let mut builder = ImageBuilder {
            tree: &tree,
            image,
            keeps_names: image == CrashImage::Lag && rng.draw_bool(),
            dirs: BTreeMap::new(),
            files: Vec::new(),
            file_index: BTreeMap::new(),
        };
        builder.visit_dir(ROOT, &mut rng);
        let contents = builder.build_contents(&mut rng);
        builder.build(contents)
    }
}

/// Random decisions of one image.
struct CrashRng(ChaCha8Rng);

impl CrashRng {
    fn draw_bool(&mut self) -> bool {
        self.0.next_u32() & 1 == 1
    }

    /// Returns a number below `bound`, which must not be 0.
    fn draw_below(&mut self, bound: usize) -> usize {
        let drawn = self.0.next_u64() % bound as u64;
        // The number is smaller than `bound`, so it fits.
        usize::try_from(drawn).unwrap_or(0)
    }
}

/// Target of a name in the image: a file by its index in [`ImageBuilder::files`], or a directory.
enum SurvivingEntry {
    File(usize),
    Dir(DirId),
}

/// Builds one crash image: first the surviving names, then the contents of the files with a surviving name.
struct ImageBuilder<'a> {
    tree: &'a DirTree,
    image: CrashImage,
    /// Whether unsynced names survive in a `Lag` image.
    keeps_names: bool,
    dirs: BTreeMap<DirId, Vec<(Arc<str>, SurvivingEntry)>>,
    /// Files that have a name in the image, in traversal order. For a given state, the order depends only on the seed.
    files: Vec<Arc<FileNode>>,
    /// Index in `files` by the address of the node. Several names may refer to one file.
    file_index: BTreeMap<usize, usize>,
}

impl ImageBuilder<'_> {
    /// Determines the names that survive in a directory and, recursively, in its subdirectories.
    fn visit_dir(&mut self, id: DirId, rng: &mut CrashRng) {
        let entries = self.surviving_entries(self.tree.dir(id), rng);
        let mut survivors = Vec::with_capacity(entries.len());
        // After a crash, a renamed directory can be in its old and in its new parent. The insertion before the
        // recursion prevents a second visit.
        self.dirs.insert(id, Vec::new());
        for (name, entry) in entries.iter() {
            match entry {
                DirEntry::File(node) => {
                    let next = self.files.len();
                    let index = *self.file_index.entry(Arc::as_ptr(node).addr()).or_insert(next);
                    if index == next {
                        self.files.push(node.clone());
                    }
                    survivors.push((name.clone(), SurvivingEntry::File(index)));
                }
                DirEntry::Dir(below) if !self.dirs.contains_key(below) => {
                    self.visit_dir(*below, rng);
                    survivors.push((name.clone(), SurvivingEntry::Dir(*below)));
                }
                DirEntry::Dir(_) => {}
            }
        }
        self.dirs.insert(id, survivors);
    }

    fn surviving_entries(&self, dir: &DirNode, rng: &mut CrashRng) -> Arc<DirEntries> {
        match self.image {
            CrashImage::Drop | CrashImage::Torn => dir.synced.clone(),
            CrashImage::Keep | CrashImage::Zeros | CrashImage::Garbage => dir.current.clone(),
            CrashImage::Lag if self.keeps_names => dir.current.clone(),
            CrashImage::Lag => dir.synced.clone(),
            CrashImage::Sectors | CrashImage::Pages => {
                let mut entries = dir.synced.clone();
                for change in &dir.unsynced {
                    if rng.draw_bool() {
                        change.apply_to_entries(Arc::make_mut(&mut entries));
                    }
                }
                entries
            }
        }
    }

    fn build_contents(&self, rng: &mut CrashRng) -> Vec<FileContent> {
        let files: Vec<FileState> =
            self.files.iter().map(|node| node.data.read().clone()).collect();
        let kept_file = match self.image {
            CrashImage::Lag => {
                let unsynced: Vec<usize> =
                    (0..files.len()).filter(|&at| !files[at].unsynced.is_empty()).collect();
                (!unsynced.is_empty()).then(|| unsynced[rng.draw_below(unsynced.len())])
            }
            _ => None,
        };
        files
            .iter()
            .enumerate()
            .map(|(at, file)| {
                let mut content = match self.image {
                    CrashImage::Drop => keep_prefix(file, file.synced, file.synced_len),
                    CrashImage::Lag if kept_file != Some(at) => {
                        keep_prefix(file, file.synced, file.synced_len)
                    }
                    CrashImage::Keep | CrashImage::Lag => {
                        keep_prefix(file, data_end(file), full_len(file))
                    }
                    CrashImage::Torn => tear_first_append(file, rng),
                    CrashImage::Zeros => keep_prefix(file, file.synced, full_len(file)),
                    CrashImage::Garbage => fill_with_garbage(file, &files, rng),
                    CrashImage::Sectors => keep_random_sectors(file, rng),
                    CrashImage::Pages => keep_random_pages(file, rng),
                };
                for range in &file.dropped {
                    content.zero_range(range.clone());
                }
                content
            })
            .collect()
    }

    fn build(self, contents: Vec<FileContent>) -> MemVfs {
        let nodes: Vec<Arc<FileNode>> = contents
            .into_iter()
            .map(|content| Arc::new(FileNode::from_synced_content(content)))
            .collect();
        let dirs = self.dirs.into_iter().map(|(id, survivors)| {
            let entries = survivors.into_iter().map(|(name, survivor)| match survivor {
                SurvivingEntry::File(at) => (name, DirEntry::File(nodes[at].clone())),
                SurvivingEntry::Dir(id) => (name, DirEntry::Dir(id)),
            });
            (id, DirNode::from_synced_entries(entries.collect()))
        });
        MemVfs::from_tree(DirTree::new(dirs.collect()))
    }
}

/// Returns the first `end` bytes, followed by zeros up to `len` bytes.
fn keep_prefix(file: &FileState, end: usize, len: usize) -> FileContent {
    let mut content = file.content.clone();
    content.truncate(end);
    content.grow(len);
    content
}

/// Returns the end of the bytes that can reach the disk. Excludes bytes at the end of the file that a failed sync
/// dropped.
fn data_end(file: &FileState) -> usize {
    file.unsynced.last().map_or(file.synced, |last| last.end)
}

/// Returns the length that a file has after a crash if no unsynced byte is lost.
fn full_len(file: &FileState) -> usize {
    let grown_ahead = file.content.len() > file.end;
    if grown_ahead { file.content.len() } else { data_end(file) }
}

/// Returns the contents for a `Torn` image. The first unsynced append is truncated: in half of the cases at a sector
/// boundary, otherwise at a random byte.
fn tear_first_append(file: &FileState, rng: &mut CrashRng) -> FileContent {
    let Some(first) = file.unsynced.first() else {
        return keep_prefix(file, file.synced, file.synced_len);
    };
    let sectors = first.start / SECTOR_BYTES + 1..first.end.div_ceil(SECTOR_BYTES);
    let cut = if !sectors.is_empty() && rng.draw_bool() {
        (sectors.start + rng.draw_below(sectors.len())) * SECTOR_BYTES
    } else {
        first.start + rng.draw_below(first.len())
    };
    keep_prefix(file, if cut > first.start { cut } else { file.synced }, file.synced_len)
}

/// Returns the contents for a `Garbage` image. Unsynced bytes are random, or are synced bytes of a random file.
fn fill_with_garbage(file: &FileState, files: &[FileState], rng: &mut CrashRng) -> FileContent {
    let mut content = keep_prefix(file, data_end(file), full_len(file));
    let range = file.synced..data_end(file);
    if range.is_empty() {
        return content;
    }
    let donors: Vec<&FileState> = files.iter().filter(|donor| donor.synced > 0).collect();
    if !donors.is_empty() && rng.draw_bool() {
        // Reused sectors may still have their old contents: valid bytes of another file.
        let donor = donors[rng.draw_below(donors.len())];
        let old = keep_prefix(donor, donor.synced, 0).to_vec();
        let sector = rng.draw_below(old.len().div_ceil(SECTOR_BYTES)) * SECTOR_BYTES;
        content.modify_range(range, |at, bytes| {
            for (at, byte) in (at..).zip(bytes) {
                *byte = old[(sector + at - file.synced) % old.len()];
            }
        });
    } else {
        content.modify_range(range, |_, bytes| rng.0.fill_bytes(bytes));
    }
    content
}

/// Splits a range at multiples of a block size.
fn split_at_blocks(range: Range<usize>, block_bytes: usize) -> impl Iterator<Item = Range<usize>> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        let next = ((at / block_bytes + 1) * block_bytes).min(range.end);
        let block = at..next;
        at = next;
        (!block.is_empty()).then_some(block)
    })
}

/// Returns the contents for a `Sectors` image. Each unsynced sector survives with probability 1/2, else it has zeros.
fn keep_random_sectors(file: &FileState, rng: &mut CrashRng) -> FileContent {
    let mut end = file.synced;
    let mut missing: Vec<Range<usize>> = Vec::new();
    for sector in split_at_blocks(file.synced..data_end(file), SECTOR_BYTES) {
        if rng.draw_bool() {
            end = sector.end;
        } else {
            missing.push(sector);
        }
    }
    let grown_ahead = file.len_max > data_end(file);
    let len = if grown_ahead && rng.draw_bool() { file.len_max } else { file.synced_len };
    let mut content = keep_prefix(file, end, len);
    for range in missing {
        content.zero_range(range);
    }
    content
}

/// Keeps a random subset of the dirty pages. The operating system may write a page back at any time, so a page may have
/// an earlier append but not a later append.
fn keep_random_pages(file: &FileState, rng: &mut CrashRng) -> FileContent {
    // On average 1/8, 4/8 or 7/8 of the pages survive.
    let survivors = [1, 4, 7][rng.draw_below(3)];
    let mut content = keep_prefix(file, data_end(file), file.len_max);
    let mut end = file.synced;
    for page in split_at_blocks(file.synced..data_end(file), PAGE_BYTES) {
        let starts = file.unsynced.iter().map(|append| append.start);
        let inside: Vec<usize> =
            starts.filter(|at| page.contains(at) && *at > page.start).collect();
        let written = match rng.draw_below(8) {
            drawn if drawn >= survivors => page.start,
            _ if !inside.is_empty() && rng.draw_below(4) == 0 => {
                inside[rng.draw_below(inside.len())]
            }
            _ => page.end,
        };
        content.zero_range(written..page.end);
        if written > page.start {
            end = written;
        }
    }
    let appends = file.unsynced.len();
    let drawn = match rng.draw_below(4) {
        0 => end,
        1 if appends > 0 => file.unsynced[rng.draw_below(appends)].end,
        2 => file.len_max,
        _ => full_len(file),
    };
    content.truncate(drawn.max(file.synced_len));
    content
}
