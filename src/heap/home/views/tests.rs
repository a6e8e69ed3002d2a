//! Tests of the table of views, without a heap.

use super::*;

const NO_PLAN: PlanHash = PlanHash(0);

fn add(views: &mut Views, address: u64, size: u64, chunks: Vec<ChunkId>) -> ViewId {
    let new = views.prepare(chunks).unwrap();
    views.add(address, size, new)
}

#[test]
fn slots_are_used_again_and_what_is_remembered_is_bounded() {
    let mut views = Views::default();
    let first = add(&mut views, 0, 100, vec![ChunkId(0), ChunkId(1)]);
    let last = 3 * MAX_PLANS as u64;
    for plan in 1..=last {
        views.remember(PlanHash(plan), first);
        assert!(views.by_plan.len() <= MAX_PLANS);
    }
    assert_eq!(views.candidates(PlanHash(last), 1000).next(), Some(first), "too small, but it met this plan");
    assert_eq!(views.candidates(NO_PLAN, 99).collect::<Vec<_>>(), [first]);
    assert!(views.remove(first).is_some() && views.remove(first).is_none());
    assert_eq!((views.mappings(), views.candidates(PlanHash(last), 1).count()), (0, 0));
    assert_eq!(add(&mut views, 0, 5, vec![ChunkId(2)]), first);
}

#[test]
fn the_smallest_that_may_suffice_comes_first() {
    let mut views = Views::default();
    let [large, small, middle] = [30, 10, 20].map(|size| add(&mut views, 0, size, vec![ChunkId(0)]));
    assert_eq!(views.candidates(NO_PLAN, 11).collect::<Vec<_>>(), [middle, large]);
    views.forget_chunks(middle);
    assert_eq!(views.candidates(NO_PLAN, 1).collect::<Vec<_>>(), [small, large]);
}

#[test]
fn what_has_met_a_plan_is_tried_in_the_order_in_which_it_was_found() {
    let mut views = Views::default();
    let ids: Vec<_> = (0..12).map(|_| add(&mut views, 0, 10, vec![ChunkId(0)])).collect();
    for id in [ids[5], ids[2], ids[5], ids[9], ids[2]] {
        views.remember(PlanHash(1), id);
    }
    let tried = |views: &Views| views.candidates(PlanHash(1), 100).collect::<Vec<_>>();
    assert_eq!(tried(&views), [ids[5], ids[2], ids[9]]);
    assert_eq!(views.candidates(PlanHash(2), 100).count(), 0);
    views.remove(ids[2]);
    assert_eq!(tried(&views), [ids[5], ids[9]]);
    ids.iter().for_each(|id| views.remember(PlanHash(1), *id));
    assert_eq!(tried(&views).len(), MAX_VIEWS_PER_PLAN as usize);
    assert_eq!(tried(&views)[0], ids[5]);
    assert_eq!(tried(&views).last(), ids.last(), "the newest takes the last place");
}

#[test]
fn the_unused_are_kept_in_the_order_in_which_they_fell_out_of_use() {
    let mut views = Views::default();
    let [a, b, c, d] = [1, 2, 3, 4].map(|size| add(&mut views, 0, size, vec![ChunkId(0)]));
    let unused = |views: &Views| views.unused().map(|(id, _)| id).collect::<Vec<_>>();
    assert_eq!(unused(&views), [a, b, c, d]);
    for id in [b, d, d, a] {
        views.reserve_use(id, PoolIndex::DEFAULT).unwrap();
        views.used(id);
    }
    assert_eq!(unused(&views), [c]);
    views.freed(d, PoolIndex::DEFAULT, 1);
    assert_eq!(unused(&views), [c], "one of its two users is left");
    for id in [a, d, b] {
        views.freed(id, PoolIndex::DEFAULT, 1);
    }
    assert_eq!(unused(&views), [c, a, d, b]);
    for (gone, left) in [(d, vec![c, a, b]), (c, vec![a, b]), (b, vec![a]), (a, vec![])] {
        views.remove(gone);
        assert_eq!(unused(&views), left);
    }
    let used = add(&mut views, 0, 1, vec![ChunkId(0)]);
    views.used(used);
    assert!(views.remove(used).is_some() && unused(&views).is_empty());
}

