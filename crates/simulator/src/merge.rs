//! What a job writes: stretches of its inputs, merged from end to end and cut as the engine cuts.
//!
//! 1. The ranges of all inputs are walked in key order, from one end of a stretch to the next. In
//!    such an interval each input holds its entries spread evenly; how many, is drawn.
//! 2. The newest input absorbs the older ones. Where no older run that stays could hold the keys,
//!    tombstones go.
//! 3. The engine's [`OutputSplitter`] is asked at each place where its answer may change: at a boundary,
//!    where a grandparent begins, and where the output reaches its target size, a place that is drawn
//!    too.

use crate::body::{Stretch, width};
use crate::content::Content;
use crate::cut::Cut;
use crate::numbers::{DOMAIN, real};
use crate::older::Older;
use crate::random::Dice;
use crate::source::Source;
use crate::writer::Writer;

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
    let mut at = sources.iter().filter_map(Source::from).min().unwrap_or(u64::MAX);
    loop {
        let (covered, covered_until) = older.covers(at);
        let Some(to) = sources.iter().filter_map(|source| source.until(at)).min() else { return };
        let to = to.min(covered_until).min(cut.until(at)).max(at);
        let starts = sources.iter().any(|source| source.starts_at(at));
        let ends = sources.iter().any(|source| source.ends_at(at, to));
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
                    all.seqs.join(&stretch.seqs);
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
            writer.end(dice);
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
    let places = width(from, to) / DOMAIN * records;
    let covered = spans * real(crate::workload::RANGE_DELETE_PLACES);
    1.0 - libm::exp(-covered / places.max(1.0))
}
