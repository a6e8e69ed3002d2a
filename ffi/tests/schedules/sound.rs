//! Slots as the library has them.

#[path = "../../src/slots.rs"]
pub(crate) mod slots;

pub(crate) mod primitive {
    pub(crate) use loom::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
}

crate::models::models!();
