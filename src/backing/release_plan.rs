//! The choice of pieces of memory to give back: enough bytes, and hardly more than needed.
//!
//! Owns: the choice. The choice depends on the sizes and on an order of preference, but not on the kind of the pieces.

use crate::fallible::{Grown, TryCollect, TryPush, filled};
use crate::heap::GRANULE;

/// The bytes up to which the choice is exact to the granule. While more bytes are missing, pieces are taken in order of
/// preference. The constant bounds the time of the choice, which has at most as many steps as the number of pieces
/// multiplied by this number of granules.
const CHOSEN_EXACTLY: u64 = 256 * GRANULE;

/// Returns the indices of pieces that add up to at least `bytes`. If any one of them were left out, the sum would be
/// less than `bytes`. `sizes` is in order of preference. If all pieces together are too small, returns all of them.
pub(crate) fn choose(sizes: &[u64], bytes: u64) -> Grown<Vec<usize>> {
    let mut missing = bytes;
    let (mut taken, mut rest) = (Vec::new(), Vec::new());
    for (index, &size) in sizes.iter().enumerate() {
        if missing > CHOSEN_EXACTLY && size <= missing {
            missing -= size;
            taken.try_push(index)?;
        } else {
            rest.try_push(index)?;
        }
    }
    if missing == 0 {
        return Ok(taken);
    }
    let larger = rest.iter().copied().filter(|index| sizes[*index] >= missing);
    let single = match larger.min_by_key(|index| (sizes[*index], *index)) {
        Some(index) => Some((sizes[index], index, filled(index, 1)?)),
        None => None,
    };
    let together = closest_sum(sizes, &rest, missing)?;
    let Some((sum, _, chosen)) = single.into_iter().chain(together).min_by_key(|(sum, last, _)| (*sum, *last)) else {
        return (0..sizes.len()).try_to_vec();
    };
    // The last chosen piece may be so large that some of the other pieces are not needed.
    let mut excess = sum - missing;
    let mut kept: Vec<usize> = Vec::new();
    for index in taken.into_iter().rev() {
        match excess.checked_sub(sizes[index]) {
            Some(left) => excess = left,
            None => kept.try_push(index)?,
        }
    }
    kept.reverse();
    kept.try_reserve(chosen.len())?;
    kept.extend(chosen);
    Ok(kept)
}

/// Chooses, among the pieces smaller than `missing`, the set with the least sum that is at least `missing`. Returns the
/// sum, the last piece of the set in the order of preference, and all pieces of the set. Among sets of equal sum, the
/// set with the most preferred last piece is chosen. Returns `None` if no set reaches `missing`.
fn closest_sum(sizes: &[u64], pieces: &[usize], missing: u64) -> Grown<Option<(u64, usize, Vec<usize>)>> {
    if missing > CHOSEN_EXACTLY {
        // Every remaining piece is larger than `missing`.
        return Ok(None);
    }
    let wanted = missing.div_ceil(GRANULE) as usize;
    // For each sum in granules, the first piece with which the sum can be reached.
    let mut reached: Vec<Option<usize>> = filled(None, 2 * wanted)?;
    for &index in pieces {
        let size = (sizes[index] / GRANULE) as usize;
        if size == 0 || sizes[index] >= missing {
            continue;
        }
        for sum in (0..wanted).rev() {
            if (sum == 0 || reached[sum].is_some()) && sum + size < reached.len() {
                reached[sum + size].get_or_insert(index);
            }
        }
        if reached[wanted].is_some() {
            break;
        }
    }
    let nearest = (wanted..reached.len()).find_map(|sum| Some((sum, reached[sum]?)));
    let Some((mut sum, last)) = nearest else { return Ok(None) };
    let mut chosen = Vec::new();
    while let Some(Some(index)) = reached.get(sum).copied() {
        chosen.try_push(index)?;
        sum -= (sizes[index] / GRANULE) as usize;
    }
    chosen.reverse();
    Ok(Some((chosen.iter().map(|index| sizes[*index]).sum(), last, chosen)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const G: u64 = GRANULE;

    fn chosen(sizes: &[u64], bytes: u64) -> Vec<usize> {
        let sizes: Vec<u64> = sizes.iter().map(|size| size * G).collect();
        choose(&sizes, bytes).unwrap()
    }

    #[test]
    fn what_suffices_exactly_comes_before_what_is_preferred() {
        assert_eq!(chosen(&[4, 4, 6], 6 * G), [2]);
        assert_eq!(chosen(&[10, 3, 2, 1], 3 * G), [1]);
        assert_eq!(chosen(&[10, 2, 2, 1], 3 * G), [1, 3], "the preferred one of equals");
        assert_eq!(chosen(&[5, 5, 5], 5 * G), [0]);
        assert_eq!(chosen(&[2, 2, 4], 4 * G), [0, 1], "preferred, though two");
        assert_eq!(chosen(&[4, 2, 2], 4 * G), [0]);
    }

    #[test]
    fn where_nothing_is_exact_it_is_as_little_as_can_be() {
        assert_eq!(chosen(&[10, 4, 7], 5 * G), [2]);
        assert_eq!(chosen(&[10, 4, 4], 5 * G), [1, 2]);
        assert_eq!(chosen(&[10, 4], 1), [1]);
        assert_eq!(chosen(&[3], 3 * G - 1), [0]);
        assert_eq!(chosen(&[1, 2], 2 * G + 1), [0, 1]);
    }

    #[test]
    fn all_where_all_is_too_little_and_none_for_nothing() {
        assert_eq!(chosen(&[3, 4], 8 * G), [0, 1]);
        assert_eq!(chosen(&[3, 4], u64::MAX), [0, 1]);
        assert!(chosen(&[3, 4], 0).is_empty());
        assert!(chosen(&[], 5).is_empty());
    }

    #[test]
    fn a_large_last_piece_spares_the_others() {
        assert_eq!(chosen(&[300, 100, 5000], 1000 * G), [2]);
        assert_eq!(chosen(&[500, 400, 110, 5000], 1000 * G), [0, 1, 2]);
        assert_eq!(chosen(&[600, 500, 5000], 700 * G), [0, 1]);
    }

    #[test]
    fn no_choice_has_a_piece_too_many() {
        let mut state = 7u64;
        let mut random = |limit: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % limit
        };
        for _ in 0..500 {
            let sizes: Vec<u64> = (0..random(20)).map(|_| (1 + random(10) * random(30)) * G).collect();
            let all: u64 = sizes.iter().sum();
            let bytes = random(all / G + 2) * G + random(2);
            let chosen = choose(&sizes, bytes).unwrap();
            let mut unique = chosen.clone();
            unique.sort_unstable();
            unique.dedup();
            assert_eq!(unique.len(), chosen.len(), "each once");
            let sum: u64 = chosen.iter().map(|index| sizes[*index]).sum();
            if all < bytes {
                assert_eq!(sum, all);
                continue;
            }
            assert!(sum >= bytes);
            assert!(
                bytes == 0 || chosen.iter().all(|index| sum - sizes[*index] < bytes),
                "{sizes:?} {bytes}: {chosen:?}"
            );
        }
    }
}
