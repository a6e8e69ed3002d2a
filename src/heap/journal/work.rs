//! Events that the layers above report: waits, refusals, retries, splits and spills of chunks.

use super::Journal;
use super::times::{add_device, add_events, add_request, add_stall};
use crate::ids::StreamId;
use crate::report::stats::PendingWaits;

impl Journal {
    /// Sets every peak to the present value.
    pub(crate) fn reset_peaks(&mut self) {
        self.counters.reset_peak();
    }

    /// Sets every accumulated figure to 0.
    pub(crate) fn reset_accumulated(&mut self) {
        self.counters.reset_accumulated();
    }

    /// An operation has spent this many nanoseconds in the driver; 0 is none.
    pub(crate) fn stalled(&mut self, ns: u64) {
        add_stall(&mut self.counters.stalls, ns);
    }

    /// A request was refused.
    pub(crate) fn refused(&mut self) {
        self.counters.num_ooms += 1;
    }

    /// A request asks the driver again after free memory was released.
    pub(crate) fn retried(&mut self) {
        self.counters.num_alloc_retries += 1;
    }

    /// The CPU waits for all outstanding events.
    pub(crate) fn synchronized(&mut self) {
        self.counters.num_sync_all_streams += 1;
    }

    /// A request waited for pending memory for this many nanoseconds. `since` are the figures of its single waits.
    pub(crate) fn waited_for_pending(&mut self, ns: u64, expired: bool, since: &PendingWaits) {
        add_request(&mut self.counters.pending_waits, ns, expired, since);
    }

    /// The CPU waited for events for this many nanoseconds.
    pub(crate) fn waited_for_events(&mut self, count: u64, ns: u64) {
        add_events(&mut self.counters.pending_waits, count, ns);
    }

    /// The CPU waited for the device for this many nanoseconds, before a request is refused.
    pub(crate) fn waited_for_device(&mut self, ns: u64) {
        add_device(&mut self.counters.pending_waits, ns);
    }

    /// A stream waits on the GPU for an event that was recorded on another one when the number of operations was `at`.
    pub(crate) fn stream_waits(&mut self, at: u64, awaited: StreamId) {
        self.counters.add_stream_wait(at, awaited);
    }

    /// Returns the operation at which the newest event was recorded for which the present request waits, and its
    /// stream; 0 without a wait. Forgets it.
    pub(crate) fn take_newest_wait(&mut self) -> (u64, StreamId) {
        std::mem::take(&mut self.counters.newest_wait)
    }

    /// Free memory of another stream was taken behind a wait on the GPU.
    pub(crate) fn took_behind_wait(&mut self, bytes: u64) {
        self.counters.waits.bytes += bytes;
    }

    /// A pending block was taken behind waits on the GPU for the streams that use it.
    pub(crate) fn took_recorded_behind_wait(&mut self, bytes: u64) {
        self.counters.waits.recorded_bytes += bytes;
    }

    /// Memory grew for a request that could instead have waited for pending blocks.
    pub(crate) fn grew_instead_of_wait(&mut self, bytes: u64) {
        self.counters.waits.grown_bytes += bytes;
    }

    /// The device was asked how much is free, for the headroom.
    pub(crate) fn looked_for_headroom(&mut self) {
        self.counters.headroom.looks += 1;
    }

    /// Returns the most bytes that were in use, or waited for other streams, since the last call.
    pub(crate) fn most_used_since_last_look(&mut self) -> u64 {
        self.counters.active_bytes.begin_window()
    }

    /// Less was free than the headroom.
    pub(crate) fn headroom_was_short(&mut self) {
        self.counters.headroom.short += 1;
    }

    /// Memory was released for the headroom.
    pub(crate) fn released_for_headroom(&mut self, bytes: u64) {
        self.counters.headroom.yields += 1;
        self.counters.headroom.yielded_bytes += bytes;
    }

    /// A chunk was split into parts, and this many bytes were copied.
    pub(crate) fn chunk_split(&mut self, parts: u64, copied_bytes: u64) {
        let splits = &mut self.counters.splits;
        splits.chunks += 1;
        splits.parts += parts;
        splits.copied_bytes += copied_bytes;
    }

    /// A chunk was spilled.
    pub(crate) fn chunk_spilled(&mut self) {
        self.counters.spills.chunks += 1;
    }

    /// A spill used host memory of earlier ones.
    pub(crate) fn spill_reused(&mut self, bytes: u64) {
        self.counters.spills.reused_bytes += bytes;
    }

    /// A request was served because live memory was spilled.
    pub(crate) fn spilled_for_request(&mut self) {
        self.counters.spills.requests += 1;
    }

    /// A spilled chunk came back to the device.
    pub(crate) fn chunk_returned(&mut self, bytes: u64) {
        self.counters.spills.returned_chunks += 1;
        self.counters.spills.returned_bytes += bytes;
    }

    /// Spilling, or the return of spilled chunks, took this many nanoseconds in the driver.
    pub(crate) fn spent_on_spills(&mut self, ns: u64) {
        self.counters.spills.total_ns += ns;
    }
}
