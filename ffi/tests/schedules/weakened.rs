//! Slots whose atomics ignore the order they are asked for.

#[path = "../../src/slots.rs"]
pub(crate) mod slots;

pub(crate) mod primitive {
    pub(crate) use crate::relaxed::AtomicU64;
    pub(crate) use loom::sync::atomic::{AtomicPtr, Ordering};
}

crate::models::models!();
