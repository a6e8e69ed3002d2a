//! Axes of plots: the places of values, and the values with labels.

use crate::output::grouped;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use std::ops::Range;

/// The multiples of each power of ten at which an axis is labelled.
const STEPS: [f64; 3] = [1.0, 2.0, 5.0];
/// The place on a logarithmic axis at which smaller values are drawn, since such an axis has no zero.
const LEAST: f64 = 0.01;
/// The least unused part of memory on an axis. A utilization above 99.99% is drawn at this value.
const LEAST_UNUSED: f64 = 1e-4;
/// The approximate number of labels of an axis of counts.
const COUNTS: f64 = 5.0;

/// The end of an axis as a multiple of the largest value of a measure.
const MARGIN: f64 = 1.04;

#[derive(Clone, Copy)]
enum Scale {
    /// The value itself determines the place.
    Linear,
    /// The logarithm of the value determines the place.
    Log,
    /// The logarithm of the difference to 1 determines the place, so that 99.9% is as far from 99% as 99% from 90%.
    Used,
}

/// An axis: the places of values, and the values with labels.
#[derive(Clone)]
pub(crate) struct Axis {
    /// The quantity and its unit.
    pub(crate) name: String,
    range: Range<f64>,
    /// Values with labels, in order.
    ticks: Vec<(f64, String)>,
    scale: Scale,
}

impl Axis {
    /// Makes a logarithmic axis over these values.
    pub(crate) fn log(name: &str, values: impl Iterator<Item = f64>) -> Self {
        let ticks = around(values.map(|value| value.max(LEAST)));
        Self::over(name, Scale::Log, ticks, |value| format!("{value}"))
    }

    /// Makes an axis of utilizations, whose places follow from the unused part of memory.
    pub(crate) fn used(name: &str, values: impl Iterator<Item = f64>) -> Self {
        let mut ticks = around(values.map(|value| (1.0 - value).max(LEAST_UNUSED)));
        ticks.reverse();
        // The label has as many digits as the unused part needs: 99.98%, 99.5%, 98%.
        let name_of = |used: f64| {
            let digits = (-((1.0 - used) * 100.0 * (1.0 + 1e-9)).log10().floor()).max(0.0);
            format!("{:.*}%", digits as usize, used * 100.0)
        };
        Self::over(name, Scale::Used, ticks.into_iter().map(|unused| 1.0 - unused).collect(), name_of)
    }

    /// Makes an axis of counts from 0 on.
    pub(crate) fn counts(name: &str, most: u64) -> Self {
        let step = around([most as f64 / COUNTS].into_iter()).last().copied().unwrap_or(1.0).max(1.0);
        let last = (most as f64 / step).ceil().max(1.0);
        let ticks = (0..=last as u32).map(|index| f64::from(index) * step).collect();
        let mut axis = Self::over(name, Scale::Linear, ticks, |count| format!("{count}"));
        // The range leaves room for the label above the highest bar.
        axis.range.end += step / 2.0;
        axis
    }

    /// Makes an axis of a measure from 0 to a little above `most`, with labels at round values.
    pub(crate) fn measure(name: &str, most: f64) -> Self {
        let step = around([most / COUNTS].into_iter()).last().copied().unwrap_or(1.0);
        let last = (most / step).floor().max(1.0);
        let ticks = (0..=last as u32).map(|index| f64::from(index) * step).collect();
        // Steps below 1 are not exact in binary.
        let mut axis = Self::over(name, Scale::Linear, ticks, |value| format!("{}", (value * 1e6).round() / 1e6));
        axis.range.end = most * MARGIN;
        axis
    }

    /// Makes an axis with evenly spaced places for these numbers, such as 0, 1, 2.
    pub(crate) fn categories(name: &str, numbers: &[u64]) -> Self {
        let ticks: Vec<_> =
            numbers.iter().enumerate().map(|(index, number)| (index as f64, grouped(*number))).collect();
        Self { name: name.to_owned(), range: -0.5..numbers.len() as f64 - 0.5, ticks, scale: Scale::Linear }
    }

