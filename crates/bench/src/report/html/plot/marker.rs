//! Markers of series. Color and shape together identify a series.

use maud::{Markup, html};

use super::{Px, svg_path};

/// Number of marker colors that the style sheet defines.
pub(crate) const COLORS: usize = 6;
const SHAPES: usize = 6;
/// Number of distinct markers. If a plot has more series, markers repeat.
pub(crate) const MARKERS: usize = COLORS * SHAPES;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Marker {
    color: usize,
    shape: usize,
}

impl Marker {
    /// Returns the marker with this number. Markers with consecutive numbers differ in color, and usually in shape.
    pub(crate) fn with_number(number: usize) -> Marker {
        let number = number % MARKERS;
        Marker { color: number % COLORS, shape: (number + number / COLORS) % SHAPES }
    }

    /// Returns the CSS class for the color of the marker.
    pub(crate) fn color_class(self) -> String {
        format!("s{}", self.color)
    }

    /// Draws the marker with its center at `at`. `area` is the approximate area in px². `title` is the tooltip.
    pub(crate) fn draw(self, at: (f64, f64), area: f64, class: &str, title: &str) -> Markup {
        let classes = format!("mark dot {} {class}", self.color_class());
        let d = svg_path(self.corners(at, area), true);
        html! {
            @if self.shape == 0 {
                circle class=(classes) cx=(Px(at.0)) cy=(Px(at.1))
                    r=(Px((area / std::f64::consts::PI).sqrt())) { title { (title) } }
            } @else {
                path class=(classes) d=(d) { title { (title) } }
            }
        }
    }

    /// Returns half of the largest width or height that a marker with this area can have.
    pub(crate) fn half_width(area: f64) -> f64 {
        area.sqrt() * 0.95
    }

    fn corners(self, (x, y): (f64, f64), area: f64) -> Vec<(f64, f64)> {
        // The side length of a square with this area.
        let a = area.sqrt();
        // Each array lists the corners of a shape: x, y, x, y, …
        let unit: &[f64] = match self.shape {
            1 => &[-0.5, -0.5, 0.5, -0.5, 0.5, 0.5, -0.5, 0.5],
            2 => &[0.0, -0.8, 0.75, 0.5, -0.75, 0.5],
            3 => &[0.0, -0.72, 0.72, 0.0, 0.0, 0.72, -0.72, 0.0],
            4 => &[0.0, 0.8, 0.75, -0.5, -0.75, -0.5],
            _ => &[
                -0.25, -0.75, 0.25, -0.75, 0.25, -0.25, 0.75, -0.25, 0.75, 0.25, 0.25,
                0.25, //
                0.25, 0.75, -0.25, 0.75, -0.25, 0.25, -0.75, 0.25, -0.75, -0.25, -0.25, -0.25,
            ],
        };
        unit.chunks(2).map(|corner| (x + corner[0] * a, y + corner[1] * a)).collect()
    }

    /// Returns a small SVG image of the marker for tables and legends.
    pub(crate) fn swatch(self) -> Markup {
        html! {
            svg xmlns="http://www.w3.org/2000/svg" class="swatch" viewBox="0 0 14 14"
                aria-hidden="true" {
                (self.draw((7.0, 7.0), 60.0, "", ""))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn markers_are_distinct_and_consecutive_ones_differ_in_both() {
        let all: BTreeSet<String> =
            (0..MARKERS).map(|number| format!("{:?}", Marker::with_number(number))).collect();
        assert_eq!(all.len(), MARKERS);
        for number in 1..MARKERS {
            let (before, marker) = (Marker::with_number(number - 1), Marker::with_number(number));
            assert!(before.color != marker.color, "{number}");
            assert!(before.shape != marker.shape || number % COLORS == 0, "{number}");
        }
    }
}