#[test]
fn what_is_remembered_of_a_view_does_not_pass_to_the_next_in_its_slot() {
    let mut views = Views::default();
    let old = add(&mut views, 0, 10, vec![ChunkId(0)]);
    views.remember(PlanHash(1), old);
    views.remove(old);
    assert_eq!(add(&mut views, 0, 10, vec![ChunkId(1)]), old);
    assert_eq!(views.candidates(PlanHash(1), 100).count(), 0);
    views.remember(PlanHash(1), old);
    assert_eq!(views.candidates(PlanHash(1), 100).collect::<Vec<_>>(), [old]);
}

#[test]
fn a_view_with_a_hole_stays_and_serves_nobody() {
    let mut views = Views::default();
    let view = add(&mut views, 0, 30, vec![ChunkId(0), ChunkId(1), ChunkId(2)]);
    assert_eq!((views.count(), views.mappings(), views.address_space()), (1, 3, 30));
    views.used(view);
    views.cut(view, 2, Span::new(20, 10));
    views.cut(view, 1, Span::new(10, 10));
    assert_eq!((views.mappings(), views.count(), views.candidates(PlanHash(0), 10).count()), (1, 1, 0));
    let kept = views.get(view).map(|view| (view.chunks.clone(), view.holes.clone(), view.mappings()));
    assert_eq!(
        kept,
        Some((vec![ChunkId(0), ChunkId::NONE, ChunkId::NONE], vec![Span::new(10, 10), Span::new(20, 10)], 1))
    );
    assert!(views.remove(view).is_some());
    assert_eq!((views.count(), views.mappings(), views.address_space()), (0, 0, 0));
}

#[test]
fn plans_are_forgotten_only_where_there_are_too_many() {
    let mut views = Views::default();
    let [kept, gone] = [0, 1].map(|_| add(&mut views, 0, 10, vec![ChunkId(0)]));
    let (most, few) = (MAX_PLANS as u64, MAX_PLANS as u64 / 4);
    for plan in 1..=most {
        views.remember(PlanHash(plan), if plan <= few { kept } else { gone });
    }
    let known = |views: &Views, plan| views.candidates(PlanHash(plan), 100).next();
    assert_eq!((known(&views, 1), known(&views, most)), (Some(kept), Some(gone)));
    // Dropping the entries of the removed view makes enough room, so the other entries stay.
    views.remove(gone);
    views.remember(PlanHash(most + 1), kept);
    assert_eq!([1, few, most + 1].map(|plan| known(&views, plan)), [Some(kept); 3]);
    assert_eq!(views.by_plan.len() as u64, few + 1);
}

#[test]
fn holes_lie_in_the_order_of_their_offsets_whenever_they_were_cut() {
    let mut views = Views::default();
    let view = add(&mut views, 0, 40, (0..4).map(ChunkId).collect());
    for index in [0, 3, 1] {
        views.cut(view, index, Span::new(10 * index as u64, 10));
    }
    let holes = views.get(view).map(|view| view.holes.clone());
    assert_eq!(holes, Some([0, 10, 30].map(|offset| Span::new(offset, 10)).to_vec()));
}

#[test]
fn the_uses_by_one_pool_move_or_end_and_those_by_others_stay() {
    let [a, b, c] = [1, 2, 3].map(PoolIndex::of_pair);
    let uses_after = |change: &dyn Fn(&mut Views)| {
        let mut views = Views::default();
        let view = add(&mut views, 0, 10, vec![ChunkId(0)]);
        for (pool, epoch) in [(a, 5), (b, 7), (c, 9)] {
            views.reserve_use(view, pool).unwrap();
            views.used(view);
            views.freed(view, pool, epoch);
        }
        change(&mut views);
        let mut uses = views.get(view).map(|view| view.last_uses.clone()).unwrap_or_default();
        uses.sort_by_key(|(_, epoch)| *epoch);
        uses
    };
    assert_eq!(uses_after(&|views| views.move_uses(a, Some((b, 8)))), [(b, 8), (c, 9)]);
    assert_eq!(uses_after(&|views| views.move_uses(c, Some((b, 6)))), [(a, 5), (b, 7)], "the later of the two");
    assert_eq!(uses_after(&|views| views.move_uses(b, None)), [(a, 5), (c, 9)]);
    assert_eq!(uses_after(&|views| views.forget_uses(|pool| pool == b)), [(a, 5), (c, 9)]);
}
