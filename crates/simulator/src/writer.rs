//! What a simulated merge writes: stretches, one after the other, as files of the sizes that the engine's
//! would have.

use lsmx_compaction::{FileId, TableMeta};

use crate::body::{Body, Stretch, Thinning, range_of, width};
use crate::content::Content;
use crate::cut::Cut;
use crate::numbers::{DOMAIN, whole};
use crate::random::Dice;
use crate::seqs::Seqs;
use crate::sizes::{Load, Rates, Sizes, at_least_one};

/// Fewer entries than this are none.
const NOTHING: f64 = 0.5;
/// No output is as large as this; a larger target means one file however large.
const WRITTEN_MAX: f64 = 1e18;
/// How far the density of keys may change before sizes are worked out anew.
const DENSITY_STEP: f64 = 2.0;

/// What all outputs of a job have in common.
#[derive(Clone, Debug)]
pub(super) struct Stamp {
    pub(super) now_us: u64,
    pub(super) oldest_tombstone_us: Option<u64>,
}

/// A finished output; its name is still to be given.
#[derive(Debug)]
pub(super) struct Output {
    pub(super) shape: TableMeta,
    pub(super) body: Body,
}

/// Most bodies of files that are gone that are kept for new ones.
const SPARE_MAX: usize = 100;

/// Memory that goes from one job to the next.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// Bodies of files that are gone.
    spare: Vec<Body>,
    /// A part of the contents.
    part: Vec<Content>,
    thinning: Thinning,
}

impl Room {
    /// Takes in bodies that nobody needs any more.
    pub(super) fn reuse(&mut self, gone: impl Iterator<Item = Body>) {
        self.spare.extend(gone);
        self.spare.truncate(SPARE_MAX);
    }
}

/// Writes outputs.
#[derive(Debug)]
pub(super) struct Writer<'a> {
    sizes: &'a Sizes,
    stamp: Stamp,
    /// Most stretches that a file keeps.
    stretches_max: usize,
    rates: Rates,
    /// The density that the rates are for.
    density: f64,
    current: Option<Current>,
    room: &'a mut Room,
    pub(super) outputs: Vec<Output>,
}

/// The output at hand.
#[derive(Debug)]
struct Current {
    body: Body,
    load: Load,
    last: LastKey,
    /// By how many bytes its entries are larger than entries are on average.
    larger: f64,
}

/// Where the last key of an output lies: at most at `to`, and so far before it as entries lie apart.
#[derive(Clone, Copy, Debug)]
struct LastKey {
    from: u64,
    to: u64,
    /// Mean distance of entries; 0 where a key stands at `to`.
    gap: f64,
}

impl LastKey {
    fn draw(&self, dice: &mut Dice) -> u64 {
        if self.gap <= 0.0 {
            return self.to;
        }
        self.to - whole(dice.gap() * self.gap).min(self.to.saturating_sub(self.from))
    }
}

