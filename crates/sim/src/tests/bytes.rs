//! Tests that no byte is ever lost, in any order of calls.

use proptest::prelude::*;

use super::*;

/// A call on existing or missing objects. The numbers choose among the objects.
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

/// A handle in the test's model.
struct KnownHandle {
    handle: Handle,
    size: u64,
    mappings: usize,
    released: bool,
}

/// A GPU, and the test's model of its state.
struct Model {
    gpu: SimGpu,
    /// The address and size of each reservation.
    reservations: Vec<(u64, u64)>,
    handles: Vec<KnownHandle>,
    /// The address of each mapping, and the index of its handle.
    mappings: Vec<(u64, usize)>,
    /// The address and size of each allocation.
    mallocs: Vec<(u64, u64)>,
}

/// The capacity of the GPU, in chunks.
const CHUNKS: u64 = 24;

impl Model {
    fn new() -> Self {
        let (reservations, handles, mappings, mallocs) = Default::default();
        Self { gpu: gpu_of(CHUNKS * G), reservations, handles, mappings, mallocs }
    }

    /// Returns the address `chunks` chunks into a reservation.
    fn place(&self, at: usize, chunks: u64) -> u64 {
        self.reservations.get(at).map_or(chunks * G, |(address, _)| address + chunks * G)
    }

    /// Makes the call, and updates the model if it succeeds.
    fn make(&mut self, step: Step) {
        match step {
            Step::Reserve(chunks) => {
                self.reservations.push((self.gpu.reserve(chunks * G, 0).unwrap(), chunks * G));
            }
            Step::AddressFree(at) => {
                let (address, size) = self.reservations.get(at).copied().unwrap_or((1, 1));
                if self.gpu.address_free(address, size).is_ok() {
                    self.reservations.remove(at);
                }
            }
            Step::Create(chunks) => {
                if let Ok(handle) = self.gpu.create(chunks * G) {
                    self.handles.push(KnownHandle { handle, size: chunks * G, mappings: 0, released: false });
                }
            }
            Step::Release(at) => {
                let handle = self.handles.get(at).map_or(Handle(0), |known| known.handle);
                if self.gpu.release(handle).is_ok() {
                    self.handles[at].released = true;
                }
            }
            Step::Map(at, offset, which) => self.map(self.place(at, offset), which),
            Step::Unmap(at, offset, chunks) => self.unmap(self.place(at, offset), chunks * G),
            Step::SetAccess(at, offset, chunks) => {
                let _ = self.gpu.set_access(self.place(at, offset), chunks * G);
            }
            Step::Malloc(size) => self.mallocs.extend(self.gpu.malloc(size).map(|address| (address, size))),
            Step::Free(at) => {
                if self.gpu.free(self.mallocs.get(at).map_or(1, |(address, _)| *address)).is_ok() {
                    self.mallocs.remove(at);
                }
            }
        }
    }

    fn map(&mut self, address: u64, which: usize) {
        let (handle, size) = self.handles.get(which).map_or((Handle(0), G), |known| (known.handle, known.size));
        if self.gpu.map(address, size, 0, handle).is_ok() {
            self.handles[which].mappings += 1;
            self.mappings.push((address, which));
        }
    }

    fn unmap(&mut self, address: u64, size: u64) {
        if self.gpu.unmap(address, size).is_ok() {
            self.mappings.retain(|&(mapped, which)| {
                let inside = (address..address + size).contains(&mapped);
                self.handles[which].mappings -= usize::from(inside);
                !inside
            });
        }
    }

    /// Checks that the GPU reports what the model holds.
    fn check(&self) {
        let created = self.handles.iter().filter(|known| !known.released || known.mappings > 0);
        let held: u64 = created.map(|known| known.size).sum();
        let held = held + self.mallocs.iter().map(|(_, size)| size.next_multiple_of(G)).sum::<u64>();
        assert_eq!(self.gpu.memory_info().unwrap().free + held, CHUNKS * G);
        let leaks = self.gpu.leaks();
        assert_eq!(
            (leaks.reservations, leaks.mappings, leaks.mallocs, leaks.bytes),
            (self.reservations.len(), self.mappings.len(), self.mallocs.len(), held)
        );
        let size_of = |which: usize| self.handles[which].size;
        let mut mapped: Vec<_> = self.mappings.iter().map(|&(address, which)| (address, size_of(which))).collect();
        mapped.sort_unstable();
        assert!(mapped.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "mappings overlap: {mapped:x?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_byte_is_ever_lost(steps in steps()) {
        let mut model = Model::new();
        for step in steps {
            model.make(step);
            model.check();
        }
    }
}

#[test]
fn a_kernel_that_uses_marked_bytes_is_reported_and_runs() {
    let gpu = gpu();
    let (address, _) = mapped(&gpu, &[G, G]);
    let range = |from: u64, size| Range { address: address + from, size };
    gpu.launch(S, &[range(0, 2 * G)], 0).unwrap();
    gpu.fill(address + G - 100, 200, 7, S).unwrap();
    gpu.launch(S, &[range(0, G - 100)], 0).unwrap();
    assert!(gpu.faults().is_empty(), "beside the marks");
    gpu.launch_write(S, range(G, 50), 1, 0).unwrap();
    assert_eq!(gpu.faults(), [Fault::MarkedUse { range: range(G, 50), stream: S }]);
    let mut bytes = [9; 220];
    gpu.read(address + G - 110, &mut bytes).unwrap();
    assert_eq!(bytes[..10], [0; 10]);
    assert_eq!((&bytes[10..110], &bytes[110..160]), ([7; 100].as_slice(), [1; 50].as_slice()));
    assert_eq!((&bytes[160..210], &bytes[210..]), ([7; 50].as_slice(), [0; 10].as_slice()));
    gpu.launch(S, &[range(G, 50)], 0).unwrap();
    assert_eq!(gpu.faults().len(), 1, "what the program has written is its own");
}

#[test]
fn fills_and_reads_keep_to_memory_and_captures() {
    let gpu = gpu();
    let (address, handles) = mapped(&gpu, &[G]);
    assert_eq!(status(gpu.fill(address + G - 1, 2, 0, S)), Status::INVALID_VALUE);
    assert_eq!(status(gpu.fill(address, 0, 0, S)), Status::INVALID_VALUE);
    assert_eq!(status(gpu.read(address + G, &mut [0])), Status::INVALID_VALUE);
    gpu.begin_capture(S, CaptureMode::Global).unwrap();
    gpu.fill(address, 10, 3, S).unwrap();
    gpu.end_capture(S).unwrap();
    let mut bytes = [9; 10];
    gpu.read(address, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 10], "a captured fill does not run");
    gpu.begin_capture(S, CaptureMode::Global).unwrap();
    assert_eq!(status(gpu.read(address, &mut bytes)), Status::STREAM_CAPTURE_UNSUPPORTED);
    gpu.end_capture(S).unwrap_err();
    // A fill that waits for held work uses the memory until the hold ends.
    let hold = gpu.hold(S);
    gpu.fill(address, 10, 3, S).unwrap();
    gpu.unmap(address, G).unwrap();
    assert!(matches!(gpu.faults().last(), Some(Fault::UnmapInUse { .. })), "{:?}", gpu.faults());
    gpu.finish_hold(hold);
    gpu.map(address, G, 0, handles[0]).unwrap();
    gpu.set_access(address, G).unwrap();
    gpu.read(address, &mut bytes).unwrap();
    assert_eq!(bytes, [3; 10], "bytes are the memory's, whatever its address");
}
