//! Plots as SVG, made of a few parts that know nothing of experiments.
//!
//! 1. [`scale`] maps values to places and says where ticks go.
//! 2. [`frame`] draws grid, ticks and axis titles, and measures the room they take.
//! 3. [`marker`] is the colour and the shape of a series.
//! 4. [`label`] finds places for names where they cover nothing.
//! 5. [`bars`], [`lines`], [`scatter`], [`spans`] and [`areas`] are the kinds of plots.
//!
//! Colours are classes, which the page's style sheet gives a light and a dark value. What carries
//! data has class `mark` and says its figures in a `title`, which browsers show under the pointer.

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

/// A place or a length in a plot, written with one digit behind the point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Px(pub(crate) f64);

impl Render for Px {
    fn render_to(&self, buffer: &mut String) {
        // Writing to a string does not fail.
        let _ = write!(buffer, "{}", (self.0 * 10.0).round() / 10.0);
    }
}

/// A closed or open line through these places, as the `d` of a path.
pub(crate) fn path(points: impl IntoIterator<Item = (f64, f64)>, closed: bool) -> String {
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

/// An SVG of this size that says what it shows to those who cannot see it.
pub(crate) fn svg(width: f64, height: f64, says: &str, content: &Markup) -> Markup {
    html! {
        svg xmlns="http://www.w3.org/2000/svg" class="plot" role="img" aria-label=(says)
            viewBox=(format!("0 0 {} {}", Px(width).render().0, Px(height).render().0)) {
            (content)
        }
    }
}
