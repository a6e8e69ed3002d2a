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
    pub(super) joined: Option<Joined>,
}

impl Default for Cycles {
    fn default() -> Self {
        Self { steps: [Step::default(); KEPT], count: 0, joined: None }
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
        let differ = |a: Step, b: Step| a.signature != b.signature || a.live.abs_diff(b.live) > held / AS_AT_BEGIN;
        let is_cycle = |length: &usize| {
            (0..*length).all(|back| !differ(self.before(back), self.before(back + length)))
                && (1..*length).all(|back| self.before(back).live > live + held / AS_AT_BEGIN)
        };
        let length = (2..=LONGEST.min(self.count / 2)).find(is_cycle);
        self.joined = length.map(|length| Joined {
            first: self.before(length - 1).requests,
            requests: (0..length).map(|back| self.before(back).requests).sum(),
        });
    }

    /// Has two steps like the last one be one from now on.
    pub(super) fn join_two(&mut self) {
        let Step { requests, .. } = self.before(0);
        self.joined = Some(Joined { first: requests, requests: 2 * requests });
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
