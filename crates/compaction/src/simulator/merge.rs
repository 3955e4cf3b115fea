//! What a job writes: stretches of its inputs, merged from end to end and cut as the engine cuts.
//!
//! 1. The ranges of all inputs are walked in key order, from one end of a stretch to the next. In
//!    such an interval each input holds its entries spread evenly; how many, is drawn.
//! 2. The newest input absorbs the older ones. Where no older run that stays could hold the keys,
//!    tombstones go.
//! 3. The engine's [`OutputCutter`] is asked at each place where its answer may change: at a boundary,
//!    where a grandparent begins, and where the output reaches its target size, a place that is drawn
//!    too.

use crate::{CutRule, FileId, FileShape, KeyRange, OutputCutter, TreeShape};

use super::body::{Body, Stretch, key_at, place_of, width};
use super::content::Content;
use super::numbers::{real, whole};
use super::random::Dice;
use super::sizes::{Load, Rates, Sizes, at_least_one};

/// Fewer entries than this are none.
const NOTHING: f64 = 0.5;
/// No output is as large as this; a larger target means one file however large.
const WRITTEN_MAX: f64 = 1e18;
/// How far the density of keys may change before sizes are worked out anew.
const DENSITY_STEP: f64 = 1.25;

/// One input run: its files in key order, and how far they are read.
#[derive(Debug)]
pub(super) struct Source<'a> {
    bodies: Vec<&'a Body>,
    body: usize,
    stretch: usize,
    /// What is left of the stretch at hand, which begins at `from`.
    from: u64,
    left: Vec<Content>,
    spans: f64,
}

impl<'a> Source<'a> {
    pub(super) fn new(bodies: Vec<&'a Body>) -> Source<'a> {
        let mut source =
            Source { bodies, body: 0, stretch: 0, from: 0, left: Vec::new(), spans: 0.0 };
        source.open();
        source
    }

    /// Takes up the stretch at hand.
    fn open(&mut self) {
        self.left.clear();
        if let Some(body) = self.bodies.get(self.body) {
            self.left.extend_from_slice(body.contents_of(self.stretch));
            self.spans = body.stretches[self.stretch].spans;
            self.from = match self.stretch.checked_sub(1) {
                Some(before) => body.stretches[before].to.saturating_add(1),
                None => body.from,
            };
        }
    }

    fn at_hand(&self) -> Option<&Stretch> {
        self.bodies.get(self.body).map(|body| &body.stretches[self.stretch])
    }

    /// The last place up to which nothing changes from `at` on: that before its next stretch, or the
    /// last of the one at hand.
    fn until(&self, at: u64) -> Option<u64> {
        let stretch = self.at_hand()?;
        Some(if self.from > at { self.from - 1 } else { stretch.to })
    }

    /// Whether it ends or begins exactly there, so that a key is known to stand there.
    fn ends_at(&self, place: u64) -> bool {
        self.bodies.get(self.body).is_some_and(|body| body.to() == place)
    }

    /// Takes what lies in `at..=to`, an interval within which nothing changes, into `out`; returns
    /// the stretch it is from, with its spans there, if there is anything.
    fn take(&mut self, at: u64, to: u64, dice: &mut Dice, out: &mut [Content]) -> Option<Stretch> {
        let mut stretch = *self.at_hand()?;
        if self.from > at {
            return None;
        }
        if stretch.to <= to {
            out.copy_from_slice(&self.left);
            stretch.spans = self.spans;
            self.stretch += 1;
            if self.stretch == self.bodies[self.body].stretches.len() {
                self.stretch = 0;
                self.body += 1;
            }
            self.open();
            return Some(stretch);
        }
        let share = width(at, to) / width(at, stretch.to);
        for (part, left) in out.iter_mut().zip(&mut self.left) {
            let entries = left.entries();
            let drawn = if entries > 0.0 { dice.part_of(entries, share) / entries } else { share };
            *part = left.scaled(drawn);
            // The keys that entries may be about are many, and lie evenly.
            part.reach = left.reach * share;
            left.less(part);
        }
        stretch.spans = self.spans * share;
        self.spans -= stretch.spans;
        self.from = to + 1;
        Some(stretch)
    }
}

/// Files of older runs that stay in the tree: where they lie, tombstones are needed.
#[derive(Debug, Default)]
pub(super) struct Older {
    /// Ranges of one run each, in key order, and the next one that counts.
    runs: Vec<(Vec<(u64, u64)>, usize)>,
}

impl Older {
    pub(super) fn add(&mut self, ranges: Vec<(u64, u64)>) {
        self.runs.push((ranges, 0));
    }

