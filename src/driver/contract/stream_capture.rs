//! Stream captures: which calls they forbid, and how a thread makes such a call nevertheless.
//!
//! Owns: [`CaptureMode`], the contract of [`StreamCapture`], and the one way in which this crate makes calls that a
//! capture forbids.

use crate::driver::error::DriverResult;
use crate::ids::StreamId;

/// Which calls a stream capture forbids (`CUstreamCaptureMode`): as the mode of a capture, to others; as the mode of a
/// thread, to itself. The stricter one of the two is void: both must forbid a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CaptureMode {
    /// Unsafe calls of any thread. What a thread begins with.
    #[default]
    Global,
    /// Unsafe calls of the thread that began the capture.
    ThreadLocal,
    /// None.
    Relaxed,
}

/// What captures forbid.
pub trait StreamCapture {
    /// `cuStreamIsCapturing`: returns whether the stream is being captured, also where the capture is invalid already.
    ///
    /// pre: the handle is that of a live stream (unchecked, as for [`Events`](super::Events)).
    fn is_capturing(&self, stream: StreamId) -> DriverResult<bool>;

    /// `cuThreadExchangeStreamCaptureMode`: sets what captures forbid the calling thread from now on, and returns what they
    /// did until now. In [`CaptureMode::Relaxed`] a call that captures forbid otherwise is legal, unless it waits for a
    /// captured stream or asks for an event of one.
    fn exchange_capture_mode(&self, mode: CaptureMode) -> DriverResult<CaptureMode>;
}

/// Makes calls that a stream capture forbids otherwise. Where one is under way (`capturing`), the calling thread is in
/// relaxed mode for as long as they take, so that they are legal and the capture stays valid.
pub(crate) fn in_relaxed_capture_mode<T>(
    driver: &(impl StreamCapture + ?Sized),
    capturing: bool,
    calls: impl FnOnce() -> DriverResult<T>,
) -> DriverResult<T> {
    if !capturing {
        return calls();
    }
    let before = driver.exchange_capture_mode(CaptureMode::Relaxed)?;
    let result = calls();
    if let Err(error) = driver.exchange_capture_mode(before) {
        // The calls were made. All that is wrong is that captures bind the thread less than before.
        tracing::error!(%error, "a thread stays in relaxed capture mode");
    }
    result
}
