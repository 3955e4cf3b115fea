//! Plots with one row per series. A row shows several values, such as percentiles, on a common axis.

use maud::{Markup, html};

use super::frame::{Axis, Frame};
use super::label::{self, FONT_PX, LINE_PX, Rectangle};
use super::marker::Marker;
use super::{Px, render_svg};
use crate::numbers;

const WIDTH: f64 = 620.0;
/// Distance between two rows, in px.
const ROW_PX: f64 = 20.0;
/// Maximum width of the name of a series, in px. Longer names are truncated.
const NAMES_PX_MAX: f64 = 230.0;

#[derive(Clone, Debug)]
pub(crate) struct ValueSpan {
    pub(crate) marker: Marker,
    pub(crate) name: String,
    /// The values of the row, such as percentiles. `None` if a value was not measured.
    pub(crate) values: Vec<Option<f64>>,
}

/// Draws one row per series over the axis `x`. `values` contains a label for each value of a row, such as `median`.
pub(crate) fn draw_spans(
    description: &str,
    x: Axis,
    values: &[&str],
    rows: &[ValueSpan],
) -> Markup {
    let names = label::max_text_width(rows.iter().map(|row| &row.name)).min(NAMES_PX_MAX) + 24.0;
    let count = numbers::to_f64(numbers::to_u64(rows.len()));
    // The y axis has no labels.
    let y = Axis {
        scale: super::scale::Scale::from_zero_to(1.0),
        title: String::new(),
        format: |_| String::new(),
        ticks: 1,
    };
    // Total height of the rows and the x axis, in px.
    let height = ROW_PX * count + LINE_PX + 15.0;
    let area = Rectangle { left: names, top: 0.0, right: WIDTH, bottom: height };
    let frame = Frame::new(x, y, area);
    let content = html! {
        (frame.draw())
        @for (row, line) in rows.iter().zip(0_u32..) {
            @let middle = frame.plane().top + (f64::from(line) + 0.5) * ROW_PX;
            @let place = |value: f64| frame.point_position(value, 0.0).0;
            g class="series" data-name=(row.name) {
                (row.marker.draw((8.0, middle), 44.0, "key", ""))
                (label::draw_label(&row.name, NAMES_PX_MAX, (18.0, middle + FONT_PX * 0.35)))
                @let places = || row.values.iter().flatten().map(|&value| place(value));
                @if let (Some(first), Some(last)) = (places().reduce(f64::min), places().reduce(f64::max)) {
                    line class=(format!("line {}", row.marker.color_class())) x1=(Px(first))
                        x2=(Px(last)) y1=(Px(middle)) y2=(Px(middle)) {}
                }
                @for (index, value) in row.values.iter().enumerate() {
                    @if let Some(value) = *value {
                        @let title = format!("{}, {}: {}", row.name, values[index], frame.format_point(value, 0.0).0);
                        (draw_span_value(index, values.len(), (place(value), middle), &row.marker.color_class(), &title))
                    }
                }
            }
        }
    };
    render_svg(WIDTH, height, description, &content)
}

/// Draws a value of a row: the first as a hollow circle, the last as a bar, the others as filled circles.
fn draw_span_value(
    index: usize,
    count: usize,
    (x, y): (f64, f64),
    color: &str,
    title: &str,
) -> Markup {
    html! {
        @if index + 1 == count && count > 1 {
            rect class=(format!("mark bar {color}")) x=(Px(x - 1.5)) y=(Px(y - 6.0)) width="3"
                height="12" { title { (title) } }
        } @else {
            circle class=(format!("mark dot {color} {}", if index == 0 { "faint" } else { "" }))
                cx=(Px(x)) cy=(Px(y)) r=(if index == 0 { "4" } else { "3" }) { title { (title) } }
        }
    }
}

/// Returns the legend of the values of a row. `values` contains a label for each value, such as `median`.
pub(crate) fn render_span_legend(values: &[&str]) -> Markup {
    let [first, between @ .., last] = values else { return html! {} };
    let entries = [(0, (*first).to_owned()), (1, between.join(", ")), (2, (*last).to_owned())];
    html! {
        p class="legend" {
            @for (index, name) in entries {
                span {
                    svg xmlns="http://www.w3.org/2000/svg" class="swatch" viewBox="0 0 14 14"
                        aria-hidden="true" { (draw_span_value(index, 3, (7.0, 7.0), "s5", "")) }
                    (name)
                }
            }
        }
    }
}
