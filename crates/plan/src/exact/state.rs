//! What a partial plan says of the rest: the lowest offset that each buffer can still have, and of each section the lowest
//! free byte and the bytes that are still to come.
//!
//! Owns: placing a buffer, and taking it back. The rules are those of `SolverImpl` in google/minimalloc's `src/solver.cc`
//! (Apache-2.0), each named at its function.

use crate::fit::NOWHERE;
use crate::neighbours::Instance;

/// A partial plan. Buffers are placed from the lowest offset up, so that each rests on others or on the ground.
pub(super) struct State<'a> {
    pub(super) instance: &'a Instance,
    /// No end of a buffer is above.
    capacity: u64,
    /// Where buffers are placed; `NOWHERE`: it is not.
    pub(super) offsets: Vec<u64>,
    /// The lowest offset that each buffer can have, above those that are placed.
    pub(super) lowest: Vec<u64>,
    /// In each section nothing more can be placed below.
    floors: Vec<u64>,
    /// Bytes that are to be placed in each section.
    pub(super) to_come: Vec<u64>,
    /// Buffers to be placed that are live both in a section and in the next one.
    crossing: Vec<u32>,
    /// The buffers of each section, one section behind the other, and where each begins.
    members: Vec<u32>,
    starts: Vec<u32>,
    /// What was, to be put back.
    old_lowest: Vec<(u32, u64)>,
    old_floors: Vec<(u32, u64)>,
    /// Sections in which the floor may rise, and the last round in which each was noted.
    risen: Vec<u32>,
    noted: Vec<u32>,
    round: u32,
}

/// How far the lists of what was had come.
#[derive(Clone, Copy)]
pub(super) struct Mark {
    lowest: usize,
    floors: usize,
    /// Whether no buffer that is to be placed needs memory at the same time: nothing will lie above.
    pub(super) is_hatless: bool,
    /// Whether all sections still have room.
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

    /// Looks for plans of at most so many bytes. Nothing is placed.
    pub(super) fn set_capacity(&mut self, capacity: u64) {
        self.capacity = capacity;
    }

    /// The bytes that plans may need.
    pub(super) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// The bytes that are to be placed in the fullest section of a buffer (`SubSolve`).
    pub(super) fn most_to_come(&self, buffer: u32) -> u64 {
        let spans = self.instance.sections.of(buffer).iter();
        let sections = spans.flat_map(|span| &self.to_come[span.first as usize..span.end as usize]);
        sections.copied().max().unwrap_or(0)
    }

    /// The bytes that are to be placed in the fullest of these sections.
    pub(super) fn most_to_come_within(&self, within: (u32, u32)) -> u64 {
        self.to_come[within.0 as usize..within.1 as usize].iter().copied().max().unwrap_or(0)
    }

    /// Whether another buffer that is like this one in all is to be placed before it: such buffers can change places, so
    /// that one order of them is enough (`sym_predecessor` in omnimalloc's `supermalloc.cpp`).
    pub(super) fn is_behind_its_twin(&self, buffer: u32) -> bool {
        self.instance.twins[buffer as usize].is_some_and(|twin| self.offsets[twin as usize] == NOWHERE)
    }

    /// Whether all sections have room with the buffer at the lowest offset that it can have, before it is followed what
    /// that means for the others (`can_allocate_at` in omnimalloc's `supermalloc.cpp`). What is to come in each section has
    /// to fit above its floor, and above the offset, since none that follows is lower (`Check`: section inference, monotonic
    /// floor). `most` is to come in the fullest section of those that are searched.
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

    /// Places a buffer at the lowest offset that it can have, and follows what that means for the others.
    pub(super) fn place(&mut self, buffer: u32) -> Mark {
        let mut mark =
            Mark { lowest: self.old_lowest.len(), floors: self.old_floors.len(), is_hatless: true, has_room: true };
        let offset = self.lowest[buffer as usize];
        self.offsets[buffer as usize] = offset;
        self.raise_lowest(buffer, offset, &mut mark);
        self.raise_floors(buffer, offset, &mut mark);
        mark
    }

    /// Takes the buffer back that was placed last.
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

    /// Every buffer to be placed that needs memory at the same time lies above (`UpdateMinOffsets`), as long as there is room.
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
            // A buffer that has its offset in any case would have to be moved.
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

    /// Sections of the buffer have their floor at its end. No floor is below the lowest offset of what is to come
    /// (`UpdateSectionData`), and what is to come has to fit above it; of the other sections
    /// [`may_be_placed`](Self::may_be_placed) knows that.
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

    /// A buffer was placed: it no longer ties its sections together. Calls `found` with each section before which
    /// nothing ties it to the one before it (`DynamicallyDecompose`).
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

    /// The buffer is taken back.
    pub(super) fn tie(&mut self, buffer: u32) {
        let (first, end) = self.instance.sections.hull(buffer);
        self.crossing[first as usize..end.saturating_sub(1) as usize].iter_mut().for_each(|crossing| *crossing += 1);
    }

    /// The sections before which nothing ties them to the one before, from the first on, and the end.
    pub(super) fn parts(&self) -> Vec<u32> {
        let sections = self.crossing.len() as u32;
        let inner = (1..sections).filter(|section| self.crossing[*section as usize - 1] == 0);
        [0].into_iter().chain(inner).chain([sections]).collect()
    }
}
