//! The last operations of a program, which a finding is told with.
//!
//! Owns: how many there are, and how they are printed. Nothing is made a text before something is wrong.

use super::program::Op;
use seamalloc::PoolId;
use std::collections::VecDeque;
use std::fmt;

/// The last operations, and what they were given; more with `SEAMALLOC_FUZZ_TRAIL`.
const TRAIL: usize = 60;

pub(super) enum Line {
    Op(u64, Op),
    HandedOut(u64, u64, Option<PoolId>),
    End,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Op(nth, op) => write!(f, "{nth}: {op:?}"),
            Self::HandedOut(address, size, Some(pool)) => write!(f, "   {address:#x}, {size} bytes, of {pool}"),
            Self::HandedOut(address, size, None) => write!(f, "   {address:#x}, {size} bytes"),
            Self::End => write!(f, "the end"),
        }
    }
}

/// The last operations, printed where one of them panics.
pub(super) struct Trail {
    first: String,
    lines: VecDeque<Line>,
    most: usize,
}

impl Trail {
    pub(super) fn new(first: String) -> Self {
        let most = std::env::var("SEAMALLOC_FUZZ_TRAIL").ok().and_then(|lines| lines.parse().ok()).unwrap_or(TRAIL);
        Self { first, lines: VecDeque::new(), most }
    }

    pub(super) fn note(&mut self, line: Line) {
        if self.lines.len() >= self.most {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }
}

impl Drop for Trail {
    #[allow(clippy::print_stderr, reason = "a finding is told by its operations")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.first);
            self.lines.iter().for_each(|line| eprintln!("{line}"));
        }
    }
}
