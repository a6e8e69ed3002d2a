//! Tests of memory with several handles, and of memory of other simulated GPUs.

use super::*;

#[test]
fn imported_memory_is_the_same_and_lives_until_the_last_has_let_go() {
    let gpu = gpu();
    let handle = gpu.create(2 * G).unwrap();
    let exported = gpu.export(handle).unwrap();
    assert_eq!(gpu.export(handle).unwrap().number(), exported.number(), "exported once");
    let imported = gpu.import(&exported, 2 * G).unwrap();
    assert_ne!(imported, handle);
    let address = gpu.reserve(4 * G, 0).unwrap();
    gpu.map(address, 2 * G, 0, handle).unwrap();
    gpu.map(address + 2 * G, 2 * G, 0, imported).unwrap();
    let physical = |address| gpu.physical(Range { address, size: 2 * G });
    assert_eq!(physical(address), physical(address + 2 * G));
    assert_eq!(gpu.leaks().bytes, 2 * G, "held once");
    gpu.release(handle).unwrap();
    gpu.unmap(address, 2 * G).unwrap();
    gpu.release(imported).unwrap();
    assert_eq!(gpu.leaks().bytes, 2 * G, "still mapped");
    gpu.unmap(address + 2 * G, 2 * G).unwrap();
    assert_eq!(gpu.leaks().bytes, 0);
    assert_eq!(status(gpu.import(&exported, 2 * G)), Status::INVALID_VALUE, "gone");
}

#[test]
fn memory_of_another_gpu_counts_there() {
    let (one, other) = (gpu(), gpu());
    let handle = one.create(G).unwrap();
    let imported = other.import(&one.export(handle).unwrap(), G).unwrap();
    assert_eq!((one.leaks().bytes, other.leaks().bytes), (G, 0));
    let address = other.reserve(G, 0).unwrap();
    other.map(address, G, 0, imported).unwrap();
    other.set_access(address, G).unwrap();
    other.launch(S, &[Range { address, size: G }], 1).unwrap();
    other.unmap(address, G).unwrap();
    other.release(imported).unwrap();
    other.address_free(address, G).unwrap();
    assert!(other.leaks().is_empty());
    assert_eq!(status(other.import(&one.export(handle).unwrap(), 2 * G)), Status::INVALID_VALUE, "of another size");
    let (reader, _writer) = std::io::pipe().unwrap();
    assert_eq!(status(other.import(&seamalloc_driver::Exported::new(reader.into()), G)), Status::INVALID_VALUE);
}

#[cfg(target_os = "linux")]
#[test]
fn a_descriptor_that_would_keep_a_reader_waiting_is_not_read() {
    use rustix::event::{EventfdFlags, eventfd};

    // A read of an event counter that is 0 waits until another process adds to it.
    let counter = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    assert_eq!(status(gpu().import(&seamalloc_driver::Exported::new(counter), G)), Status::INVALID_VALUE);
}

#[test]
fn plain_memory_is_opened_elsewhere_only() {
    let (one, other) = (gpu(), gpu());
    let memory = one.malloc(700).unwrap();
    let shared = one.ipc_get(memory).unwrap();
    assert_eq!(status(one.ipc_open(&shared)), Status::INVALID_VALUE, "its own");
    assert_eq!(status(one.ipc_get(memory + 512)), Status::INVALID_VALUE);
    let opened = other.ipc_open(&shared).unwrap();
    other.launch(S, &[Range { address: opened, size: 700 }], 1).unwrap();
    assert_eq!(other.leaks().bytes, 0);
    assert_eq!(status(other.free(opened)), Status::INVALID_VALUE, "not its own");
    assert_eq!(status(other.ipc_get(opened)), Status::INVALID_VALUE);
    other.ipc_close(opened).unwrap();
    assert_eq!(status(other.ipc_close(opened)), Status::INVALID_VALUE);
    assert_eq!(status(other.ipc_open(&seamalloc_driver::IpcMemory([0; 64]))), Status::INVALID_VALUE);
    assert!(other.leaks().is_empty());
}
