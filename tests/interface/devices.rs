//! Devices that are not there.

use seamalloc::{Allocator, Config, Error};

#[test]
fn a_device_that_is_not_there_is_a_typed_error() {
    // SAFETY: there is no such device, so no stream is ever named.
    let error = unsafe { Allocator::cuda(u32::MAX, Config::default()) }.err().unwrap();
    assert!(matches!(error, Error::Device(_)), "{error}");
}
