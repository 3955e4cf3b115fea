//! Places the names of series in a plot so that the names overlap neither each other nor a marker.

use maud::{Markup, html};

use super::Px;
use crate::numbers;

/// Font size of tick labels and names, in px.
pub(crate) const FONT_PX: f64 = 12.0;
/// Line height in px.
pub(crate) const LINE_PX: f64 = 15.0;

/// Space around a name, in px.
const GAP: f64 = 2.0;
/// Maximum distance in px between a name and its marker without a connecting line.
const NEAR: f64 = 14.0;
/// Number of free positions that are tried before a name may cover a line of the plot.
const NEARBY: usize = 100;
/// Number of directions around a marker in which positions for its name are tried.
const DIRECTIONS: u64 = 24;

/// Returns an upper estimate of the width of a text in px. The font of the browser is unknown, so the estimate uses the
/// widths of a wide font, DejaVu Sans.
pub(crate) fn text_width(text: &str) -> f64 {
    let em: f64 = text
        .chars()
        .map(|letter| match letter {
            'i' | 'j' | 'l' | '\'' => 0.28,
            ' ' | '.' | ',' | ':' | ';' | '|' | '!' => 0.33,
            'f' | 't' | 'r' | '(' | ')' | '-' | '/' | '[' | ']' => 0.41,
            'm' | 'M' | 'W' | '@' | '%' => 1.0,
            'w' | '+' | '=' | '<' | '>' | '×' | '−' => 0.84,
            'A'..='Z' => 0.72,
            '\u{0}'..='\u{24f}' | 'α'..='ω' => 0.64,
            _ => 1.0,
        })
        .sum();
    em * FONT_PX
}

/// Returns the width of the widest text in px.
pub(crate) fn max_text_width(texts: impl Iterator<Item = impl AsRef<str>>) -> f64 {
    texts.map(|text| text_width(text.as_ref())).fold(0.0, f64::max)
}

/// Draws a name with the left end of the baseline at `(x, y)`. A name wider than `room` px is truncated and has a
/// tooltip.
pub(crate) fn draw_label(name: &str, room: f64, (x, y): (f64, f64)) -> Markup {
    html! {
        text class="name" x=(Px(x)) y=(Px(y)) {
            (truncate_text(name, room))
            @if text_width(name) > room { title { (name) } }
        }
    }
}

/// Returns the text if it fits into `room` px. Otherwise replaces the end of the text by an ellipsis.
fn truncate_text(text: &str, room: f64) -> String {
    if text_width(text) <= room {
        return text.to_owned();
    }
    let mut short = text.to_owned();
    while !short.is_empty() && text_width(&short) + FONT_PX > room {
        short.pop();
    }
    format!("{short}…")
}

/// A rectangle with coordinates in px.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rectangle {
    pub(crate) left: f64,
    pub(crate) top: f64,
    pub(crate) right: f64,
    pub(crate) bottom: f64,
}

impl Rectangle {
    /// Returns a square with center `(x, y)` and a side length of 2 × `reach`.
    pub(crate) fn square_around((x, y): (f64, f64), reach: f64) -> Rectangle {
        Rectangle { left: x - reach, top: y - reach, right: x + reach, bottom: y + reach }
    }

    fn overlaps(&self, other: &Rectangle) -> bool {
        self.left < other.right
            && other.left < self.right
            && self.top < other.bottom
            && other.top < self.bottom
    }

    fn contains(&self, other: &Rectangle) -> bool {
        self.left <= other.left
            && self.top <= other.top
            && self.right >= other.right
            && self.bottom >= other.bottom
    }

    /// Returns the point in this rectangle that is nearest to the given point.
    fn nearest_point(&self, (x, y): (f64, f64)) -> (f64, f64) {
        (x.clamp(self.left, self.right), y.clamp(self.top, self.bottom))
    }

    /// Returns whether the line between two points crosses this rectangle.
    fn is_crossed(&self, from: (f64, f64), to: (f64, f64)) -> bool {
        // Checking a point every 2 px is enough, because all names are larger than 2 px.
        let steps = numbers::floor_to_u64((from.0 - to.0).hypot(from.1 - to.1) / 2.0) + 1;
        (0..=steps).any(|step| {
            let share = numbers::ratio(step, steps);
            let (x, y) = (from.0 + (to.0 - from.0) * share, from.1 + (to.1 - from.1) * share);
            x > self.left && x < self.right && y > self.top && y < self.bottom
        })
    }
}

