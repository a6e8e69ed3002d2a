//! Views over chunks that are spilled: their mappings stay within the bounds, those that lose memory go, and the others serve again.

use crate::device::{MAIN, MIB};
use crate::world::World;
use seamalloc::driver::Call;

/// Two chunks of 8 MiB fill a device but for 2 MiB. The first half of one and the second half of the other are a stitched block,
/// which is returned; between them two blocks are live.
fn stitched(options: &str) -> (World, u64) {
    let mut world = World::new(18 * MIB, &format!("chunk_size_mb:8,spill:host=1GiB,{options}"));
    [(); 2].map(|()| world.allocate(8 * MIB, MAIN).unwrap()).into_iter().for_each(|whole| world.free(whole));
    let halves = [(); 4].map(|()| world.allocate(4 * MIB, MAIN).unwrap());
    assert!(halves.windows(2).all(|two| two[0] + 4 * MIB == two[1]), "they lie elsewhere");
    [0, 3].into_iter().for_each(|half: usize| world.free(halves[half]));
    let stitched = world.allocate(8 * MIB, MAIN).unwrap();
    assert_eq!((world.views(), world.used()), (1, (16 * MIB, 0)));
    world.device.settle();
    (world, stitched)
}

/// A chunk of two blocks becomes two chunks, and so two mappings of the view over it.
#[test]
fn a_chunk_stays_whose_parts_a_view_has_no_room_for() {
    for (bound, spilled) in [(2, 0), (3, 8 * MIB)] {
        let (mut world, _) = stitched(&format!("max_view_mappings:{bound}"));
        let answer = world.allocate(4 * MIB, MAIN);
        match spilled {
            0 => assert!(answer.unwrap_err().is_out_of_memory()),
            _ => drop(answer.unwrap()),
        }
        assert_eq!(world.spilled(), spilled);
        assert_eq!(world.stats().view_mappings, bound);
        world.check_all();
        world.end_empty(&[]);
    }
}

/// Nobody can use what lies behind it, and its addresses would be held in vain.
#[test]
fn a_view_that_nobody_uses_goes_with_the_free_memory_behind_it() {
    let (mut world, stitched) = stitched("");
    world.free(stitched);
    world.device.settle();
    let built = world.stats().views_built;
    world.allocate(12 * MIB, MAIN).unwrap();
    assert_eq!(world.spilled(), 4 * MIB);
    let stats = world.stats();
    assert_eq!((stats.views, stats.views_dropped), (stats.views_built - built, built), "{stats:?}");
    world.check_all();
    world.end_empty(&[]);
}

/// All of the chunk is live when it is spilled: the view over it loses nothing.
#[test]
fn a_view_that_loses_no_memory_serves_again_once_it_is_back() {
    let (mut world, stitched) = stitched("");
    world.free(stitched);
    let halves = [(); 2].map(|()| world.allocate(4 * MIB, MAIN).unwrap());
    world.device.settle();
    let new = world.allocate(4 * MIB, MAIN).unwrap();
    assert_eq!((world.spilled(), world.views()), (8 * MIB, 1));
    world.check_all();
    world.free(new);
    assert_eq!(world.allocator.spill().restore(), Ok(8 * MIB));
    halves.into_iter().for_each(|half| world.free(half));
    world.device.settle();
    let (before, built) = (world.device.calls(), world.stats().views_built);
    assert_eq!(world.allocate(8 * MIB, MAIN), Ok(stitched));
    let mapped = world.device.calls().since(&before).get(Call::Map).count;
    assert_eq!((world.stats().views_built, mapped), (built, 0));
    world.check_all();
    world.end_empty(&[]);
}
