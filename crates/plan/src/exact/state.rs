//! The state of a partial plan: the lowest possible offset of each remaining buffer, and for each section the lowest
//! free byte and the bytes that remain to be placed.
//!
//! Owns: placing a buffer, and undoing the placement. The rules are those of `SolverImpl` in google/minimalloc's
//! `src/solver.cc` (Apache-2.0). Each function names its rule.

use crate::fit::NOWHERE;
use crate::neighbours::Instance;

/// A partial plan. Buffers are placed from the lowest offset up, so each buffer rests on others or on offset 0.
pub(super) struct State<'a> {
    pub(super) instance: &'a Instance,
    /// The limit for the end of every buffer.
    capacity: u64,
    /// The offset of each buffer; `NOWHERE` if the buffer is not placed.
    pub(super) offsets: Vec<u64>,
    /// For each buffer, the lowest offset above the placed buffers that it can have.
    pub(super) lowest: Vec<u64>,
    /// The offset in each section below which no buffer can be placed any more.
    floors: Vec<u64>,
    /// The bytes that remain to be placed in each section.
    pub(super) to_come: Vec<u64>,
    /// The number of remaining buffers that are live both in a section and in the next one.
    crossing: Vec<u32>,
    /// The buffers of each section, one section after the other, and the index of each section's first buffer.
    members: Vec<u32>,
    starts: Vec<u32>,
    /// Earlier values, to undo changes.
    old_lowest: Vec<(u32, u64)>,
    old_floors: Vec<(u32, u64)>,
    /// Sections whose floor (lowest possible offset) may rise, and the last placement (round) that noted each section.
    risen: Vec<u32>,
    noted: Vec<u32>,
    round: u32,
}

/// The lengths of `old_lowest` and `old_floors` before a placement, to undo it.
#[derive(Clone, Copy)]
pub(super) struct Mark {
    lowest: usize,
    floors: usize,
    /// Whether no remaining buffer needs memory at the same time as the placed buffer, so that no buffer will lie above
    /// it.
    pub(super) is_hatless: bool,
    /// Whether all sections still have room for the remaining buffers.
    pub(super) has_room: bool,
}

impl<'a> State<'a> {
    pub(super) fn new(instance: &'a Instance) -> Self {
        let sections = instance.sections.loads.len();
        let mut counts = vec![0_u32; sections + 1];
        let mut crossing = vec![0_u32; sections];
        for buffer in instance.all() {
            for span in instance.sections.of(buffer) {
                (span.first..span.end).for_each(|section| counts[section as usize + 1] += 1);
            }
            let (first, end) = instance.sections.hull(buffer);
            (first..end.saturating_sub(1)).for_each(|section| crossing[section as usize] += 1);
        }
        for section in 0..sections {
            counts[section + 1] += counts[section];
        }
        let starts = counts.clone();
        let mut members = vec![0_u32; starts.last().copied().unwrap_or(0) as usize];
        for buffer in instance.all() {
            for span in instance.sections.of(buffer) {
                for section in span.first..span.end {
                    members[counts[section as usize] as usize] = buffer;
                    counts[section as usize] += 1;
                }
            }
        }
        Self {
            instance,
            capacity: u64::MAX,
            offsets: vec![NOWHERE; instance.len()],
            lowest: instance.fixed.iter().map(|fixed| fixed.unwrap_or(0)).collect(),
            floors: vec![0; sections],
            to_come: instance.sections.loads.clone(),
            crossing,
            members,
            starts,
            old_lowest: Vec::new(),
            old_floors: Vec::new(),
            risen: Vec::new(),
            noted: vec![0; sections],
            round: 0,
        }
    }

    /// Sets the capacity in bytes. Call this while no buffer is placed.
    pub(super) fn set_capacity(&mut self, capacity: u64) {
        self.capacity = capacity;
    }

    /// Returns the limit of the plans in bytes.
    pub(super) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Returns the bytes that remain to be placed in the fullest section of a buffer (`SubSolve`).
    pub(super) fn most_to_come(&self, buffer: u32) -> u64 {
        let spans = self.instance.sections.of(buffer).iter();
        let sections = spans.flat_map(|span| &self.to_come[span.first as usize..span.end as usize]);
        sections.copied().max().unwrap_or(0)
    }

    /// Returns the bytes that remain to be placed in the fullest of these sections.
    pub(super) fn most_to_come_within(&self, within: (u32, u32)) -> u64 {
        self.to_come[within.0 as usize..within.1 as usize].iter().copied().max().unwrap_or(0)
    }

    /// Returns whether an identical buffer must be placed before this buffer. Identical buffers can change places, so
    /// one order of them is enough (`sym_predecessor` in omnimalloc's `supermalloc.cpp`).
    pub(super) fn is_behind_its_twin(&self, buffer: u32) -> bool {
        self.instance.twins[buffer as usize].is_some_and(|twin| self.offsets[twin as usize] == NOWHERE)
    }

    /// Returns whether all sections have room with the buffer at its lowest offset, before the effects on other buffers
    /// are computed (`can_allocate_at` in omnimalloc's `supermalloc.cpp`). The bytes that remain in each section must
    /// fit above the section's floor, and above the buffer's offset, since no buffer has a lower offset than a buffer
    /// placed earlier (`Check`: section inference, monotonic floor). `most` is the bytes that remain in the fullest of
    /// the searched sections.
    pub(super) fn may_be_placed(&self, buffer: u32, within: (u32, u32), most: u64) -> bool {
        let offset = self.lowest[buffer as usize];
        let own = self.instance.sections.of(buffer).iter().all(|span| {
            let range = span.first as usize..span.end as usize;
            let above = offset + span.low;
            self.to_come[range].iter().all(|to_come| above + to_come <= self.capacity)
        });
        let others = || {
            let range = within.0 as usize..within.1 as usize;
            let is_own = |section: u32| {
                self.instance.sections.of(buffer).iter().any(|span| span.first <= section && section < span.end)
            };
            let mut sections = (within.0..within.1).zip(&self.to_come[range]);
            sections.all(|(section, to_come)| offset + to_come <= self.capacity || is_own(section))
        };
        own && (offset + most <= self.capacity || others())
    }

