//! Memory of one process in another, whatever it lies in.

use crate::shared_blocks::blocks;
use crate::{Subject, on};
use seamalloc::driver::StreamId;
use seamalloc::driver::sim::Range;
use seamalloc::{Error, IpcError};

const DEVICE: &str = "sim:h200,capacity=1GiB";

pub(crate) fn another_gpu_gets_it_and_gives_all_back(Subject { kind, .. }: Subject) {
    let (gpu, allocator) = on(kind, DEVICE);
    let (other, receiver) = on(kind, DEVICE);
    let live = blocks(&allocator);
    let shared: Vec<_> = live.iter().map(|address| allocator.sharing().export(*address).unwrap()).collect();
    let opened: Vec<_> = shared.iter().map(|shared| receiver.sharing().open(&shared.handle).unwrap()).collect();
    for ((address, shared), opened) in live.iter().zip(&shared).zip(&opened) {
        let range = Range { address: opened + shared.offset, size: allocator.reports().size_of(*address).unwrap() };
        other.launch(StreamId(3), &[range], 1_000).unwrap();
    }
    assert_eq!((other.leaks().bytes, receiver.reports().reserved()), (0, 0), "{kind:?}");
    opened.iter().for_each(|opened| receiver.sharing().close(*opened).unwrap());
    for opened in opened {
        let error = receiver.sharing().close(opened).unwrap_err();
        assert_eq!(error, Error::Ipc(IpcError::NotOpen { address: opened }));
    }
    assert!(other.leaks().is_empty(), "{kind:?}: {}", other.leaks());
    assert_eq!(other.faults(), [], "nothing was unmapped while a kernel used it");
    live.into_iter().for_each(|address| allocator.free(address).unwrap());
    drop(allocator);
    assert!(gpu.leaks().is_empty(), "{kind:?}: {}", gpu.leaks());
}