impl<'a> Writer<'a> {
    pub(super) fn new(
        sizes: &'a Sizes,
        stamp: Stamp,
        stretches_max: usize,
        room: &'a mut Room,
    ) -> Writer<'a> {
        Writer {
            sizes,
            stamp,
            stretches_max,
            // The first density that is met is another one.
            rates: Rates::default(),
            density: 0.0,
            current: None,
            room,
            outputs: Vec::new(),
        }
    }

    /// Bytes that the engine's writer would say it has written.
    fn written(&self) -> f64 {
        self.current.as_ref().map_or(0.0, |current| {
            Rates::WRITTEN_AT_FIRST + self.rates.written(&current.load) + current.larger
        })
    }

    /// Adds an interval, cut where the cutter says. `keys_at_ends` says whether a key is known to
    /// stand at its first and its last place.
    pub(super) fn add(
        &mut self,
        from: u64,
        stretch: Stretch,
        contents: &mut [Content],
        keys_at_ends: (bool, bool),
        cut: &mut Cut<'_>,
        dice: &mut Dice,
    ) {
        let (mut from, mut stretch) = (from, stretch);
        let mut key_at_start = keys_at_ends.0;
        loop {
            let load = Load::of(contents, stretch.spans);
            let entries = load.entries() + load.spans;
            if entries <= 0.0 {
                return;
            }
            let range = width(from, stretch.to);
            self.adapt(&load, range);
            let gap = range / (entries + 1.0);
            if cut.before(from, self.written()) || self.current.is_none() {
                self.end(dice);
                let ahead = if key_at_start { 0 } else { whole(dice.gap() * gap) };
                from = from.saturating_add(ahead).min(stretch.to);
                self.begin(from, cut, dice);
            }
            let written = self.written();
            // The output ends before the first key that finds it full.
            let room = (cut.file_bytes - written).max(0.0);
            let bytes = self.rates.written(&load);
            let Some(current) = self.current.as_mut() else { return };
            let fitting = if bytes > 0.0 { entries * room / bytes } else { entries };
            let fitting = libm::ceil(fitting.max(1.0));
            // Nor can a single place be divided.
            if fitting >= entries - NOTHING || from >= stretch.to {
                current.body.push(stretch, contents);
                current.load.add(&load);
                let gap = if keys_at_ends.1 { 0.0 } else { gap };
                current.last = LastKey { from, to: stretch.to, gap };
                return;
            }
            let share = fitting / entries;
            let at = from.saturating_add(whole(dice.place_of(fitting, entries) * range));
            let at = at.clamp(from, stretch.to - 1);
            let part = &mut self.room.part;
            part.clear();
            part.extend(contents.iter().map(|all| all.scaled(share)));
            let spans = stretch.spans * share;
            let seqs = stretch.seqs.take(fitting, entries - fitting, dice);
            current.body.push(Stretch { to: at, spans, seqs }, part);
            current.load.add(&Load::of(part, spans));
            current.last = LastKey { from, to: at, gap: 0.0 };
            for (all, part) in contents.iter_mut().zip(&*part) {
                all.less(part);
            }
            stretch.spans -= spans;
            from = at + 1;
            key_at_start = false;
        }
    }

    /// Begins an output with a key.
    fn begin(&mut self, first: u64, cut: &Cut<'_>, dice: &mut Dice) {
        let mut body = self.room.spare.pop().unwrap_or_default();
        body.clear(first);
        let larger = if cut.file_bytes < WRITTEN_MAX {
            dice.normal() * self.rates.deviation(cut.file_bytes)
        } else {
            0.0
        };
        let last = LastKey { from: first, to: first, gap: 0.0 };
        self.current = Some(Current { body, load: Load::default(), last, larger });
    }

    /// Works sizes out anew where keys lie denser or thinner than before, or are of other kinds.
    fn adapt(&mut self, load: &Load, range: f64) {
        let density = load.entries() * DOMAIN / range;
        if density > self.density * DENSITY_STEP || density * DENSITY_STEP < self.density {
            let mut both = self.current.as_ref().map_or_else(Load::default, |all| all.load);
            both.add(load);
            self.rates = self.sizes.rates(&both, density);
            self.density = density;
        }
    }

    /// Ends the output at hand.
    pub(super) fn end(&mut self, dice: &mut Dice) {
        let Some(Current { mut body, load, last, .. }) = self.current.take() else { return };
        let entries = load.entries();
        if entries + load.spans >= NOTHING && !body.stretches.is_empty() {
            body.end_at(last.draw(dice).max(body.from));
            let spans = body.stretches.iter().map(|stretch| stretch.spans).sum::<f64>();
            let mut seqs = Seqs::NONE;
            body.stretches.iter().for_each(|stretch| seqs.join(&stretch.seqs));
            self.room.thinning.thin_out(&mut body, self.stretches_max);
            let shape = self.shape(&body, &load, spans, seqs);
            self.outputs.push(Output { shape, body });
        } else {
            self.room.spare.push(body);
        }
    }

    /// What policies see of an output.
    fn shape(&self, body: &Body, load: &Load, spans: f64, seqs: Seqs) -> TableMeta {
        let entries = load.entries();
        let density = entries * DOMAIN / width(body.from, body.to());
        let bytes = self.sizes.table(load, density).all;
        let tombstones = whole(load.tombstones + spans);
        TableMeta {
            id: FileId(0),
            range: range_of(body.from, body.to()),
            bytes: at_least_one(bytes),
            entries: at_least_one(entries),
            tombstones,
            // No snapshot is ever taken, so which it is does not matter.
            tombstone_seq_smallest: (tombstones > 0).then_some(seqs.smallest),
            value_bytes: whole(self.sizes.value_bytes_of(load)),
            oldest_tombstone_us: self.stamp.oldest_tombstone_us.filter(|_| tombstones > 0),
            seq_smallest: seqs.smallest,
            seq_largest: seqs.largest,
            last_read_us: self.stamp.now_us,
            created_us: self.stamp.now_us,
            creation: 0,
        }
    }

    /// All outputs, the last one ended.
    pub(super) fn finish(mut self, dice: &mut Dice) -> Vec<Output> {
        self.end(dice);
        self.outputs
    }
}
