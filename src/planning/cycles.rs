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

use super::recorder::{self, LEAST_REQUESTS, MAX_REQUESTS, Record};
use super::valleys::AS_AT_BEGIN;

/// The most steps that are made one.
const LONGEST: usize = 64;
const KEPT: usize = 2 * LONGEST;
/// A step that is made of several is given up once it came in vain so many times in a row, and once more. So many are remembered.
const IN_VAIN: u32 = 8;
const GIVEN_UP: usize = 8;

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
    /// How often in a row it came in vain.
    in_vain: u32,
}

/// One of the several.
#[derive(Clone, Copy, Debug, Default)]
struct Part {
    signature: u64,
    /// After how many requests of all it ends.
    end: usize,
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
    parts: [Part; KEPT],
    parts_count: usize,
    /// How many of them have come in the present step.
    came: usize,
    /// How many requests those had that were given up. They are not joined any more.
    given_up: [usize; GIVEN_UP],
    given_up_count: usize,
}

impl Default for Cycles {
    fn default() -> Self {
        Self {
            steps: [Step::default(); KEPT],
            count: 0,
            same: 0,
            joined: None,
            parts: [Part::default(); KEPT],
            parts_count: 0,
            came: 0,
            given_up: [0; GIVEN_UP],
            given_up_count: 0,
        }
    }
}

impl Cycles {
    /// Forgets all steps.
    pub(super) fn begin_anew(&mut self) {
        (self.count, self.joined) = (0, None);
        self.given_up = [0; GIVEN_UP];
    }

    /// Notes a step that has ended, how many bytes are live and held, and whether it came in vain: without most of its places, though nobody
    /// is asked for them. After it begins a step that is made of several if it is one itself, or if the last several steps have come twice in
    /// the same order, with as much live after each, and never so little as now.
    pub(super) fn step_ended(&mut self, signature: u64, requests: usize, (live, held): (u64, u64), in_vain: bool) {
        self.steps[self.count % KEPT] = Step { signature, requests, live };
        self.count += 1;
        (self.same, self.came) = (held / AS_AT_BEGIN, 0);
        if let Some(joined) = self.joined.take().filter(|of| of.requests == requests) {
            let in_vain = if in_vain { joined.in_vain + 1 } else { 0 };
            if in_vain > IN_VAIN {
                self.given_up[self.given_up_count % GIVEN_UP] = requests;
                self.given_up_count += 1;
            } else {
                self.joined = Some(Joined { in_vain, ..joined });
            }
            return;
        }
        let is_least = |length: &usize| (1..*length).all(|back| self.before(back).live > live + self.same);
        let length = self.cycles().find(|length| *length > 1 && is_least(length));
        if let Some(length) = length {
            self.set_parts(length);
            self.join(1);
        }
    }

    /// Has the last steps that have come twice be one from now on, and as often again. A step that is made of several, and now ended, need
    /// not have come twice.
    pub(super) fn join_two(&mut self) {
        if self.joined.is_none() {
            let Some(length) = self.cycles().next() else { return };
            self.set_parts(length);
        }
        self.join(2);
    }

    /// Returns whether one of the several steps ends after so many requests.
    pub(super) fn ends_at(&self, requests: usize) -> bool {
        self.parts[..self.parts_count].iter().any(|part| part.end == requests)
    }

    /// Returns whether the requests of the present step are those of the several, as far as these are complete.
    #[inline]
    pub(super) fn comes_as_known(&mut self, records: &[Record]) -> bool {
        while let Some(part) = self.parts[..self.parts_count].get(self.came).filter(|part| part.end <= records.len()) {
            let begin = self.came.checked_sub(1).map_or(0, |before| self.parts[before].end);
            if recorder::signature(&records[begin..part.end]) != part.signature {
                return false;
            }
            self.came += 1;
        }
        true
    }

