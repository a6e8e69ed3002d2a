//! How far heaps of one allocator may rise before a peak of all together could be a new one.
//!
//! Owns: [`PeakRoom`] of a heap, and the [`Bank`] between them. A peak of the sum over several heaps cannot be told from
//! their own peaks. So the room below each peak is divided among the heaps and a bank, which lends where a heap rises and
//! takes back where it falls:
//! ```text
//! peak     ----------------------------------
//!          | bank | room of A | room of B   |
//! present  |======= live in A and B ========|
//! ```
//! As long as nobody uses more than is there, the sum has not passed the peak, and no heap has to look at another. Once the
//! bank is empty, all heaps are counted, and the room is divided anew.

use crate::ids::Class;
use std::sync::atomic::{AtomicU64, Ordering};

/// What peaks count: allocations, their bytes, and the bytes asked for.
const FIGURES: usize = 3;

/// Beside what a heap needs, the bank lends one part of so many of what it has.
const PARTS: u64 = 8;

/// Up to where a heap may rise before it has to ask the bank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Room {
    limit: u64,
    /// The most that it had left at once. Twice as much is more than it needs.
    level: u64,
}

/// Up to where a heap may rise, by [`Class`] and figure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PeakRoom([[Room; FIGURES]; 2]);

/// What all heaps of an allocator may add together, beside what each of them may. On a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Bank([[AtomicU64; FIGURES]; 2]);

/// What a heap has of each figure, or all heaps together may add, by [`Class`].
pub(crate) type Figures = [[u64; FIGURES]; 2];

impl PeakRoom {
    /// Notes that a heap has risen, and has so much of a class now. Returns whether all heaps are to be counted.
    #[inline]
    pub(crate) fn risen(&mut self, class: Class, has: [u64; FIGURES], bank: &Bank) -> bool {
        let rooms = &self.0[class as usize];
        rooms.iter().zip(has).any(|(room, has)| has > room.limit) && !self.borrow(class, has, bank)
    }

    /// Borrows what the heap has beyond its limits, and some more. Returns whether the bank had so much.
    #[cold]
    fn borrow(&mut self, class: Class, has: [u64; FIGURES], bank: &Bank) -> bool {
        let of_class = self.0[class as usize].iter_mut().zip(has).zip(&bank.0[class as usize]);
        of_class.filter(|((room, has), _)| *has > room.limit).all(|((room, has), bank)| {
            let needed = has - room.limit;
            let mut lent = 0;
            let lends = |in_bank: u64| {
                lent = needed + in_bank / PARTS;
                in_bank.checked_sub(lent)
            };
            if bank.fetch_update(Ordering::Relaxed, Ordering::Relaxed, lends).is_err() {
                return false;
            }
            room.limit += lent;
            room.level = room.level.max(room.limit - has).max(needed);
            true
        })
    }

    /// Notes that the heap has fallen by so much which does not count as live, although it did as room. It may rise as far as
    /// before, and no further.
    pub(crate) fn lower(&mut self, before: Figures, now: Figures) {
        let fallen = before.iter().flatten().zip(now.iter().flatten()).map(|(before, now)| before.saturating_sub(*now));
        let rooms = self.0.iter_mut().flatten();
        rooms.zip(fallen).for_each(|(room, fallen)| room.limit = room.limit.saturating_sub(fallen));
    }

    /// Notes that a heap has fallen, and has so much of a class now.
    #[inline]
    pub(crate) fn fallen(&mut self, class: Class, has: [u64; FIGURES], bank: &Bank) {
        let rooms = &self.0[class as usize];
        if rooms.iter().zip(has).any(|(room, has)| room.limit > has + 2 * room.level) {
            self.give_back(class, has, bank);
        }
    }

    /// Gives the bank what the heap has beyond its level.
    #[cold]
    fn give_back(&mut self, class: Class, has: [u64; FIGURES], bank: &Bank) {
        for ((room, has), bank) in self.0[class as usize].iter_mut().zip(has).zip(&bank.0[class as usize]) {
            let left = room.limit.saturating_sub(has);
            if left > 2 * room.level {
                bank.fetch_add(left - room.level, Ordering::Relaxed);
                room.limit = has + room.level;
                // A heap that goes on falling gives less often.
                room.level *= 2;
            }
        }
    }
}

impl Bank {
    /// Divides the room anew: half of it in equal parts, the rest for the bank. Returns a part. The caller has the locks of
    /// all heaps.
    pub(crate) fn divide(&self, total: Figures, parts: usize) -> Figures {
        let mut part = total;
        for (part, bank) in part.iter_mut().flatten().zip(self.0.iter().flatten()) {
            let all = *part;
            *part = all / 2 / parts.max(1) as u64;
            bank.store(all - *part * parts as u64, Ordering::Relaxed);
        }
        part
    }
}

