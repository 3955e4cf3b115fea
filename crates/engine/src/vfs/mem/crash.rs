//! What a disk may hold after a power loss.

use std::collections::BTreeMap;
use std::ops::Range;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::content::Content;
use super::node::{Dir, DirId, Entries, Entry, FileData, FileNode};
use super::{MemVfs, Names, ROOT};
use crate::sync::Arc;

/// Bytes that a disk writes whole or not at all.
const SECTOR_BYTES: usize = 512;

/// What becomes of data and names that were not synced when the power went.
///
/// | image | unsynced data | unsynced names |
/// | --- | --- | --- |
/// | `Drop` | gone | undone (a deleted file is back) |
/// | `Keep` | all there | done |
/// | `Torn` | each file's first unsynced write cut, at a sector or any byte | undone |
/// | `Zeros` | length grown, bytes zero | done |
/// | `Garbage` | length grown, bytes random or old | done |
/// | `Sectors` | each sector by coin: later ones without earlier | each change by its own coin |
/// | `Lag` | one file keeps all, all others nothing | all done or all undone, by one coin |
///
/// A rename within a directory is one change; across directories it is two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Image {
    /// Only what was synced is there.
    Drop,
    /// Everything is there.
    Keep,
    /// The first unsynced write of each file is cut.
    Torn,
    /// Files have grown, with zeros.
    Zeros,
    /// Files have grown, with random bytes or with what the disk held there before.
    Garbage,
    /// Sectors and names survive at random.
    Sectors,
    /// One file is ahead of all others.
    Lag,
}

impl Image {
    /// All of them.
    pub const ALL: [Image; 7] = [
        Image::Drop,
        Image::Keep,
        Image::Torn,
        Image::Zeros,
        Image::Garbage,
        Image::Sectors,
        Image::Lag,
    ];
}

impl MemVfs {
    /// What a machine could find after losing power now: an independent file system in which all
    /// that survived is on the disk, names included, and no file is locked. Equal seeds give equal
    /// images. This file system lives on.
    #[must_use]
    pub fn crash(&self, image: Image, seed: u64) -> MemVfs {
        let mut chance = Chance(ChaCha8Rng::seed_from_u64(seed));
        let _moment = self.0.moment.write();
        let names = self.0.names.lock();
        let mut disk = Disk {
            names: &names,
            image,
            lagging_names: image == Image::Lag && chance.coin(),
            dirs: BTreeMap::new(),
            files: Vec::new(),
            file_index: BTreeMap::new(),
        };
        disk.visit(ROOT, &mut chance);
        let contents = disk.contents(&mut chance);
        disk.build(contents)
    }
}

/// Random decisions of one crash.
struct Chance(ChaCha8Rng);

impl Chance {
    fn coin(&mut self) -> bool {
        self.0.next_u32() & 1 == 1
    }

    /// A number below `bound`, which is not 0.
    fn below(&mut self, bound: usize) -> usize {
        let drawn = self.0.next_u64() % bound as u64;
        // Smaller than `bound`, so it fits.
        usize::try_from(drawn).unwrap_or(0)
    }
}

/// A name that survived: of a file, by its place in [`Disk::files`], or of a directory.
enum Survivor {
    File(usize),
    Dir(DirId),
}

/// The image while it is made.
struct Disk<'a> {
    names: &'a Names,
    image: Image,
    /// Under `Lag`: whether the names are done.
    lagging_names: bool,
    dirs: BTreeMap<DirId, Vec<(Arc<str>, Survivor)>>,
    /// Files that have a name in the image, in order of the walk, which the seed alone decides.
    files: Vec<Arc<FileNode>>,
    /// Address of a node → its place in `files`: several names may share one.
    file_index: BTreeMap<usize, usize>,
}