    /// Whether one of them may hold keys from `at` on, and the last place up to which that is so.
    fn covers(&mut self, at: u64) -> (bool, u64) {
        let (mut covered, mut until) = (false, u64::MAX);
        for (ranges, next) in &mut self.runs {
            while ranges.get(*next).is_some_and(|range| range.1 < at) {
                *next += 1;
            }
            match ranges.get(*next) {
                Some(&(from, _)) if from > at => until = until.min(from - 1),
                Some(&(_, to)) => {
                    covered = true;
                    until = until.min(to);
                }
                None => {}
            }
        }
        (covered, until)
    }
}

/// What all outputs of a job have in common.
#[derive(Clone, Debug)]
pub(super) struct Stamp {
    pub(super) now_us: u64,
    pub(super) oldest_tombstone_us: Option<u64>,
}

/// A finished output; its name is still to be given.
#[derive(Debug)]
pub(super) struct Output {
    pub(super) shape: FileShape,
    pub(super) body: Body,
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
    pub(super) outputs: Vec<Output>,
}

/// The output at hand.
#[derive(Debug)]
struct Current {
    body: Body,
    load: Load,
    /// The last key that is known to be in it.
    last: u64,
    /// By how many bytes its entries are larger than entries are on average.
    larger: f64,
}

impl<'a> Writer<'a> {
    pub(super) fn new(sizes: &'a Sizes, stamp: Stamp, stretches_max: usize) -> Writer<'a> {
        let load = Load { puts: 1.0, ..Load::default() };
        let rates = sizes.rates(&load, 1.0);
        let (current, outputs) = (None, Vec::new());
        Writer { sizes, stamp, stretches_max, rates, density: 0.0, current, outputs }
    }

    /// Bytes that the engine's writer would say it has written.
    fn written(&self) -> f64 {
        self.current.as_ref().map_or(0.0, |current| {
            Rates::WRITTEN_AT_FIRST + self.rates.written(&current.load) + current.larger
        })
    }

    /// Adds an interval, cut where the cutter says. `keys_at_ends` says whether a key is known to
    /// stand at its first and its last place.
    fn add(
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
            let gap = |dice: &mut Dice| whole(dice.gap() * range / (entries + 1.0));
            let first = if key_at_start { from } else { from.saturating_add(gap(dice)) };
            let first = first.min(stretch.to);
            let last = if keys_at_ends.1 {
                stretch.to
            } else {
                stretch.to - gap(dice).min(range_of(first, stretch.to))
            };
            if cut.before(first, self.written()) || self.current.is_none() {
                self.end();
                let body = Body::starting_at(first);
                let larger = if cut.file_bytes < WRITTEN_MAX {
                    dice.normal() * self.rates.deviation(cut.file_bytes)
                } else {
                    0.0
                };
                self.current = Some(Current { body, load: Load::default(), last: first, larger });
            }
            let written = self.written();
            // The output ends before the first key that finds it full.
            let room = (cut.file_bytes - written).max(0.0);
            let bytes = self.rates.written(&load);
            let Some(current) = self.current.as_mut() else { return };
            let fitting = if bytes > 0.0 { entries * room / bytes } else { entries };
            let fitting = libm::ceil(fitting.max(1.0));
            if fitting >= entries - NOTHING {
                current.body.push(Stretch { to: stretch.to, ..stretch }, contents);
                current.load.add(&load);
                current.last = current.last.max(last);
                return;
            }
            let share = fitting / entries;
            let at = from.saturating_add(whole(dice.place_of(fitting, entries) * range));
            let at = at.clamp(first, stretch.to - 1);
            let left: Vec<Content> = contents.iter().map(|all| all.scaled(share)).collect();
            let spans = stretch.spans * share;
            current.body.push(Stretch { to: at, spans, ..stretch }, &left);
            current.load.add(&Load::of(&left, spans));
            current.last = at;
            for (all, part) in contents.iter_mut().zip(&left) {
                all.less(part);
            }
            stretch.spans -= spans;
            from = at + 1;
            key_at_start = false;
        }
    }

