//! How the model gives memory back: garbage collection, one oversize segment or several, and all that is cached.

use seamalloc::driver::prelude::*;

use super::segments::block;
use super::tally::{decrease, lower};
use super::{Model, Request, Step, Use};

impl Model {
    /// Waits for every stream that a freed block waits for, and gives back whatever can be. The bytes given back.
    pub fn empty_cache(&mut self) -> u64 {
        let before = self.held;
        self.release_cached();
        before - self.held
    }

    pub(super) fn release_cached(&mut self) {
        self.synchronize_events();
        for small in [false, true] {
            let free = self.free_blocks(small);
            for (_, _, address) in free.into_iter() {
                if self.expandable() {
                    self.unmap(address);
                } else if self.whole(address) {
                    self.release(address);
                }
            }
        }
    }

    fn whole(&self, address: u64) -> bool {
        let (base, _) = self.locate(address);
        self.segments[&base].unit.is_none() && self.segments[&base].blocks.len() == 1
    }

    /// Gives a segment back to the driver.
    fn release(&mut self, address: u64) -> u64 {
        let segment = self.segments.remove(&address).unwrap();
        let (size, small) = (segment.blocks[0].size, segment.small);
        self.gpu.free(address).unwrap();
        self.held -= size;
        self.stats.num_device_free += 1;
        lower(&mut self.stats.segment, small, 1);
        lower(&mut self.stats.reserved_bytes, small, size);
        if size >= self.max_split() {
            decrease(&mut self.stats.oversize_segments, 1);
        }
        size
    }

    /// Unmaps the whole units inside of a free block; a segment without any memory goes.
    fn unmap(&mut self, address: u64) {
        let (base, at) = self.locate(address);
        let segment = self.segments.get_mut(&base).unwrap();
        let (unit, small, since) = (segment.unit.unwrap(), segment.small, self.searches[usize::from(segment.small)]);
        let last = segment.blocks[at].address + segment.blocks[at].size;
        let (start, end) = (base + (address - base).div_ceil(unit) * unit, base + (last - base) / unit * unit);
        if start >= end {
            return;
        }
        self.gpu.stream_synchronize(segment.stream).unwrap();
        for address in (start..end).step_by(unit as usize) {
            self.gpu.unmap(address, unit).unwrap();
            self.gpu.release(segment.handles.remove(&address).unwrap()).unwrap();
            self.stats.mappings -= 1;
        }
        let middle = &mut segment.blocks[at];
        (middle.address, middle.size, middle.state) = (start, end - start, Use::Unmapped);
        if end < last {
            segment.blocks.insert(at + 1, block(end, last - end, Use::Free, since));
        }
        let mut at = at;
        if address < start {
            segment.blocks.insert(at, block(address, start - address, Use::Free, since));
            at += 1;
        }
        segment.merge(at);
        self.held -= end - start;
        lower(&mut self.stats.reserved_bytes, small, end - start);
        self.stats.num_device_free += 1;
        if segment.blocks.len() == 1 {
            let size = segment.blocks[0].size;
            self.gpu.address_free(base, size).unwrap();
            self.segments.remove(&base);
        }
    }

    /// Gives back oversize segments of the request's stream: the smallest that covers it, or the largest ones together.
    /// Whether they cover it.
    pub(super) fn release_available(&mut self, request: Request) -> bool {
        let Some(max_split) = self.config.max_split_size else { return false };
        let target = request.size.max(max_split);
        let mut oversize: Vec<(u64, u64)> = self
            .free_blocks(request.small)
            .into_iter()
            .filter(|(stream, size, _)| *stream == request.stream && *size >= max_split && !self.expandable())
            .map(|(_, size, address)| (size, address))
            .collect();
        if let Some((_, address)) = oversize.iter().find(|(size, _)| *size >= target) {
            self.release(*address);
            self.note(Step::ReleaseOne);
            return true;
        }
        let mut released = 0;
        while released < target
            && let Some((_, address)) = oversize.pop()
        {
            self.note(if released > 0 { Step::ReleaseSeveral } else { Step::ReleaseOne });
            released += self.release(address);
        }
        released >= target
    }

    /// Gives back unused segments of the large pool that are at least as old as the average, without waiting.
    pub(super) fn collect_garbage(&mut self) {
        let limit = self.limit.unwrap() as f64;
        let threshold = (self.config.garbage_collection_threshold * limit) as u64;
        if self.held <= threshold {
            return;
        }
        let target = self.held - threshold;
        let mut reclaimed = 0;
        let unsplit = |model: &Self| -> Vec<(u64, u64)> {
            let whole = model.free_blocks(false).into_iter().filter(|(_, _, address)| model.whole(*address));
            let age = |address| model.searches[0] - model.segments[&address].blocks[0].since;
            whole.map(|(_, _, address)| (address, age(address))).collect()
        };
        loop {
            let cached = unsplit(self);
            if cached.is_empty() || reclaimed >= target {
                return;
            }
            let average = cached.iter().map(|(_, age)| age).sum::<u64>() as f64 / cached.len() as f64;
            for (address, _) in cached.iter().filter(|(_, age)| *age as f64 >= average) {
                reclaimed += self.release(*address);
                self.note(Step::CollectGarbage);
            }
        }
    }
}
