//! A plan from a file, for a running allocator.
//!
//! Owns: which request of a step is which of a plan that was made earlier, of a recording.
//!
//! ```text
//! file        a b c d e f             requests in the program's order, small ones left out
//! step            d e f a b c         it begins elsewhere: what comes first in the file is looked for in the step
//! ```
//! What a file says is the order in which requests are placed, the lowest first: each then lies no higher than in the file, wherever the
//! memory begins and whatever lies in it already.

use crate::csv::{CsvError, read_csv};
use crate::problem::{Buffer, Problem};
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

/// Bytes: all sizes of requests are multiples of it.
const UNIT: u64 = 512;
/// In bytes: requests up to this size share slabs, and are not planned while a program runs.
const MOST_SMALL: u64 = 1 << 20;
/// A step is not the file's if more than this part (1/n) of its bytes is other than there.
const OTHER: u64 = 8;

/// Places of a step's requests that were found earlier: `seamalloc plan TRACE -o FILE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredPlan {
    /// The size and the offset of each large request, both in bytes, in the order of the program.
    requests: Vec<(u64, u64)>,
}

/// Why a file has no plan that can be followed.
#[derive(Debug, thiserror::Error)]
pub enum StoredPlanError {
    /// It cannot be read, or it is no csv of buffers.
    #[error(transparent)]
    Csv(#[from] CsvError),
    /// A buffer has no place.
    #[error("{file}: the buffer {id} has no offset; expected a plan, as `seamalloc plan TRACE -o FILE` writes it")]
    NoOffset {
        /// The file.
        file: String,
        /// The buffer's name.
        id: String,
    },
    /// Nothing in it would be planned.
    #[error(
        "{file}: no buffer is larger than 1 MiB; smaller ones share slabs, and are not planned while a program runs"
    )]
    AllSmall {
        /// The file.
        file: String,
    },
}

impl StoredPlan {
    /// Reads a file.
    ///
    /// # Errors
    /// [`StoredPlanError`], with the file, and what was expected of it.
    pub fn read(path: &Path) -> Result<Self, StoredPlanError> {
        let file = path.display().to_string();
        let text = File::open(path).map_err(|source| CsvError::Io { file: file.clone(), source })?;
        let problem = read_csv("plan", &file, BufReader::new(text))?;
        Self::of(&problem, &file)
    }

    /// Takes the offsets that the buffers of a problem have. `file` stands in errors.
    ///
    /// # Errors
    /// [`StoredPlanError::NoOffset`], [`StoredPlanError::AllSmall`].
    pub fn of(problem: &Problem, file: &str) -> Result<Self, StoredPlanError> {
        let mut requests = Vec::new();
        for buffer in problem.buffers().iter().filter(|buffer| buffer.size > MOST_SMALL) {
            let no_offset = || StoredPlanError::NoOffset { file: file.to_owned(), id: buffer.id.clone() };
            requests.push((requested(buffer), buffer.size.next_multiple_of(UNIT), buffer.fixed.ok_or_else(no_offset)?));
        }
        if requests.is_empty() {
            return Err(StoredPlanError::AllSmall { file: file.to_owned() });
        }
        requests.sort_by_key(|(moment, ..)| *moment);
        Ok(Self { requests: requests.into_iter().map(|(_, size, offset)| (size, offset)).collect() })
    }

    /// Returns where the file has each request of a step, if the step is the file's. `None` for a request that is not there.
    pub(crate) fn offsets(&self, sizes: &[u64]) -> Option<Vec<Option<u64>>> {
        let best = self.beginnings(sizes).map(|first| self.from(first, sizes)).max_by_key(|(bytes, _)| *bytes);
        let (found, offsets) = best?;
        let all: u64 = sizes.iter().sum();
        (all - found <= all / OTHER).then_some(offsets)
    }

    /// Where the step's first request may stand in the file: a step begins where live memory is least, a recorded iteration elsewhere.
    fn beginnings<'a>(&'a self, sizes: &'a [u64]) -> impl Iterator<Item = usize> + 'a {
        const COMPARED: usize = 8;
        let like = move |first: &usize| {
            let compared = sizes.iter().take(COMPARED).enumerate();
            compared.filter(|(at, size)| self.cyclic(first + at).0 == **size).count() * 2 > sizes.len().min(COMPARED)
        };
        (0..self.requests.len()).filter(like)
    }

