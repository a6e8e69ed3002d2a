//! Checks plans, independently of the methods.
//!
//! Owns: the sweep that finds two buffers in the same memory at the same time.

use crate::problem::Problem;
use std::collections::BTreeMap;

/// The error of an invalid plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// The plan has too few or too many offsets.
    #[error("the plan has {found} offsets; expected {expected}, one for each buffer")]
    Count {
        /// The number of offsets.
        found: usize,
        /// The number of buffers.
        expected: usize,
    },
    /// An offset is not a multiple of the alignment, or differs from the buffer's fixed offset.
    #[error("buffer {id} is planned at {offset}, where it may not be")]
    Offset {
        /// The buffer.
        id: String,
        /// The buffer's offset in the plan.
        offset: u64,
    },
    /// The plan's peak differs from the peak of its offsets.
    #[error("the plan says a peak of {said} bytes; its offsets need {needed}")]
    Peak {
        /// The peak in the plan.
        said: u64,
        /// The peak of the offsets.
        needed: u64,
    },
    /// Two buffers share memory.
    #[error("buffers {first} and {second} are planned in the same memory at {moment}")]
    Overlap {
        /// The first buffer.
        first: String,
        /// The second buffer.
        second: String,
        /// A moment at which both buffers are live.
        moment: i64,
    },
}

/// Offsets for all buffers of a problem.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The offset of each buffer in bytes, in the order of the problem's buffers.
    pub offsets: Vec<u64>,
    /// The bytes that the plan needs, which is the highest end of a buffer.
    pub peak: u64,
}

impl Plan {
    /// Checks the plan: every buffer has an allowed offset, and no two buffers share memory at the same time.
    ///
    /// # Errors
    /// The first violation.
    pub fn check(&self, problem: &Problem) -> Result<(), CheckError> {
        let buffers = problem.buffers();
        if self.offsets.len() != buffers.len() {
            return Err(CheckError::Count { found: self.offsets.len(), expected: buffers.len() });
        }
        let mut needed = 0;
        for (buffer, &offset) in buffers.iter().zip(&self.offsets) {
            let end = offset.checked_add(buffer.size);
            let may_be = offset % buffer.alignment == 0 && buffer.fixed.is_none_or(|fixed| fixed == offset);
            let Some(end) = end.filter(|_| may_be) else {
                return Err(CheckError::Offset { id: buffer.id.clone(), offset });
            };
            needed = needed.max(end);
        }
        if needed != self.peak {
            return Err(CheckError::Peak { said: self.peak, needed });
        }
        let mut points = Vec::with_capacity(2 * buffers.len());
        for (index, (buffer, &offset)) in buffers.iter().zip(&self.offsets).enumerate() {
            for piece in buffer.pieces() {
                let (from, to) = (offset + piece.window.0, offset + piece.window.1);
                points.push((piece.lower, true, from, to, index));
                points.push((piece.upper, false, from, to, index));
            }
        }
        // Of the points at one moment, ends (`false`) come before beginnings, since memory is free at the moment at
        // which a buffer ends.
        points.sort_unstable();
        let mut live: BTreeMap<u64, (u64, usize)> = BTreeMap::new();
        for (moment, begins, from, to, index) in points {
            if !begins {
                live.remove(&from);
                continue;
            }
            let below = live.range(..to).next_back();
            if let Some((_, &(_, other))) = below.filter(|(_, (end, _))| *end > from) {
                let id = |index: usize| buffers.get(index).map(|buffer| buffer.id.clone()).unwrap_or_default();
                return Err(CheckError::Overlap { first: id(other), second: id(index), moment });
            }
            live.insert(from, (to, index));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::{Buffer, Gap};

    fn judged(buffers: Vec<Buffer>, offsets: &[u64], peak: u64) -> Result<(), CheckError> {
        Plan { offsets: offsets.to_vec(), peak }.check(&Problem::new("p", buffers).unwrap())
    }

    #[test]
    fn two_in_the_same_memory_are_found() {
        let pair = |upper| vec![Buffer::new("a", 0, upper, 8), Buffer::new("b", 5, 9, 8)];
        assert_eq!(judged(pair(5), &[0, 0], 8), Ok(()));
        assert_eq!(judged(pair(6), &[0, 8], 16), Ok(()));
        for offsets in [[0, 7], [7, 0], [0, 0]] {
            let peak = offsets[0].max(offsets[1]) + 8;
            let error = judged(pair(6), &offsets, peak).unwrap_err();
            assert!(matches!(&error, CheckError::Overlap { moment: 5, .. }), "{error}");
        }
        let inner = vec![Buffer::new("outer", 0, 9, 100), Buffer::new("inner", 1, 2, 1)];
        assert!(judged(inner.clone(), &[0, 50], 100).is_err());
        assert!(judged(vec![inner[1].clone(), Buffer::new("outer", 1, 9, 100)], &[50, 0], 100).is_err());
    }

    #[test]
    fn gaps_leave_room_and_windows_do_not() {
        let gap = |window| vec![Gap { lower: 2, upper: 6, window }];
        let pair = |window| vec![Buffer { gaps: gap(window), ..Buffer::new("a", 0, 8, 8) }, Buffer::new("b", 2, 6, 4)];
        assert_eq!(judged(pair(None), &[0, 0], 8), Ok(()));
        assert_eq!(judged(pair(Some((0, 4))), &[0, 4], 8), Ok(()));
        assert!(judged(pair(Some((0, 5))), &[0, 4], 8).is_err());
    }

    #[test]
    fn offsets_and_peaks_are_checked() {
        let one = |alignment, fixed| vec![Buffer { alignment, fixed, ..Buffer::new("a", 0, 1, 8) }];
        assert_eq!(judged(one(4, None), &[4], 12), Ok(()));
        assert!(matches!(judged(one(4, None), &[2], 10), Err(CheckError::Offset { .. })));
        assert!(matches!(judged(one(1, Some(3)), &[2], 10), Err(CheckError::Offset { .. })));
        assert!(matches!(judged(one(1, None), &[u64::MAX], 8), Err(CheckError::Offset { .. })));
        assert!(matches!(judged(one(1, None), &[2], 9), Err(CheckError::Peak { needed: 10, .. })));
        assert!(matches!(judged(one(1, None), &[], 0), Err(CheckError::Count { .. })));
    }
}
