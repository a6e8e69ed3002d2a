//! The verdict on a layout, as far as the memory at one moment allows a verdict.
//!
//! Owns: the rules with their thresholds, and the sentences. The rules follow the first four of the five questions of
//! `docs/why.md`: whether too much is live, whether others hold the memory, whether free memory lies in holes, and
//! whether it is free only for other streams.

use super::Layout;
use crate::columns::bytes_beside;
use crate::verdict::{EXPANDABLE_SETTING, SEAMALLOC_COMMAND};
use serde_json::{Value, json};

/// If less than this part (1/n) of the reserved memory is free, the verdict is not fragmentation.
const LITTLE: u64 = 20;
/// A part (1/n) of the free memory. If all streams but the one with the most free memory together have more than this
/// part, the verdict is that streams keep memory from one another.
const APART: u64 = 4;
/// A part (1/n) of the free memory. If private pools or one hole have more than this part, they decide the verdict. An
/// allocator is not advised if it serves less than this part of the best allocator's largest request.
const MOST: u64 = 2;

/// The kind of a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LayoutVerdictKind {
    /// Nearly all of the reserved memory is allocated.
    TooMuchLive,
    /// Nearly all of the reserved memory is allocated, and the device has more memory, which others hold or a limit
    /// forbids.
    Others,
    /// Memory was not short: PyTorch would have given free memory back, or waited for freed memory, before it refused a
    /// request.
    NotShort,
    /// Free memory belongs to several streams, each of which PyTorch serves only from its own free memory.
    Streams,
    /// Free memory lies in private pools.
    PrivatePools,
    /// Free memory lies in holes.
    Fragmentation,
    /// Free memory lies in one piece.
    OnePiece,
}

impl LayoutVerdictKind {
    /// Returns the name, as in lines of JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::TooMuchLive => "too_much_live",
            Self::Others => "others",
            Self::NotShort => "not_short",
            Self::Streams => "streams",
            Self::PrivatePools => "private_pools",
            Self::Fragmentation => "fragmentation",
            Self::OnePiece => "one_piece",
        }
    }
}

/// The verdict of a layout on a request that was refused at the layout's moment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LayoutVerdict {
    /// The kind of the verdict.
    pub kind: LayoutVerdictKind,
    /// The verdict with its figures, in a sentence.
    pub headline: String,
    /// The reasons, in one or two sentences.
    pub reasons: String,
    /// One next step: a setting, a command or a change of the job.
    pub next: String,
}

impl LayoutVerdict {
    /// Returns the value of the key `verdict` in lines of JSON.
    #[must_use]
    pub fn to_json(&self) -> Value {
        json!({"kind": self.kind.name(), "text": self.headline, "reasons": self.reasons, "next": self.next})
    }
}

impl Layout {
    /// Returns the verdict on a request that was refused at the layout's moment, on a device with `capacity` bytes, if
    /// the capacity is known.
    #[must_use]
    pub fn verdict(&self, capacity: Option<u64>) -> LayoutVerdict {
        let kind = self.kind(capacity);
        let (headline, mut reasons, next) = match kind {
            LayoutVerdictKind::TooMuchLive | LayoutVerdictKind::Others => self.in_use(kind, capacity),
            LayoutVerdictKind::NotShort => self.with_memory_left(),
            LayoutVerdictKind::Streams => self.on_streams(),
            LayoutVerdictKind::PrivatePools => self.in_private_pools(),
            LayoutVerdictKind::Fragmentation | LayoutVerdictKind::OnePiece => self.in_holes(kind, capacity),
        };
        if let Some(capacity) = capacity.filter(|capacity| (self.held.allocated..self.held.reserved).contains(capacity))
        {
            let [reserved, capacity] = [self.held.reserved, capacity].map(|bytes| self.bytes(bytes));
            reasons.push_str(&format!(
                " {reserved} are held here, more than the device has: on {capacity} PyTorch would have given memory back before, or \
                 run out of it."
            ));
        }
        LayoutVerdict { kind, headline, reasons, next }
    }

    fn kind(&self, capacity: Option<u64>) -> LayoutVerdictKind {
        let held = &self.held;
        if capacity.is_some_and(|capacity| capacity < held.allocated) {
            return LayoutVerdictKind::TooMuchLive;
        }
        let is_little = |bytes: u64, of: u64| bytes < of / LITTLE;
        let (own, others) = self.free_by_stream();
        if is_little(held.free.saturating_add(held.pending), held.reserved) || held.reserved == 0 {
            let has_room = self.room(capacity).zip(capacity).is_some_and(|(room, of)| !is_little(room, of));
            if has_room { LayoutVerdictKind::Others } else { LayoutVerdictKind::TooMuchLive }
        } else if !is_little(self.releasable().saturating_add(held.pending), held.reserved) {
            LayoutVerdictKind::NotShort
        } else if self.private_free > held.free / MOST {
            LayoutVerdictKind::PrivatePools
        } else if others > own.saturating_add(others) / APART {
            LayoutVerdictKind::Streams
        } else if self.largest_public_hole() > held.free / MOST {
            LayoutVerdictKind::OnePiece
        } else {
            LayoutVerdictKind::Fragmentation
        }
    }

    /// Returns the free bytes of the stream with the most free memory, and of all other streams together, without
    /// private pools.
    fn free_by_stream(&self) -> (u64, u64) {
        let mut each: Vec<_> = self.public().map(|pool| (pool.stream, pool.held.free)).collect();
        each.sort_unstable();
        let sums =
            each.chunk_by(|a, b| a.0 == b.0).map(|of| of.iter().map(|(_, free)| *free).fold(0, u64::saturating_add));
        let (most, all) = sums.fold((0, 0_u64), |(most, all), free| (free.max(most), all.saturating_add(free)));
        (most, all - most)
    }

