//! Plots of stacked areas. Two plots, one above the other, share an x axis.

use maud::{Markup, Render, html};

use super::frame::{Axis, Frame};
use super::label::Rectangle;
use super::{Px, render_svg};

const WIDTH: f64 = 400.0;
const HEIGHT: f64 = 290.0;
/// Vertical position of the top of the lower plot, in px.
const LOWER_PX: f64 = 170.0;

#[derive(Clone, Debug)]
pub(crate) struct StackedLayers {
    /// CSS classes and names of the layers, from bottom to top.
    pub(crate) names: Vec<(String, String)>,
    /// Each element contains an x value and the heights of all layers. The heights apply up to the x value of the next
    /// element.
    pub(crate) steps: Vec<(f64, Vec<f64>)>,
}

pub(crate) fn draw_areas(
    description: &str,
    x: &Axis,
    upper: (Axis, &StackedLayers),
    lower: (Axis, &StackedLayers),
) -> Markup {
    // Only the lower plot has a title of the x axis.
    let untitled = Axis { title: String::new(), ..x.clone() };
    // Both plots have the same left edge, although the widths of their tick labels differ.
    let widest = upper.0.tick_width().max(lower.0.tick_width());
    let left = |axis: &Axis| widest - axis.tick_width();
    let above = Rectangle { left: left(&upper.0), top: 0.0, right: WIDTH, bottom: LOWER_PX };
    let below = Rectangle { left: left(&lower.0), top: LOWER_PX, right: WIDTH, bottom: HEIGHT };
    let planes = [(untitled, upper, above), (x.clone(), lower, below)];
    let content = html! {
        @for (x, (y, layers), area) in planes {
            @let frame = Frame::new(x, y, area);
            (frame.draw())
            @for (index, (class, name)) in layers.names.iter().enumerate() {
                @if let Some(d) = layer_outline(&frame, &layers.steps, index) {
                    path class=(format!("mark area {class}")) d=(d) { title { (name) } }
                }
            }
        }
    };
    render_svg(WIDTH, HEIGHT, description, &content)
}

/// Returns the SVG path of a layer, or `None` if the height of the layer is 0 everywhere.
fn layer_outline(frame: &Frame, steps: &[(f64, Vec<f64>)], index: usize) -> Option<String> {
    if steps.iter().all(|(_, amounts)| amounts[index] <= 0.0) {
        return None;
    }
    // Returns the upper edge of the lowest `layers` layers as a staircase line.
    let edge = |layers: usize| -> Vec<(f64, f64)> {
        let mut line: Vec<(f64, f64)> = Vec::new();
        for (x, amounts) in steps {
            let at = frame.point_position(*x, amounts[..layers].iter().sum());
            if let Some(&(_, height)) = line.last() {
                line.push((at.0, height));
            }
            line.push(at);
        }
        line
    };
    let mut outline = edge(index + 1);
    outline.extend(edge(index).into_iter().rev());
    Some(right_angled_path(&outline))
}

/// Returns a closed SVG path of horizontal and vertical lines. Consecutive points that round to the same position are
/// merged.
fn right_angled_path(points: &[(f64, f64)]) -> String {
    let mut d = String::new();
    let mut last: Option<(String, String)> = None;
    for &(x, y) in points {
        let (x, y) = (Px(x).render().0, Px(y).render().0);
        match &last {
            None => d.push_str(&format!("M{x} {y}")),
            Some((last_x, last_y)) => {
                if *last_x != x {
                    d.push_str(&format!("H{x}"));
                }
                if *last_y != y {
                    d.push_str(&format!("V{y}"));
                }
            }
        }
        last = Some((x, y));
    }
    d.push('Z');
    d
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn right_angled_path_merges_equal_positions() {
        let corners =
            [(0.0, 9.0), (5.0, 9.0), (5.0, 9.02), (5.0, 4.0), (8.0, 4.0), (8.0, 10.0), (0.0, 10.0)];
        assert_eq!(right_angled_path(&corners), "M0 9H5V4H8V10H0Z");
    }
}