    fn over(name: &str, scale: Scale, values: Vec<f64>, name_of: impl Fn(f64) -> String) -> Self {
        let range = values.first().copied().unwrap_or(0.0)..values.last().copied().unwrap_or(1.0);
        let ticks = values.into_iter().map(|value| (value, name_of(value))).collect();
        Self { name: name.to_owned(), range, ticks, scale }
    }

    /// Returns the number of labels.
    pub(crate) fn names(&self) -> usize {
        self.ticks.len()
    }

    fn place(&self, value: f64) -> f64 {
        match self.scale {
            Scale::Linear => value,
            Scale::Log => value.max(LEAST).log10(),
            Scale::Used => -(1.0 - value).max(LEAST_UNUSED).log10(),
        }
    }
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let (first, last) = (self.place(self.range.start), self.place(self.range.end));
        let part = (self.place(*value) - first) / (last - first);
        limit.0 + (part * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        if hint.weight().allow_light_points() {
            return Vec::new();
        }
        self.ticks.iter().map(|(value, _)| *value).collect()
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, value: &f64) -> String {
        self.ticks.iter().find(|(named, _)| named == value).map(|(_, name)| name.clone()).unwrap_or_default()
    }
}

/// Returns the round numbers around these values, from the largest number below all values to the smallest number above
/// them; at least two.
fn around(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let (mut least, mut most) = (f64::INFINITY, 0.0f64);
    for value in values.filter(|value| *value > 0.0) {
        (least, most) = (least.min(value), most.max(value));
    }
    if most == 0.0 {
        return vec![LEAST, 1.0];
    }
    let round = |index: i32| {
        let (power, step) = (index.div_euclid(3), index.rem_euclid(3));
        // Negative powers of ten are not exact in binary, so the step is divided instead.
        if power < 0 { STEPS[step as usize] / 10f64.powi(-power) } else { STEPS[step as usize] * 10f64.powi(power) }
    };
    let mut first = 3 * least.log10().floor() as i32;
    while round(first + 1) <= least {
        first += 1;
    }
    let mut last = first + 1;
    while round(last) < most {
        last += 1;
    }
    (first..=last).map(round).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(axis: &Axis) -> Vec<&str> {
        axis.ticks.iter().map(|(_, name)| name.as_str()).collect()
    }

    #[test]
    fn round_numbers_stand_around_the_values() {
        assert_eq!(names(&Axis::log("", [0.9, 17.0].into_iter())), ["0.5", "1", "2", "5", "10", "20"]);
        assert_eq!(names(&Axis::log("", [2.0].into_iter())), ["2", "5"]);
        assert_eq!(names(&Axis::log("", [0.0, 0.03].into_iter())), ["0.01", "0.02", "0.05"]);
        assert_eq!(
            names(&Axis::used("", [0.9996, 0.982].into_iter())),
            ["98%", "99%", "99.5%", "99.8%", "99.9%", "99.95%", "99.98%"]
        );
        assert_eq!(names(&Axis::used("", [0.4, 0.7].into_iter())), ["0%", "50%", "80%"]);
        assert_eq!(names(&Axis::counts("", 197)), ["0", "50", "100", "150", "200"]);
        assert_eq!(names(&Axis::counts("", 0)), ["0", "1"]);
        assert_eq!(names(&Axis::categories("", &[0, 999, 1_234_567])), ["0", "999", "1,234,567"]);
    }

    #[test]
    fn every_value_lies_in_the_range_and_better_is_higher() {
        let values = [1.0, 0.999_99, 0.97, 0.25, 0.0];
        let axis = Axis::used("", values.into_iter());
        // Pixels are counted from the top.
        let places = values.map(|value| axis.map(&value, (400, 0)));
        assert!(places.is_sorted() && places.iter().all(|place| (0..=400).contains(place)), "{places:?}");
        for axis in [Axis::log("", std::iter::empty()), Axis::used("", std::iter::empty()), Axis::counts("", 0)] {
            assert_eq!([axis.range.start, axis.range.end].map(|end| axis.map(&end, (0, 400))), [0, 400]);
        }
    }
}