/// Position of a name in a plot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PlacedName {
    pub(crate) area: Rectangle,
    /// Connecting line from the marker to its name. `None` if the name is close to the marker.
    pub(crate) leader: Option<[(f64, f64); 2]>,
}

impl PlacedName {
    /// Returns the left end of the baseline of the text.
    pub(crate) fn baseline_start(&self) -> (f64, f64) {
        (self.area.left + GAP, self.area.bottom - GAP - FONT_PX * 0.22)
    }
}

/// A marker whose name has to be placed.
#[derive(Clone, Debug)]
pub(crate) struct NamedMarker<'a> {
    pub(crate) at: (f64, f64),
    /// Half of the width of the marker, in px.
    pub(crate) reach: f64,
    pub(crate) name: &'a str,
}

/// Finds a position in `room` for each name, if possible near its marker and away from `lines`. Returns `None` for a
/// name if there is no space.
///
/// Names with more neighbours are placed earlier, because fewer free positions exist for these names.
pub(crate) fn place_names(
    room: Rectangle,
    named: &[NamedMarker<'_>],
    lines: &[[(f64, f64); 2]],
) -> Vec<Option<PlacedName>> {
    let markers: Vec<Rectangle> =
        named.iter().map(|it| Rectangle::square_around(it.at, it.reach + 1.0)).collect();
    let mut order: Vec<usize> = (0..named.len()).collect();
    let crowd = |index: usize| {
        let around = Rectangle::square_around(named[index].at, 60.0);
        markers.iter().filter(|marker| marker.overlaps(&around)).count()
    };
    order.sort_by_key(|&index| std::cmp::Reverse(crowd(index)));
    let mut placed: Vec<Option<PlacedName>> = vec![None; named.len()];
    for index in order {
        let others = || placed.iter().flatten();
        let free = |candidate: &PlacedName| {
            room.contains(&candidate.area)
                && !markers.iter().any(|marker| marker.overlaps(&candidate.area))
                && !others().any(|other| other.area.overlaps(&candidate.area))
        };
        let untangled = |candidate: &PlacedName| {
            let crosses = |leader: Option<[(f64, f64); 2]>, area: &Rectangle| {
                leader.is_some_and(|[from, to]| area.is_crossed(from, to))
            };
            !others().any(|other| {
                crosses(other.leader, &candidate.area) || crosses(candidate.leader, &other.area)
            })
        };
        let off_lines = |candidate: &PlacedName| {
            !lines.iter().any(|&[from, to]| candidate.area.is_crossed(from, to))
        };
        let all = || candidate_positions(&named[index], room).filter(free);
        let found = all()
            .take(NEARBY)
            .find(|it| untangled(it) && off_lines(it))
            .or_else(|| all().find(untangled))
            .or_else(|| all().next());
        placed[index] = found;
    }
    placed
}

/// Returns positions around a marker, ordered by their distance from the marker, then by their angle to the x axis.
fn candidate_positions(
    named: &NamedMarker<'_>,
    room: Rectangle,
) -> impl Iterator<Item = PlacedName> {
    let (width, height) = (text_width(named.name) + 2.0 * GAP, LINE_PX);
    let (at, reach) = (named.at, named.reach);
    let farthest = (room.right - room.left).hypot(room.bottom - room.top);
    let distances = (0..).map(|step: u32| f64::from(step) * 6.0).take_while(move |&d| d < farthest);
    distances.flat_map(move |distance| {
        (0..DIRECTIONS).map(move |turn| {
            // The angles are 0, 1, -1, 2, -2, … times 360° ÷ `DIRECTIONS`.
            let steps = numbers::to_f64(turn.div_ceil(2));
            let sign = if turn % 2 == 0 { -1.0 } else { 1.0 };
            let angle = sign * steps * std::f64::consts::TAU / numbers::to_f64(DIRECTIONS);
            let (away_x, away_y) = (libm::cos(angle), libm::sin(angle));
            // `(x, y)` is the center of the name. `distance` is the gap between the edge of the name and the edge of
            // the marker.
            let x = at.0 + away_x * (reach + distance + width / 2.0 + 2.0);
            let y = at.1 + away_y * (reach + distance + height / 2.0 + 1.0);
            let area = Rectangle {
                left: x - width / 2.0,
                top: y - height / 2.0,
                right: x + width / 2.0,
                bottom: y + height / 2.0,
            };
            let near = area.nearest_point(at);
            let gap = (near.0 - at.0).hypot(near.1 - at.1);
            let leader = (gap > reach + NEAR).then(|| {
                let share = reach / gap;
                let from = (at.0 + (near.0 - at.0) * share, at.1 + (near.1 - at.1) * share);
                [from, near]
            });
            PlacedName { area, leader }
        })
    })
}

/// Returns vertical positions of names, near the desired positions and at least [`LINE_PX`] apart. All positions are in
/// `top..=bottom` if there is enough space.
pub(crate) fn spread_heights(desired: &[f64], top: f64, bottom: f64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..desired.len()).collect();
    order.sort_by(|&a, &b| desired[a].total_cmp(&desired[b]));
    // Names that would overlap are grouped into a block. The center of a block is the mean of the desired positions of
    // its names.
    let mut blocks: Vec<(f64, Vec<usize>)> = Vec::new();
    for &index in &order {
        let mut block = (desired[index], vec![index]);
        loop {
            let half = |members: &Vec<usize>| group_height(members) * LINE_PX / 2.0;
            let extent = half(&block.1);
            block.0 =
                block.0.min(bottom - extent + LINE_PX / 2.0).max(top + extent - LINE_PX / 2.0);
            match blocks.last() {
                Some((middle, members)) if middle + half(members) > block.0 - extent => {
                    let mut members = members.clone();
                    members.extend(&block.1);
                    let sum: f64 = members.iter().map(|&member| desired[member]).sum();
                    block = (sum / group_height(&members), members);
                    blocks.pop();
                }
                _ => break,
            }
        }
        blocks.push(block);
    }
    let mut heights = vec![0.0; desired.len()];
    for (middle, members) in &blocks {
        let first = middle - (group_height(members) - 1.0) * LINE_PX / 2.0;
        for (line, &member) in (0_u32..).zip(members) {
            heights[member] = first + f64::from(line) * LINE_PX;
        }
    }
    heights
}

