//! Reports as text, and with the feature `serde` as data.

use super::{MAIN, MIB, SIDE};
use crate::simulated;
use seamalloc::{Config, Pool};

#[test]
fn statistics_and_fragmentation_print_themselves() {
    let (_, allocator) = simulated::on("sim:h200", Config::default());
    let (first, second) = (allocator.block(96 * MIB, MAIN).unwrap(), allocator.block(32 * MIB, SIDE).unwrap());
    drop(first);
    let text = allocator.stats().to_string();
    for said in [
        "memory: 32.00 MiB in 1 blocks, peak 128.00 MiB; 128.00 MiB held",
        "requests: 2, 0 retried, 0 refused",
        "driver: ",
    ] {
        assert!(text.contains(said), "{said}: {text}");
    }
    let text = allocator.reports().fragmentation().to_string();
    for said in [
        "128.00 MiB held: 32.00 MiB in use, 0 B pending, 96.00 MiB free; utilization 25.0%",
        "stream 0x7: 96.00 MiB free in 1 range, the longest 96.00 MiB",
        "stream 0x8",
    ] {
        assert!(text.contains(said), "{said}: {text}");
    }
    drop(second);
    assert!(allocator.stats().stalls.to_string().contains("stalls of "));
    assert_eq!(allocator.stats().allocation.to_string(), "0, peak 2");
}

#[test]
fn the_state_of_a_pool_prints_itself() {
    let (_, allocator) = simulated::on("sim:h200", Config::default());
    let pool = Pool::create(&allocator).unwrap();
    let route = pool.capture(MAIN).unwrap();
    let block = pool.block(2 * MIB, MAIN).unwrap();
    assert_eq!(pool.stats().unwrap().to_string(), "2.00 MiB in 1 blocks, 2.00 MiB held, 1 uses, routed");
    drop((block, route));
}

/// `cargo test --features serde --test interface owned`.
#[cfg(feature = "serde")]
#[test]
fn reports_are_data() {
    use seamalloc::Error;
    use seamalloc::driver::Driver;
    use serde_json::{Value, json, to_value};

    let (gpu, allocator) = simulated::on("sim:h200,capacity=1GiB", Config::default());
    let block = allocator.block(96 * MIB, MAIN).unwrap();
    let stats = to_value(allocator.stats()).unwrap();
    assert_eq!(stats["allocated_bytes"]["all"]["current"], json!(96 * MIB));
    assert_eq!(stats["stalls"]["by_us"].as_array().map(Vec::len), Some(seamalloc::STALL_BUCKETS));
    let fragmentation = to_value(allocator.reports().fragmentation()).unwrap();
    assert_eq!((&fragmentation["allocated"], &fragmentation["free"]), (&json!(96 * MIB), &json!(0)));
    let snapshot = to_value(allocator.reports().snapshot()).unwrap();
    assert_eq!(snapshot["segments"][0]["blocks"][0]["state"], json!("active_allocated"));
    assert_eq!(snapshot["segments"][0]["pool"], json!([0, 0]));
    let Err(Error::OutOfMemory(report)) = allocator.allocate(2048 * MIB, SIDE) else { panic!("1 GiB is not 2") };
    let report = to_value(&report).unwrap();
    assert_eq!(
        (&report["requested"], &report["strategy"], &report["stream"]),
        (&json!(2048 * MIB), &json!("stitch"), &json!(8))
    );
    assert!(report["advice"].is_array() && report["cause"] != Value::Null);
    let flight = to_value(allocator.reports().flight().unwrap()).unwrap();
    assert!(
        flight["events"].as_array().is_some_and(|events| events.iter().any(|e| e["event"]["action"] == json!("alloc")))
    );
    assert!(to_value(gpu.call_stats()).unwrap()["create"]["count"].as_u64() > Some(0));
    drop(block);
}