impl PeakRoom {
    /// The room of a heap that has so much, and gets this part.
    pub(crate) fn new(has: Figures, part: Figures) -> Self {
        let room = |class: usize, figure: usize| {
            let part = part[class][figure];
            Room { limit: has[class][figure] + part, level: part.max(1) }
        };
        Self([0, 1].map(|class| [0, 1, 2].map(|figure| room(class, figure))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CLASS: Class = Class::Large;

    fn all(of: u64) -> Figures {
        [[of; FIGURES]; 2]
    }

    proptest! {
        /// Whatever heaps add and take away: as long as nobody is told to count, the sum has not passed the peak.
        #[test]
        fn nobody_passes_a_peak_unseen(
            total in 0u64..2000,
            heaps in 1usize..5,
            steps in proptest::collection::vec((0usize..5, 0u64..60), 1..400),
        ) {
            let bank = Bank::default();
            let divide = |live: &[u64], left: u64| {
                let part = bank.divide(all(left), live.len());
                live.iter().map(|has| PeakRoom::new(all(*has), part)).collect::<Vec<_>>()
            };
            let mut live = vec![0u64; heaps];
            let mut rooms = divide(&live, total);
            for (heap, size) in steps {
                let heap = heap % heaps;
                if size % 3 == 0 {
                    live[heap] = live[heap].saturating_sub(5 * size);
                    rooms[heap].fallen(CLASS, [live[heap]; FIGURES], &bank);
                } else {
                    live[heap] += size;
                    let counts = rooms[heap].risen(CLASS, [live[heap]; FIGURES], &bank);
                    let sum: u64 = live.iter().sum();
                    if counts {
                        rooms = divide(&live, total.saturating_sub(sum));
                    }
                    prop_assert!(counts || sum <= total);
                    if sum > total {
                        return Ok(());
                    }
                }
                let limits: u64 = rooms.iter().map(|room| room.0[0][1].limit).sum();
                prop_assert_eq!(limits + bank.0[0][1].load(Ordering::Relaxed), total);
            }
        }
    }

    fn in_bank(bank: &Bank) -> [u64; FIGURES] {
        [0, 1, 2].map(|figure| bank.0[CLASS as usize][figure].load(Ordering::Relaxed))
    }

    /// Limits and levels.
    fn rooms(of: &PeakRoom) -> [(u64, u64); FIGURES] {
        of.0[CLASS as usize].map(|room| (room.limit, room.level))
    }

    #[test]
    fn half_is_divided_and_the_bank_has_the_rest() {
        let bank = Bank::default();
        assert_eq!(bank.divide(all(100), 3), all(16));
        assert_eq!(in_bank(&bank), [52; FIGURES]);
    }

    #[test]
    fn a_heap_borrows_what_it_needs_and_an_eighth_of_the_rest() {
        let bank = Bank::default();
        bank.divide(all(1600), 1);
        let mut heap = PeakRoom::new(all(10), all(5));
        assert!(!heap.risen(CLASS, [15; FIGURES], &bank));
        assert_eq!((rooms(&heap), in_bank(&bank)), ([(15, 5); FIGURES], [800; FIGURES]));
        assert!(!heap.risen(CLASS, [15, 20, 10], &bank));
        let (borrowed, left) = ([(15, 5), (120, 100), (15, 5)], [800, 695, 800]);
        assert_eq!((rooms(&heap), in_bank(&bank)), (borrowed, left));
        assert!(heap.risen(CLASS, [15, 820, 10], &bank), "the bank has less than 700");
        assert_eq!((rooms(&heap), in_bank(&bank)), (borrowed, left));
        // What it needed is more than what is left of it.
        bank.divide(all(32), 1);
        assert!(!heap.risen(CLASS, [25, 20, 10], &bank));
        assert_eq!((rooms(&heap)[0], in_bank(&bank)), ((27, 10), [4, 16, 16]));
    }

    #[test]
    fn a_heap_gives_back_what_is_more_than_twice_its_level() {
        let bank = Bank::default();
        let mut heap = PeakRoom::new(all(100), all(10));
        heap.fallen(CLASS, [90; FIGURES], &bank);
        assert_eq!((rooms(&heap), in_bank(&bank)), ([(110, 10); FIGURES], [0; FIGURES]));
        heap.fallen(CLASS, [95, 89, 110], &bank);
        assert_eq!((rooms(&heap), in_bank(&bank)), ([(110, 10), (99, 20), (110, 10)], [0, 11, 0]));
        heap.fallen(CLASS, [90, 58, 90], &bank);
        assert_eq!((rooms(&heap), in_bank(&bank)), ([(110, 10), (78, 40), (110, 10)], [0, 32, 0]));
    }

    #[test]
    fn what_is_not_live_any_more_is_no_room() {
        let mut heap = PeakRoom::new(all(100), all(10));
        heap.lower(all(50), [[40, 50, 60]; 2]);
        assert_eq!(rooms(&heap), [(100, 10), (110, 10), (110, 10)]);
    }

    #[test]
    fn a_heap_that_falls_lends_to_one_that_rises() {
        let bank = Bank::default();
        let part = bank.divide(all(100), 2);
        let (mut falling, mut rising) = (PeakRoom::new(all(1000), part), PeakRoom::new(all(0), part));
        falling.fallen(CLASS, [0; FIGURES], &bank);
        assert!((1..10).all(|times| !rising.risen(CLASS, [50 * times; FIGURES], &bank)));
        assert!(rising.risen(CLASS, [1200; FIGURES], &bank));
    }
}
