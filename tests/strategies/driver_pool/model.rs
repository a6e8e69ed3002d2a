//! A pool as decision 51 describes it, written anew and as simply as possible: a list of pieces, walked from the front each time.

/// The step by which a pool grows, in bytes.
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
        // The allocator trims what is free and tries again.
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

    /// Adds memory behind the lowest piece with room for it, which helps if it is free. Free steps of other pieces are moved there, the
    /// highest first, and the device gives the rest.
    fn grow(&mut self, size: u64) -> bool {
        let missing = |at: usize| {
            let helps = at.checked_sub(1).map(|at| &self.pieces[at]).filter(|piece| piece.free);
            (size - helps.map_or(0, |piece| piece.size)).div_ceil(STEP) * STEP
        };
        let end = |at: usize| at.checked_sub(1).map_or(0, |at| self.pieces[at].start + self.pieces[at].size);
        // A piece that would do without more is none, since nothing fits.
        let fits = |at: &usize| self.pieces.get(*at).is_none_or(|next| next.start - end(*at) >= missing(*at));
        let place = (0..=self.pieces.len()).find(fits).unwrap();
        let (start, more) = (end(place), missing(place));
        let steps =
            (0..self.pieces.last().map_or(0, |last| last.start + last.size) / STEP).rev().map(|step| step * STEP);
        let wholly_free = |step: &u64| {
            self.pieces.iter().any(|piece| {
                let end = piece.start + piece.size;
                piece.free && end != start && piece.start <= *step && *step + STEP <= end
            })
        };
        let moved: Vec<u64> = steps.filter(wholly_free).take((more / STEP) as usize).collect();
        if self.held() + more - STEP * moved.len() as u64 > self.capacity {
            return false;
        }
        moved.into_iter().for_each(|step| self.remove(step, step + STEP));
        self.pieces.push(Piece { start, size: more, free: true });
        self.pieces.sort_by_key(|piece| piece.start);
        self.join();
        true
    }

    /// Removes addresses from the free piece that has them.
    fn remove(&mut self, from: u64, to: u64) {
        let at = self.pieces.iter().position(|piece| piece.start <= from && to <= piece.start + piece.size).unwrap();
        let Piece { start, size, .. } = self.pieces[at];
        let rest = [(start, from), (to, start + size)].into_iter().filter(|(start, end)| start < end);
        let rest = rest.map(|(start, end)| Piece { start, size: end - start, free: true });
        self.pieces.splice(at..=at, rest);
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