impl Disk<'_> {
    /// Decides which names of a directory survive, and goes on below them.
    fn visit(&mut self, id: DirId, chance: &mut Chance) {
        let entries = self.surviving(self.names.dir(id), chance);
        let mut survivors = Vec::with_capacity(entries.len());
        // Known before going on, so that a directory which survives under two names (its rename
        // done in one parent, not undone in the other) is found once and the walk ends.
        self.dirs.insert(id, Vec::new());
        for (name, entry) in entries.iter() {
            match entry {
                Entry::File(node) => {
                    let next = self.files.len();
                    let index = *self.file_index.entry(Arc::as_ptr(node).addr()).or_insert(next);
                    if index == next {
                        self.files.push(node.clone());
                    }
                    survivors.push((name.clone(), Survivor::File(index)));
                }
                Entry::Dir(below) if !self.dirs.contains_key(below) => {
                    self.visit(*below, chance);
                    survivors.push((name.clone(), Survivor::Dir(*below)));
                }
                Entry::Dir(_) => {}
            }
        }
        self.dirs.insert(id, survivors);
    }

    fn surviving(&self, dir: &Dir, chance: &mut Chance) -> Arc<Entries> {
        match self.image {
            Image::Drop | Image::Torn => dir.synced.clone(),
            Image::Keep | Image::Zeros | Image::Garbage => dir.current.clone(),
            Image::Lag if self.lagging_names => dir.current.clone(),
            Image::Lag => dir.synced.clone(),
            Image::Sectors => {
                let mut entries = dir.synced.clone();
                for change in &dir.unsynced {
                    if chance.coin() {
                        change.apply(Arc::make_mut(&mut entries));
                    }
                }
                entries
            }
        }
    }

    fn contents(&self, chance: &mut Chance) -> Vec<Content> {
        let files: Vec<FileData> = self.files.iter().map(|node| node.data.read().clone()).collect();
        let ahead = match self.image {
            Image::Lag => {
                let behind: Vec<usize> =
                    (0..files.len()).filter(|&at| !files[at].unsynced.is_empty()).collect();
                (!behind.is_empty()).then(|| behind[chance.below(behind.len())])
            }
            _ => None,
        };
        files
            .iter()
            .enumerate()
            .map(|(at, file)| {
                let mut content = match self.image {
                    Image::Drop => kept(file, file.synced),
                    Image::Lag if ahead != Some(at) => kept(file, file.synced),
                    Image::Keep | Image::Lag => kept(file, grown(file)),
                    Image::Torn => torn(file, chance),
                    Image::Zeros => {
                        let mut content = kept(file, grown(file));
                        content.zero(file.synced..content.len());
                        content
                    }
                    Image::Garbage => garbage(file, &files, chance),
                    Image::Sectors => sectors(file, chance),
                };
                for lost in &file.lost {
                    content.zero(lost.clone());
                }
                content
            })
            .collect()
    }

    fn build(self, contents: Vec<Content>) -> MemVfs {
        let nodes: Vec<Arc<FileNode>> =
            contents.into_iter().map(|content| Arc::new(FileNode::on_disk(content))).collect();
        let dirs = self.dirs.into_iter().map(|(id, survivors)| {
            let entries = survivors.into_iter().map(|(name, survivor)| match survivor {
                Survivor::File(at) => (name, Entry::File(nodes[at].clone())),
                Survivor::Dir(id) => (name, Entry::Dir(id)),
            });
            (id, Dir::on_disk(entries.collect()))
        });
        MemVfs::from_names(Names::new(dirs.collect()))
    }
}

/// The first `len` bytes.
fn kept(file: &FileData, len: usize) -> Content {
    let mut content = file.content.clone();
    content.truncate(len);
    content
}

/// Length with all that could still reach the disk; a lost tail cannot.
fn grown(file: &FileData) -> usize {
    file.unsynced.last().map_or(file.synced, |last| last.end)
}

fn torn(file: &FileData, chance: &mut Chance) -> Content {
    let Some(first) = file.unsynced.first() else { return kept(file, file.synced) };
    let sectors = first.start / SECTOR_BYTES + 1..first.end.div_ceil(SECTOR_BYTES);
    let cut = if !sectors.is_empty() && chance.coin() {
        (sectors.start + chance.below(sectors.len())) * SECTOR_BYTES
    } else {
        first.start + chance.below(first.len())
    };
    kept(file, if cut > first.start { cut } else { file.synced })
}

fn garbage(file: &FileData, files: &[FileData], chance: &mut Chance) -> Content {
    let mut content = kept(file, grown(file));
    let range = file.synced..content.len();
    if range.is_empty() {
        return content;
    }
    let donors: Vec<&FileData> = files.iter().filter(|donor| donor.synced > 0).collect();
    if !donors.is_empty() && chance.coin() {
        // What freed sectors held before: bytes that were valid, elsewhere.
        let donor = donors[chance.below(donors.len())];
        let old = kept(donor, donor.synced).to_vec();
        let sector = chance.below(old.len().div_ceil(SECTOR_BYTES)) * SECTOR_BYTES;
        content.change(range, |at, bytes| {
            for (at, byte) in (at..).zip(bytes) {
                *byte = old[(sector + at - file.synced) % old.len()];
            }
        });
    } else {
        content.change(range, |_, bytes| chance.0.fill_bytes(bytes));
    }
    content
}

fn sectors(file: &FileData, chance: &mut Chance) -> Content {
    let mut content = kept(file, grown(file));
    let end = content.len();
    let mut missing: Vec<Range<usize>> = Vec::new();
    let mut len = file.synced;
    let mut at = file.synced;
    while at < end {
        let next = ((at / SECTOR_BYTES + 1) * SECTOR_BYTES).min(end);
        if chance.coin() {
            len = next;
        } else {
            missing.push(at..next);
        }
        at = next;
    }
    content.truncate(len);
    for range in missing {
        content.zero(range);
    }
    content
}