    /// Returns how many of the last steps have come twice in the same order, with as much live after each.
    fn cycles(&self) -> impl Iterator<Item = usize> + '_ {
        let is_same = |a: Step, b: Step| a.signature == b.signature && a.live.abs_diff(b.live) <= self.same;
        let is_cycle =
            move |length: &usize| (0..*length).all(|back| is_same(self.before(back), self.before(back + length)));
        (1..=LONGEST.min(self.count / 2)).filter(is_cycle)
    }

    fn set_parts(&mut self, length: usize) {
        self.parts_count = length;
        let mut end = 0;
        for number in 0..length {
            let Step { signature, requests, .. } = self.before(length - 1 - number);
            end += requests;
            self.parts[number] = Part { signature, end };
        }
    }

    fn join(&mut self, times: usize) {
        let (count, last) = (self.parts_count, self.parts[..self.parts_count].last().map_or(0, |part| part.end));
        let requests = last * times;
        if !(LEAST_REQUESTS..=MAX_REQUESTS).contains(&requests)
            || count * times > KEPT
            || self.given_up.contains(&requests)
        {
            return;
        }
        for number in count..count * times {
            let Part { signature, end } = self.parts[number - count];
            self.parts[number] = Part { signature, end: end + last };
        }
        self.parts_count = count * times;
        self.joined = Some(Joined { requests, in_vain: 0 });
    }

    /// Returns the step so many steps before the last one.
    fn before(&self, back: usize) -> Step {
        self.steps[(self.count - 1 - back) % KEPT]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{BlockId, PoolIndex};

    const HELD: u64 = 1 << 20;
    const A: (u64, usize) = (1, 500);
    const B: (u64, usize) = (2, 100);

    /// The end of the first step of what is joined, and how many requests all have.
    fn of(cycles: &Cycles) -> Option<(usize, usize)> {
        cycles.joined.map(|joined| (cycles.parts[0].end, joined.requests))
    }

    /// What is joined after each of these steps.
    fn joined(steps: &[((u64, usize), u64)]) -> Vec<Option<(usize, usize)>> {
        let mut cycles = Cycles::default();
        let mut after = |&((signature, requests), live): &((u64, usize), u64)| {
            cycles.step_ended(signature, requests, (live, HELD), true);
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
            cycles.step_ended(signature, requests, (700_000, HELD), true);
            cycles.join_two();
            of(&cycles)
        };
        assert_eq!([after(A), after(B), after(A)], [None; 3]);
        assert_eq!(after(B), Some((500, 1200)));
        assert_eq!(after(B), Some((100, 200)));
    }

    #[test]
    fn a_step_of_several_is_joined_with_itself() {
        let mut cycles = Cycles::default();
        cycle(&mut cycles);
        cycles.join_two();
        assert_eq!(of(&cycles), Some((500, 1200)));
        let ends: Vec<usize> = (0..2000).filter(|requests| cycles.ends_at(*requests)).collect();
        assert_eq!(ends, [500, 600, 1100, 1200]);
    }

    /// A cycle of two steps that was joined.
    fn cycle(cycles: &mut Cycles) -> Option<(usize, usize)> {
        for ((signature, requests), live) in [(A, 900_000), (B, 800_000)].repeat(2) {
            cycles.step_ended(signature, requests, (live, HELD), true);
        }
        of(cycles)
    }

    #[test]
    fn what_is_joined_stays_so_until_another_step_comes() {
        let mut cycles = Cycles::default();
        assert_eq!(cycle(&mut cycles), Some((500, 600)));
        for _ in 0..2 * KEPT {
            cycles.step_ended(7, 600, (800_000, HELD), false);
            assert_eq!(of(&cycles), Some((500, 600)));
        }
        cycles.step_ended(7, 599, (800_000, HELD), false);
        assert_eq!(cycles.joined, None);
    }

    #[test]
    fn what_comes_in_vain_is_given_up_until_the_program_begins_anew_and_other_steps_are_not() {
        let mut cycles = Cycles::default();
        cycle(&mut cycles);
        for _ in 0..IN_VAIN {
            cycles.step_ended(7, 600, (800_000, HELD), true);
            assert!(cycles.joined.is_some());
        }
        cycles.step_ended(7, 600, (800_000, HELD), true);
        assert_eq!(cycle(&mut cycles), None);
        cycles.join_two();
        assert_eq!(of(&cycles), Some((500, 1200)));
        cycles.begin_anew();
        assert_eq!(cycle(&mut cycles), Some((500, 600)));
    }

    /// Requests of these sizes.
    fn records(sizes: &[u64]) -> Vec<Record> {
        let record = |size: &u64| Record {
            key: recorder::Key { size: *size, pool: PoolIndex::DEFAULT },
            block: BlockId(0),
            lower: 0,
            upper: 0,
            is_freed: false,
        };
        sizes.iter().map(record).collect()
    }

    #[test]
    fn other_requests_than_those_of_the_several_are_seen_where_one_of_these_ends() {
        let (one, two) = ([512; 6], [1024; 4]);
        let mut cycles = Cycles::default();
        for (sizes, live) in [(&one[..], 900_000), (&two[..], 800_000)].repeat(2) {
            cycles.step_ended(recorder::signature(&records(sizes)), sizes.len(), (live, HELD), true);
        }
        assert_eq!(of(&cycles), Some((6, 10)));
        let whole = [&one[..], &two[..]].concat();
        let mut known = |sizes: &[u64]| {
            cycles.came = 0;
            (1..=sizes.len()).all(|count| cycles.comes_as_known(&records(&sizes[..count])))
        };
        assert!(known(&whole));
        assert!(known(&[512, 512, 512, 512, 512]), "what is not complete is not known");
        assert!(!known(&[512, 512, 512, 512, 512, 1024]));
        assert!(!known(&[&one[..], &[1024, 512, 1024, 1024]].concat()));
        cycles.came = 0;
        assert!(cycles.comes_as_known(&records(&whole)), "several at once");
    }

    #[test]
    fn a_step_of_next_to_no_requests_is_none_that_is_joined() {
        let mut cycles = Cycles::default();
        for _ in 0..8 {
            cycles.step_ended(1, 1, (800_000, HELD), true);
            cycles.join_two();
            assert_eq!(cycles.joined, None);
        }
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
