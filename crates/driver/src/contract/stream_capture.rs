//! Stream captures: which calls they forbid, and how a thread makes such a call without invalidating the capture.
//!
//! Owns: [`CaptureMode`], the contract of [`StreamCapture`], and the one function through which this crate makes calls
//! that a capture forbids.

use crate::error::{DriverError, DriverResult};
use crate::ids::StreamId;

/// The calls that a stream capture forbids (`CUstreamCaptureMode`). A capture has a mode, and so has each thread: a
/// call is forbidden only if the mode of the capture and the mode of the calling thread both forbid it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CaptureMode {
    /// Forbids unsafe calls of any thread. Every thread starts in this mode.
    #[default]
    Global,
    /// Forbids unsafe calls of the thread that began the capture.
    ThreadLocal,
    /// Forbids no call.
    Relaxed,
}

/// The effects of captures on calls.
pub trait StreamCapture {
    /// `cuStreamIsCapturing`: returns whether the stream is being captured, even if the capture is invalid already.
    ///
    /// pre: the handle is the handle of a live stream (unchecked, as for [`Events`](super::Events)).
    fn is_capturing(&self, stream: StreamId) -> DriverResult<bool>;

    /// `cuThreadExchangeStreamCaptureMode`: sets the mode of the calling thread, and returns the previous mode. In
    /// [`CaptureMode::Relaxed`], calls that captures otherwise forbid are legal, unless they wait for a captured stream
    /// or query an event of such a stream.
    fn exchange_capture_mode(&self, mode: CaptureMode) -> DriverResult<CaptureMode>;
}

/// Makes calls that a stream capture otherwise forbids. While a capture is under way (`capturing`), the calling thread
/// is in relaxed mode during the calls, so that they are legal and the capture stays valid.
pub fn in_relaxed_capture_mode<T, E: From<DriverError>>(
    driver: &(impl StreamCapture + ?Sized),
    capturing: bool,
    calls: impl FnOnce() -> Result<T, E>,
) -> Result<T, E> {
    if !capturing {
        return calls();
    }
    let before = driver.exchange_capture_mode(CaptureMode::Relaxed)?;
    let result = calls();
    if let Err(error) = driver.exchange_capture_mode(before) {
        // The calls succeeded, and only the restoring of the mode failed. Captures now forbid this thread fewer calls
        // than before.
        tracing::error!(%error, "a thread stays in relaxed capture mode");
    }
    result
}