    /// Works sizes out anew where keys lie denser or thinner than before, or are of other kinds.
    fn adapt(&mut self, load: &Load, range: f64) {
        let density = load.entries() * 18_446_744_073_709_551_616.0 / range;
        let all = self.current.as_ref().map_or_else(Load::default, |current| current.load);
        if density > self.density * DENSITY_STEP || density * DENSITY_STEP < self.density {
            let mut both = all;
            both.add(load);
            self.rates = self.sizes.rates(&both, density);
            self.density = density;
        }
    }

    /// Ends the output at hand.
    fn end(&mut self) {
        let Some(Current { mut body, load, last, .. }) = self.current.take() else { return };
        let entries = load.entries();
        if entries + load.spans < NOTHING {
            return;
        }
        let Some(end) = body.stretches.last_mut() else { return };
        // Where no key lies any more, no policy sees the file.
        end.to = last.max(body.from);
        while body.stretches.len() > 1 && body.stretches[body.stretches.len() - 2].to >= body.to() {
            let at = body.stretches.len() - 1;
            let to = body.to();
            body.stretches[at - 1].to = to;
            body.thin_out(at);
        }
        let spans = body.stretches.iter().map(|stretch| stretch.spans).sum::<f64>();
        body.thin_out(self.stretches_max);
        let (seq_smallest, seq_largest) =
            body.stretches.iter().fold((u64::MAX, 0), |(smallest, largest), stretch| {
                (smallest.min(stretch.seq_smallest), largest.max(stretch.seq_largest))
            });
        let density = entries * 18_446_744_073_709_551_616.0 / width(body.from, body.to());
        let bytes = self.sizes.table(&load, density).all;
        let tombstones = whole(load.tombstones + spans);
        let shape = FileShape {
            id: FileId(0),
            range: KeyRange::new(key_at(body.from), key_at(body.to())),
            bytes: at_least_one(bytes),
            entries: at_least_one(entries),
            tombstones,
            // No snapshot is ever taken, so which it is does not matter.
            tombstone_seq_smallest: (tombstones > 0).then_some(seq_smallest),
            value_bytes: whole(self.sizes.value_bytes_of(&load)),
            oldest_tombstone_us: self.stamp.oldest_tombstone_us.filter(|_| tombstones > 0),
            seq_smallest,
            seq_largest,
            last_read_us: self.stamp.now_us,
            created_us: self.stamp.now_us,
            creation: 0,
        };
        self.outputs.push(Output { shape, body });
    }

    /// All outputs, the last one ended.
    pub(super) fn finish(mut self) -> Vec<Output> {
        self.end();
        self.outputs
    }
}

fn range_of(from: u64, to: u64) -> u64 {
    to.saturating_sub(from)
}

/// Where outputs are cut.
#[derive(Debug)]
pub(super) struct Cut<'a> {
    /// None where nothing is cut.
    cutter: Option<OutputCutter>,
    file_bytes: f64,
    rule: Option<(&'a CutRule, &'a TreeShape)>,
    /// The last places of the parts that are still to come, the next one last.
    part_ends: Vec<u64>,
}