fn group_height(members: &[usize]) -> f64 {
    numbers::to_f64(numbers::to_u64(members.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: Rectangle = Rectangle { left: 0.0, top: 0.0, right: 600.0, bottom: 400.0 };

    #[test]
    fn place_eighteen_close_names_do_not_overlap() {
        let names: Vec<String> = (0..18).map(|n| format!("policy-number-{n}")).collect();
        let named: Vec<NamedMarker<'_>> = names
            .iter()
            .zip(0_u32..)
            .map(|(name, n)| {
                let at = (300.0 + f64::from(n % 4) * 5.0, 200.0 + f64::from(n / 4) * 5.0);
                NamedMarker { at, reach: 6.0, name }
            })
            .collect();
        let placed: Vec<PlacedName> =
            place_names(ROOM, &named, &[]).into_iter().map(Option::unwrap).collect();
        for (index, one) in placed.iter().enumerate() {
            assert!(ROOM.contains(&one.area), "{one:?}");
            assert!(
                named
                    .iter()
                    .all(|it| !Rectangle::square_around(it.at, it.reach).overlaps(&one.area))
            );
            for other in &placed[index + 1..] {
                assert!(!one.area.overlaps(&other.area), "{one:?} {other:?}");
            }
        }
        assert!(placed.iter().any(|one| one.leader.is_some()));
        assert!(placed.iter().any(|one| one.leader.is_none()));
    }

    #[test]
    fn place_name_without_space_is_none() {
        let narrow = Rectangle { right: 20.0, ..ROOM };
        let named = [NamedMarker { at: (10.0, 10.0), reach: 4.0, name: "lazy-leveling" }];
        assert_eq!(place_names(narrow, &named, &[]), [None]);
    }

    #[test]
    fn spread_heights_keep_order_and_distance() {
        let desired = [100.0, 101.0, 99.0, 5.0, 5.0, 390.0, 395.0, 200.0];
        let heights = spread_heights(&desired, 0.0, 395.0);
        let mut order: Vec<usize> = (0..desired.len()).collect();
        order.sort_by(|&a, &b| desired[a].total_cmp(&desired[b]));
        for pair in order.windows(2) {
            assert!(heights[pair[1]] - heights[pair[0]] >= LINE_PX - 1e-9, "{heights:?}");
        }
        assert!(heights.iter().all(|&height| (0.0..=395.0).contains(&height)), "{heights:?}");
        assert!((heights[7] - 200.0).abs() < 1e-9, "a name without neighbours keeps its height");
    }

    #[test]
    fn fitted_wide_text_is_cut() {
        assert_eq!(truncate_text("tiering", 100.0), "tiering");
        let cut = truncate_text("tiering(T=10,trigger=4,stop=20)", 100.0);
        assert!(
            cut.starts_with("tiering(") && cut.ends_with('…') && text_width(&cut) <= 100.0,
            "{cut}"
        );
    }
}
