//! What a disk may hold after a power loss.

use std::collections::BTreeMap;
use std::ops::Range;

use lsmx_base::sync::Arc;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::vfs::mem::content::Content;
use crate::vfs::mem::node::{Dir, DirId, Entries, Entry, FileData, FileNode};
use crate::vfs::mem::{MemVfs, Names, ROOT};

/// Bytes that a disk writes whole or not at all.
const SECTOR_BYTES: usize = 512;
/// Bytes that an operating system writes back at a time.
const PAGE_BYTES: usize = 4096;

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
/// | `Pages` | any subset of the dirty pages (4 KiB) of each file, some as they were between two appends; any length that the file had | each change by its own coin |
///
/// A file that grows ahead of its end ([`File::grow_ahead`](crate::vfs::File::grow_ahead)) holds zeros behind its
/// data in every image that has the longer length.
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
    /// Pages and names survive at random.
    Pages,
}

impl Image {
    /// All of them.
    pub const ALL: [Image; 8] = [
        Image::Drop,
        Image::Keep,
        Image::Torn,
        Image::Zeros,
        Image::Garbage,
        Image::Sectors,
        Image::Lag,
        Image::Pages,
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
            Image::Sectors | Image::Pages => {
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
                    Image::Drop => kept(file, file.synced, file.synced_len),
                    Image::Lag if ahead != Some(at) => kept(file, file.synced, file.synced_len),
                    Image::Keep | Image::Lag => kept(file, appended(file), len(file)),
                    Image::Torn => torn(file, chance),
                    Image::Zeros => kept(file, file.synced, len(file)),
                    Image::Garbage => garbage(file, &files, chance),
                    Image::Sectors => sectors(file, chance),
                    Image::Pages => pages(file, chance),
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

/// The first `end` bytes, and zeros behind them up to a length.
fn kept(file: &FileData, end: usize, len: usize) -> Content {
    let mut content = file.content.clone();
    content.truncate(end);
    content.grow(len);
    content
}

/// End of the data that could still reach the disk; a lost tail cannot.
fn appended(file: &FileData) -> usize {
    file.unsynced.last().map_or(file.synced, |last| last.end)
}

/// Length if all that could still reach the disk does.
fn len(file: &FileData) -> usize {
    let grown_ahead = file.content.len() > file.end;
    if grown_ahead { file.content.len() } else { appended(file) }
}

fn torn(file: &FileData, chance: &mut Chance) -> Content {
    let Some(first) = file.unsynced.first() else {
        return kept(file, file.synced, file.synced_len);
    };
    let sectors = first.start / SECTOR_BYTES + 1..first.end.div_ceil(SECTOR_BYTES);
    let cut = if !sectors.is_empty() && chance.coin() {
        (sectors.start + chance.below(sectors.len())) * SECTOR_BYTES
    } else {
        first.start + chance.below(first.len())
    };
    kept(file, if cut > first.start { cut } else { file.synced }, file.synced_len)
}

fn garbage(file: &FileData, files: &[FileData], chance: &mut Chance) -> Content {
    let mut content = kept(file, appended(file), len(file));
    let range = file.synced..appended(file);
    if range.is_empty() {
        return content;
    }
    let donors: Vec<&FileData> = files.iter().filter(|donor| donor.synced > 0).collect();
    if !donors.is_empty() && chance.coin() {
        // What freed sectors held before: bytes that were valid, elsewhere.
        let donor = donors[chance.below(donors.len())];
        let old = kept(donor, donor.synced, 0).to_vec();
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

/// The parts of a range that lie in blocks of a size.
fn blocks(range: Range<usize>, block_bytes: usize) -> impl Iterator<Item = Range<usize>> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        let next = ((at / block_bytes + 1) * block_bytes).min(range.end);
        let block = at..next;
        at = next;
        (!block.is_empty()).then_some(block)
    })
}

fn sectors(file: &FileData, chance: &mut Chance) -> Content {
    let mut end = file.synced;
    let mut missing: Vec<Range<usize>> = Vec::new();
    for sector in blocks(file.synced..appended(file), SECTOR_BYTES) {
        if chance.coin() {
            end = sector.end;
        } else {
            missing.push(sector);
        }
    }
    let grown_ahead = file.len_max > appended(file);
    let len = if grown_ahead && chance.coin() { file.len_max } else { file.synced_len };
    let mut content = kept(file, end, len);
    for range in missing {
        content.zero(range);
    }
    content
}

/// The system writes a page back at any time after it was written to, and forgets later changes of it.
fn pages(file: &FileData, chance: &mut Chance) -> Content {
    // Of eight pages so many survive: few, half of them, or nearly all.
    let share = [1, 4, 7][chance.below(3)];
    let mut content = kept(file, appended(file), file.len_max);
    let mut end = file.synced;
    for page in blocks(file.synced..appended(file), PAGE_BYTES) {
        let starts = file.unsynced.iter().map(|append| append.start);
        let inside: Vec<usize> =
            starts.filter(|at| page.contains(at) && *at > page.start).collect();
        let written = match chance.below(8) {
            drawn if drawn >= share => page.start,
            _ if !inside.is_empty() && chance.below(4) == 0 => inside[chance.below(inside.len())],
            _ => page.end,
        };
        content.zero(written..page.end);
        if written > page.start {
            end = written;
        }
    }
    let appends = file.unsynced.len();
    let drawn = match chance.below(4) {
        0 => end,
        1 if appends > 0 => file.unsynced[chance.below(appends)].end,
        2 => file.len_max,
        _ => len(file),
    };
    content.truncate(drawn.max(file.synced_len));
    content
}
