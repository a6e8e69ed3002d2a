//! Splitting chunks is advised where it would have served, as the device can have it: behind a gate, or without one.

use crate::script::Step::{Allocate, Free};
use crate::script::{Run, advised, follow};
use crate::{MAIN, MIB};
use seamalloc::driver::sim::{SimConfig, SimGpu};
use seamalloc::driver::{DeviceProperties, Driver, ForwardingDriver};
use seamalloc::out_of_memory::Advice;
use seamalloc::{Allocator, Config, Error, OutOfMemory, Split};
use std::sync::Arc;

const GIB: u64 = 1 << 30;
const WITHOUT: &str = "split:off";

fn split_advice(report: &OutOfMemory) -> Option<Advice> {
    report.advice.iter().copied().find(|advice| matches!(advice, Advice::SplitChunks { .. }))
}

/// torchrec 4584: activations lie in the hole of 9 GiB, every other one is freed, and the 9 GiB come back.
#[test]
fn free_ends_of_chunks_are_advised_to_be_split() {
    let mut script = vec![Allocate(64 * MIB, MAIN); 40];
    script.extend([Allocate(9 * GIB, MAIN), Free(40)]);
    script.extend((0..48).map(|nth| Allocate((200 + nth * 37 % 200) * MIB, MAIN)));
    script.extend((41..89).step_by(2).map(Free));
    script.push(Allocate(9 * GIB, MAIN));
    for capacity in [19_200, 19_500, 19_900, 20_100] {
        let device = format!("sim:h100,capacity={capacity}MiB");
        let (run, report) = Run::short(&device, WITHOUT, &script);
        assert_eq!(report.memory.landlocked_bytes, 0, "all lies at ends of chunks");
        let advice = split_advice(&report);
        // The advice keeps a margin.
        assert!(advice.is_some() || capacity < 19_500, "{report}");
        if let Some(advice) = advice {
            assert!(report.to_string().contains("the option split:last_resort"), "{report}");
            assert!(follow(advice, run, &device, "", &script));
        }
    }
}

/// PyTorch 29554, 31252: of blocks of 12 MB every other one is freed.
#[test]
fn free_granules_between_blocks_are_advised_to_be_split() {
    let device = "sim:h100,capacity=4GiB";
    for (size, helps) in [(400, true), (900, true), (1_400, true), (1_600, true), (1_800, false)] {
        let mut run = Run::on(device, WITHOUT);
        while run.step(Allocate(12_000_000, MAIN)).is_ok() {}
        let blocks = run.addresses.len();
        let freed = (0..blocks).step_by(2).map(Free);
        let script: Vec<_> = std::iter::repeat_n(Allocate(12_000_000, MAIN), blocks)
            .chain(freed)
            .chain([Allocate(size * MIB, MAIN)])
            .collect();
        let (run, report) = Run::short(device, WITHOUT, &script);
        assert_eq!(split_advice(&report).is_some(), helps, "{report}");
        if helps {
            let advice = advised(&report, |advice| matches!(advice, Advice::SplitChunks { .. }));
            let Advice::SplitChunks { free, split } = advice else { panic!("{advice:?}") };
            assert!(split == Split::LastResort && free > 1_600 * MIB && free <= report.memory.partly_free_bytes);
            assert!(follow(advice, run, device, "", &script));
        }
    }
}

/// A device that can hold no streams.
struct WithoutGates {
    gpu: SimGpu,
    properties: DeviceProperties,
}

impl ForwardingDriver for WithoutGates {
    fn inner(&self) -> &dyn Driver {
        &self.gpu
    }

    fn properties(&self) -> &DeviceProperties {
        &self.properties
    }
}

#[test]
fn a_device_without_gates_is_advised_to_split_without_them() {
    let refused = |options: &str| {
        let gpu = SimGpu::new(SimConfig::parse("sim:h100,capacity=4GiB").unwrap()).unwrap();
        let properties = DeviceProperties { stream_gates: false, ..gpu.properties().clone() };
        let allocator =
            Allocator::new(Arc::new(WithoutGates { gpu, properties }), Config::parse(options).unwrap()).unwrap();
        let blocks: Vec<u64> = std::iter::from_fn(|| allocator.allocate(12_000_000, MAIN).ok()).collect();
        blocks.iter().step_by(2).for_each(|address| allocator.free(*address).unwrap());
        let largest = allocator.reports().largest_request().unwrap();
        match allocator.allocate(1_600 * MIB, MAIN) {
            Ok(_) => (largest, None),
            Err(Error::OutOfMemory(report)) => (largest, Some(report)),
            Err(error) => panic!("{error}"),
        }
    };
    for options in ["", WITHOUT] {
        let (largest, report) = refused(options);
        let report = report.unwrap();
        assert!(largest < 100 * MIB, "nothing is split: {largest}");
        let advice = split_advice(&report);
        assert!(matches!(advice, Some(Advice::SplitChunks { split: Split::Ungated, .. })), "{options:?}: {report}");
        assert!(report.to_string().contains("split:ungated"), "{report}");
    }
    let (largest, report) = refused("split:ungated");
    assert!(largest > 1_600 * MIB && report.is_none(), "{largest}");
    // A request that may not wait for the device has nothing split.
    assert_eq!(split_advice(&refused("wait_ms:1000").1.unwrap()), None);
}
