//! The input of planning: buffers with sizes and lifetimes.
//!
//! Owns: the plain values, and the rules that make a problem valid. A [`Problem`] is always valid, and no sum of its
//! sizes overflows.

use rustc_hash::FxHashSet;

/// The largest buffer in bytes: 128 TiB, as many user addresses as x86-64 has.
const MAX_BLOCK_SIZE: u64 = 1 << 47;
/// The most buffers of a problem.
pub const MAX_BUFFERS: usize = 1 << 24;
/// The most bytes of all buffers side by side, including the effect of alignment.
const MAX_TOTAL: u64 = 1 << 62;

/// A part of a buffer's lifetime in which it needs no memory, or less than its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// The first moment of the gap.
    pub lower: i64,
    /// The moment after the last moment of the gap.
    pub upper: i64,
    /// The range of the buffer's bytes that are used during the gap; `None` if no bytes are used.
    pub window: Option<(u64, u64)>,
}

/// A buffer that needs a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// The buffer's name in the input and the output.
    pub id: String,
    /// The first moment at which the buffer is live. The unit of time is the input's own.
    pub lower: i64,
    /// The moment after the last moment at which the buffer is live.
    pub upper: i64,
    /// The size in bytes.
    pub size: u64,
    /// The alignment in bytes: the offset is a multiple of the alignment. 1 allows any offset.
    pub alignment: u64,
    /// The times at which the buffer needs less memory, in order and disjoint.
    pub gaps: Vec<Gap>,
    /// The fixed offset; `None` if the offset is to be planned.
    pub fixed: Option<u64>,
    /// An offset that a solver may try first. The methods of this crate ignore the hint and write it to the output.
    pub hint: Option<u64>,
}

impl Buffer {
    /// Makes a buffer that is live from `lower` until before `upper`, at any offset.
    #[must_use]
    pub fn new(id: impl Into<String>, lower: i64, upper: i64, size: u64) -> Self {
        Self { id: id.into(), lower, upper, size, alignment: 1, gaps: Vec::new(), fixed: None, hint: None }
    }

    /// Returns the parts of the lifetime in which the buffer needs memory, in order.
    pub fn pieces(&self) -> impl Iterator<Item = Piece> {
        let whole = (0, self.size);
        // A gap of one moment or more separates two pieces. A gap with a window (bytes used during the gap) is a piece
        // of its own.
        let ends = self.gaps.iter().map(|gap| (gap.lower, Some(gap))).chain([(self.upper, None)]);
        let mut from = self.lower;
        let pieces = ends.flat_map(move |(to, gap)| {
            let before = Piece { lower: from, upper: to, window: whole };
            from = gap.map_or(to, |gap| gap.upper);
            let within = gap.and_then(|gap| Some(Piece { lower: gap.lower, upper: gap.upper, window: gap.window? }));
            [Some(before), within]
        });
        pieces.flatten().filter(|piece| piece.lower < piece.upper)
    }
}

/// A part of a buffer's lifetime, and the bytes of the buffer that are used in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The first moment of the part.
    pub lower: i64,
    /// The moment after the last moment of this part of the lifetime.
    pub upper: i64,
    /// The range of the buffer's bytes that are used in this part, from and to.
    pub window: (u64, u64),
}

/// A rule that a buffer breaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BufferError {
    /// The buffer is live at no moment.
    #[error("buffer {id} is live from {lower} to {upper}; expected an end behind the beginning")]
    NeverLive {
        /// The buffer.
        id: String,
        /// The buffer's beginning.
        lower: i64,
        /// The buffer's end.
        upper: i64,
    },
    /// The buffer has no bytes, or more bytes than any address space.
    #[error("buffer {id} has {size} bytes; expected 1 to {MAX_BLOCK_SIZE}")]
    Size {
        /// The buffer.
        id: String,
        /// The buffer's bytes.
        size: u64,
    },
    /// The alignment is 0, so no offset is a multiple of the alignment.
    #[error("buffer {id} has alignment {alignment}; expected 1 to {MAX_BLOCK_SIZE}")]
    Alignment {
        /// The buffer.
        id: String,
        /// The buffer's alignment.
        alignment: u64,
    },
    /// A gap is empty, outside of the lifetime, not after the previous gap, or has a window outside of the buffer.
    #[error(
        "buffer {id} has a gap from {} to {}{}; expected gaps within its lifetime, one behind the other, with windows \
         within its bytes", .gap.lower, .gap.upper, .gap.window.map(|(low, high)| format!(" at {low}:{high}")).unwrap_or_default()
    )]
    Gap {
        /// The buffer.
        id: String,
        /// The gap.
        gap: Gap,
    },
    /// The gaps cover the whole lifetime.
    #[error("buffer {id} needs no memory at any time; expected gaps that leave a part of its lifetime")]
    AllGaps {
        /// The buffer.
        id: String,
    },
    /// The fixed offset is not allowed for the buffer.
    #[error("buffer {id} has offset {offset}; expected a multiple of its alignment, up to {MAX_BLOCK_SIZE}")]
    Offset {
        /// The buffer.
        id: String,
        /// The buffer's offset.
        offset: u64,
    },
    /// Two buffers have the same name.
    #[error("buffer {id} stands there twice; expected different ids")]
    SameId {
        /// The name.
        id: String,
    },
    /// The problem exceeds the limits on buffers or bytes.
    #[error(
        "with buffer {id} there are more than {MAX_BUFFERS} buffers or {MAX_TOTAL} bytes, which is the most that is planned"
    )]
    TooMuch {
        /// The buffer.
        id: String,
    },
}

