//! Axes of a plot: grid, ticks and axis titles.

use maud::{Markup, html};

use super::Px;
use super::label::{self, FONT_PX, LINE_PX, Rectangle};
use super::scale::Scale;

/// Function that formats a value of an axis with its unit.
pub(crate) type NumberFormat = fn(f64) -> String;

#[derive(Clone, Debug)]
pub(crate) struct Axis {
    pub(crate) scale: Scale,
    /// Quantity and unit of the axis. Can be empty.
    pub(crate) title: String,
    pub(crate) format: NumberFormat,
    /// Approximate number of ticks.
    pub(crate) ticks: usize,
}

impl Axis {
    /// Creates an axis with about six ticks.
    pub(crate) fn new(scale: Scale, title: &str, format: NumberFormat) -> Axis {
        Axis { scale, title: title.to_owned(), format, ticks: 6 }
    }

    /// Creates an axis without title, from 0 to the largest of `values`.
    pub(crate) fn with_zero(values: &[f64], format: NumberFormat) -> Axis {
        let largest = values.iter().copied().fold(0.0, f64::max);
        Axis::new(Scale::from_zero(largest, 6), "", format)
    }

    pub(crate) fn tick_width(&self) -> f64 {
        label::max_text_width(self.scale.ticks(self.ticks).into_iter().map(self.format))
    }
}

/// The axes of a plot, and the plot area, in which data is drawn.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    x: Axis,
    y: Axis,
    plane: Rectangle,
}

impl Frame {
    /// Creates axes whose ticks and titles fit into `area`. The plot area is the remaining space.
    pub(crate) fn new(x: Axis, y: Axis, area: Rectangle) -> Frame {
        let below = LINE_PX + if x.title.is_empty() { 8.0 } else { LINE_PX + 10.0 };
        let above = if y.title.is_empty() { FONT_PX / 2.0 + 1.0 } else { LINE_PX + 10.0 };
        let plane = Rectangle {
            left: area.left + y.tick_width() + 8.0,
            // The last tick label is centered on its tick, so half of the label is outside the plot area.
            right: area.right - x.tick_width() / 2.0 - 1.0,
            top: area.top + above,
            bottom: area.bottom - below,
        };
        let at_places = |axis: Axis, first, last| Axis {
            scale: axis.scale.with_positions(first, last),
            ..axis
        };
        let x = at_places(x, plane.left, plane.right);
        let y = at_places(y, plane.bottom, plane.top);
        Frame { x, y, plane }
    }

    pub(crate) fn plane(&self) -> Rectangle {
        self.plane
    }

    /// Returns the position of a point in px.
    pub(crate) fn point_position(&self, x: f64, y: f64) -> (f64, f64) {
        (self.x.scale.position(x), self.y.scale.position(y))
    }

    /// Formats the coordinates of a point with the formats of the two axes.
    pub(crate) fn format_point(&self, x: f64, y: f64) -> (String, String) {
        ((self.x.format)(x), (self.y.format)(y))
    }

    /// Draws grid, ticks and titles. Must be called before data is drawn, because later elements cover earlier ones.
    pub(crate) fn draw(&self) -> Markup {
        let Rectangle { left, top, right, bottom } = self.plane;
        let (x, y) = (&self.x, &self.y);
        html! {
            @for tick in y.scale.ticks(y.ticks) {
                @let at = y.scale.position(tick);
                line class="grid" x1=(Px(left)) x2=(Px(right)) y1=(Px(at)) y2=(Px(at)) {}
                text class="tick" x=(Px(left - 6.0)) y=(Px(at + FONT_PX * 0.35)) text-anchor="end" {
                    ((y.format)(tick))
                }
            }
            @for tick in select_spaced_ticks(x) {
                @let at = x.scale.position(tick);
                line class="grid" x1=(Px(at)) x2=(Px(at)) y1=(Px(top)) y2=(Px(bottom)) {}
                text class="tick" x=(Px(at)) y=(Px(bottom + LINE_PX + 4.0)) text-anchor="middle" {
                    ((x.format)(tick))
                }
            }
            line class="axis" x1=(Px(left)) x2=(Px(right)) y1=(Px(bottom)) y2=(Px(bottom)) {}
            line class="axis" x1=(Px(left)) x2=(Px(left)) y1=(Px(top)) y2=(Px(bottom)) {}
            @if !x.title.is_empty() {
                text class="title" x=(Px(right)) y=(Px(bottom + 2.0 * LINE_PX + 6.0))
                    text-anchor="end" { (x.title) " →" }
            }
            // The title of the y axis is horizontal, above the axis.
            @if !y.title.is_empty() {
                text class="title" x=(Px(left - 6.0)) y=(Px(top - 12.0)) { "↑ " (y.title) }
            }
        }
    }
}

/// Returns the ticks of a horizontal axis. Omits ticks whose label would touch the previous label.
fn select_spaced_ticks(axis: &Axis) -> Vec<f64> {
    let mut ticks = axis.scale.ticks(axis.ticks);
    let mut end = f64::NEG_INFINITY;
    ticks.retain(|&tick| {
        let half = label::text_width(&(axis.format)(tick)) / 2.0 + 3.0;
        let at = axis.scale.position(tick);
        let fits = at - half >= end;
        if fits {
            end = at + half;
        }
        fits
    });
    ticks
}
