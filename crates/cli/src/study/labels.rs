//! The places of labels in a plot, beside the named points and without overlaps.

use std::ops::Range;

/// A place in pixels, from the left and from the top.
pub(super) type Pixel = (i32, i32);

/// The distances between a mark and its label that are tried, in pixels, nearest first.
const DISTANCES: [i32; 3] = [7, 12, 18];
/// The directions from a mark that are tried, best first.
const DIRECTIONS: [Pixel; 8] = [(0, -1), (0, 1), (1, -1), (-1, 1), (1, 1), (-1, -1), (1, 0), (-1, 0)];

#[derive(Clone, Copy)]
struct Place {
    at: Pixel,
    size: Pixel,
}

impl Place {
    fn overlaps(&self, other: &Self) -> bool {
        let apart = |a: i32, length: i32, b: i32, other: i32| a + length <= b || b + other <= a;
        !apart(self.at.0, self.size.0, other.at.0, other.size.0)
            && !apart(self.at.1, self.size.1, other.at.1, other.size.1)
    }

    fn holds(&self, (x, y): Pixel) -> bool {
        (self.at.0..self.at.0 + self.size.0).contains(&x) && (self.at.1..self.at.1 + self.size.1).contains(&y)
    }
}

/// The marks, lines and labels already drawn in a part of the picture.
pub(super) struct Labels {
    within: (Range<i32>, Range<i32>),
    taken: Vec<Place>,
    ink: Vec<Pixel>,
}

impl Labels {
    /// Makes an empty set within these pixels.
    pub(super) fn new(within: (Range<i32>, Range<i32>)) -> Self {
        Self { within, taken: Vec::new(), ink: Vec::new() }
    }

    /// Adds a mark with `radius` pixels to each side, which no label may cover.
    pub(super) fn add_mark(&mut self, (x, y): Pixel, radius: i32) {
        self.taken.push(Place { at: (x - radius, y - radius), size: (2 * radius, 2 * radius) });
    }

    /// Adds a line, which labels avoid if possible.
    pub(super) fn add_line(&mut self, from: Pixel, to: Pixel) {
        const EVERY: i32 = 3;
        let (dx, dy) = (to.0 - from.0, to.1 - from.1);
        let steps = (dx.abs().max(dy.abs()) / EVERY).max(1);
        self.ink.extend((0..=steps).map(|step| (from.0 + dx * step / steps, from.1 + dy * step / steps)));
    }

    /// Returns the middle of a place for a label of this size beside a mark, and reserves it; `None` if every place
    /// would cover another mark or label.
    pub(super) fn place(&mut self, (x, y): Pixel, size: Pixel) -> Option<Pixel> {
        let mut best: Option<(usize, Place)> = None;
        for distance in DISTANCES {
            for (right, down) in DIRECTIONS {
                let middle = (x + right * (distance + size.0 / 2), y + down * (distance + size.1 / 2));
                let place = Place { at: (middle.0 - size.0 / 2, middle.1 - size.1 / 2), size };
                let inside = self.within.0.contains(&place.at.0)
                    && self.within.0.contains(&(place.at.0 + size.0))
                    && self.within.1.contains(&place.at.1)
                    && self.within.1.contains(&(place.at.1 + size.1));
                if !inside || self.taken.iter().any(|taken| taken.overlaps(&place)) {
                    continue;
                }
                let crossed = self.ink.iter().filter(|pixel| place.holds(**pixel)).count();
                if best.as_ref().is_none_or(|(least, _)| crossed < *least) {
                    best = Some((crossed, place));
                }
            }
        }
        let (_, place) = best?;
        self.taken.push(place);
        Some((place.at.0 + size.0 / 2, place.at.1 + size.1 / 2))
    }
}

/// Returns places on an axis, moved apart as little as possible, so that each has `room` within the range. The order
/// stays the same.
pub(super) fn spread(places: &[i32], room: i32, within: Range<i32>) -> Vec<i32> {
    let mut order: Vec<usize> = (0..places.len()).collect();
    order.sort_by_key(|index| places[*index]);
    let mut out = places.to_vec();
    let mut next = within.start;
    for index in &order {
        out[*index] = out[*index].max(next);
        next = out[*index] + room;
    }
    let mut last = within.end;
    for index in order.iter().rev() {
        out[*index] = out[*index].min(last);
        last = out[*index] - room;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_cover_neither_marks_nor_labels() {
        let mut labels = Labels::new((0..200, 0..200));
        let marks = [(100, 100), (104, 100), (100, 106), (110, 98)];
        marks.iter().for_each(|mark| labels.add_mark(*mark, 4));
        let size = (14, 10);
        let placed: Vec<_> = marks.iter().filter_map(|mark| labels.place(*mark, size)).collect();
        assert_eq!(placed.len(), marks.len());
        for (index, place) in labels.taken.iter().enumerate() {
            // The marks may overlap each other.
            let others = labels.taken[index + 1..].iter().filter(|other| index >= marks.len() || other.size == size);
            assert!(others.into_iter().all(|other| !place.overlaps(other)), "{index}: {placed:?}");
        }
    }

    #[test]
    fn a_label_without_a_place_is_left_out() {
        let mut labels = Labels::new((0..30, 0..30));
        labels.add_mark((15, 15), 15);
        assert_eq!(labels.place((15, 15), (10, 10)), None);
    }

    #[test]
    fn labels_stand_off_the_line_where_there_is_room() {
        let mut labels = Labels::new((0..200, 0..200));
        labels.add_line((100, 0), (100, 200));
        let (x, _) = labels.place((100, 100), (14, 10)).unwrap_or_default();
        assert!((x - 100).abs() > 7, "{x}");
    }

    #[test]
    fn names_at_the_edge_are_spread() {
        assert_eq!(spread(&[50, 52, 10], 14, 0..100), [50, 64, 10]);
        assert_eq!(spread(&[98, 99, 100], 14, 0..100), [72, 86, 100]);
        assert_eq!(spread(&[], 14, 0..100), [0; 0]);
    }
}