/// The error of an invalid problem: the buffer, and the rule that it breaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct ProblemError {
    /// The buffer's index in the list, from 0.
    pub index: usize,
    /// The rule that the buffer breaks.
    pub error: BufferError,
}

/// Buffers that need offsets, so that no two buffers lie in the same memory at the same time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problem {
    name: String,
    buffers: Vec<Buffer>,
}

impl Problem {
    /// Makes a problem of these buffers; `name` is for output.
    ///
    /// # Errors
    /// The first buffer that breaks a rule.
    pub fn new(name: impl Into<String>, buffers: Vec<Buffer>) -> Result<Self, ProblemError> {
        let mut ids = FxHashSet::default();
        let mut total = 0_u64;
        for (index, buffer) in buffers.iter().enumerate() {
            let fail = |error| ProblemError { index, error };
            check(buffer).map_err(fail)?;
            let id = || buffer.id.clone();
            // Each term is at most three times 2^47, so no single addition overflows.
            total += buffer.size + (buffer.alignment - 1) + buffer.fixed.unwrap_or(0);
            if total > MAX_TOTAL || index >= MAX_BUFFERS {
                return Err(fail(BufferError::TooMuch { id: id() }));
            }
            if !ids.insert(buffer.id.as_str()) {
                return Err(fail(BufferError::SameId { id: id() }));
            }
        }
        Ok(Self { name: name.into(), buffers })
    }

    /// Returns the problem's name in output.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the buffers, in the order of the input.
    #[must_use]
    pub fn buffers(&self) -> &[Buffer] {
        &self.buffers
    }
}

fn check(buffer: &Buffer) -> Result<(), BufferError> {
    let id = || buffer.id.clone();
    if buffer.lower >= buffer.upper {
        return Err(BufferError::NeverLive { id: id(), lower: buffer.lower, upper: buffer.upper });
    }
    if !(1..=MAX_BLOCK_SIZE).contains(&buffer.size) {
        return Err(BufferError::Size { id: id(), size: buffer.size });
    }
    if !(1..=MAX_BLOCK_SIZE).contains(&buffer.alignment) {
        return Err(BufferError::Alignment { id: id(), alignment: buffer.alignment });
    }
    if let Some(offset) = buffer.fixed.filter(|offset| offset % buffer.alignment != 0 || *offset > MAX_BLOCK_SIZE) {
        return Err(BufferError::Offset { id: id(), offset });
    }
    let mut from = buffer.lower;
    for gap in &buffer.gaps {
        let is_placed = from <= gap.lower && gap.lower < gap.upper && gap.upper <= buffer.upper;
        if !is_placed || gap.window.is_some_and(|(low, high)| low >= high || high > buffer.size) {
            return Err(BufferError::Gap { id: id(), gap: *gap });
        }
        from = gap.upper;
    }
    if buffer.pieces().next().is_none() { Err(BufferError::AllGaps { id: id() }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_of(buffer: Buffer) -> String {
        Problem::new("p", vec![Buffer::new("first", 0, 1, 1), buffer]).unwrap_err().to_string()
    }

    #[test]
    fn what_breaks_a_rule_is_named() {
        let buffer = Buffer::new("b", 0, 10, 8);
        assert_eq!(
            error_of(Buffer { upper: 0, ..buffer.clone() }),
            "buffer b is live from 0 to 0; expected an end behind the beginning"
        );
        assert!(error_of(Buffer { size: 0, ..buffer.clone() }).contains("0 bytes; expected 1 to 140737488355328"));
        assert!(error_of(Buffer { alignment: 0, ..buffer.clone() }).contains("alignment 0"));
        assert!(error_of(Buffer { alignment: 4, fixed: Some(2), ..buffer.clone() }).contains("offset 2"));
        assert!(error_of(Buffer { id: "first".to_owned(), ..buffer.clone() }).contains("first stands there twice"));
        let gap = |lower, upper, window| Gap { lower, upper, window };
        for gaps in [
            vec![gap(0, 0, None)],
            vec![gap(8, 11, None)],
            vec![gap(-1, 3, None)],
            vec![gap(4, 6, None), gap(5, 7, None)],
            vec![gap(4, 6, Some((0, 9)))],
            vec![gap(4, 6, Some((3, 3)))],
        ] {
            assert!(error_of(Buffer { gaps, ..buffer.clone() }).contains("expected gaps within"));
        }
        let gaps = vec![gap(0, 4, None), gap(4, 10, None)];
        assert!(error_of(Buffer { gaps, ..buffer }).contains("no memory at any time"));
        let many = (0..40_000).map(|id| Buffer::new(id.to_string(), 0, 1, MAX_BLOCK_SIZE)).collect();
        assert!(Problem::new("p", many).unwrap_err().to_string().contains("most that is planned"));
    }

    #[test]
    fn gaps_divide_a_lifetime() {
        let gaps = vec![
            Gap { lower: 0, upper: 2, window: None },
            Gap { lower: 3, upper: 5, window: Some((1, 4)) },
            Gap { lower: 5, upper: 6, window: None },
        ];
        let buffer = Buffer { gaps, ..Buffer::new("b", 0, 9, 8) };
        let pieces: Vec<_> = buffer.pieces().map(|piece| (piece.lower, piece.upper, piece.window)).collect();
        assert_eq!(pieces, [(2, 3, (0, 8)), (3, 5, (1, 4)), (6, 9, (0, 8))]);
    }
}
