//! The rules of a verdict, in their order, and their thresholds.
//!
//! Owns: the condition of each [`Verdict`]. `docs/why.md` has the same rules in words, and a test compares the
//! thresholds.

use super::figures::{CONTEXT_BYTES, Choice, Figures, Need, Shortage, Verdict};
use std::cmp::Ordering;

/// The free part of the device in percent below which a job is near its limit. The report on a refused request in a
/// running program uses the same part.
pub use seamalloc::out_of_memory::NEAR_PERCENT;

/// The difference below which no action is advised, in percent of the memory held. This limit is above the error of a
/// replay (half a percent of the memory that PyTorch held), and below the effect of a change of the batch size.
pub const FEW_PERCENT: u64 = 3;
/// The difference in bytes below which no action is advised. A CUDA context takes more.
pub const FEW_BYTES: u64 = 256 << 20;
/// The verdict names streams as the cause if they keep from one another at least this part (1/n) of the bytes that
/// PyTorch's allocator holds beyond seamalloc's need or beyond live memory.
pub const APART_PART: u64 = 2;
/// seamalloc's waits are few if another allocator waits at least this many times as often.
pub const FEWER_PART: u64 = 10;

/// The rules, in the order of the questions of `docs/why.md`. The first rule that holds gives the verdict.
const RULES: [fn(&Figures) -> Option<Verdict>; 6] =
    [too_much_live, kept_from_it, pytorch_has_room, streams, seamalloc_helps, nothing_to_gain];

/// Returns the verdict on a job.
#[must_use]
pub fn judge(figures: &Figures) -> Verdict {
    RULES.iter().find_map(|rule| rule(figures)).unwrap_or(Verdict::TooMuchLive { by: 0 })
}

/// 1. No allocator runs the job, even on the whole device.
fn too_much_live(figures: &Figures) -> Option<Verdict> {
    let is_served = |shortage: &Shortage| shortage.runs_on_device || shortage.remedy.is_some();
    let is_short = figures.recommended().is_none() && !figures.shortage.as_ref().is_some_and(is_served);
    is_short.then(|| Verdict::TooMuchLive { by: figures.live.saturating_sub(figures.capacity.unwrap_or(u64::MAX)) })
}

/// 2. An allocator runs the job on the device, but none runs it with the part of the memory that PyTorch could have. A
///    limit, other processes or libraries keep the rest.
fn kept_from_it(figures: &Figures) -> Option<Verdict> {
    let shortage = figures.shortage.as_ref().filter(|shortage| shortage.runs_on_device)?;
    let missing = shortage.needs.saturating_sub(figures.capacity?);
    Some(match figures.free_beyond_limit {
        Some(_) => Verdict::Limit { to: shortage.needs },
        None => Verdict::Others { missing },
    })
}

/// 3. The recommended allocator is one of PyTorch's, and leaves room on the device.
fn pytorch_has_room(figures: &Figures) -> Option<Verdict> {
    let allocator = figures.recommended().filter(|choice| *choice != Choice::Seamalloc)?;
    figures.has_room(allocator).then_some(Verdict::PyTorchIsEnough { allocator, has_room: true })
}

/// 4. Streams keep from one another at least half of the memory that PyTorch's allocator holds beyond seamalloc's need
///    or, if that is too little to matter, beyond live memory.
fn streams(figures: &Figures) -> Option<Verdict> {
    let is_most = |apart: u64, of: u64| apart > 0 && apart.saturating_mul(APART_PART) >= of;
    let (choice, live) = (figures.recommended()?, Some(figures.live));
    let (need, of) = match (choice, figures.best_of_pytorch()) {
        (Choice::Seamalloc, Some((best, reserved))) => {
            let saved = saving(reserved, figures.stitch.reserved);
            (figures.need(best), saved.or_else(|| saving(reserved, live))?)
        }
        // Neither of PyTorch's allocators runs the job, so the figures are those at the refusal in the replay.
        (Choice::Seamalloc, None) => (&figures.expandable, figures.expandable.idle),
        _ => (figures.need(choice), saving(figures.need(choice).reserved?, live)?),
    };
    let (apart, is_saved) = (need.apart(), choice == Choice::Seamalloc);
    is_most(apart, of).then_some(Verdict::Streams { apart, is_saved })
}

/// 5. seamalloc is the recommended allocator, or runs the job with options that PyTorch's allocators do not have.
fn seamalloc_helps(figures: &Figures) -> Option<Verdict> {
    let own = match figures.recommended() {
        Some(Choice::Seamalloc) => figures.stitch,
        None if figures.shortage.as_ref()?.remedy.is_some() => {
            return Some(Verdict::SeamallocHelps { saves: None, waits: 0 });
        }
        _ => return None,
    };
    let best = figures.best_of_pytorch();
    let saves = best.map(|(_, reserved)| reserved.saturating_sub(own.reserved.unwrap_or(0)));
    let waits = best.map_or(0, |(best, _)| figures.need(best).waits.saturating_sub(own.waits));
    Some(Verdict::SeamallocHelps { saves, waits })
}

