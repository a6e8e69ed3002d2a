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

use super::recorder::MAX_REQUESTS;
use super::valleys::AS_AT_BEGIN;

/// The most steps that are made one.
const LONGEST: usize = 64;
const KEPT: usize = 2 * LONGEST;
/// A step that is made of several is given up once most of its requests had no places so many times in a row, and once more.
const IN_VAIN: u32 = 8;

/// A step that has ended.
#[derive(Clone, Copy, Debug, Default)]
struct Step {
    signature: u64,
    requests: usize,
    /// Bytes that were live when it ended.
    live: u64,
}

/// A step that is made of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Joined {
    /// How many requests all of the several have.
    pub(super) requests: usize,
    /// What it was the last time; 0: it has not come yet.
    signature: u64,
    /// How often in a row most of its requests had no places.
    in_vain: u32,
}

/// The last steps.
#[derive(Debug)]
pub(super) struct Cycles {
    steps: [Step; KEPT],
    count: usize,
    /// As much is live after two steps if it differs by so many bytes at most.
    same: u64,
    /// The present step, if it is made of several. It comes again and again until the program does something else.
    pub(super) joined: Option<Joined>,
    /// After how many of its requests one of the several ends, the last one too.
    ends: [usize; KEPT],
    ends_count: usize,
    /// Whether what was joined had no places for too long. Then nothing is joined any more.
    is_in_vain: bool,
}

impl Default for Cycles {
    fn default() -> Self {
        Self {
            steps: [Step::default(); KEPT],
            count: 0,
            same: 0,
            joined: None,
            ends: [0; KEPT],
            ends_count: 0,
            is_in_vain: false,
        }
    }
}

impl Cycles {
    /// Forgets all steps.
    pub(super) fn begin_anew(&mut self) {
        (self.count, self.joined, self.is_in_vain) = (0, None, false);
    }

    /// Notes a step that has ended, how many of its requests had places, and how many bytes are live and held. After it begins a step that
    /// is made of several if it is one itself, or if the last several steps have come twice in the same order, with as much live after each, and
    /// never so little as now.
    pub(super) fn step_ended(&mut self, signature: u64, requests: usize, placed: usize, live: u64, held: u64) {
        self.steps[self.count % KEPT] = Step { signature, requests, live };
        self.count += 1;
        self.same = held / AS_AT_BEGIN;
        let before = self.joined.take().filter(|of| of.requests == requests && [0, signature].contains(&of.signature));
        if let Some(joined) = before {
            let in_vain = if 2 * placed < requests { joined.in_vain + 1 } else { 0 };
            self.is_in_vain |= in_vain > IN_VAIN;
            self.joined = Some(Joined { signature, in_vain, ..joined }).filter(|_| !self.is_in_vain);
            return;
        }
        let is_least = |length: &usize| (1..*length).all(|back| self.before(back).live > live + self.same);
        let length = self.cycles().find(|length| *length > 1 && is_least(length));
        if let Some(length) = length {
            self.set_ends(length);
            self.join(1);
        }
    }

    /// Has the last steps that have come twice be one from now on, and as often again. A step that is made of several, and now ended, need
    /// not have come twice.
    pub(super) fn join_two(&mut self) {
        if self.joined.is_none() {
            let Some(length) = self.cycles().next() else { return };
            self.set_ends(length);
        }
        self.join(2);
    }

    /// Returns whether one of the several steps ends after so many requests.
    pub(super) fn ends_at(&self, requests: usize) -> bool {
        self.ends[..self.ends_count].contains(&requests)
    }

