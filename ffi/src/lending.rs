//! Memory that is lent between processes (the option `broker`).
//!
//! Owns: which allocator answers the broker, by its handle, and for how long.

use crate::ids::AllocatorId;
use crate::registry;
use seamalloc::Allocator;
use seamalloc_broker::{Member, Membership, Terms};

/// The allocator of a handle.
struct Handle(AllocatorId);

impl Member for Handle {
    fn with(&self, look: &mut dyn FnMut(&Allocator)) -> bool {
        registry::borrow(self.0).map(|instance| look(&instance.allocator)).is_ok()
    }
}

/// Makes an allocator a member of the broker that its options name, if they name one. A failure is only logged: the
/// allocator works without a broker.
pub(crate) fn take_part(id: AllocatorId) {
    let Ok(instance) = registry::borrow(id) else { return };
    let Some(terms) = Terms::of(&instance.allocator) else { return };
    if terms.device.is_empty() {
        let device = &instance.device;
        tracing::warn!(device, "the option broker is without effect: no other process can have this device");
        return;
    }
    match Membership::start(terms, Handle(id)) {
        Ok(membership) => {
            instance.allocator.lending().set_lender(Some(membership.lender()));
            *instance.membership.lock() = Some(membership);
        }
        Err(error) => tracing::warn!(%error, "the option broker is without effect"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instance::Instance;
    use seamalloc_broker::Broker;

    #[test]
    fn a_device_that_no_other_process_has_joins_no_broker() {
        let socket = std::env::temp_dir().join(format!("seamalloc-lending-{}.sock", std::process::id()));
        let broker = Broker::start(&socket).unwrap();
        let id =
            crate::idle::add(Instance::open("sim:h200", &format!("broker:{}", socket.display())).unwrap()).unwrap();
        assert!(registry::borrow(id).unwrap().membership.lock().is_none());
        assert_eq!(seamalloc_broker::status::members(&socket).unwrap(), []);
        registry::remove(id).unwrap();
        drop(broker);
    }

    #[test]
    fn an_allocator_takes_part_as_long_as_its_handle_lives() {
        let socket = std::env::temp_dir().join(format!("seamalloc-handle-{}.sock", std::process::id()));
        let broker = Broker::start(&socket).unwrap();
        let id = registry::add(Instance::open("sim:h200", "").unwrap()).unwrap();
        let membership = Membership::start(Terms::new("a device", &socket), Handle(id)).unwrap();
        assert!(membership.wait_joined(std::time::Duration::from_secs(20)));
        *registry::borrow(id).unwrap().membership.lock() = Some(membership);
        assert_eq!(seamalloc_broker::status::members(&socket).unwrap().len(), 1);
        registry::remove(id).unwrap();
        let begun = std::time::Instant::now();
        while !seamalloc_broker::status::members(&socket).unwrap().is_empty() {
            assert!(begun.elapsed() < std::time::Duration::from_secs(20), "it is asked still");
        }
        drop(broker);
    }
}
