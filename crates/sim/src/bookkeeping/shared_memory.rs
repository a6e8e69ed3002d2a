//! The name of a device's memory outside of the device, in this process and in others.
//!
//! Owns: [`SharedMemory`], and its byte form.

use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

/// The name of memory: its device, and its number in the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SharedMemory {
    /// The identity of the device.
    pub(crate) identity: u64,
    pub(crate) number: u64,
    pub(crate) size: u64,
}

/// Returns a number that no other running device of this kind has, in any process.
pub(crate) fn new_identity() -> u64 {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    u64::from(process::id()) << 32 | u64::from(COUNT.fetch_add(1, Ordering::Relaxed))
}

impl SharedMemory {
    /// Writes the name after `magic`, which identifies the kind of device. The last 32 bytes are zero.
    pub(crate) fn to_bytes(self, magic: [u8; 8]) -> [u8; 64] {
        let mut bytes = [0; 64];
        let fields = [magic, self.identity.to_le_bytes(), self.number.to_le_bytes(), self.size.to_le_bytes()];
        for (place, field) in bytes.chunks_exact_mut(8).zip(fields) {
            place.copy_from_slice(&field);
        }
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8; 64], magic: [u8; 8]) -> Option<Self> {
        let (fields, _) = bytes.as_chunks::<8>();
        let [first, identity, number, size, ..] = fields else { return None };
        let [identity, number, size] = [identity, number, size].map(|field| u64::from_le_bytes(*field));
        (*first == magic).then_some(Self { identity, number, size })
    }
}