impl<'a> Cut<'a> {
    /// As a job says, in parts that end at these places.
    pub(super) fn by(rule: &'a CutRule, shape: &'a TreeShape, mut part_ends: Vec<u64>) -> Cut<'a> {
        part_ends.reverse();
        let file_bytes = real(rule.file_bytes);
        let cutter = Some(OutputCutter::new(rule, shape));
        Cut { cutter, file_bytes, rule: Some((rule, shape)), part_ends }
    }

    /// Not at all.
    pub(super) fn never() -> Cut<'a> {
        Cut { cutter: None, file_bytes: f64::INFINITY, rule: None, part_ends: Vec::new() }
    }

    fn before(&mut self, place: u64, written: f64) -> bool {
        let Some(cutter) = &mut self.cutter else { return false };
        cutter.cut_before(&place.to_be_bytes(), whole(written))
    }

    /// Returns whether a part ends with this place; the next one begins with a cutter of its own.
    fn part_ends(&mut self, place: u64) -> bool {
        if self.part_ends.last() != Some(&place) {
            return false;
        }
        self.part_ends.pop();
        self.cutter = self.rule.map(|(rule, shape)| OutputCutter::new(rule, shape));
        true
    }

    /// The last place before the next one where the answer may change by itself.
    fn until(&self, at: u64) -> u64 {
        let next = self.cutter.as_ref().and_then(OutputCutter::next_change);
        let changes = next.map(|key| place_of(key)).filter(|next| *next > at);
        let part = self.part_ends.last().copied().unwrap_or(u64::MAX);
        changes.map_or(u64::MAX, |next| next - 1).min(part)
    }
}

/// Merges `sources`, newest first, into outputs.
pub(super) fn merge(
    sources: &mut [Source<'_>],
    older: &mut Older,
    cut: &mut Cut<'_>,
    writer: &mut Writer<'_>,
    classes: usize,
    records: f64,
    dice: &mut Dice,
) {
    let (mut merged, mut part) =
        (vec![Content::default(); classes], vec![Content::default(); classes]);
    let mut at = sources
        .iter()
        .filter(|source| source.at_hand().is_some())
        .map(|source| source.from)
        .min()
        .unwrap_or(u64::MAX);
    loop {
        let (covered, covered_until) = older.covers(at);
        let Some(to) = sources.iter().filter_map(|source| source.until(at)).min() else { return };
        let to = to.min(covered_until).min(cut.until(at)).max(at);
        let starts = sources
            .iter()
            .any(|source| source.bodies.get(source.body).is_some_and(|body| body.from == at));
        let ends = sources.iter().any(|source| source.from <= at && source.ends_at(to));
        let mut found: Option<Stretch> = None;
        for source in sources.iter_mut() {
            let Some(stretch) = source.take(at, to, dice, &mut part) else { continue };
            match &mut found {
                None => {
                    merged.copy_from_slice(&part);
                    found = Some(stretch);
                }
                Some(all) => {
                    let hidden = hidden_share(all.spans, at, to, records);
                    for (newer, older) in merged.iter_mut().zip(&mut part) {
                        if hidden > 0.0 {
                            older.hide(hidden);
                        }
                        newer.absorb(older);
                    }
                    all.spans += stretch.spans;
                    all.seq_smallest = all.seq_smallest.min(stretch.seq_smallest);
                    all.seq_largest = all.seq_largest.max(stretch.seq_largest);
                }
            }
        }
        if let Some(mut stretch) = found {
            stretch.to = to;
            if !covered {
                stretch.spans = 0.0;
                merged.iter_mut().for_each(Content::settle);
            }
            writer.add(at, stretch, &mut merged, (starts, ends), cut, dice);
        }
        if cut.part_ends(to) {
            writer.end();
        }
        if to == u64::MAX {
            return;
        }
        at = to + 1;
    }
}

/// Share of the older keys of a range that so many range deletes of a workload hide.
fn hidden_share(spans: f64, from: u64, to: u64, records: f64) -> f64 {
    if spans <= 0.0 {
        return 0.0;
    }
    let places = width(from, to) / 18_446_744_073_709_551_616.0 * records;
    let covered = spans * real(crate::workload::RANGE_DELETE_PLACES);
    1.0 - libm::exp(-covered / places.max(1.0))
}
