//! Lines from received bytes.
//!
//! Owns: the received part of an incomplete line, and the bound of its length.

use std::io;

/// The error of a line that is longer than its bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a line of more than {most} bytes")]
pub struct TooLong {
    /// The bound, in bytes.
    pub most: usize,
}

impl From<TooLong> for io::Error {
    fn from(error: TooLong) -> Self {
        Self::new(io::ErrorKind::InvalidData, error)
    }
}

/// Received bytes that were not taken as lines yet.
#[derive(Clone, Debug)]
pub struct Lines {
    most: usize,
    bytes: Vec<u8>,
    /// The number of bytes that were taken as lines. The bytes are removed together, before more bytes are added.
    taken: usize,
    /// The number of bytes that were taken, or are known to have no line end.
    searched: usize,
}

impl Lines {
    /// Makes a buffer for lines of at most `most` bytes, line ends excluded.
    #[must_use]
    pub const fn new(most: usize) -> Self {
        Self { most, bytes: Vec::new(), taken: 0, searched: 0 }
    }

    /// Adds received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.taken);
        self.searched -= self.taken;
        self.taken = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// Takes the next line, without its end. Returns `None` if the line is incomplete.
    ///
    /// # Errors
    /// [`TooLong`], also for a line whose end was not received yet.
    pub fn next_line(&mut self) -> Result<Option<Vec<u8>>, TooLong> {
        let new = self.bytes.get(self.searched..).unwrap_or_default();
        let end = new.iter().position(|byte| *byte == b'\n').map(|at| self.searched + at);
        if end.unwrap_or(self.bytes.len()) - self.taken > self.most {
            return Err(TooLong { most: self.most });
        }
        let Some(end) = end else {
            self.searched = self.bytes.len();
            return Ok(None);
        };
        let line = self.bytes.get(self.taken..end).unwrap_or_default().to_vec();
        self.taken = end + 1;
        self.searched = self.taken;
        Ok(Some(line))
    }

    /// Returns the bytes after the last line that was taken.
    #[must_use]
    pub fn into_rest(mut self) -> Vec<u8> {
        self.bytes.drain(..self.taken);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(lines: &mut Lines) -> Vec<String> {
        let mut found = Vec::new();
        while let Some(line) = lines.next_line().unwrap() {
            found.push(String::from_utf8(line).unwrap());
        }
        found
    }

    #[test]
    fn lines_are_the_same_however_the_bytes_come() {
        let text = b"one\n\nthree\nfo";
        for piece in 1..=text.len() {
            let mut lines = Lines::new(5);
            let mut found = Vec::new();
            for bytes in text.chunks(piece) {
                lines.push(bytes);
                found.extend(all(&mut lines));
            }
            assert_eq!(found, ["one", "", "three"], "by {piece}");
            assert_eq!(lines.into_rest(), b"fo");
        }
    }

    #[test]
    fn a_line_beyond_the_bound_is_an_error_with_and_without_an_end() {
        let mut exact = Lines::new(3);
        exact.push(b"abc\n");
        assert_eq!(exact.next_line(), Ok(Some(b"abc".to_vec())));
        for text in ["abcd", "abcd\n", "ok\nabcd"] {
            let mut lines = Lines::new(3);
            lines.push(text.as_bytes());
            if text.starts_with("ok") {
                assert_eq!(lines.next_line(), Ok(Some(b"ok".to_vec())));
            }
            assert_eq!(lines.next_line(), Err(TooLong { most: 3 }), "{text}");
        }
        assert_eq!(TooLong { most: 3 }.to_string(), "a line of more than 3 bytes");
    }
}
