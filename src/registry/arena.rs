//! Slots that stay where they are.

use std::sync::OnceLock;

/// The size of the first chunk, as a power of two. Four chunks have the same size, the next four twice that:
/// so less than a quarter of the places is made for nobody.
const FIRST: u32 = 4;
/// How many chunks have one size, as a power of two.
const OF_ONE_SIZE: u32 = 2;
/// How many bits of an address tell the place within a chunk.
const PLACE_BITS: u32 = 25;
/// As many as have places that fit those bits: for 268 million slots.
const CHUNKS: usize = ((PLACE_BITS - FIRST + 1) << OF_ONE_SIZE) as usize;

/// An append-only list whose elements never move, so that `&self` hands out references that last.
#[derive(Debug)]
pub(super) struct Arena<T> {
    chunks: [OnceLock<Box<[T]>>; CHUNKS],
}

/// Where the slot of an index is: the chunk in the upper bits, the place within it in the lower. Worked out
/// once, when a slot is taken, and not on the way of every call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Address(u32);

impl Address {
    /// None for an index beyond the last slot.
    pub(super) fn of(index: u32) -> Option<Self> {
        // With the size of the first four chunks added, the highest bit tells the size of the chunk, the two
        // below it which of the four, and the rest the place.
        let shifted = u64::from(index) + (1 << (FIRST + OF_ONE_SIZE));
        let doublings = shifted.ilog2() - FIRST - OF_ONE_SIZE;
        let size = FIRST + doublings;
        let chunk = (u64::from(doublings) << OF_ONE_SIZE) + (shifted >> size) - (1 << OF_ONE_SIZE);
        let place = shifted & ((1 << size) - 1);
        u32::try_from(chunk << PLACE_BITS | place).ok().filter(|_| size <= PLACE_BITS).map(Self)
    }

    pub(super) const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    pub(super) const fn bits(self) -> u32 {
        self.0
    }

    #[inline]
    const fn chunk(self) -> usize {
        (self.0 >> PLACE_BITS) as usize
    }

    #[inline]
    const fn place(self) -> usize {
        (self.0 & ((1 << PLACE_BITS) - 1)) as usize
    }
}

impl<T> Arena<T> {
    pub(super) fn new() -> Self {
        Self { chunks: [const { OnceLock::new() }; CHUNKS] }
    }

    /// The slot at `address`; none where no chunk was made for it.
    #[inline]
    pub(super) fn get(&self, address: Address) -> Option<&T> {
        self.chunks.get(address.chunk())?.get()?.get(address.place())
    }

    /// The slot at `address`, its chunk made with `make`, which is told the address of each, where there is
    /// none.
    pub(super) fn get_or_make(&self, address: Address, make: impl Fn(Address) -> T) -> Option<&T> {
        let first = address.0 & !((1 << PLACE_BITS) - 1);
        let length = 1_u32 << (FIRST as usize + (address.chunk() >> OF_ONE_SIZE));
        let make = || (first..first + length).map(|bits| make(Address(bits))).collect();
        self.chunks.get(address.chunk())?.get_or_init(make).get(address.place())
    }
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
            let address = Address::of(index).unwrap();
            assert_eq!((address.chunk(), address.place()), (chunk, filled), "{index}");
            filled += 1;
        }
    }

    #[test]
    fn the_last_index_fills_the_last_chunk() {
        let last = (0..u32::BITS).rev().fold(0, |last, bit| match Address::of(last | 1 << bit) {
            Some(_) => last | 1 << bit,
            None => last,
        });
        let address = Address::of(last).unwrap();
        assert_eq!((address.chunk(), address.place()), (CHUNKS - 1, (1 << PLACE_BITS) - 1));
        assert!(268_000_000 < last && Address::of(u32::MAX).is_none());
    }

    #[test]
    fn a_slot_stays_where_it_was_made_and_knows_its_address() {
        let arena = Arena::new();
        let [early, late] = [100, 5_000].map(|index| Address::of(index).unwrap());
        assert!(arena.get(early).is_none());
        let made = arena.get_or_make(early, |address| address).unwrap();
        arena.get_or_make(late, |address| address).unwrap();
        assert!(std::ptr::eq(made, arena.get(early).unwrap()));
        assert_eq!([early, late].map(|address| *arena.get(address).unwrap()), [early, late]);
    }
}
