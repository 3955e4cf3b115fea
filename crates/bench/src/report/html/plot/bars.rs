//! Bars from left to right, a row per series, each of one or more parts.

use maud::{Markup, html};

use super::frame::Format;
use super::label::{self, FONT_PX};
use super::marker::Marker;
use super::scale::Scale;
use super::{Px, svg};

const WIDTH: f64 = 620.0;
/// From row to row.
const ROW_PX: f64 = 20.0;
const BAR_PX: f64 = 13.0;
/// Widest that names may be.
const NAMES_PX_MAX: f64 = 230.0;

/// A bar.
#[derive(Clone, Debug)]
pub(crate) struct Bar {
    pub(crate) marker: Marker,
    pub(crate) name: String,
    /// The parts, from the left.
    pub(crate) parts: Vec<f64>,
    /// What stands behind the bar.
    pub(crate) text: String,
}

/// Bars from 0. `parts` names the parts; where there is one alone it has the colour of its series.
pub(crate) fn draw(says: &str, parts: &[&str], format: Format, rows: &[Bar]) -> Markup {
    let widest = |texts: &mut dyn Iterator<Item = &String>| {
        texts.map(|text| label::width(text)).fold(0.0, f64::max)
    };
    let names = widest(&mut rows.iter().map(|row| &row.name)).min(NAMES_PX_MAX) + 24.0;
    let texts = widest(&mut rows.iter().map(|row| &row.text)) + 8.0;
    let longest = rows.iter().map(|row| row.parts.iter().sum()).fold(0.0, f64::max);
    let scale = Scale::to_edge(longest).at_places(names, (WIDTH - texts).max(names + 60.0));
    let height = ROW_PX * crate::numbers::float(crate::numbers::count(rows.len())) + 4.0;
    let content = html! {
        @for (row, line) in rows.iter().zip(0_u32..) {
            @let top = 2.0 + f64::from(line) * ROW_PX;
            @let base = top + ROW_PX / 2.0 + FONT_PX * 0.35;
            g class="series" data-name=(row.name) {
                (row.marker.draw((8.0, top + ROW_PX / 2.0), 44.0, "key", ""))
                text class="name" x="18" y=(Px(base)) {
                    (label::fitted(&row.name, NAMES_PX_MAX))
                    @if label::width(&row.name) > NAMES_PX_MAX { title { (row.name) } }
                }
                @for (index, part) in row.parts.iter().enumerate() {
                    @let before: f64 = row.parts[..index].iter().sum();
                    @let (from, to) = (scale.place(before), scale.place(before + part));
                    @let color = if parts.len() > 1 {
                        format!("p{index}")
                    } else {
                        row.marker.class()
                    };
                    @if *part > 0.0 {
                        rect class=(format!("mark bar {color}")) x=(Px(from))
                            y=(Px(top + (ROW_PX - BAR_PX) / 2.0)) width=(Px((to - from).max(0.5)))
                            height=(Px(BAR_PX)) {
                            title { (row.name) ", " (parts[index]) ": " (format(*part)) }
                        }
                    }
                }
                @let end = scale.place(row.parts.iter().sum());
                text class="value" x=(Px(end + 6.0)) y=(Px(base)) { (row.text) }
            }
        }
        line class="axis" x1=(Px(names)) x2=(Px(names)) y1="0" y2=(Px(height)) {}
    };
    svg(WIDTH, height, says, &content)
}
