//! Scatter plots of named points, with their Pareto front.

use maud::{Markup, html};

use super::frame::{Axis, Frame};
use super::label::{self, NamedMarker, Rectangle};
use super::marker::Marker;
use super::{Px, render_svg, svg_path};

const WIDTH: f64 = 620.0;
const HEIGHT: f64 = 430.0;

#[derive(Clone, Debug)]
pub(crate) struct ScatterPoint {
    pub(crate) marker: Marker,
    pub(crate) name: String,
    pub(crate) x: f64,
    pub(crate) y: f64,
    /// Area of the marker in px².
    pub(crate) area: f64,
    /// Whether the marker is hollow.
    pub(crate) faint: bool,
    /// Text of the tooltip.
    pub(crate) says: String,
}

/// Draws points and their Pareto front. Smaller values are better on both axes.
pub(crate) fn draw_scatter(description: &str, x: Axis, y: Axis, points: &[ScatterPoint]) -> Markup {
    let frame = Frame::new(x, y, Rectangle { left: 0.0, top: 0.0, right: WIDTH, bottom: HEIGHT });
    let places: Vec<(f64, f64)> =
        points.iter().map(|it| frame.point_position(it.x, it.y)).collect();
    let named: Vec<NamedMarker<'_>> = points
        .iter()
        .zip(&places)
        .map(|(it, &at)| NamedMarker { at, reach: Marker::half_width(it.area), name: &it.name })
        .collect();
    let steps = front_boundary(&find_pareto_front(points), frame.plane(), &places);
    let lines: Vec<[(f64, f64); 2]> = steps.windows(2).map(|pair| [pair[0], pair[1]]).collect();
    let labels = label::place_names(frame.plane(), &named, &lines);
    // Small markers are drawn last, so that large markers do not hide small ones.
    let mut order: Vec<usize> = (0..points.len()).collect();
    order.sort_by(|&a, &b| points[b].area.total_cmp(&points[a].area));
    let content = html! {
        (frame.draw())
        path class="front" d=(svg_path(steps, false)) {}
        @for placed in labels.iter().flatten() {
            @if let Some([from, to]) = placed.leader {
                line class="leader" x1=(Px(from.0)) y1=(Px(from.1)) x2=(Px(to.0)) y2=(Px(to.1)) {}
            }
        }
        @for index in order {
            @let it = &points[index];
            g class="series" data-name=(it.name) {
                (it.marker.draw(places[index], it.area, if it.faint { "faint" } else { "" }, &it.says))
                @if let Some(placed) = &labels[index] {
                    @let (x, y) = placed.baseline_start();
                    text class="name" x=(Px(x)) y=(Px(y)) { (it.name) }
                }
            }
        }
    };
    render_svg(WIDTH, HEIGHT, description, &content)
}

/// Returns the indices of the points on the Pareto front, in ascending order of x. A point is on the front if no other
/// point is smaller in one coordinate and at most equal in the other.
fn find_pareto_front(points: &[ScatterPoint]) -> Vec<usize> {
    let better =
        |a: &ScatterPoint, b: &ScatterPoint| a.x <= b.x && a.y <= b.y && (a.x < b.x || a.y < b.y);
    let mut front: Vec<usize> = (0..points.len())
        .filter(|&index| !points.iter().any(|other| better(other, &points[index])))
        .collect();
    front.sort_by(|&a, &b| points[a].x.total_cmp(&points[b].x));
    front
}

/// Returns the boundary of the region that the points of the Pareto front dominate.
fn front_boundary(front: &[usize], plane: Rectangle, places: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let (Some(&first), Some(&last)) = (front.first(), front.last()) else { return Vec::new() };
    let mut line = vec![(places[first].0, plane.top)];
    for (position, &index) in front.iter().enumerate() {
        line.push(places[index]);
        if let Some(&next) = front.get(position + 1) {
            line.push((places[next].0, places[index].1));
        }
    }
    line.push((plane.right, places[last].1));
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn front_has_the_points_that_no_other_dominates() {
        let point = |x, y| ScatterPoint {
            marker: Marker::with_number(0),
            name: String::new(),
            x,
            y,
            area: 1.0,
            faint: false,
            says: String::new(),
        };
        let places = [(3.0, 1.0), (1.0, 5.0), (2.0, 2.0), (2.0, 3.0), (4.0, 4.0), (3.0, 1.0)];
        let points = places.map(|(x, y)| point(x, y));
        assert_eq!(find_pareto_front(&points), [1, 2, 0, 5]);
    }
}
