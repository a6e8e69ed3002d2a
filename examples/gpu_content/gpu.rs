//! The operations that the program asks of a GPU beyond the allocator's calls: kernels that write and check words, and
//! graphs.
//!
//! Owns: the trait [`Gpu`], and which word belongs where. Word i of a block with the tag t holds a scrambled
//! `t << 32 | i`; scrambling is a bijection, so that a wrong word tells whose it is.

use seamalloc::driver::{CaptureMode, Driver, StreamId};
use std::error::Error;
use std::fmt;
use std::sync::Arc;

/// Whatever went wrong ends the run.
pub(crate) type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Bytes of a word.
pub(crate) const WORD: u64 = 8;

/// Words of 8 bytes, one behind the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Words {
    pub(crate) address: u64,
    pub(crate) count: u64,
}

impl Words {
    pub(crate) fn bytes(self) -> u64 {
        self.count * WORD
    }
}

/// A kernel that a stream can be given.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kernel {
    /// Writes the words that belong to `tag`.
    Fill { to: Words, tag: u32 },
    /// Counts the words that are not those of `tag`.
    Check { of: Words, tag: u32 },
    /// Copies all of `from`, of which the number of words is even.
    Copy { from: Words, to: u64 },
    /// Does nothing for so long.
    Spin { ns: u64 },
}

/// A graph that was captured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GraphId(pub(crate) usize);

/// A GPU that kernels run on, real or simulated.
pub(crate) trait Gpu: Send + Sync {
    /// The allocator's side of the same device.
    fn driver(&self) -> Arc<dyn Driver>;

    /// Must be called in a thread before anything below is.
    fn enter(&self) -> Outcome<()>;

    /// A stream that does not wait for the default stream; it lives as long as the GPU.
    fn create_stream(&self) -> Outcome<StreamId>;

    /// Gives a kernel to a stream, or to the graph that is being captured from it.
    fn launch(&self, stream: StreamId, kernel: Kernel) -> Outcome<()>;

    /// From now on what the stream is given becomes a graph.
    fn begin_capture(&self, stream: StreamId, mode: CaptureMode) -> Outcome<()>;

    /// The graph of all that the stream was given since. It lives as long as the GPU.
    fn end_capture(&self, stream: StreamId) -> Outcome<GraphId>;

    /// Gives a whole graph to a stream.
    fn replay(&self, graph: GraphId, stream: StreamId) -> Outcome<()>;

    /// Wrong words counted up to some moment not long ago, without waiting for any kernel.
    fn glance(&self) -> Outcome<u64>;

    /// Waits for all kernels, and says what those that checked have found so far.
    fn findings(&self) -> Outcome<Findings>;
}

/// The findings of all checks together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Findings {
    /// Words that kernels have read and compared.
    pub(crate) checked: u64,
    /// Of these, words that were not what had been written there.
    pub(crate) wrong: u64,
    /// One of the first that were wrong.
    pub(crate) first: Option<WrongWord>,
    /// Faults of the allocator that the simulated GPU reports beside: memory unmapped in use, used without a mapping.
    pub(crate) faults: Vec<String>,
}

/// A wrong word: what it should have been, and what it was.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WrongWord {
    pub(crate) expected: Key,
    pub(crate) found: Key,
}

impl fmt::Display for WrongWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} held {}", self.expected, self.found)
    }
}

/// The input of the scrambling: a tag and a place in its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key(pub(crate) u64);

impl Key {
    pub(crate) fn new(tag: u32, word: u64) -> Self {
        Self((u64::from(tag) << 32) + word)
    }

    /// The word that a kernel writes for the key, by the 64-bit finalizer of MurmurHash3 (kernels.ptx does the same).
    #[allow(dead_code, reason = "a real GPU's kernels make their own words")]
    pub(crate) fn word(self) -> u64 {
        let x = (self.0 ^ (self.0 >> 33)).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
        let x = (x ^ (x >> 33)).wrapping_mul(0xC4CE_B9FE_1A85_EC53);
        x ^ (x >> 33)
    }

    /// The key of what a word holds; of a word that no kernel wrote it is any number.
    pub(crate) fn of(word: u64) -> Self {
        // The factors of MurmurHash3's 64-bit finalizer, inverted modulo 2^64. A shift by 33 is its own inverse.
        let x = word ^ (word >> 33);
        let x = x.wrapping_mul(0x9CB4_B2F8_1293_37DB);
        let x = x ^ (x >> 33);
        let x = x.wrapping_mul(0x4F74_430C_22A5_4005);
        Self(x ^ (x >> 33))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "word {} of tag {}", self.0 & 0xFFFF_FFFF, self.0 >> 32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_tells_whose_it_is() {
        for key in [Key::new(0, 0), Key::new(1, 0), Key::new(0xFFFF_FFFF, 77), Key::new(12, (1 << 32) - 1)] {
            assert_eq!(Key::of(key.word()), key);
        }
        assert_eq!(Key::new(7, 123).to_string(), "word 123 of tag 7");
    }
}
