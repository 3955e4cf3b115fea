//! SVG plots. These modules do not depend on experiments.
//!
//! 1. [`scale`] maps values to positions and selects ticks.
//! 2. [`frame`] draws grid, ticks and axis titles, and reserves space for ticks and titles.
//! 3. [`marker`] defines the color and the shape of a series.
//! 4. [`label`] places names without overlaps.
//! 5. [`bars`], [`lines`], [`scatter`], [`spans`] and [`areas`] draw the kinds of plots.
//!
//! The style sheet defines a light and a dark color for each color class. Elements that show data have the CSS class
//! `mark` and a `title` with their numbers. Browsers show the `title` as a tooltip.

pub(crate) mod areas;
pub(crate) mod bars;
pub(crate) mod frame;
pub(crate) mod label;
pub(crate) mod lines;
pub(crate) mod marker;
pub(crate) mod scale;
pub(crate) mod scatter;
pub(crate) mod spans;

use std::fmt::Write;

use maud::{Markup, Render, html};

/// A coordinate or a length in pixels, rendered with one decimal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Px(pub(crate) f64);

impl Render for Px {
    fn render_to(&self, buffer: &mut String) {
        // Writing to a string cannot fail.
        let _ = write!(buffer, "{}", (self.0 * 10.0).round() / 10.0);
    }
}

/// Returns the attribute `d` of an SVG path through these points.
pub(crate) fn svg_path(points: impl IntoIterator<Item = (f64, f64)>, closed: bool) -> String {
    let mut d = String::new();
    for (index, (x, y)) in points.into_iter().enumerate() {
        d.push(if index == 0 { 'M' } else { 'L' });
        Px(x).render_to(&mut d);
        d.push(' ');
        Px(y).render_to(&mut d);
    }
    if closed {
        d.push('Z');
    }
    d
}

/// Returns an SVG image. `description` is the text for screen readers.
pub(crate) fn render_svg(width: f64, height: f64, description: &str, content: &Markup) -> Markup {
    html! {
        svg xmlns="http://www.w3.org/2000/svg" class="plot" role="img" aria-label=(description)
            viewBox=(format!("0 0 {} {}", Px(width).render().0, Px(height).render().0)) {
            (content)
        }
    }
}