    /// Returns a size in the unit of the reserved memory.
    fn bytes(&self, bytes: u64) -> String {
        bytes_beside(bytes, self.held.reserved)
    }

    fn public(&self) -> impl Iterator<Item = &super::LayoutPool> {
        self.pools.iter().filter(|pool| pool.pool == seamalloc::PoolId::NONE)
    }

    fn largest_public_hole(&self) -> u64 {
        self.public().map(|pool| pool.held.largest_hole).max().unwrap_or(0)
    }

    fn in_use(&self, kind: LayoutVerdictKind, capacity: Option<u64>) -> (String, String, String) {
        let [allocated, reserved, free] =
            [self.held.allocated, self.held.reserved, self.held.free].map(|bytes| self.bytes(bytes));
        if let Some(capacity) = capacity.filter(|capacity| *capacity < self.held.allocated) {
            let (by, capacity) = (self.bytes(self.held.allocated - capacity), self.bytes(capacity));
            let headline = format!("Too much is live: {allocated} are allocated, and the device has {capacity}.");
            let next = "Reduce the batch size; or recompute, offload or shard activations, weights or optimizer state.";
            return (headline, format!("{by} too much are allocated: no allocator helps."), next.to_owned());
        }
        let headline = format!("Not fragmentation: {allocated} of {reserved} held are allocated.");
        if kind == LayoutVerdictKind::Others {
            let room = self.bytes(self.room(capacity).unwrap_or(0));
            let reasons = format!(
                "The GPU has {room} beside what is held. If a smaller request was refused, other processes, libraries or the \
                 CUDA context hold that memory, or a limit is set."
            );
            let next = "Look at `nvidia-smi`; end the others, or give each process a limit.";
            return (headline, reasons, next.to_owned());
        }
        let unknown = match capacity {
            Some(_) => "",
            None => " If the GPU has much more memory than this, other processes or libraries hold the rest.",
        };
        let reasons =
            format!("Too much is live: only {free} are free, and no allocator can serve more from it.{unknown}");
        let next = "Reduce the batch size; or recompute, offload or shard activations, weights or optimizer state.";
        (headline, reasons, next.to_owned())
    }

    fn with_memory_left(&self) -> (String, String, String) {
        let [releasable, pending] = [self.releasable(), self.held.pending].map(|bytes| self.bytes(bytes));
        let mut left = Vec::new();
        if self.releasable() > 0 {
            let pieces = if self.expandable { "segments or pieces" } else { "segments" };
            left.push(format!("{releasable} lie in wholly free {pieces}"));
        }
        if self.held.pending > 0 {
            left.push(format!("{pending} wait for other streams (record_stream)"));
        }
        let headline = format!("Memory was not short at this moment: {}.", left.join(", "));
        let reasons = "PyTorch gives such memory back, or waits for it, before it refuses a request. If a request was refused, the \
                       snapshot was dumped before or after that: tensors were live then that are free here.";
        let next = "Dump it in the handler, `except torch.OutOfMemoryError`, whose traceback keeps tensors, or record a history.";
        (headline, reasons.to_owned(), next.to_owned())
    }

    fn on_streams(&self) -> (String, String, String) {
        let (own, others) = self.free_by_stream();
        let [own, all] = [own, own.saturating_add(others)].map(|bytes| self.bytes(bytes));
        let headline = format!("Streams keep memory apart: of {all} free, one stream has no more than {own}.");
        let reasons =
            "PyTorch serves each stream from its own free memory; seamalloc passes it on, behind waits on the GPU.";
        (headline, reasons.to_owned(), format!("Use fewer streams, or run it with seamalloc: {SEAMALLOC_COMMAND}."))
    }

    fn in_private_pools(&self) -> (String, String, String) {
        let [private, free] = [self.private_free, self.held.free].map(|bytes| self.bytes(bytes));
        let headline = format!("Private pools keep memory apart: {private} of {free} free.");
        let reasons = "The memory of a CUDA graph's pool or a MemPool serves no other request while the pool lives.";
        (headline, reasons.to_owned(), "Give all graphs one pool, and capture the largest first.".to_owned())
    }

    fn in_holes(&self, kind: LayoutVerdictKind, capacity: Option<u64>) -> (String, String, String) {
        let held = &self.held;
        let [free, hole] = [held.free, self.largest_public_hole()].map(|bytes| self.bytes(bytes));
        let holes = if held.holes == 1 { "1 hole".to_owned() } else { format!("{} holes", held.holes) };
        let largest = self.largest_requests(capacity);
        let [native, expandable, stitch] =
            [largest.native, largest.expandable, largest.stitch].map(|bytes| self.bytes(bytes));
        let reasons = format!(
            "One request could have {native} with native, {expandable} with expandable segments, {stitch} with seamalloc."
        );
        if kind == LayoutVerdictKind::OnePiece {
            let headline = format!("Not fragmentation: {free} are free, and {hole} of them in one piece.");
            let next =
                "A request that was larger is too much beside what is live: reduce the batch size, or recompute.";
            return (headline, reasons, next.to_owned());
        }
        let headline = format!("Fragmentation: {free} free in {holes}, the largest {hole}.");
        let now = if self.expandable { largest.expandable } else { largest.native };
        let helps = |could: u64| could > now.saturating_add(now / LITTLE) && could >= largest.stitch / MOST;
        let next = if helps(largest.expandable) {
            format!("Set {EXPANDABLE_SETTING}.")
        } else if helps(largest.stitch) {
            format!("Run it with seamalloc: {SEAMALLOC_COMMAND}.")
        } else {
            "Reduce the batch size a little: no allocator joins these holes.".to_owned()
        };
        (headline, reasons, next)
    }
}
