//! Names in a plot, where they cover neither each other nor a marker.

use crate::numbers;

/// Height of the letters of tick labels and names, in px.
pub(crate) const FONT_PX: f64 = 12.0;
/// From line to line.
pub(crate) const LINE_PX: f64 = 15.0;

/// Room around a name.
const GAP: f64 = 2.0;
/// How far from its marker a name may stand before a line must lead to it.
const NEAR: f64 = 14.0;
/// Free places that are tried before a name may stand on a line.
const NEARBY: usize = 100;
/// Directions in which a place is looked for.
const DIRECTIONS: u64 = 24;

/// How wide a text is at most, in px. Which font a reader has is not known: counted with the widths
/// of DejaVu Sans, which is wider than the usual ones.
pub(crate) fn width(text: &str) -> f64 {
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

/// The longest of these texts that fits into `room` px, cut with an ellipsis where it must be.
pub(crate) fn fitted(text: &str, room: f64) -> String {
    if width(text) <= room {
        return text.to_owned();
    }
    let mut short = text.to_owned();
    while !short.is_empty() && width(&short) + FONT_PX > room {
        short.pop();
    }
    format!("{short}…")
}

/// A rectangle by its corners.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Area {
    pub(crate) left: f64,
    pub(crate) top: f64,
    pub(crate) right: f64,
    pub(crate) bottom: f64,
}

impl Area {
    /// The square around a place that reaches so far.
    pub(crate) fn around((x, y): (f64, f64), reach: f64) -> Area {
        Area { left: x - reach, top: y - reach, right: x + reach, bottom: y + reach }
    }

    fn meets(&self, other: &Area) -> bool {
        self.left < other.right
            && other.left < self.right
            && self.top < other.bottom
            && other.top < self.bottom
    }

    fn holds(&self, other: &Area) -> bool {
        self.left <= other.left
            && self.top <= other.top
            && self.right >= other.right
            && self.bottom >= other.bottom
    }

    /// The place in here that is nearest to another.
    fn nearest(&self, (x, y): (f64, f64)) -> (f64, f64) {
        (x.clamp(self.left, self.right), y.clamp(self.top, self.bottom))
    }

    /// Whether the line between two places comes through here.
    fn is_crossed(&self, from: (f64, f64), to: (f64, f64)) -> bool {
        // Looked at every two px or so: names are larger than that.
        let steps = numbers::floor((from.0 - to.0).hypot(from.1 - to.1) / 2.0) + 1;
        (0..=steps).any(|step| {
            let share = numbers::ratio(step, steps);
            let (x, y) = (from.0 + (to.0 - from.0) * share, from.1 + (to.1 - from.1) * share);
            x > self.left && x < self.right && y > self.top && y < self.bottom
        })
    }
}

/// A name beside its marker.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Placed {
    /// What the text covers.
    pub(crate) area: Area,
    /// A line from the marker, where the name does not stand beside it.
    pub(crate) leader: Option<[(f64, f64); 2]>,
}

impl Placed {
    /// Where the text begins on its base line.
    pub(crate) fn base(&self) -> (f64, f64) {
        (self.area.left + GAP, self.area.bottom - GAP - FONT_PX * 0.22)
    }
}

/// A marker, how far it reaches, and its name.
#[derive(Clone, Debug)]
pub(crate) struct Named<'a> {
    pub(crate) at: (f64, f64),
    pub(crate) reach: f64,
    pub(crate) name: &'a str,
}

