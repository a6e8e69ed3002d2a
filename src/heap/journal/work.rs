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

    /// Counts an operation that has spent this many nanoseconds in the driver. An operation with 0 is not counted.
    pub(crate) fn stalled(&mut self, ns: u64) {
        add_stall(&mut self.counters.stalls, ns);
    }

    /// Counts a refused request.
    pub(crate) fn refused(&mut self) {
        self.counters.num_ooms += 1;
    }

    /// Counts a request that asks the driver again after free memory was released.
    pub(crate) fn retried(&mut self) {
        self.counters.num_alloc_retries += 1;
    }

    /// Counts a wait of the CPU for all outstanding events.
    pub(crate) fn synchronized(&mut self) {
        self.counters.num_sync_all_streams += 1;
    }

    /// Counts a request that waited for pending memory for this many nanoseconds. `since` has the figures of the
    /// request's single waits.
    pub(crate) fn waited_for_pending(&mut self, ns: u64, expired: bool, since: &PendingWaits) {
        add_request(&mut self.counters.pending_waits, ns, expired, since);
    }

    /// Counts `count` events for which the CPU waited for `ns` nanoseconds together.
    pub(crate) fn waited_for_events(&mut self, count: u64, ns: u64) {
        add_events(&mut self.counters.pending_waits, count, ns);
    }

    /// Counts a wait of the CPU for the device, made before a request is refused. The wait took `ns` nanoseconds.
    pub(crate) fn waited_for_device(&mut self, ns: u64) {
        add_device(&mut self.counters.pending_waits, ns);
    }

    /// Counts a stream's wait on the GPU for an event of stream `awaited`. When the event was recorded, the number of
    /// operations was `at`.
    pub(crate) fn stream_waits(&mut self, at: u64, awaited: StreamId) {
        self.counters.add_stream_wait(at, awaited);
    }

    /// Takes the newest event for which the present request waits: the number of the operation that recorded the event
    /// (0 without a wait), and the event's stream.
    pub(crate) fn take_newest_wait(&mut self) -> (u64, StreamId) {
        std::mem::take(&mut self.counters.newest_wait)
    }

    /// Counts free memory of another stream that was taken after a wait on the GPU.
    pub(crate) fn took_behind_wait(&mut self, bytes: u64) {
        self.counters.waits.bytes += bytes;
    }

    /// Counts a pending block that was taken after waits on the GPU for the streams that use the block.
    pub(crate) fn took_recorded_behind_wait(&mut self, bytes: u64) {
        self.counters.waits.recorded_bytes += bytes;
    }

    /// Counts bytes by which memory grew for a request that could instead have waited for pending blocks.
    pub(crate) fn grew_instead_of_wait(&mut self, bytes: u64) {
        self.counters.waits.grown_bytes += bytes;
    }

    /// Counts a query of the device's free memory for the headroom.
    pub(crate) fn looked_for_headroom(&mut self) {
        self.counters.headroom.looks += 1;
    }

    /// Returns the most bytes that were in use, or waited for other streams, since the last call.
    pub(crate) fn most_used_since_last_look(&mut self) -> u64 {
        self.counters.active_bytes.begin_window()
    }

    /// Counts a query that found less free memory than the headroom.
    pub(crate) fn headroom_was_short(&mut self) {
        self.counters.headroom.short += 1;
    }

    /// Counts memory that was released for the headroom.
    pub(crate) fn released_for_headroom(&mut self, bytes: u64) {
        self.counters.headroom.yields += 1;
        self.counters.headroom.yielded_bytes += bytes;
    }

    /// Counts a chunk that was split into `parts` parts, and the bytes that were copied.
    pub(crate) fn chunk_split(&mut self, parts: u64, copied_bytes: u64) {
        let splits = &mut self.counters.splits;
        splits.chunks += 1;
        splits.parts += parts;
        splits.copied_bytes += copied_bytes;
    }

    /// Counts a spilled chunk.
    pub(crate) fn chunk_spilled(&mut self) {
        self.counters.spills.chunks += 1;
    }

    /// Counts the bytes that a spill took from the kept host memory of earlier spills.
    pub(crate) fn spill_reused(&mut self, bytes: u64) {
        self.counters.spills.reused_bytes += bytes;
    }

    /// Counts a request that was served because live memory was spilled.
    pub(crate) fn spilled_for_request(&mut self) {
        self.counters.spills.requests += 1;
    }

    /// Counts a spilled chunk that came back to the device.
    pub(crate) fn chunk_returned(&mut self, bytes: u64) {
        self.counters.spills.returned_chunks += 1;
        self.counters.spills.returned_bytes += bytes;
    }

    /// Adds nanoseconds that a spill, or the return of spilled chunks, has spent in the driver.
    pub(crate) fn spent_on_spills(&mut self, ns: u64) {
        self.counters.spills.total_ns += ns;
    }
}
