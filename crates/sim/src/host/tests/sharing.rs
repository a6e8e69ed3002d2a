//! Memory that is exported from one device and imported into another.

use super::{CHUNK, MIB, S, chunk, device, fill, give_back, range, wrong_words};
use seamalloc_driver::prelude::*;
use seamalloc_driver::{Exported, Status};

#[test]
fn exported_memory_keeps_its_bytes_under_all_addresses() {
    let device = device();
    let (handle, address) = chunk(&device);
    let other = device.reserve(CHUNK, 0).unwrap();
    device.map(other, CHUNK, 0, handle).unwrap();
    device.launch(S, fill(range(address, CHUNK), 3)).unwrap();
    device.synchronize().unwrap();
    let exported = device.export(handle).unwrap();
    assert_eq!(device.export(handle).unwrap().number(), exported.number());
    assert_eq!(wrong_words(&device, S, range(address, CHUNK), 3), 0);
    assert!(device.launch(S, fill(range(other, 8), 1)).is_err(), "no access before set_access, as before");
    device.set_access(other, CHUNK).unwrap();
    assert_eq!(wrong_words(&device, S, range(other, CHUNK), 3), 0);

    let receiver = super::device();
    assert_eq!(receiver.import(&exported, 2 * CHUNK).unwrap_err().status, Status::INVALID_VALUE);
    let imported = receiver.import(&exported, CHUNK).unwrap();
    let there = receiver.reserve(CHUNK, 0).unwrap();
    receiver.map(there, CHUNK, 0, imported).unwrap();
    receiver.set_access(there, CHUNK).unwrap();
    assert_eq!(wrong_words(&receiver, S, range(there, CHUNK), 3), 0);
    assert_eq!(receiver.leaks().bytes, 0, "memory of others is not held");
    // One device reads the words that the other writes.
    receiver.launch(S, fill(range(there, CHUNK), 4)).unwrap();
    receiver.synchronize().unwrap();
    assert_eq!(wrong_words(&device, S, range(address, CHUNK), 4), 0);
    // The export outlives its device.
    drop((exported, device));
    assert_eq!(wrong_words(&receiver, S, range(there, CHUNK), 4), 0);
    give_back(&receiver, (imported, there));
    assert!(receiver.leaks().is_empty());
}

#[test]
fn its_own_memory_comes_back_as_another_handle() {
    let device = device();
    let own = chunk(&device);
    let exported = device.export(own.0).unwrap();
    let again = device.import(&exported, CHUNK).unwrap();
    assert_ne!(again, own.0);
    assert_eq!(device.leaks().bytes, CHUNK, "counted once");
    let address = device.reserve(CHUNK, 0).unwrap();
    device.map(address, CHUNK, 0, again).unwrap();
    assert_eq!(device.physical(range(address, CHUNK)), device.physical(range(own.1, CHUNK)));
    give_back(&device, (again, address));
    give_back(&device, own);
    assert!(device.leaks().is_empty());
}

#[test]
fn a_descriptor_of_anything_else_is_refused() {
    let device = device();
    let pipe = Exported::new(std::io::pipe().unwrap().0.into());
    let file = Exported::new(std::fs::File::open("/proc/self/exe").unwrap().into());
    for wrong in [pipe, file] {
        assert_eq!(device.import(&wrong, CHUNK).unwrap_err().status, Status::INVALID_VALUE);
    }
    // A file whose size may change would end this process.
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    let loose = memfd_create("loose", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&loose, CHUNK).unwrap();
    assert_eq!(device.import(&Exported::new(loose), CHUNK).unwrap_err().status, Status::INVALID_VALUE);
    assert!(device.leaks().is_empty());
}

#[test]
fn plain_memory_is_opened_by_its_handle() {
    let (device, receiver) = (device(), super::device());
    let plain = device.malloc(3 * MIB).unwrap();
    device.launch(S, fill(range(plain, 3 * MIB), 6)).unwrap();
    device.synchronize().unwrap();
    let handle = device.ipc_get(plain).unwrap();
    assert_eq!(device.ipc_open(&handle).unwrap_err().status, Status::INVALID_VALUE, "its own");
    let opened = receiver.ipc_open(&handle).unwrap();
    assert_eq!(receiver.ipc_open(&handle).unwrap(), opened);
    assert_eq!(wrong_words(&receiver, S, range(opened, 3 * MIB), 6), 0);
    receiver.launch(S, fill(range(opened, 3 * MIB), 8)).unwrap();
    receiver.synchronize().unwrap();
    assert_eq!(wrong_words(&device, S, range(plain, 3 * MIB), 8), 0);
    receiver.ipc_close(opened).unwrap();
    receiver.ipc_close(opened).unwrap();
    assert!(receiver.ipc_close(opened).is_err() && receiver.leaks().is_empty());
    device.free(plain).unwrap();
    assert_eq!(receiver.ipc_open(&handle).unwrap_err().status, Status::INVALID_VALUE, "it is gone");
    assert!(device.leaks().is_empty());
}