    /// Returns how many of the last steps have come twice in the same order, with as much live after each.
    fn cycles(&self) -> impl Iterator<Item = usize> + '_ {
        let is_same = |a: Step, b: Step| a.signature == b.signature && a.live.abs_diff(b.live) <= self.same;
        let is_cycle =
            move |length: &usize| (0..*length).all(|back| is_same(self.before(back), self.before(back + length)));
        (1..=LONGEST.min(self.count / 2)).filter(is_cycle)
    }

    fn set_ends(&mut self, length: usize) {
        self.ends_count = length;
        let mut end = 0;
        for number in 0..length {
            end += self.before(length - 1 - number).requests;
            self.ends[number] = end;
        }
    }

    fn join(&mut self, times: usize) {
        let (count, last) = (self.ends_count, self.ends[..self.ends_count].last().copied().unwrap_or(0));
        if self.is_in_vain || last * times > MAX_REQUESTS || count * times > KEPT {
            return;
        }
        for number in count..count * times {
            self.ends[number] = self.ends[number - count] + last;
        }
        self.ends_count = count * times;
        self.joined = Some(Joined { requests: last * times, signature: 0, in_vain: 0 });
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

    /// The end of the first step of what is joined, and how many requests all have.
    fn of(cycles: &Cycles) -> Option<(usize, usize)> {
        cycles.joined.map(|joined| (cycles.ends[0], joined.requests))
    }

    /// What is joined after each of these steps.
    fn joined(steps: &[((u64, usize), u64)]) -> Vec<Option<(usize, usize)>> {
        let mut cycles = Cycles::default();
        let mut after = |&((signature, requests), live): &((u64, usize), u64)| {
            cycles.step_ended(signature, requests, 0, live, HELD);
            of(&cycles)
        };
        steps.iter().map(&mut after).collect()
    }

    #[test]
    fn layers_that_come_twice_in_the_same_order_are_one_step() {
        let iteration = [(A, 900_000), (B, 800_000), (B, 700_000)];
        let mut expected = vec![None; 6];
        expected[5] = Some((500, 700));
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
        assert_eq!(after[7], Some((500, 700)));
    }

    #[test]
    fn where_a_request_outlives_its_step_what_came_twice_is_joined_with_what_comes_next() {
        let mut cycles = Cycles::default();
        let mut after = |(signature, requests): (u64, usize)| {
            cycles.joined = None;
            cycles.step_ended(signature, requests, 0, 700_000, HELD);
            cycles.join_two();
            of(&cycles)
        };
        assert_eq!([after(A), after(B), after(A)], [None; 3]);
        assert_eq!(after(B), Some((500, 1200)));
        assert_eq!(after(B), Some((100, 200)));
    }

    #[test]
    fn a_step_of_several_is_joined_with_itself() {
        let mut cycles = cycle();
        cycles.join_two();
        assert_eq!(of(&cycles), Some((500, 1200)));
        let ends: Vec<usize> = (0..2000).filter(|requests| cycles.ends_at(*requests)).collect();
        assert_eq!(ends, [500, 600, 1100, 1200]);
    }

    /// A cycle of two steps that was joined.
    fn cycle() -> Cycles {
        let mut cycles = Cycles::default();
        for ((signature, requests), live) in [(A, 900_000), (B, 800_000)].repeat(2) {
            cycles.step_ended(signature, requests, 0, live, HELD);
        }
        cycles
    }

    #[test]
    fn what_is_joined_stays_so_until_another_step_comes() {
        let mut cycles = cycle();
        for _ in 0..2 * KEPT {
            cycles.step_ended(7, 600, 600, 800_000, HELD);
            assert_eq!(of(&cycles), Some((500, 600)));
        }
        for (signature, requests) in [(8, 600), (7, 599)] {
            let mut cycles = cycle();
            cycles.step_ended(7, 600, 600, 800_000, HELD);
            cycles.step_ended(signature, requests, 600, 800_000, HELD);
            assert_eq!(cycles.joined, None);
        }
    }

    #[test]
    fn what_gets_no_places_is_given_up_and_nothing_is_joined_until_the_program_begins_anew() {
        let mut cycles = cycle();
        for _ in 0..IN_VAIN {
            cycles.step_ended(7, 600, 299, 800_000, HELD);
            assert!(cycles.joined.is_some());
        }
        cycles.step_ended(7, 600, 299, 800_000, HELD);
        let next = |cycles: &mut Cycles| {
            for ((signature, requests), live) in [(A, 900_000), (B, 800_000)].repeat(2) {
                cycles.step_ended(signature, requests, 0, live, HELD);
                cycles.join_two();
            }
            of(cycles)
        };
        assert_eq!(next(&mut cycles), None);
        cycles.begin_anew();
        assert_ne!(next(&mut cycles), None);
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
