//! Slots that stay where they are.

use std::sync::OnceLock;

/// The size of the first chunk, as a power of two. Four chunks have the same size, the next four twice that:
/// so less than a quarter of the places is made for nobody.
const FIRST: u32 = 4;
/// How many chunks have one size, as a power of two.
const OF_ONE_SIZE: u32 = 2;
/// Enough for every index that fits an `u32`.
const CHUNKS: usize = 108;

/// An append-only list whose elements never move, so that `&self` hands out references that last.
#[derive(Debug)]
pub(super) struct Arena<T> {
    chunks: [OnceLock<Box<[T]>>; CHUNKS],
}

impl<T> Arena<T> {
    pub(super) fn new() -> Self {
        Self { chunks: [const { OnceLock::new() }; CHUNKS] }
    }

    /// The slot of `index`; none where no chunk was made for it.
    #[inline]
    pub(super) fn get(&self, index: u32) -> Option<&T> {
        let (chunk, offset) = place(index);
        self.chunks.get(chunk)?.get()?.get(offset)
    }

    /// The slot of `index`, its chunk made with `make`, which is told the index of each, where there is none;
    /// none beyond the last index.
    pub(super) fn get_or_make(&self, index: u32, make: impl Fn(u32) -> T) -> Option<&T> {
        let (chunk, offset) = place(index);
        let first = index - u32::try_from(offset).ok()?;
        let length = 1_u32 << (FIRST as usize + (chunk >> OF_ONE_SIZE));
        let make = || (0..length).map(|nth| make(first.wrapping_add(nth))).collect();
        self.chunks.get(chunk)?.get_or_init(make).get(offset)
    }
}

/// Which chunk, and where in it: with the size of the first four added, the highest bit tells the size, the
/// two below it which of the four, and the rest the place. Shifts alone: this is on the way of every call.
#[inline]
fn place(index: u32) -> (usize, usize) {
    let shifted = u64::from(index) + (1 << (FIRST + OF_ONE_SIZE));
    let doublings = shifted.ilog2() - FIRST - OF_ONE_SIZE;
    let size = FIRST + doublings;
    let chunk = (u64::from(doublings) << OF_ONE_SIZE) + (shifted >> size) - (1 << OF_ONE_SIZE);
    (to_usize(chunk), to_usize(shifted & ((1 << size) - 1)))
}

#[inline]
#[allow(
    clippy::cast_possible_truncation,
    reason = "chunks are few, and a chunk that fits no memory is never made"
)]
fn to_usize(number: u64) -> usize {
    number as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_fill_one_chunk_after_the_other() {
        let (mut chunk, mut filled) = (0, 0);
        for index in 0..10_000 {
            if filled == 1 << (FIRST as usize + (chunk >> OF_ONE_SIZE)) {
                (chunk, filled) = (chunk + 1, 0);
            }
            assert_eq!(place(index), (chunk, filled), "{index}");
            filled += 1;
        }
        assert!(place(u32::MAX).0 < CHUNKS);
    }

    #[test]
    fn a_slot_stays_where_it_was_made() {
        let arena = Arena::new();
        assert!(arena.get(100).is_none());
        let made = arena.get_or_make(100, |index| index).unwrap();
        arena.get_or_make(5_000, |index| index).unwrap();
        assert!(std::ptr::eq(made, arena.get(100).unwrap()));
        assert!([96, 100, 111, 5_000].map(|index| *arena.get(index).unwrap()) == [96, 100, 111, 5_000]);
    }
}
