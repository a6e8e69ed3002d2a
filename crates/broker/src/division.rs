//! The division of a demand for bytes among the processes that can give memory.
//!
//! Owns: the division. The inputs are bytes; other files handle processes.
//!
//! # Note: the level
//!
//! Think of a line at the same height over all guarantees, in bytes. Each process gives the free part of the memory
//! that it holds above the line. The line sinks until the given bytes meet the demand. So the process that holds the
//! most beyond its guarantee gives first. Two processes with enough free memory end at the same height above their
//! guarantees (max-min fairness, as in Demers, Keshav and Shenker, SIGCOMM 1989).
//!
//! ```text
//!      #
//!      #  .  <- gives        # in use    . free
//!  ----.--.---------- level
//!   #  .  .
//!   #  .  #
//!  ---------- guarantees
//! ```

/// The memory of one process. Sizes are bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The bytes that the process holds.
    pub held: u64,
    /// The free bytes among those held.
    pub free: u64,
    /// The bytes that the process keeps in any case.
    pub guarantee: u64,
}

impl Holder {
    /// Returns the bytes held beyond the guarantee.
    #[must_use]
    pub fn above(&self) -> u64 {
        self.held.saturating_sub(self.guarantee)
    }

    /// Returns the bytes that the process can be asked for.
    #[must_use]
    pub fn lendable(&self) -> u64 {
        self.free.min(self.above())
    }

    /// Returns the free bytes that the process keeps for its guarantee.
    #[must_use]
    pub fn guaranteed(&self) -> u64 {
        self.free.min(self.held) - self.lendable().min(self.held)
    }

    /// Returns the bytes that the process gives if each process may keep `level` bytes beyond its guarantee.
    fn gives(&self, level: u64) -> u64 {
        self.lendable().min(self.above().saturating_sub(level))
    }
}

/// Divides a demand. Returns the bytes that each process gives. The sum is the demand, or all lendable bytes if these
/// are less than the demand.
#[must_use]
pub fn divide(demand: u64, holders: &[Holder]) -> Vec<u64> {
    let sum = |level: u64| holders.iter().map(|holder| u128::from(holder.gives(level))).sum::<u128>();
    let demanded = u128::from(demand);
    if sum(0) <= demanded {
        return holders.iter().map(Holder::lendable).collect();
    }
    // The loop finds the most bytes that each process may keep beyond its guarantee so that the given bytes still meet
    // the demand.
    let (mut enough, mut too_high) = (0, u64::MAX);
    while too_high - enough > 1 {
        let middle = enough + (too_high - enough) / 2;
        if sum(middle) >= demanded { enough = middle } else { too_high = middle }
    }
    let mut shares: Vec<u64> = holders.iter().map(|holder| holder.gives(enough)).collect();
    // If each process kept one byte more, all would give too little. So the surplus is less than one byte for each.
    let mut over = u64::try_from(sum(enough) - demanded).unwrap_or(u64::MAX);
    for (share, holder) in shares.iter_mut().zip(holders) {
        let next = holder.gives(enough.saturating_add(1));
        let less = over.min(*share - next);
        *share -= less;
        over -= less;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GIB: u64 = 1 << 30;

    fn of(held: u64, free: u64, guarantee: u64) -> Holder {
        Holder { held: held * GIB, free: free * GIB, guarantee: guarantee * GIB }
    }

    fn shares(demand: u64, holders: &[Holder]) -> Vec<u64> {
        divide(demand * GIB, holders).into_iter().map(|share| share / GIB).collect()
    }

    #[test]
    fn who_holds_most_beyond_its_guarantee_gives_first() {
        assert_eq!(shares(10, &[of(40, 40, 0), of(20, 20, 0)]), [10, 0]);
        assert_eq!(shares(30, &[of(40, 40, 0), of(20, 20, 0)]), [25, 5]);
        assert_eq!(shares(30, &[of(40, 40, 20), of(20, 20, 0)]), [15, 15], "they keep 5 each beyond 20 and 0");
        assert_eq!(shares(30, &[of(40, 5, 0), of(20, 20, 0)]), [5, 20], "what is in use stays");
        assert_eq!(shares(90, &[of(40, 40, 30), of(20, 20, 25)]), [10, 0]);
        assert_eq!(shares(5, &[]), Vec::<u64>::new());
    }

    fn holder() -> impl Strategy<Value = Holder> {
        let size = || prop_oneof![0..100u64, 0..200 * GIB, Just(u64::MAX)];
        (size(), size(), prop_oneof![Just(0), size()]).prop_map(|(held, free, guarantee)| Holder {
            held,
            free: free.min(held),
            guarantee,
        })
    }

    proptest! {
        #[test]
        fn it_is_exact_and_touches_neither_live_memory_nor_guarantees(
            demand in prop_oneof![0..1000u64, 0..400 * GIB, Just(u64::MAX)],
            holders in prop::collection::vec(holder(), 0..8),
        ) {
            let given = divide(demand, &holders);
            let lendable: u128 = holders.iter().map(|holder| u128::from(holder.lendable())).sum();
            let sum: u128 = given.iter().map(|share| u128::from(*share)).sum();
            prop_assert_eq!(sum, lendable.min(u128::from(demand)));
            for (share, holder) in given.iter().zip(&holders) {
                prop_assert!(*share <= holder.free);
                prop_assert!(*share == 0 || holder.held - share >= holder.guarantee);
                prop_assert!(holder.guaranteed() + holder.lendable() == holder.free);
            }
        }

        #[test]
        fn no_one_gives_while_another_keeps_more(
            demand in 0..400 * GIB,
            holders in prop::collection::vec(holder(), 2..6),
        ) {
            let given = divide(demand, &holders);
            let kept = |at: usize| holders[at].above() - given[at];
            for poor in 0..holders.len() {
                for rich in 0..holders.len() {
                    // A process that could give more keeps no more beyond its guarantee than a process that gives.
                    if given[poor] > 0 && given[rich] < holders[rich].lendable() {
                        prop_assert!(kept(rich) <= kept(poor).saturating_add(1), "{poor} {rich} {given:?} {holders:?}");
                    }
                }
            }
        }

        #[test]
        fn a_larger_demand_takes_no_less_from_anyone(
            demand in 0..400 * GIB,
            more in 0..100 * GIB,
            holders in prop::collection::vec(holder(), 1..6),
        ) {
            let less = divide(demand, &holders);
            for (before, after) in less.iter().zip(divide(demand + more, &holders)) {
                // A process may give one byte less than for the smaller demand, since only some processes are spared a
                // byte of the surplus.
                prop_assert!(after.saturating_add(1) >= *before);
            }
        }
    }
}
