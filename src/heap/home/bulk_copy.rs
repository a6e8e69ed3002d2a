//! Copies within host memory by several threads.
//!
//! Owns: how many threads copy, and from how many bytes on. One thread copies 5 to 10 GB/s into memory that was never
//! touched before. A link to a GPU carries 55 GB/s, so one thread would slow the copies to and from the GPU down.

use crate::fallible::{Grown, TryPush, with_room};
use std::num::NonZero;
use std::thread;

/// The bytes of one part, which one thread copies.
pub(super) const PART: usize = 4 << 20;

/// Copies of at least this number of parts use threads. Starting a thread takes as long as copying a part, and needs
/// host memory whose lack cannot be handled. So small copies use no threads.
const FOR_THREADS: usize = 8;

/// The most threads that copy at the same time.
const THREADS: usize = 8;

/// The copy of one part, and whether the copy was made.
struct Job<'a> {
    from: &'a [u8],
    to: To<'a>,
    done: bool,
}

enum To<'a> {
    /// New memory, allocated for the part.
    New(Vec<u8>),
    Known(&'a mut [u8]),
}

impl Job<'_> {
    fn run(&mut self) {
        self.done = match &mut self.to {
            To::New(bytes) => {
                let room = bytes.try_reserve_exact(self.from.len()).is_ok();
                if room {
                    bytes.extend_from_slice(self.from);
                }
                room
            }
            To::Known(bytes) => {
                let equal = bytes.len() == self.from.len();
                if equal {
                    bytes.copy_from_slice(self.from);
                }
                equal
            }
        };
    }
}

/// Appends a copy of `bytes` to a list of parts, which must be empty or end with a full part.
pub(in crate::heap) fn append(parts: &mut Vec<Vec<u8>>, bytes: &[u8]) -> Grown<()> {
    let mut jobs = with_room(bytes.len().div_ceil(PART))?;
    jobs.extend(bytes.chunks(PART).map(|from| Job { from, to: To::New(Vec::new()), done: false }));
    run(&mut jobs);
    parts.try_reserve(jobs.len())?;
    for job in jobs {
        match job.to {
            To::New(bytes) if job.done => parts.push(bytes),
            // This reservation cannot succeed. It only makes the error that is returned.
            _ => Vec::<u8>::new().try_reserve_exact(usize::MAX)?,
        }
    }
    Ok(())
}

/// Copies parts to a slice of the same total size. Returns whether the sizes were equal.
pub(in crate::heap) fn copy(parts: &[Vec<u8>], bytes: &mut [u8]) -> Grown<bool> {
    let mut jobs = Vec::new();
    let whole = parts.iter().map(Vec::len).sum::<usize>() == bytes.len();
    let mut left = bytes;
    for from in parts {
        let Some((to, rest)) = left.split_at_mut_checked(from.len()) else { return Ok(false) };
        jobs.try_push(Job { from, to: To::Known(to), done: false })?;
        left = rest;
    }
    run(&mut jobs);
    Ok(whole && jobs.iter().all(|job| job.done))
}

/// Runs all jobs, in threads if there are enough jobs. If a thread cannot be started, the caller's thread runs the
/// thread's jobs.
fn run(jobs: &mut [Job<'_>]) {
    let most =
        if jobs.len() < FOR_THREADS { 1 } else { thread::available_parallelism().map_or(1, NonZero::get).min(THREADS) };
    if most > 1 {
        let each = jobs.len().div_ceil(most);
        thread::scope(|scope| {
            for part in jobs.chunks_mut(each) {
                let copy = move || part.iter_mut().for_each(Job::run);
                if let Err(error) = thread::Builder::new().name("seamalloc-copy".into()).spawn_scoped(scope, copy) {
                    tracing::debug!(%error, "a copy goes without one of its threads");
                }
            }
        });
    }
    jobs.iter_mut().filter(|job| !job.done).for_each(Job::run);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_copied_in_parts_is_the_same() {
        for size in [0, 1, PART - 1, PART, 5 * PART + 17, 20 * PART] {
            let bytes: Vec<u8> = (0..size).map(|at| (at / 251 % 256) as u8).collect();
            let mut parts = Vec::new();
            append(&mut parts, &bytes).unwrap();
            assert_eq!(parts.len(), size.div_ceil(PART));
            assert!(parts.iter().rev().skip(1).all(|part| part.len() == PART));
            let mut back = vec![0; size];
            assert_eq!(copy(&parts, &mut back), Ok(true));
            assert!(back == bytes, "{size}");
        }
    }

    #[test]
    fn parts_that_do_not_fit_are_told() {
        assert_eq!(copy(&[vec![1, 2], vec![3]], &mut [0; 2]), Ok(false));
        assert_eq!(copy(&[vec![1, 2]], &mut [0; 3]), Ok(false));
    }
}
