//! The rules by which PyTorch's viewer processes the segments and blocks of a snapshot, event by event, its quirks
//! included.

use seamalloc::driver::StreamId;
use seamalloc::observer::{Action, Event};
use seamalloc::snapshot::{BlockState, Snapshot};
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug)]
struct Segment {
    address: u64,
    size: u64,
    stream: StreamId,
}

impl Segment {
    fn end(&self) -> u64 {
        self.address + self.size
    }
}

/// The state at an event: its segments, and the live blocks with the bytes that were requested and whether they wait.
pub(crate) struct Viewer {
    segments: Vec<Segment>,
    blocks: BTreeMap<u64, (u64, bool)>,
}

/// The live blocks of a snapshot as [`Viewer::live`] has them.
pub(crate) fn live(snapshot: &Snapshot) -> BTreeMap<u64, (u64, bool)> {
    let blocks = snapshot.segments.iter().flat_map(|segment| &segment.blocks);
    blocks
        .filter(|block| block.state != BlockState::Inactive)
        .map(|block| (block.address, (block.requested_size, block.state == BlockState::ActivePendingFree)))
        .collect()
}

/// The ranges of a snapshot's segments, those that touch as one.
pub(crate) fn coverage(snapshot: &Snapshot) -> Vec<(u64, u64)> {
    joined(snapshot.segments.iter().map(|segment| (segment.address, segment.address + segment.total_size)).collect())
}

fn joined(mut ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    ranges.sort_unstable();
    let mut out: Vec<(u64, u64)> = Vec::new();
    for (start, end) in ranges {
        match out.last_mut() {
            Some(last) if last.1 == start => last.1 = end,
            _ => out.push((start, end)),
        }
    }
    out
}

impl Viewer {
    pub(crate) fn open(snapshot: &Snapshot) -> Self {
        let segments = snapshot.segments.iter();
        let segments = segments.map(|segment| Segment {
            address: segment.address,
            size: segment.total_size,
            stream: segment.stream,
        });
        let mut segments: Vec<Segment> = segments.collect();
        segments.sort_by_key(|segment| segment.address);
        Self { segments, blocks: live(snapshot) }
    }

    pub(crate) fn coverage(&self) -> Vec<(u64, u64)> {
        joined(self.segments.iter().map(|segment| (segment.address, segment.end())).collect())
    }

    pub(crate) fn live(&self) -> BTreeMap<u64, (u64, bool)> {
        self.blocks.clone()
    }

    /// Goes back before an event, to a state that can be drawn.
    pub(crate) fn undo(&mut self, event: &Event) -> Result<(), String> {
        let Event { action, address, size, stream, .. } = *event;
        let segment = Segment { address, size, stream };
        match action {
            Action::Alloc => self.blocks.remove(&address).map(drop).ok_or("no such block")?,
            Action::FreeRequested => self.blocks.get_mut(&address).ok_or("no such block")?.1 = false,
            Action::FreeCompleted => match self.blocks.insert(address, (size, true)) {
                None => {}
                Some(_) => return Err("a block is there".to_owned()),
            },
            Action::SegmentFree => {
                let at = self.segments.iter().position(|other| other.address > address);
                // Behind the last it is put before it.
                self.segments.insert(at.unwrap_or(self.segments.len().saturating_sub(1)), segment);
            }
            Action::SegmentUnmap | Action::SegmentLeft => self.map(segment),
            Action::SegmentAlloc => {
                let at = self.segments.iter().position(|other| other.address == address && other.size == size);
                self.segments.remove(at.ok_or("no such segment")?);
            }
            Action::SegmentMap | Action::SegmentJoined => self.unmap(segment)?,
            // The viewer is not given those that PyTorch does not have.
            Action::Oom | Action::Spilled | Action::Returned | Action::Asleep | Action::Awake => {}
            other => return Err(format!("the viewer's rules do not know {other:?}")),
        }
        self.draw()
    }

    fn map(&mut self, segment: Segment) {
        let at = self.segments.iter().position(|other| other.address > segment.address).unwrap_or(self.segments.len());
        self.segments.insert(at, segment);
        for (before, after) in [(at, at + 1), (at.wrapping_sub(1), at)] {
            let (Some(&low), Some(&high)) = (self.segments.get(before), self.segments.get(after)) else { continue };
            if low.end() == high.address && low.stream == high.stream {
                self.segments[before].size += high.size;
                self.segments.remove(after);
            }
        }
    }

    fn unmap(&mut self, range: Segment) -> Result<(), String> {
        let holds = |other: &Segment| other.address <= range.address && range.end() <= other.end();
        let at = self.segments.iter().position(holds).ok_or("in no single segment")?;
        let whole = self.segments[at];
        // What is left behind the range has the event's stream, unless nothing is left before it.
        let behind = if whole.address == range.address { whole.stream } else { range.stream };
        let rests = [(whole.address, range.address, whole.stream), (range.end(), whole.end(), behind)];
        let rests = rests.into_iter().filter(|(start, end, _)| start < end);
        let rests: Vec<_> =
            rests.map(|(address, end, stream)| Segment { address, size: end - address, stream }).collect();
        self.segments.splice(at..=at, rests);
        Ok(())
    }

    /// Every block must be in a segment, and no two segments in one place.
    fn draw(&self) -> Result<(), String> {
        let mut sorted = self.segments.clone();
        sorted.sort_by_key(|segment| segment.address);
        if let Some(pair) = sorted.windows(2).find(|pair| pair[0].end() > pair[1].address) {
            return Err(format!("two segments overlap: {pair:x?}"));
        }
        for (&address, &(size, _)) in &self.blocks {
            let after = sorted.partition_point(|segment| segment.address <= address);
            if sorted[..after].last().is_none_or(|segment| address + size > segment.end()) {
                return Err(format!("the live block at {address:#x} is in no segment"));
            }
        }
        Ok(())
    }
}
