//! The streams of a replay on a simulated device.
//!
//! Owns: the handles that stand for the trace's streams, and the handles of streams that keep freed blocks in use. The
//! allocator's tables of handles are fast for a driver's handles, but a file could choose handles that make them slow.
//! So the streams of a trace with many streams get handles of the replay's own.

use crate::memory::SeededMap;
use seamalloc::driver::StreamId;
use std::collections::BTreeSet;

/// The most streams of a trace that keep their handles, which then appear in reports. PyTorch has 32 streams of each
/// priority on a device.
const MOST_NAMED: usize = 256;
/// The first handle for the streams of a trace with more than [`MOST_NAMED`] streams.
const NUMBERED: u64 = 1 << 61;
/// The first handle of streams whose work keeps a freed block in use until its free completes in the trace. Handles of
/// the trace's streams are skipped.
const HOLDING: u64 = 1 << 62;

/// Returns the device's streams for the streams that a trace lists, in the same order.
pub(crate) fn simulated(listed: &[StreamId]) -> Vec<StreamId> {
    if listed.len() <= MOST_NAMED {
        return listed.to_vec();
    }
    let mut known: SeededMap<_, _> = [(StreamId::DEFAULT, StreamId::DEFAULT)].into_iter().collect();
    let mut number = |(stream, number): (&StreamId, u64)| *known.entry(*stream).or_insert(StreamId(NUMBERED + number));
    listed.iter().zip(0..).map(&mut number).collect()
}

/// Streams outside of the trace, which keep freed blocks in use until their frees complete in the trace.
pub(super) struct HoldingStreams {
    /// Handles of the trace's streams that are equal to [`HOLDING`] or larger.
    taken: BTreeSet<StreamId>,
    idle: Vec<StreamId>,
    /// The handle that is tried for the next stream.
    next: u64,
}

impl HoldingStreams {
    pub(super) fn beside(streams: &[StreamId]) -> Self {
        let taken = streams.iter().copied().filter(|stream| stream.0 >= HOLDING).collect();
        Self { taken, idle: Vec::new(), next: HOLDING }
    }

    /// Returns a stream that the trace does not have and that is not in use here.
    pub(super) fn take(&mut self) -> StreamId {
        if let Some(stream) = self.idle.pop() {
            return stream;
        }
        loop {
            let stream = StreamId(self.next);
            self.next = self.next.wrapping_add(1);
            if !self.taken.contains(&stream) {
                return stream;
            }
        }
    }

    /// Makes a stream available again, after its work is done.
    pub(super) fn give_back(&mut self, stream: StreamId) {
        self.idle.push(stream);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_streams_keep_their_handles_and_many_are_numbered() {
        let few: Vec<_> = (0..256).map(|n| StreamId(n * 7)).collect();
        assert_eq!(simulated(&few), few);
        let mut many: Vec<_> = (1..=300).map(|n| StreamId(u64::MAX / n)).collect();
        many.extend([StreamId::DEFAULT, many[7]]);
        let numbered = simulated(&many);
        assert_eq!(numbered[..300], (0..300).map(|n| StreamId(NUMBERED + n)).collect::<Vec<_>>());
        assert_eq!(numbered[300..], [StreamId::DEFAULT, numbered[7]], "a stream is one stream, and the default stays");
    }

    #[test]
    fn holding_streams_are_none_of_the_traces() {
        let mut streams = HoldingStreams::beside(&[StreamId(HOLDING), StreamId(5), StreamId(HOLDING + 2)]);
        let taken = [(); 3].map(|()| streams.take());
        assert_eq!(taken, [HOLDING + 1, HOLDING + 3, HOLDING + 4].map(StreamId));
        streams.give_back(taken[1]);
        assert_eq!(streams.take(), taken[1]);
    }
}
