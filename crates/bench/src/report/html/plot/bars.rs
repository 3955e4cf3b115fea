//! Horizontal bar plots with one bar per series. A bar may consist of several segments.

use maud::{Markup, html};

use super::frame::NumberFormat;
use super::label::{self, FONT_PX};
use super::marker::Marker;
use super::scale::Scale;
use super::{Px, render_svg};

const WIDTH: f64 = 620.0;
/// Distance between two bars, in px.
const ROW_PX: f64 = 20.0;
const BAR_PX: f64 = 13.0;
/// Maximum width of the name of a series, in px. Longer names are truncated.
const NAMES_PX_MAX: f64 = 230.0;

#[derive(Clone, Debug)]
pub(crate) struct Bar {
    pub(crate) marker: Marker,
    pub(crate) name: String,
    /// Lengths of the segments from left to right.
    pub(crate) parts: Vec<f64>,
    /// Text at the end of the bar.
    pub(crate) text: String,
}

/// Draws bars that start at 0. `parts` contains the names of the segments. Bars with a single segment have the color of
/// their series.
pub(crate) fn draw_bars(
    description: &str,
    parts: &[&str],
    format: NumberFormat,
    rows: &[Bar],
) -> Markup {
    let names = label::max_text_width(rows.iter().map(|row| &row.name)).min(NAMES_PX_MAX) + 24.0;
    let texts = label::max_text_width(rows.iter().map(|row| &row.text)) + 8.0;
    let longest = rows.iter().map(|row| row.parts.iter().sum()).fold(0.0, f64::max);
    let scale =
        Scale::from_zero_to(longest).with_positions(names, (WIDTH - texts).max(names + 60.0));
    let height = ROW_PX * crate::numbers::to_f64(crate::numbers::to_u64(rows.len())) + 4.0;
    let content = html! {
        @for (row, line) in rows.iter().zip(0_u32..) {
            @let top = 2.0 + f64::from(line) * ROW_PX;
            @let base = top + ROW_PX / 2.0 + FONT_PX * 0.35;
            g class="series" data-name=(row.name) {
                (row.marker.draw((8.0, top + ROW_PX / 2.0), 44.0, "key", ""))
                (label::draw_label(&row.name, NAMES_PX_MAX, (18.0, base)))
                @for (index, part) in row.parts.iter().enumerate() {
                    @let before: f64 = row.parts[..index].iter().sum();
                    @let (from, to) = (scale.position(before), scale.position(before + part));
                    @let color = if parts.len() > 1 {
                        format!("p{index}")
                    } else {
                        row.marker.color_class()
                    };
                    @if *part > 0.0 {
                        rect class=(format!("mark bar {color}")) x=(Px(from))
                            y=(Px(top + (ROW_PX - BAR_PX) / 2.0)) width=(Px((to - from).max(0.5)))
                            height=(Px(BAR_PX)) {
                            title { (row.name) ", " (parts[index]) ": " (format(*part)) }
                        }
                    }
                }
                @let end = scale.position(row.parts.iter().sum());
                text class="value" x=(Px(end + 6.0)) y=(Px(base)) { (row.text) }
            }
        }
        line class="axis" x1=(Px(names)) x2=(Px(names)) y1="0" y2=(Px(height)) {}
    };
    render_svg(WIDTH, height, description, &content)
}
