//! What compaction did: bytes read and written, jobs, amplifications.

use maud::{Markup, html};

use super::subject::Subject;
use crate::experiment::explore::result::Cell;
use crate::numbers::float;
use crate::report::html::page::{figure, legend, section};
use crate::report::html::plot::bars::{self, Bar};
use crate::report::html::plot::frame::Format;
use crate::report::html::value;

/// Bars per policy.
pub(super) fn plots(subjects: &[Subject<'_>]) -> Markup {
    let moved = bars(subjects, &["read", "written"], value::bytes, |it| {
        let bytes = [float(it.compaction.read_bytes), float(it.compaction.written_bytes)];
        (
            bytes.into(),
            format!(
                "{} · {}",
                value::bytes(bytes[0] + bytes[1]),
                value::times(it.data_moved_ratio)
            ),
        )
    });
    let jobs = bars(subjects, &["merges", "trivial moves"], value::count, |it| {
        let jobs = [float(it.compaction.jobs), float(it.compaction.trivial_moves)];
        (jobs.into(), format!("{} + {}", value::count(jobs[0]), value::count(jobs[1])))
    });
    let one = |of: fn(&Cell) -> f64| {
        bars(subjects, &["amplification"], value::times, move |it| {
            (vec![of(it)], value::times(of(it)))
        })
    };
    let content = html! {
        div class="plots" {
            div {
                (figure("Data moved by compaction, and per byte ingested", &moved))
                (legend([("p0", "read"), ("p1", "written")]))
            }
            div {
                (figure("Jobs of compaction", &jobs))
                (legend([("p0", "merges"), ("p1", "trivial moves, which only edit the manifest")]))
            }
            (figure("Write amplification: (flushed + compaction written) ÷ ingested",
                &one(|it| it.write_amplification)))
            @if subjects.iter().any(|it| !it.cell.is_simulated) {
                (figure("The same with the log, ÷ bytes of puts",
                    &one(|it| it.device_write_amplification)))
            }
            (figure("Compaction written ÷ unique live data", &one(|it| it.compaction_write_amplification)))
            (figure("Space amplification: live files ÷ newest versions", &one(|it| it.space_amplification)))
            @if subjects.iter().any(|it| it.cell.space_amplification_peak > 0.0) {
                (figure("The same at its peak, with what jobs wrote beside their inputs",
                    &one(|it| it.space_amplification_peak)))
            }
            @if subjects.iter().any(|it| it.cell.space_amplification_invalid > 0.0) {
                (figure("Bytes of invalid entries ÷ bytes of live ones", &bars(
                    subjects,
                    &["invalid"],
                    value::percent,
                    |it| {
                        let share = it.space_amplification_invalid;
                        (vec![share], value::percent(share))
                    },
                )))
            }
        }
    };
    section("What compaction did", "", &content)
}

/// Rows of the cells' parts, each with a text behind it.
pub(super) fn bars(
    subjects: &[Subject<'_>],
    parts: &[&str],
    format: Format,
    of: impl Fn(&Cell) -> (Vec<f64>, String),
) -> Markup {
    let rows: Vec<Bar> = subjects
        .iter()
        .map(|it| {
            let (parts, text) = of(it.cell);
            Bar { marker: it.marker, name: it.name.clone(), parts, text }
        })
        .collect();
    bars::draw(&parts.join(" and "), parts, format, &rows)
}