/// Places for names inside `room`, each as near to its marker as the others leave it. A name for
/// which there is no room at all has none. Names keep off `lines` where they can.
///
/// One after the other, beginning with those that have the most neighbours: whoever has room around
/// finds a place in the end.
pub(crate) fn place(
    room: Area,
    named: &[Named<'_>],
    lines: &[[(f64, f64); 2]],
) -> Vec<Option<Placed>> {
    let markers: Vec<Area> = named.iter().map(|it| Area::around(it.at, it.reach + 1.0)).collect();
    let mut order: Vec<usize> = (0..named.len()).collect();
    let crowd = |index: usize| {
        let around = Area::around(named[index].at, 60.0);
        markers.iter().filter(|marker| marker.meets(&around)).count()
    };
    order.sort_by_key(|&index| std::cmp::Reverse(crowd(index)));
    let mut placed: Vec<Option<Placed>> = vec![None; named.len()];
    for index in order {
        let others = || placed.iter().flatten();
        let free = |candidate: &Placed| {
            room.holds(&candidate.area)
                && !markers.iter().any(|marker| marker.meets(&candidate.area))
                && !others().any(|other| other.area.meets(&candidate.area))
        };
        let untangled = |candidate: &Placed| {
            let crosses = |leader: Option<[(f64, f64); 2]>, area: &Area| {
                leader.is_some_and(|[from, to]| area.is_crossed(from, to))
            };
            !others().any(|other| {
                crosses(other.leader, &candidate.area) || crosses(candidate.leader, &other.area)
            })
        };
        let off_lines = |candidate: &Placed| {
            !lines.iter().any(|&[from, to]| candidate.area.is_crossed(from, to))
        };
        let all = || candidates(&named[index], room).filter(free);
        let found = all()
            .take(NEARBY)
            .find(|it| untangled(it) && off_lines(it))
            .or_else(|| all().find(untangled))
            .or_else(|| all().next());
        placed[index] = found;
    }
    placed
}

/// Places around a marker, the nearest first; to the right before to the left.
fn candidates(named: &Named<'_>, room: Area) -> impl Iterator<Item = Placed> {
    let (width, height) = (width(named.name) + 2.0 * GAP, LINE_PX);
    let (at, reach) = (named.at, named.reach);
    let farthest = (room.right - room.left).hypot(room.bottom - room.top);
    let distances = (0..).map(|step: u32| f64::from(step) * 6.0).take_while(move |&d| d < farthest);
    distances.flat_map(move |distance| {
        (0..DIRECTIONS).map(move |turn| {
            // 0, 1, -1, 2, -2, … steps away from the right.
            let steps = numbers::float(turn.div_ceil(2));
            let sign = if turn % 2 == 0 { -1.0 } else { 1.0 };
            let angle = sign * steps * std::f64::consts::TAU / numbers::float(DIRECTIONS);
            let (away_x, away_y) = (libm::cos(angle), libm::sin(angle));
            // The name's middle, so that its edge keeps the distance.
            let x = at.0 + away_x * (reach + distance + width / 2.0 + 2.0);
            let y = at.1 + away_y * (reach + distance + height / 2.0 + 1.0);
            let area = Area {
                left: x - width / 2.0,
                top: y - height / 2.0,
                right: x + width / 2.0,
                bottom: y + height / 2.0,
            };
            let near = area.nearest(at);
            let gap = (near.0 - at.0).hypot(near.1 - at.1);
            let leader = (gap > reach + NEAR).then(|| {
                let share = reach / gap;
                let from = (at.0 + (near.0 - at.0) * share, at.1 + (near.1 - at.1) * share);
                [from, near]
            });
            Placed { area, leader }
        })
    })
}

/// Heights for names at the ends of lines: each at least [`LINE_PX`] from the next, inside
/// `top..=bottom` if there is room for all, and as near to what was wished as may be.
pub(crate) fn spread(wished: &[f64], top: f64, bottom: f64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..wished.len()).collect();
    order.sort_by(|&a, &b| wished[a].total_cmp(&wished[b]));
    // Names that would touch form a block, which stands around the middle of their wishes.
    let mut blocks: Vec<(f64, Vec<usize>)> = Vec::new();
    for &index in &order {
        let mut block = (wished[index], vec![index]);
        loop {
            let half = |members: &Vec<usize>| length(members) * LINE_PX / 2.0;
            let extent = half(&block.1);
            block.0 =
                block.0.min(bottom - extent + LINE_PX / 2.0).max(top + extent - LINE_PX / 2.0);
            match blocks.last() {
                Some((middle, members)) if middle + half(members) > block.0 - extent => {
                    let mut members = members.clone();
                    members.extend(&block.1);
                    let sum: f64 = members.iter().map(|&member| wished[member]).sum();
                    block = (sum / length(&members), members);
                    blocks.pop();
                }
                _ => break,
            }
        }
        blocks.push(block);
    }
    let mut heights = vec![0.0; wished.len()];
    for (middle, members) in &blocks {
        let first = middle - (length(members) - 1.0) * LINE_PX / 2.0;
        for (line, &member) in (0_u32..).zip(members) {
            heights[member] = first + f64::from(line) * LINE_PX;
        }
    }
    heights
}

fn length(members: &[usize]) -> f64 {
    numbers::float(numbers::count(members.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: Area = Area { left: 0.0, top: 0.0, right: 600.0, bottom: 400.0 };

    #[test]
    fn eighteen_names_in_a_heap_find_room() {
        let names: Vec<String> = (0..18).map(|n| format!("policy-number-{n}")).collect();
        let named: Vec<Named<'_>> = names
            .iter()
            .zip(0_u32..)
            .map(|(name, n)| {
                let at = (300.0 + f64::from(n % 4) * 5.0, 200.0 + f64::from(n / 4) * 5.0);
                Named { at, reach: 6.0, name }
            })
            .collect();
        let placed: Vec<Placed> =
            place(ROOM, &named, &[]).into_iter().map(Option::unwrap).collect();
        for (index, one) in placed.iter().enumerate() {
            assert!(ROOM.holds(&one.area), "{one:?}");
            assert!(named.iter().all(|it| !Area::around(it.at, it.reach).meets(&one.area)));
            for other in &placed[index + 1..] {
                assert!(!one.area.meets(&other.area), "{one:?} {other:?}");
            }
        }
        assert!(placed.iter().any(|one| one.leader.is_some()));
        assert!(placed.iter().any(|one| one.leader.is_none()));
    }

    #[test]
    fn a_name_without_room_is_left_out() {
        let narrow = Area { right: 20.0, ..ROOM };
        let named = [Named { at: (10.0, 10.0), reach: 4.0, name: "lazy-leveling" }];
        assert_eq!(place(narrow, &named, &[]), [None]);
    }

    #[test]
    fn names_at_line_ends_keep_their_distance_and_their_order() {
        let wished = [100.0, 101.0, 99.0, 5.0, 5.0, 390.0, 395.0, 200.0];
        let heights = spread(&wished, 0.0, 395.0);
        let mut order: Vec<usize> = (0..wished.len()).collect();
        order.sort_by(|&a, &b| wished[a].total_cmp(&wished[b]));
        for pair in order.windows(2) {
            assert!(heights[pair[1]] - heights[pair[0]] >= LINE_PX - 1e-9, "{heights:?}");
        }
        assert!(heights.iter().all(|&height| (0.0..=395.0).contains(&height)), "{heights:?}");
        assert!((heights[7] - 200.0).abs() < 1e-9, "who has room stays");
    }

    #[test]
    fn what_is_too_wide_is_cut() {
        assert_eq!(fitted("tiering", 100.0), "tiering");
        let cut = fitted("tiering(T=10,trigger=4,stop=20)", 100.0);
        assert!(cut.starts_with("tiering(") && cut.ends_with('…') && width(&cut) <= 100.0, "{cut}");
    }
}
