//! Amounts on top of each other over a common axis: one plane for bytes, a lower one for counts.

use maud::{Markup, Render, html};

use super::frame::{Axis, Frame};
use super::label::Area;
use super::{Px, svg};

const WIDTH: f64 = 400.0;
const HEIGHT: f64 = 290.0;
/// Where the lower plane begins.
const LOWER_PX: f64 = 170.0;

/// What is stacked: at each place of the axis an amount for every layer.
#[derive(Clone, Debug)]
pub(crate) struct Layers {
    /// Classes and names of the layers, from the bottom.
    pub(crate) names: Vec<(String, String)>,
    /// Amounts by layer, from places on the axis on until the next.
    pub(crate) steps: Vec<(f64, Vec<f64>)>,
}

/// Two planes, one below the other, over one axis that both share.
pub(crate) fn draw(says: &str, x: &Axis, upper: (Axis, &Layers), lower: (Axis, &Layers)) -> Markup {
    // The upper one shows no title of the axis below it.
    let silent = Axis { title: String::new(), ..x.clone() };
    // Both begin at the same place, whatever room their tick labels take.
    let widest = upper.0.tick_width().max(lower.0.tick_width());
    let left = |axis: &Axis| widest - axis.tick_width();
    let above = Area { left: left(&upper.0), top: 0.0, right: WIDTH, bottom: LOWER_PX };
    let below = Area { left: left(&lower.0), top: LOWER_PX, right: WIDTH, bottom: HEIGHT };
    let planes = [(silent, upper, above), (x.clone(), lower, below)];
    let content = html! {
        @for (x, (y, layers), area) in planes {
            @let frame = Frame::new(x, y, area);
            (frame.draw())
            @for (index, (class, name)) in layers.names.iter().enumerate() {
                @if let Some(d) = layer(&frame, &layers.steps, index) {
                    path class=(format!("mark area {class}")) d=(d) { title { (name) } }
                }
            }
        }
    };
    svg(WIDTH, HEIGHT, says, &content)
}

/// The outline of a layer; none where it is empty all along.
fn layer(frame: &Frame, steps: &[(f64, Vec<f64>)], index: usize) -> Option<String> {
    if steps.iter().all(|(_, amounts)| amounts[index] <= 0.0) {
        return None;
    }
    // Down from one amount to the next just where it changes.
    let stairs = |layers: usize| -> Vec<(f64, f64)> {
        let mut line: Vec<(f64, f64)> = Vec::new();
        for (x, amounts) in steps {
            let at = frame.place(*x, amounts[..layers].iter().sum());
            if let Some(&(_, height)) = line.last() {
                line.push((at.0, height));
            }
            line.push(at);
        }
        line
    };
    let mut outline = stairs(index + 1);
    outline.extend(stairs(index).into_iter().rev());
    Some(right_angled(&outline))
}

/// A closed path of lines along the axes, without places that change nothing.
fn right_angled(points: &[(f64, f64)]) -> String {
    let places: Vec<(String, String)> =
        points.iter().map(|&(x, y)| (Px(x).render().0, Px(y).render().0)).collect();
    let mut d = String::new();
    let mut at: Option<&(String, String)> = None;
    for place in &places {
        match at {
            None => d.push_str(&format!("M{} {}", place.0, place.1)),
            Some(last) => {
                if last.0 != place.0 {
                    d.push_str(&format!("H{}", place.0));
                }
                if last.1 != place.1 {
                    d.push_str(&format!("V{}", place.1));
                }
            }
        }
        at = Some(place);
    }
    d.push('Z');
    d
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outlines_are_stairs() {
        let corners =
            [(0.0, 9.0), (5.0, 9.0), (5.0, 9.02), (5.0, 4.0), (8.0, 4.0), (8.0, 10.0), (0.0, 10.0)];
        assert_eq!(right_angled(&corners), "M0 9H5V4H8V10H0Z");
    }
}
