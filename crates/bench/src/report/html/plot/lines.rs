//! Line plots. The name of each line is at its right end.

use maud::{Markup, html};

use super::frame::{Axis, Frame};
use super::label::{self, FONT_PX, LINE_PX, Rectangle};
use super::marker::Marker;
use super::{Px, render_svg, svg_path};
use crate::numbers;

const WIDTH: f64 = 620.0;
const HEIGHT_MIN: f64 = 300.0;
/// Maximum width of the name of a line, in px. Longer names are truncated.
const NAMES_PX_MAX: f64 = 180.0;
/// Horizontal distance from the plot area to the names, in px.
const LEAD_PX: f64 = 26.0;
/// Maximum number of points of a line with a marker at each point. Longer lines have a marker only at the last point.
const MARKED_POINTS_MAX: usize = 12;

#[derive(Clone, Debug)]
pub(crate) struct PlotLine {
    pub(crate) marker: Marker,
    pub(crate) name: String,
    /// Points in ascending order of x.
    pub(crate) points: Vec<(f64, f64)>,
    /// Vertical error bars: x, lower y and upper y.
    pub(crate) whiskers: Vec<(f64, f64, f64)>,
}

impl PlotLine {
    pub(crate) fn new(marker: Marker, name: &str, points: Vec<(f64, f64)>) -> PlotLine {
        PlotLine { marker, name: name.to_owned(), points, whiskers: Vec::new() }
    }
}

pub(crate) fn draw_lines(description: &str, x: Axis, y: Axis, lines: &[PlotLine]) -> Markup {
    let lines: Vec<&PlotLine> = lines.iter().filter(|line| !line.points.is_empty()).collect();
    let names = label::max_text_width(lines.iter().map(|line| &line.name)).min(NAMES_PX_MAX);
    let names = names + LEAD_PX + 14.0;
    let height = HEIGHT_MIN.max(numbers::to_f64(numbers::to_u64(lines.len())) * LINE_PX + 70.0);
    let frame =
        Frame::new(x, y, Rectangle { left: 0.0, top: 0.0, right: WIDTH - names, bottom: height });
    let plane = frame.plane();
    let ends: Vec<(f64, f64)> = lines
        .iter()
        .map(|line| line.points.last().map_or((0.0, 0.0), |&(x, y)| frame.point_position(x, y)))
        .collect();
    let desired: Vec<f64> = ends.iter().map(|end| end.1).collect();
    // Names may extend beyond the plot area by half of their height, but not beyond the image.
    let top = (plane.top - LINE_PX / 2.0).max(LINE_PX / 2.0 + 1.0);
    let heights = label::spread_heights(&desired, top, plane.bottom + LINE_PX / 2.0);
    let right = plane.right + LEAD_PX;
    let content = html! {
        (frame.draw())
        @for ((line, end), height) in lines.iter().zip(&ends).zip(&heights) {
            @let d = svg_path(line.points.iter().map(|&(x, y)| frame.point_position(x, y)), false);
            g class="series" data-name=(line.name) {
                path class=(format!("mark line {}", line.marker.color_class())) d=(d) {
                    title { (line.name) }
                }
                @for &(x, low, high) in &line.whiskers {
                    @let (from, to) = (frame.point_position(x, low), frame.point_position(x, high));
                    line class=(format!("line whisker {}", line.marker.color_class())) x1=(Px(from.0))
                        x2=(Px(to.0)) y1=(Px(from.1)) y2=(Px(to.1)) {}
                }
                @for (index, &(x, y)) in line.points.iter().enumerate() {
                    @if line.points.len() <= MARKED_POINTS_MAX || index + 1 == line.points.len() {
                        @let (at_x, at_y) = frame.format_point(x, y);
                        @let title = format!("{}: {at_y} at {at_x}", line.name);
                        (line.marker.draw(frame.point_position(x, y), 36.0, "", &title))
                    }
                }
                line class="leader" x1=(Px(end.0 + 5.0)) y1=(Px(end.1)) x2=(Px(right - 3.0))
                    y2=(Px(*height)) {}
                (line.marker.draw((right + 3.0, *height), 36.0, "key", ""))
                (label::draw_label(&line.name, NAMES_PX_MAX, (right + 11.0, height + FONT_PX * 0.35)))
            }
        }
    };
    render_svg(WIDTH, height, description, &content)
}