    /// Places a buffer at its lowest offset, and computes the effects on the other buffers.
    pub(super) fn place(&mut self, buffer: u32) -> Mark {
        let mut mark =
            Mark { lowest: self.old_lowest.len(), floors: self.old_floors.len(), is_hatless: true, has_room: true };
        let offset = self.lowest[buffer as usize];
        self.offsets[buffer as usize] = offset;
        self.raise_lowest(buffer, offset, &mut mark);
        self.raise_floors(buffer, offset, &mut mark);
        mark
    }

    /// Undoes the placement of the last buffer.
    pub(super) fn take_back(&mut self, buffer: u32, mark: Mark) {
        while self.old_floors.len() > mark.floors {
            let Some((section, floor)) = self.old_floors.pop() else { break };
            self.floors[section as usize] = floor;
        }
        while self.old_lowest.len() > mark.lowest {
            let Some((other, lowest)) = self.old_lowest.pop() else { break };
            self.lowest[other as usize] = lowest;
        }
        for span in self.instance.sections.of(buffer) {
            for to_come in &mut self.to_come[span.first as usize..span.end as usize] {
                *to_come += span.high - span.low;
            }
        }
        self.offsets[buffer as usize] = NOWHERE;
    }

    /// Raises the lowest offset of every remaining buffer that needs memory at the same time as the placed buffer
    /// (`UpdateMinOffsets`), as long as all sections have room.
    fn raise_lowest(&mut self, buffer: u32, offset: u64, mark: &mut Mark) {
        self.round += 1;
        self.risen.clear();
        let instance = self.instance;
        for (other, distance) in instance.above(buffer) {
            let at = other as usize;
            if self.offsets[at] != NOWHERE {
                continue;
            }
            mark.is_hatless = false;
            let above = offset.saturating_add_signed(distance);
            let old = self.lowest[at];
            if old >= above {
                continue;
            }
            let lowest = above.next_multiple_of(instance.alignments[at]);
            // A buffer with a fixed offset would have to be moved.
            if instance.fixed[at].is_some() || lowest + instance.sizes[at] > self.capacity {
                mark.has_room = false;
                return;
            }
            self.old_lowest.push((other, old));
            self.lowest[at] = lowest;
            for span in instance.sections.of(other) {
                for section in span.first..span.end {
                    if self.noted[section as usize] != self.round {
                        self.noted[section as usize] = self.round;
                        self.risen.push(section);
                    }
                }
            }
        }
    }

    /// Raises the floors of the buffer's sections to the buffer's end. A floor is at least the lowest offset of the
    /// section's remaining buffers (`UpdateSectionData`). The remaining buffers must fit above the floor;
    /// [`may_be_placed`](Self::may_be_placed) checks this for the other sections.
    fn raise_floors(&mut self, buffer: u32, offset: u64, mark: &mut Mark) {
        for span in self.instance.sections.of(buffer) {
            for section in span.first..span.end {
                let at = section as usize;
                self.old_floors.push((section, self.floors[at]));
                self.floors[at] = offset + span.high;
                self.to_come[at] -= span.high - span.low;
            }
        }
        if !mark.has_room {
            return;
        }
        for &section in &self.risen {
            let at = section as usize;
            let mut least = u64::MAX;
            for &member in &self.members[self.starts[at] as usize..self.starts[at + 1] as usize] {
                if self.offsets[member as usize] == NOWHERE {
                    least = least.min(self.lowest[member as usize]);
                    if least <= self.floors[at] {
                        break;
                    }
                }
            }
            if least != u64::MAX && least > self.floors[at] {
                self.old_floors.push((section, self.floors[at]));
                self.floors[at] = least;
                if least.max(offset) + self.to_come[at] > self.capacity {
                    mark.has_room = false;
                    return;
                }
            }
        }
    }

    /// Removes a placed buffer from the counts of remaining buffers (`crossing`). Calls `found` with each section that
    /// shares no remaining buffer with the section before (`DynamicallyDecompose`).
    pub(super) fn untie(&mut self, buffer: u32, mut found: impl FnMut(u32)) {
        let (first, end) = self.instance.sections.hull(buffer);
        for section in first..end.saturating_sub(1) {
            let crossing = &mut self.crossing[section as usize];
            *crossing -= 1;
            if *crossing == 0 {
                found(section + 1);
            }
        }
    }

    /// Adds a buffer to the counts of remaining buffers (`crossing`) again when its placement is undone.
    pub(super) fn tie(&mut self, buffer: u32) {
        let (first, end) = self.instance.sections.hull(buffer);
        self.crossing[first as usize..end.saturating_sub(1) as usize].iter_mut().for_each(|crossing| *crossing += 1);
    }

    /// Cuts time into parts that have no remaining buffer in common. Returns the first section of each part, and the
    /// end of time.
    pub(super) fn parts(&self) -> Vec<u32> {
        let sections = self.crossing.len() as u32;
        let inner = (1..sections).filter(|section| self.crossing[*section as usize - 1] == 0);
        [0].into_iter().chain(inner).chain([sections]).collect()
    }
}
