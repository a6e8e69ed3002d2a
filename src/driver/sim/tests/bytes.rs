//! No byte is ever lost, whatever is called in whatever order.

use proptest::prelude::*;

use super::*;

/// A call chosen among what exists and what does not; numbers pick from what there is.
#[derive(Clone, Debug)]
enum Step {
    Reserve(u64),
    AddressFree(usize),
    Create(u64),
    Release(usize),
    Map(usize, u64, usize),
    Unmap(usize, u64, u64),
    SetAccess(usize, u64, u64),
    Malloc(u64),
    Free(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let pick = 0..8_usize;
    let chunks = 0..5_u64;
    let step = prop_oneof![
        (1..9_u64).prop_map(Step::Reserve),
        pick.clone().prop_map(Step::AddressFree),
        chunks.clone().prop_map(Step::Create),
        pick.clone().prop_map(Step::Release),
        (pick.clone(), 0..8_u64, pick.clone()).prop_map(|(at, place, handle)| Step::Map(at, place, handle)),
        (pick.clone(), 0..8_u64, chunks.clone()).prop_map(|(at, place, size)| Step::Unmap(at, place, size)),
        (pick.clone(), 0..8_u64, chunks).prop_map(|(at, place, size)| Step::SetAccess(at, place, size)),
        (0..3 * G).prop_map(Step::Malloc),
        pick.prop_map(Step::Free),
    ];
    prop::collection::vec(step, 1..120)
}

/// A handle as the test keeps its own book of it.
struct Known {
    handle: Handle,
    size: u64,
    mappings: usize,
    released: bool,
}

fn check_bytes(steps: Vec<Step>) {
    let gpu = gpu_of(24 * G);
    let mut reservations: Vec<(u64, u64)> = Vec::new();
    let mut handles: Vec<Known> = Vec::new();
    let mut mappings: Vec<(u64, usize)> = Vec::new();
    let mut mallocs: Vec<(u64, u64)> = Vec::new();
    let place = |reservations: &[(u64, u64)], at: usize, place: u64| {
        reservations.get(at).map_or(place * G, |(address, _)| address + place * G)
    };
    for step in steps {
        match step {
            Step::Reserve(chunks) => reservations.push((gpu.reserve(chunks * G, 0).unwrap(), chunks * G)),
            Step::AddressFree(at) => {
                let (address, size) = reservations.get(at).copied().unwrap_or((1, 1));
                if gpu.address_free(address, size).is_ok() {
                    reservations.remove(at);
                }
            }
            Step::Create(chunks) => {
                if let Ok(handle) = gpu.create(chunks * G) {
                    handles.push(Known { handle, size: chunks * G, mappings: 0, released: false });
                }
            }
            Step::Release(at) => {
                let handle = handles.get(at).map_or(Handle(0), |known| known.handle);
                if gpu.release(handle).is_ok() {
                    handles[at].released = true;
                }
            }
            Step::Map(at, offset, which) => {
                let address = place(&reservations, at, offset);
                let (handle, size) = handles.get(which).map_or((Handle(0), G), |known| (known.handle, known.size));
                if gpu.map(address, size, 0, handle).is_ok() {
                    handles[which].mappings += 1;
                    mappings.push((address, which));
                }
            }
            Step::Unmap(at, offset, chunks) => {
                let address = place(&reservations, at, offset);
                if gpu.unmap(address, chunks * G).is_ok() {
                    mappings.retain(|&(mapped, which)| {
                        let inside = (address..address + chunks * G).contains(&mapped);
                        handles[which].mappings -= usize::from(inside);
                        !inside
                    });
                }
            }
            Step::SetAccess(at, offset, chunks) => {
                let _ = gpu.set_access(place(&reservations, at, offset), chunks * G);
            }
            Step::Malloc(size) => mallocs.extend(gpu.malloc(size).map(|address| (address, size))),
            Step::Free(at) => {
                if gpu.free(mallocs.get(at).map_or(1, |(address, _)| *address)).is_ok() {
                    mallocs.remove(at);
                }
            }
        }
        let held: u64 =
            handles.iter().filter(|known| !known.released || known.mappings > 0).map(|known| known.size).sum();
        let held = held + mallocs.iter().map(|(_, size)| size.next_multiple_of(G)).sum::<u64>();
        assert_eq!(gpu.memory_info().unwrap().free + held, 24 * G);
        let leaks = gpu.leaks();
        assert_eq!(
            (leaks.reservations, leaks.mappings, leaks.mallocs, leaks.bytes),
            (reservations.len(), mappings.len(), mallocs.len(), held)
        );
        let mut mapped: Vec<_> = mappings.iter().map(|&(address, which)| (address, handles[which].size)).collect();
        mapped.sort_unstable();
        assert!(mapped.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "mappings overlap: {mapped:x?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_byte_is_ever_lost(steps in steps()) {
        check_bytes(steps);
    }
}
