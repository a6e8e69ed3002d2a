//! A pool as decision 51 describes it, written anew and as simply as possible: a list of pieces, walked from the front each time.

/// What a pool grows by, in bytes.
const STEP: u64 = 32 << 20;

/// A piece of the pool's addresses with memory.
struct Piece {
    start: u64,
    size: u64,
    free: bool,
}

/// A pool on a device of its own, for one stream that runs no work.
pub(crate) struct Model {
    capacity: u64,
    /// In the order of addresses.
    pieces: Vec<Piece>,
}

impl Model {
    pub(crate) fn new(capacity: u64) -> Self {
        Self { capacity, pieces: Vec::new() }
    }

    pub(crate) fn held(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.size).sum()
    }

    pub(crate) fn allocate(&mut self, size: u64) -> Option<u64> {
        let size = size.div_ceil(512) * 512;
        if self.fit(size).is_none() && !self.grow(size) {
            self.trim();
            if !self.grow(size) {
                return None;
            }
        }
        let at = self.fit(size).unwrap();
        let start = self.pieces[at].start;
        let rest = self.pieces[at].size - size;
        self.pieces[at] = Piece { start, size, free: false };
        if rest > 0 {
            self.pieces.insert(at + 1, Piece { start: start + size, size: rest, free: true });
        }
        Some(start)
    }

    pub(crate) fn free(&mut self, start: u64) {
        let at = self.pieces.iter().position(|piece| piece.start == start).unwrap();
        self.pieces[at].free = true;
        self.join();
    }

    /// All that is free goes, as far as it is whole steps.
    pub(crate) fn trim(&mut self) {
        let mut kept = Vec::new();
        for piece in self.pieces.drain(..) {
            let end = piece.start + piece.size;
            let (from, to) = (piece.start.div_ceil(STEP) * STEP, end / STEP * STEP);
            if !piece.free || from >= to {
                kept.push(piece);
                continue;
            }
            for (start, end) in [(piece.start, from), (to, end)] {
                if start < end {
                    kept.push(Piece { start, size: end - start, free: true });
                }
            }
        }
        self.pieces = kept;
    }

    fn fit(&self, size: u64) -> Option<usize> {
        let fits = self.pieces.iter().enumerate().filter(|(_, piece)| piece.free && piece.size >= size);
        fits.min_by_key(|(_, piece)| (piece.size, piece.start)).map(|(at, _)| at)
    }

    /// Adds memory in the lowest gap that has room for all of it, or else at the end, where a free piece helps.
    fn grow(&mut self, size: u64) -> bool {
        let whole = size.div_ceil(STEP) * STEP;
        let mut start = 0;
        let gap = self.pieces.iter().find_map(|piece| {
            let found = (piece.start - start >= whole).then_some(start);
            start = piece.start + piece.size;
            found
        });
        let (start, more) = match gap {
            Some(start) => (start, whole),
            None => {
                let helps = self.pieces.last().filter(|last| last.free).map_or(0, |last| last.size);
                (start, (size - helps).div_ceil(STEP) * STEP)
            }
        };
        if self.held() + more > self.capacity {
            return false;
        }
        self.pieces.push(Piece { start, size: more, free: true });
        self.pieces.sort_by_key(|piece| piece.start);
        self.join();
        true
    }

    fn join(&mut self) {
        let mut joined: Vec<Piece> = Vec::new();
        for piece in self.pieces.drain(..) {
            match joined.last_mut() {
                Some(last) if last.free && piece.free && last.start + last.size == piece.start => {
                    last.size += piece.size
                }
                _ => joined.push(piece),
            }
        }
        self.pieces = joined;
    }
}
