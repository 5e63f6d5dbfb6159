//! Hash to address.

use super::arena::Address;
use crate::sync::{AtomicU64, Ordering};
use std::sync::OnceLock;

/// The size of the first table, as a power of two. Each next one is twice as large.
const FIRST: u32 = 6;
/// Enough for all slots there can be.
const TABLES: usize = 28;
/// A cell that leads nowhere. No other is zero: it holds an address, with one added.
const EMPTY: u64 = 0;

/// Which slots may have a key, by its hash. Read without a lock, written by one at a time.
///
/// Open addressing, at most two thirds full: a cell is taken by the first key that comes for it, the next one for
/// the same goes to the next free cell. A cell that is given up is filled with the one that had to go on
/// because of it, so that no search passes what is gone.
///
/// ```text
///   cell   63 …………………… 32   31 ……………… 0
///          │ hash       │   │ address + 1 │
/// ```
///
/// A reader may come by while cells move, or hold a table that was outgrown, and miss a key. It finds no
/// wrong one: the slot knows its key. So who misses asks again where the writing is serialised.
#[derive(Debug)]
pub(super) struct Index {
    tables: [OnceLock<Box<[AtomicU64]>>; TABLES],
    current: AtomicU64,
}

/// The part of a hash that a cell keeps, and begins its search with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tag(u32);

impl Tag {
    /// The upper half of `hash`, which is the better one of many hashes.
    #[inline]
    #[allow(clippy::cast_possible_truncation, reason = "the upper half")]
    pub(super) const fn of(hash: u64) -> Self {
        Self((hash >> u32::BITS) as u32)
    }

    pub(super) const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    pub(super) const fn bits(self) -> u32 {
        self.0
    }

    #[inline]
    fn home(self, table: &[AtomicU64]) -> usize {
        self.0 as usize & (table.len() - 1)
    }
}

impl Index {
    pub(super) fn new() -> Self {
        Self { tables: std::array::from_fn(|_| OnceLock::new()), current: AtomicU64::new(0) }
    }

    /// What `look` sees first at the slots that may have the key.
    #[inline]
    pub(super) fn find<T>(&self, tag: Tag, mut look: impl FnMut(Address) -> Option<T>) -> Option<T> {
        let table = self.table()?;
        let mut at = tag.home(table);
        // Many cells are empty, but one that moves may be met again and again.
        for _ in 0..table.len() {
            let (of, address) = unpack(table.get(at)?.load(Ordering::Acquire))?;
            if of == tag {
                if let Some(found) = look(address) {
                    return Some(found);
                }
            }
            at = next(table, at);
        }
        None
    }

    /// Leads to `address` from now on. `taken` is how many cells are.
    pub(super) fn insert(&self, tag: Tag, address: Address, taken: u32) {
        let taken = u64::from(taken) + 1;
        if self.table().is_none_or(|table| 2 * (table.len() as u64) < 3 * taken) {
            self.grow((3 * taken).div_ceil(2));
        }
        if let Some(table) = self.table() {
            put(table, pack(tag, address));
        }
    }

    /// Leads to `address` no longer.
    pub(super) fn remove(&self, tag: Tag, address: Address) {
        let Some(table) = self.table() else {
            return;
        };
        let gone = pack(tag, address);
        let mut hole = tag.home(table);
        while read(table, hole) != gone {
            if read(table, hole) == EMPTY {
                return;
            }
            hole = next(table, hole);
        }
        let mut at = next(table, hole);
        while let Some((tag, _)) = unpack(read(table, at)) {
            // A cell goes back into the hole unless its search begins behind it.
            if distance(table, hole, at) <= distance(table, tag.home(table), at) {
                write(table, hole, read(table, at));
                hole = at;
            }
            at = next(table, at);
        }
        write(table, hole, EMPTY);
    }

    #[inline]
    fn table(&self) -> Option<&[AtomicU64]> {
        let current = usize::try_from(self.current.load(Ordering::Acquire)).ok()?;
        self.tables.get(current)?.get().map(AsRef::as_ref)
    }

    /// Moves to the first table of so many cells.
    fn grow(&self, cells: u64) {
        let number = cells.next_power_of_two().ilog2().saturating_sub(FIRST);
        let Some(place) = self.tables.get(number as usize) else {
            return;
        };
        let table =
            place.get_or_init(|| (0..1_u64 << (FIRST + number)).map(|_| AtomicU64::new(EMPTY)).collect());
        for cell in self.table().unwrap_or_default() {
            put(table, cell.load(Ordering::Relaxed));
        }
        self.current.store(number.into(), Ordering::Release);
    }
}

#[inline]
fn next(table: &[AtomicU64], at: usize) -> usize {
    (at + 1) & (table.len() - 1)
}

/// How far it is from one cell to another, round the end.
fn distance(table: &[AtomicU64], from: usize, to: usize) -> usize {
    to.wrapping_sub(from) & (table.len() - 1)
}

fn put(table: &[AtomicU64], cell: u64) {
    if let Some((tag, _)) = unpack(cell) {
        let mut at = tag.home(table);
        while read(table, at) != EMPTY {
            at = next(table, at);
        }
        write(table, at, cell);
    }
}

/// For the one who writes.
fn read(table: &[AtomicU64], at: usize) -> u64 {
    table.get(at).map_or(EMPTY, |cell| cell.load(Ordering::Relaxed))
}

fn write(table: &[AtomicU64], at: usize, cell: u64) {
    if let Some(place) = table.get(at) {
        place.store(cell, Ordering::Release);
    }
}

fn pack(Tag(tag): Tag, address: Address) -> u64 {
    u64::from(tag) << u32::BITS | (u64::from(address.bits()) + 1)
}

#[inline]
#[allow(clippy::cast_possible_truncation, reason = "the lower half")]
fn unpack(cell: u64) -> Option<(Tag, Address)> {
    let bits = (cell as u32).checked_sub(1)?;
    Some((Tag::of(cell), Address::from_bits(bits)))
}

#[cfg(all(test, not(reqwest_resilience_loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// Tags of few homes, so that many keys stand in each other's way, round the end of the table too.
        #[test]
        fn an_index_finds_what_a_map_finds(
            steps in prop::collection::vec((prop::sample::select(vec![0_u64, 1, 62, 63]), 0_u64..40, any::<bool>()), 1..400)
        ) {
            let index = Index::new();
            let mut model = BTreeMap::new();
            let mut slots = 0..;
            for (home, round, put) in steps {
                let tag = Tag::of((home + (round << 12)) << 32);
                match (put, model.get(&tag.0).copied()) {
                    (true, None) => {
                        let slot = Address::from_bits(slots.next().unwrap());
                        index.insert(tag, slot, u32::try_from(model.len()).unwrap());
                        model.insert(tag.0, slot);
                    }
                    (false, Some(slot)) => {
                        index.remove(tag, slot);
                        model.remove(&tag.0);
                    }
                    _ => {}
                }
                for (&tag, &slot) in &model {
                    prop_assert_eq!(index.find(Tag(tag), Some), Some(slot));
                }
                let table = index.table().map_or(0, <[_]>::len);
                let led = (0..table).filter(|&at| read(index.table().unwrap(), at) != EMPTY).count();
                prop_assert_eq!(led, model.len());
                prop_assert!(3 * led <= 2 * table);
            }
        }
    }
}