/// 3. PyTorch's allocators run the job, and seamalloc saves too little to matter.
fn nothing_to_gain(figures: &Figures) -> Option<Verdict> {
    figures.recommended().map(|allocator| Verdict::PyTorchIsEnough { allocator, has_room: false })
}

/// Returns by how much `own` is less than `reserved`; `None` if the difference is too small to matter.
pub(super) fn saving(reserved: u64, own: Option<u64>) -> Option<u64> {
    let saves = reserved.saturating_sub(own?);
    (saves >= FEW_BYTES && saves >= percent(reserved, FEW_PERCENT)).then_some(saves)
}

/// Returns the part of a device that should stay free.
pub(crate) fn near(capacity: u64) -> u64 {
    percent(capacity, NEAR_PERCENT)
}

/// Returns `percent` percent of `bytes`, rounded down.
fn percent(bytes: u64, percent: u64) -> u64 {
    u64::try_from(u128::from(bytes) * u128::from(percent) / 100).unwrap_or(u64::MAX)
}

impl Figures {
    /// Returns the three allocators by the effort of a change to them. The allocator with which the job was recorded
    /// takes the least effort and comes first.
    pub(super) fn by_effort(&self) -> [Choice; 3] {
        match self.is_expandable_set {
            true => [Choice::Expandable, Choice::Native, Choice::Seamalloc],
            false => Choice::ALL,
        }
    }

    /// Returns the need of an allocator.
    pub(super) fn need(&self, choice: Choice) -> &Need {
        match choice {
            Choice::Native => &self.native,
            Choice::Expandable => &self.expandable,
            Choice::Seamalloc => &self.stitch,
        }
    }

    /// Returns the recommended allocator: of those that run the job, the first one by the effort of a change to it that
    /// leaves room on the device, or that no allocator of more effort beats. On a smaller device the recommended
    /// allocator never takes less effort. `None` if none of the three allocators runs the job.
    #[must_use]
    pub fn recommended(&self) -> Option<Choice> {
        let order = self.by_effort();
        let is_enough = |at: usize, choice: Choice| {
            let mut behind = order.iter().skip(at + 1);
            self.need(choice).reserved.is_some()
                && (self.has_room(choice) || !behind.any(|other| self.beats(*other, choice)))
        };
        order.into_iter().enumerate().find(|(at, choice)| is_enough(*at, *choice)).map(|(_, choice)| choice)
    }

    /// Returns whether an allocator runs the job without waits for memory, and leaves a part of the device free.
    pub(super) fn has_room(&self, choice: Choice) -> bool {
        let need = self.need(choice);
        let left = self.capacity.zip(need.reserved).map(|(capacity, reserved)| capacity.saturating_sub(reserved));
        need.waits == 0 && left.zip(self.capacity).is_some_and(|(left, capacity)| left >= near(capacity))
    }

    /// Returns whether `other` runs the job better than `choice`: with fewer waits for memory, or with no more waits
    /// and notably less memory held. If `other` is seamalloc, its waits count as fewer only if they are at most
    /// 1/[`FEWER_PART`] of those of `choice`.
    fn beats(&self, other: Choice, choice: Choice) -> bool {
        let (other, need, is_ours) = (self.need(other), self.need(choice), other == Choice::Seamalloc);
        let (Some(own), Some(reserved)) = (other.reserved, need.reserved) else { return other.reserved.is_some() };
        match other.waits.cmp(&need.waits) {
            Ordering::Less if !is_ours || other.waits <= need.waits / FEWER_PART => true,
            Ordering::Less | Ordering::Equal => saving(reserved, Some(own)).is_some(),
            Ordering::Greater => false,
        }
    }

    /// Returns the allocator of PyTorch with which seamalloc is compared, and the bytes that this allocator holds. Of
    /// PyTorch's allocators that hold more than seamalloc, this is the one that holds least. If neither holds more,
    /// this is the one that holds less or, if both hold the same, waits less.
    pub(super) fn best_of_pytorch(&self) -> Option<(Choice, u64)> {
        let own = self.stitch.reserved.unwrap_or(0);
        let both = [Choice::Native, Choice::Expandable].map(|choice| Some((choice, self.need(choice).reserved?)));
        let better = |(choice, held): &(Choice, u64)| (*held <= own, *held, self.need(*choice).waits);
        both.into_iter().flatten().min_by_key(better)
    }

    /// Returns the bytes of the device that others held when a request was refused, without the memory that PyTorch
    /// could have and without PyTorch's own CUDA context.
    pub(super) fn others(&self) -> Option<u64> {
        let known = self.device.zip(self.available).filter(|_| self.free_beyond_limit.is_none());
        known.map(|(device, available)| device.saturating_sub(available).saturating_sub(CONTEXT_BYTES))
    }
}
