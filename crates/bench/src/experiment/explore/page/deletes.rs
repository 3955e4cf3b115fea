//! What became of deletes: tombstones that are still there, and how long they stayed.

use maud::{Markup, html};

use super::movement::bars;
use super::subject::Subject;
use crate::experiment::explore::result::Cell;
use crate::numbers::{float, ratio};
use crate::report::html::page::{figure, section};
use crate::report::html::value;

/// Bars per policy; none where nothing was deleted.
pub(super) fn plots(subjects: &[Subject<'_>]) -> Option<Markup> {
    let deleted = |it: &Cell| it.delete_persistence.deletes;
    let most = subjects.iter().map(|it| deleted(it.cell)).max().filter(|&most| most > 0)?;
    let tombstones = bars(subjects, &["tombstones"], value::count, |it| {
        let left = float(it.delete_persistence.live_tombstones);
        (vec![left], value::count(left))
    });
    let stays = bars(subjects, &["longest stay"], value::percent, |it| {
        let share = longest(it);
        (vec![share], value::percent(share))
    });
    let content = html! {
        div class="plots" {
            @if subjects.iter().any(|it| it.cell.delete_persistence.live_tombstones > 0) {
                (figure("Tombstones in the tree at the end", &tombstones))
            }
            @if subjects.iter().any(|it| longest(it.cell) > 0.0) {
                (figure("The longest that a tombstone stayed, as a share of the run", &stays))
            }
        }
    };
    let how = format!(
        "{} deletes of a key. A stay counts until the job that let the tombstone go, of those in the \
         tree until the end; a job knows the oldest of its inputs, so it is at most so long.",
        value::count(float(most))
    );
    Some(section("Deletes", &how, &content))
}

/// Of those that went and those that are there, as a share of the run.
fn longest(cell: &Cell) -> f64 {
    let deletes = &cell.delete_persistence;
    ratio(deletes.age_us_max.max(deletes.oldest_age_us).unwrap_or(0), deletes.run_us)
}
