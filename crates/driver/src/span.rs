//! A range of addresses.

/// A range of contiguous bytes: the address of the first byte, and the number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Span {
    pub start: u64,
    pub size: u64,
}

impl Span {
    #[inline]
    pub const fn new(start: u64, size: u64) -> Self {
        Self { start, size }
    }

    /// Makes the span of the bytes from `start` up to `end`. `end` may not lie before `start`.
    #[inline]
    pub const fn between(start: u64, end: u64) -> Self {
        Self { start, size: end - start }
    }

    /// Returns the first byte after the span.
    #[inline]
    pub const fn end(&self) -> u64 {
        self.start + self.size
    }

    /// Returns whether the span holds this byte.
    #[inline]
    pub const fn contains(&self, address: u64) -> bool {
        self.start <= address && address - self.start < self.size
    }

    /// Returns the bytes that are in both spans, or `None` if there are none.
    #[inline]
    pub fn intersection(&self, other: &Self) -> Option<Self> {
        let (start, end) = (self.start.max(other.start), self.end().min(other.end()));
        (start < end).then(|| Self::between(start, end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_ends_before_its_end() {
        let span = Span::new(10, 5);
        assert_eq!((span.end(), Span::between(10, 15)), (15, span));
        assert!(span.contains(10) && span.contains(14) && !span.contains(15) && !span.contains(9));
        assert_eq!(span.intersection(&Span::new(14, 9)), Some(Span::new(14, 1)));
        assert_eq!(span.intersection(&Span::new(15, 9)), None);
        assert!(!Span::default().contains(0));
    }
}
