//! The rules of a verdict, in their order, and their thresholds.
//!
//! Owns: when each [`Verdict`] is true. `docs/why.md` has the same rules in words, and a test compares the thresholds.

use super::figures::{Figures, Need, OfPyTorch, Verdict};
use std::cmp::Ordering;

/// A difference below this part of what is held, in percent, is nothing to act on: a replay agrees with what PyTorch held
/// within half a percent, and a batch size is changed by more.
pub const FEW_PERCENT: u64 = 3;
/// A difference below so many bytes is nothing to act on either: a CUDA context takes more.
pub const FEW_BYTES: u64 = 256 << 20;
/// A job with less of the device left than this part, in percent, is near its limit: the CUDA context and libraries, which
/// are not the allocator's, take 1 GiB or so of it.
pub const NEAR_PERCENT: u64 = 5;
/// Streams are the reason where they keep at least one part in this many of the difference.
pub const APART_PART: u64 = 2;

/// The rules, in the order of the questions of `docs/why.md`: the first that is true is the verdict.
const RULES: [fn(&Figures) -> Option<Verdict>; 6] =
    [too_much_live, others, pytorch_has_room, streams, seamalloc_helps, nothing_to_gain];

/// Returns the verdict on a job.
#[must_use]
pub fn judge(figures: &Figures) -> Verdict {
    // Where no allocator runs the job, although less is live than the device has, the rest is what rounding takes.
    RULES.iter().find_map(|rule| rule(figures)).unwrap_or(Verdict::TooMuchLive { by: 0 })
}

/// 1. More is live than the device has, and no allocator runs the job.
fn too_much_live(figures: &Figures) -> Option<Verdict> {
    let by = figures.live.checked_sub(figures.capacity?).filter(|by| *by > 0)?;
    let runs = figures.needs().any(|need| need.reserved.is_some());
    (!runs).then_some(Verdict::TooMuchLive { by })
}

/// 2. The allocator that holds least fits on the device, but not beside what others hold of it.
fn others(figures: &Figures) -> Option<Verdict> {
    let (capacity, others) = (figures.capacity?, figures.others?);
    let least = figures.needs().filter_map(|need| need.reserved).min()?;
    let missing = least.saturating_sub(capacity.saturating_sub(others));
    (missing > 0).then_some(Verdict::Others { missing })
}

/// 3. An allocator of PyTorch's runs the job without waits for memory, and leaves room on the device.
fn pytorch_has_room(figures: &Figures) -> Option<Verdict> {
    let (allocator, reserved) = figures.best_of_pytorch()?;
    let capacity = figures.capacity?;
    let left = capacity.saturating_sub(reserved);
    let has_room = left >= near(capacity) && figures.need(allocator).waits == 0;
    has_room.then_some(Verdict::PyTorchIsEnough { allocator, has_room })
}

/// 4. Streams keep apart at least half of what the job holds beyond seamalloc's need, or beyond what is live.
fn streams(figures: &Figures) -> Option<Verdict> {
    let is_most = |apart: u64, of: u64| apart > 0 && apart.saturating_mul(APART_PART) >= of;
    let Some((allocator, reserved)) = figures.best_of_pytorch() else {
        let refused = figures.expandable;
        let is_reason = figures.stitch.reserved.is_some() && is_most(refused.apart(), refused.idle);
        return is_reason.then(|| Verdict::Streams { apart: refused.apart(), is_saved: true });
    };
    let need = figures.need(allocator);
    if let Some(saves) = saving(reserved, figures.stitch.reserved) {
        return is_most(need.apart(), saves).then(|| Verdict::Streams { apart: need.apart(), is_saved: true });
    }
    let unused = saving(reserved, Some(figures.live))?;
    is_most(need.apart(), unused).then(|| Verdict::Streams { apart: need.apart(), is_saved: false })
}

/// 5. seamalloc alone runs the job, holds notably less than the better of PyTorch's allocators, or does without its waits.
fn seamalloc_helps(figures: &Figures) -> Option<Verdict> {
    let own = figures.stitch.reserved?;
    let Some((allocator, reserved)) = figures.best_of_pytorch() else {
        return Some(Verdict::SeamallocHelps { saves: None, waits: 0 });
    };
    let waits = if figures.stitch.waits == 0 { figures.need(allocator).waits } else { 0 };
    let saves = saving(reserved, Some(own));
    (saves.is_some() || waits > 0).then(|| Verdict::SeamallocHelps { saves: Some(reserved.saturating_sub(own)), waits })
}

/// 3. PyTorch's allocators run the job, and seamalloc saves too little to matter.
fn nothing_to_gain(figures: &Figures) -> Option<Verdict> {
    figures.best_of_pytorch().map(|(allocator, _)| Verdict::PyTorchIsEnough { allocator, has_room: false })
}

/// Returns by how much `own` is less than `reserved`, if that is enough to matter.
pub(super) fn saving(reserved: u64, own: Option<u64>) -> Option<u64> {
    let saves = reserved.saturating_sub(own?);
    (saves >= FEW_BYTES && saves >= percent(reserved, FEW_PERCENT)).then_some(saves)
}

/// Returns the part of a device that is to stay free.
pub(super) fn near(capacity: u64) -> u64 {
    percent(capacity, NEAR_PERCENT)
}

/// Returns so many percent of `bytes`, rounded down.
fn percent(bytes: u64, percent: u64) -> u64 {
    u64::try_from(u128::from(bytes) * u128::from(percent) / 100).unwrap_or(u64::MAX)
}

impl Figures {
    fn needs(&self) -> impl Iterator<Item = &Need> {
        [&self.native, &self.expandable, &self.stitch].into_iter()
    }

    /// Returns the need of an allocator of PyTorch's.
    pub(super) fn need(&self, allocator: OfPyTorch) -> &Need {
        match allocator {
            OfPyTorch::Native => &self.native,
            OfPyTorch::Expandable => &self.expandable,
        }
    }

    /// Returns the allocator of PyTorch's to take, with what it holds: native, unless only expandable segments run the job,
    /// or wait less often, or hold less where native holds notably more than another.
    pub(super) fn best_of_pytorch(&self) -> Option<(OfPyTorch, u64)> {
        let expandable = self.expandable.reserved.map(|reserved| (OfPyTorch::Expandable, reserved));
        let Some(native) = self.native.reserved else { return expandable };
        let is_wasteful =
            || [self.expandable.reserved, self.stitch.reserved].map(|own| saving(native, own)) != [None; 2];
        let is_better = |(_, reserved): &(OfPyTorch, u64)| match self.native.waits.cmp(&self.expandable.waits) {
            Ordering::Less => false,
            Ordering::Equal => *reserved < native && is_wasteful(),
            Ordering::Greater => true,
        };
        expandable.filter(is_better).or(Some((OfPyTorch::Native, native)))
    }
}
