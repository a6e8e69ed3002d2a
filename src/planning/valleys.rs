//! Where a step ends that follows no plan.
//!
//! Owns: the lowest points of live memory, and which of them are ends of steps.
//!
//! ```text
//! live   /\    /\  /\    /\  /\      the deep valleys are ends; memory falls and rises within a step too, as where
//!       /  \  /  \/  \  /  \/  \     activations are computed again
//!      /    \/        \/        \
//! ```

use super::recorder::Position;

/// A step ends where live memory was lowest before it rose by this part (1/n) of what is held.
const RISE: u64 = 8;
/// A step ends in a valley that is at most this part (1/n) of what is held above the deepest that came twice among the last `LOWS`.
const DEEP: u64 = 64;
const LOWS: usize = 8;
/// Until then it ends in one that is at most this part (1/n) of the way from the deepest to what is held above the deepest.
const NEAR_DEEPEST: u64 = 3;
/// A step begins where as much is live as when the one before began, but for this part (1/n) of what is held, if the request is the same.
pub(super) const AS_AT_BEGIN: u64 = 4096;

/// The moment before a request, and how many bytes are live and held then.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub(super) at: Position,
    pub(super) live: u64,
    pub(super) held: u64,
}

/// The lowest live memory since it became low, in bytes, and when that was.
#[derive(Clone, Copy, Debug)]
struct Valley {
    live: u64,
    at: Position,
}

/// The rise and fall of live memory in steps that follow no plan.
#[derive(Debug, Default)]
pub(super) struct Valleys {
    /// While live memory is low.
    valley: Option<Valley>,
    lows: Lows,
    /// The most bytes that were live at a request since then.
    high: u64,
    /// How many bytes were live before the first request of the step; `None`: it has not come.
    began: Option<u64>,
    /// Whether next to nothing was live when a step began: the program has begun anew.
    pub(super) is_anew: bool,
}

impl Valleys {
    /// Returns where the step has ended, if it has. `is_first`: the request that comes is as the first one of the step.
    #[inline]
    pub(super) fn end(&mut self, now: Moment, is_first: bool) -> Option<Position> {
        let Moment { at, live, held } = now;
        let began = *self.began.get_or_insert(live);
        let Some(valley) = &mut self.valley else {
            // The mark of low memory is a quarter of what is held below; steps may be smaller, as after a larger one.
            self.high = self.high.max(live);
            if live + held / RISE < self.high {
                self.high = 0;
                self.valley = Some(Valley { live, at });
                return self.end_as_begun(now, began, is_first);
            }
            return None;
        };
        if live < valley.live {
            *valley = Valley { live, at };
        } else if live > valley.live + held / RISE {
            let Valley { live: low, at } = *valley;
            self.valley = None;
            return self.lows.is_deep(low, held).then(|| {
                self.begin(low, held);
                at
            });
        }
        self.end_as_begun(now, began, is_first)
    }

    /// Ends the step where memory has fallen to what was live when it began, and the same request comes. Then nothing of the next step
    /// is served before it can be planned.
    fn end_as_begun(&mut self, now: Moment, began: u64, is_first: bool) -> Option<Position> {
        let Moment { at, live, held } = now;
        // Layers whose activations are computed again begin alike, too, each with less live than the one before.
        if !is_first || live.abs_diff(began) > held / AS_AT_BEGIN {
            return None;
        }
        let mut lows = self.lows;
        if !lows.is_deep(live, held) {
            return None;
        }
        self.lows = lows;
        self.begin(live, held);
        Some(at)
    }

    /// Notes that a step begins, and how many bytes are live and held.
    pub(super) fn begin(&mut self, live: u64, held: u64) {
        (self.valley, self.began, self.high) = (None, Some(live), 0);
        if live < held / DEEP {
            (self.lows, self.is_anew) = (Lows::default(), true);
        }
    }

    /// Returns how many bytes were live when the step began, if that is known.
    pub(super) fn began(&self) -> Option<u64> {
        self.began
    }

    /// Notes how many bytes are live at a request that follows a plan.
    #[inline]
    pub(super) fn note(&mut self, live: u64) {
        self.high = self.high.max(live);
    }

    /// Notes that live memory is low: a step may end soon.
    pub(super) fn memory_is_low(&mut self, at: Position) {
        if self.valley.is_none() {
            self.valley = Some(Valley { live: u64::MAX, at });
        }
    }
}

/// The last valleys, and what was held then, in bytes. Memory may fall and rise several times in a step; it ends in the deepest.
#[derive(Clone, Copy, Debug, Default)]
struct Lows {
    last: [(u64, u64); LOWS],
    count: usize,
}

impl Lows {
    /// Notes a valley. Returns whether a step may end in it: it is about as deep as the deepest that came more than once, or not far above
    /// the deepest while none has come again. In bytes.
    fn is_deep(&mut self, live: u64, held: u64) -> bool {
        // Where next to nothing is live, a program begins anew.
        if live < held / DEEP {
            return true;
        }
        self.last[self.count % LOWS] = (live, held);
        self.count += 1;
        // While weights are loaded, memory falls lower than in any step.
        let mut known = [u64::MAX; LOWS];
        for ((low, of), known) in self.last.iter().take(self.count).zip(&mut known) {
            *known = if *of >= held / 2 { *low } else { u64::MAX };
        }
        known.sort_unstable();
        let is_pair = |pair: &&[u64]| pair[1] != u64::MAX && pair[1] <= pair[0].saturating_add(held / DEEP);
        let deepest = match known.windows(2).find(is_pair) {
            Some(pair) => pair[0].saturating_add(held / DEEP),
            None => known[0].saturating_add(held.saturating_sub(known[0]) / NEAR_DEEPEST),
        };
        live <= deepest
    }
}
