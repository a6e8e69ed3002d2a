//! Steps that come again and again in the same order are one step.
//!
//! Owns: which steps were the last, and how many requests a step is to have that is made of several.
//!
//! ```text
//! live    /\                  /\              each layer of the backward pass frees what it computed again, and ends like a step;
//!        /  \/\              /  \/\           a plan of a layer says nothing of the forward pass, which leaves its memory to all
//!       /      \/\          /      \/\
//! ____|    a  | b| b|  ...| a  | b| b|        a b b a b b: from here on `a b b` is one step, from low to low
//! ```

use super::valleys::AS_AT_BEGIN;

/// The most steps that are made one.
const LONGEST: usize = 64;
const KEPT: usize = 2 * LONGEST;

/// A step that has ended.
#[derive(Clone, Copy, Debug, Default)]
struct Step {
    signature: u64,
    requests: usize,
    /// Bytes that were live when it ended.
    live: u64,
}

/// A step that is made of several, while the program is in it for the first time or again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Joined {
    /// How many requests the first of the several has.
    pub(super) first: usize,
    /// How many all of them have.
    pub(super) requests: usize,
}

/// The last steps.
#[derive(Debug)]
pub(super) struct Cycles {
    steps: [Step; KEPT],
    count: usize,
    /// As much is live after two steps if it differs by so many bytes at most.
    same: u64,
    pub(super) joined: Option<Joined>,
}

impl Default for Cycles {
    fn default() -> Self {
        Self { steps: [Step::default(); KEPT], count: 0, same: 0, joined: None }
    }
}

impl Cycles {
    /// Forgets all steps.
    pub(super) fn begin_anew(&mut self) {
        (self.count, self.joined) = (0, None);
    }

    /// Notes a step that has ended, and how many bytes are live and held. After it begins a step that is made of several if the last several
    /// steps have come twice in the same order, with as much live after each, and never so little as now.
    pub(super) fn step_ended(&mut self, signature: u64, requests: usize, live: u64, held: u64) {
        self.steps[self.count % KEPT] = Step { signature, requests, live };
        self.count += 1;
        self.same = held / AS_AT_BEGIN;
        let is_least = |length: &usize| (1..*length).all(|back| self.before(back).live > live + self.same);
        let length = self.cycles().find(|length| *length > 1 && is_least(length));
        self.joined = length.map(|length| self.join(length, 1));
    }

    /// Has the last steps that have come twice, or else two steps like the last one if `comes_again`, be one from now on, and as often again.
    pub(super) fn join_two(&mut self, comes_again: bool) {
        let length = self.cycles().next().or(comes_again.then_some(1));
        self.joined = length.map(|length| self.join(length, 2));
    }

    /// Returns how many of the last steps have come twice in the same order, with as much live after each.
    fn cycles(&self) -> impl Iterator<Item = usize> + '_ {
        let is_same = |a: Step, b: Step| a.signature == b.signature && a.live.abs_diff(b.live) <= self.same;
        let is_cycle =
            move |length: &usize| (0..*length).all(|back| is_same(self.before(back), self.before(back + length)));
        (1..=LONGEST.min(self.count / 2)).filter(is_cycle)
    }

    fn join(&self, length: usize, times: usize) -> Joined {
        let requests: usize = (0..length).map(|back| self.before(back).requests).sum();
        Joined { first: self.before(length - 1).requests, requests: times * requests }
    }

    /// Returns the step so many steps before the last one.
    fn before(&self, back: usize) -> Step {
        self.steps[(self.count - 1 - back) % KEPT]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELD: u64 = 1 << 20;
    const A: (u64, usize) = (1, 500);
    const B: (u64, usize) = (2, 100);

    /// What is joined after each of these steps.
    fn joined(steps: &[((u64, usize), u64)]) -> Vec<Option<Joined>> {
        let mut cycles = Cycles::default();
        let mut after = |&((signature, requests), live): &((u64, usize), u64)| {
            cycles.step_ended(signature, requests, live, HELD);
            cycles.joined
        };
        steps.iter().map(&mut after).collect()
    }

    #[test]
    fn layers_that_come_twice_in_the_same_order_are_one_step() {
        let iteration = [(A, 900_000), (B, 800_000), (B, 700_000)];
        let mut expected = vec![None; 6];
        expected[5] = Some(Joined { first: 500, requests: 700 });
        assert_eq!(joined(&iteration.repeat(2)), expected);
    }

    #[test]
    fn a_step_that_ends_as_it_began_is_one_by_itself() {
        assert_eq!(joined(&[(A, 700_000); 200]), [None; 200]);
        assert_eq!(joined(&[(A, 700_000), (B, 700_000)].repeat(20)), [None; 40]);
    }

    #[test]
    fn layers_that_each_leave_less_are_no_cycle() {
        let layers: Vec<_> = (0..100).map(|layer| (B, 900_000 - 5_000 * layer)).collect();
        assert_eq!(joined(&layers), [None; 100]);
    }

    #[test]
    fn a_step_of_several_begins_where_least_is_live() {
        let steps = [(B, 800_000), (B, 700_000), (A, 900_000)].repeat(2);
        let after = joined(&steps);
        assert_eq!(after[..6], [None; 6]);
        let after = joined(&[&steps[..], &steps[..2]].concat());
        assert_eq!(after[7], Some(Joined { first: 500, requests: 700 }));
    }

    #[test]
    fn where_a_request_outlives_its_step_what_came_twice_is_joined_with_what_comes_next() {
        let mut cycles = Cycles::default();
        let mut after = |(signature, requests): (u64, usize), comes_again| {
            cycles.step_ended(signature, requests, 700_000, HELD);
            cycles.join_two(comes_again);
            cycles.joined
        };
        assert_eq!([after(A, false), after(B, false), after(A, false)], [None; 3]);
        assert_eq!(after(B, false), Some(Joined { first: 500, requests: 1200 }));
        assert_eq!(after(B, false), Some(Joined { first: 100, requests: 200 }));
        assert_eq!(after(A, true), Some(Joined { first: 500, requests: 1000 }));
    }

    #[test]
    fn what_came_in_another_order_is_not_joined() {
        let orders = [[(A, 900_000), (B, 700_000)], [(B, 900_000), (A, 700_000)]].concat();
        assert_eq!(joined(&orders), [None; 4]);
    }

    #[test]
    fn more_steps_than_are_compared_are_left_as_they_are() {
        let iteration: Vec<_> = (0..=LONGEST as u64).map(|layer| (B, 900_000 - 5_000 * layer)).collect();
        assert!(joined(&iteration.repeat(4)).iter().all(Option::is_none));
        assert_eq!(joined(&iteration[1..].repeat(2)).iter().flatten().count(), 1);
    }
}
