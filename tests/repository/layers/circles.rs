//! Circles among files: each needs the next, and the last one the first.

use super::imports::{Arrow, What};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The shortest circle through each file that is part of one, each circle once: its arrows in order.
pub(crate) fn circles(arrows: &[Arrow]) -> Vec<Vec<Arrow>> {
    let mut leaving: BTreeMap<&str, Vec<&Arrow>> = BTreeMap::new();
    for arrow in arrows.iter().filter(|arrow| arrow.what != What::Module) {
        leaving.entry(&arrow.from).or_default().push(arrow);
    }
    let mut found: BTreeMap<BTreeSet<&str>, Vec<Arrow>> = BTreeMap::new();
    for file in leaving.keys() {
        if let Some(circle) = shortest(&leaving, file) {
            let files = circle.iter().map(|arrow| arrow.from.as_str()).collect();
            found.entry(files).or_insert_with(|| circle.into_iter().cloned().collect());
        }
    }
    let mut circles: Vec<_> = found.into_values().collect();
    circles.sort_by_key(Vec::len);
    circles
}

/// The shortest way from a file back to itself, breadth first.
fn shortest<'a>(leaving: &BTreeMap<&'a str, Vec<&'a Arrow>>, start: &'a str) -> Option<Vec<&'a Arrow>> {
    let mut reached: BTreeMap<&str, &Arrow> = BTreeMap::new();
    let mut next = VecDeque::from([start]);
    while let Some(at) = next.pop_front() {
        for arrow in leaving.get(at).into_iter().flatten().copied() {
            if reached.contains_key(arrow.to.as_str()) {
                continue;
            }
            reached.insert(&arrow.to, arrow);
            if arrow.to == start {
                let mut circle = vec![arrow];
                while circle[circle.len() - 1].from != start {
                    circle.push(reached[circle[circle.len() - 1].from.as_str()]);
                }
                circle.reverse();
                return Some(circle);
            }
            next.push_back(&arrow.to);
        }
    }
    None
}

/// Lines that say how a circle goes round.
pub(crate) fn say(circle: &[Arrow]) -> String {
    let arrows: String = circle.iter().map(|arrow| format!("\n  {arrow}")).collect();
    format!("a circle of {} files:{arrows}", circle.len())
}