    fn cyclic(&self, at: usize) -> (u64, u64) {
        self.requests[at % self.requests.len()]
    }

    /// Takes requests in their order, from one of the file's on; where the two differ, the next that is alike within a few. Returns how
    /// many bytes are found.
    fn from(&self, first: usize, sizes: &[u64]) -> (u64, Vec<Option<u64>>) {
        const WINDOW: usize = 16;
        let (mut next, end) = (first, first + self.requests.len());
        let mut found = 0;
        let offsets = sizes.iter().map(|size| {
            let at = (next..end.min(next + WINDOW)).find(|at| self.cyclic(*at).0 == *size)?;
            next = at + 1;
            found += size;
            Some(self.cyclic(at).1)
        });
        let offsets = offsets.collect();
        (found, offsets)
    }
}

/// The moment of the request: of a buffer that is live at both ends of the iteration, that after its gap.
fn requested(buffer: &Buffer) -> i64 {
    match buffer.gaps.last() {
        Some(gap) if gap.window.is_none() => gap.upper,
        _ => buffer.lower,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn stored(sizes: &[u64]) -> StoredPlan {
        let buffers = sizes.iter().enumerate().map(|(at, size)| {
            let buffer = Buffer::new(at.to_string(), at as i64, at as i64 + 2, size * MIB);
            Buffer { fixed: Some(100 * MIB * at as u64), ..buffer }
        });
        StoredPlan::of(&Problem::new("test", buffers.collect()).unwrap(), "test.csv").unwrap()
    }

    fn offsets(plan: &StoredPlan, sizes: &[u64]) -> Option<Vec<Option<u64>>> {
        let sizes: Vec<u64> = sizes.iter().map(|size| size * MIB).collect();
        let offsets = plan.offsets(&sizes)?;
        Some(offsets.into_iter().map(|offset| offset.map(|offset| offset / MIB / 100)).collect())
    }

    #[test]
    fn a_step_that_begins_elsewhere_is_found() {
        let plan = stored(&[2, 3, 4, 5, 6, 7]);
        assert_eq!(offsets(&plan, &[5, 6, 7, 2, 3, 4]), Some([3, 4, 5, 0, 1, 2].map(Some).to_vec()));
    }

    #[test]
    fn a_request_that_is_not_there_has_no_place_and_the_others_have_theirs() {
        let plan = stored(&[20, 30, 40, 50, 60]);
        assert_eq!(offsets(&plan, &[20, 30, 3, 40, 60]), Some(vec![Some(0), Some(1), None, Some(2), Some(4)]));
    }

    #[test]
    fn a_step_of_another_job_has_no_places() {
        assert_eq!(offsets(&stored(&[2, 3, 4, 5, 6]), &[2, 3, 4, 50, 60]), None);
        assert_eq!(offsets(&stored(&[2, 3, 4, 5, 6]), &[9, 8, 9, 8, 9]), None);
    }

    #[test]
    fn a_block_that_crosses_the_ends_is_requested_after_its_gap() {
        let gap = crate::Gap { lower: 1, upper: 8, window: None };
        let crossing = Buffer { gaps: vec![gap], fixed: Some(0), ..Buffer::new("crossing", 0, 9, 5 * MIB) };
        let inner = Buffer { fixed: Some(100 * MIB), ..Buffer::new("inner", 2, 4, 3 * MIB) };
        let plan = StoredPlan::of(&Problem::new("test", vec![crossing, inner]).unwrap(), "test.csv").unwrap();
        assert_eq!(plan.requests, [(3 * MIB, 100 * MIB), (5 * MIB, 0)]);
    }

    #[test]
    fn what_is_no_plan_is_refused() {
        let read = |text: &str| StoredPlan::of(&read_csv("x", "x.csv", text.as_bytes()).unwrap(), "x.csv").unwrap_err();
        let error = read("id,lower,upper,size\nbig,0,9,4194304\n").to_string();
        assert!(error.contains("x.csv: the buffer big has no offset"), "{error}");
        let error = read("id,lower,upper,size,offset\ntiny,0,9,512,0\n").to_string();
        assert!(error.contains("no buffer is larger than 1 MiB"), "{error}");
        let error = StoredPlan::read(Path::new("/nonexistent/plan.csv")).unwrap_err().to_string();
        assert!(error.contains("/nonexistent/plan.csv"), "{error}");
    }
}
