//! Slots that stay where they are.

use std::sync::OnceLock;

/// The size of the first chunk; each further one is twice its predecessor.
const FIRST: u32 = 64;
/// Enough for every index that fits an `u32`.
const CHUNKS: usize = 27;

/// An append-only list whose elements never move, so that `&self` hands out references that last.
#[derive(Debug)]
pub(super) struct Arena<T> {
    chunks: [OnceLock<Box<[T]>>; CHUNKS],
}

impl<T> Arena<T> {
    pub(super) fn new() -> Self {
        Self {
            chunks: [const { OnceLock::new() }; CHUNKS],
        }
    }

    /// The slot of `index`; none where no chunk was made for it.
    #[inline]
    pub(super) fn get(&self, index: u32) -> Option<&T> {
        let (chunk, offset) = place(index);
        self.chunks.get(chunk)?.get()?.get(offset)
    }

    /// The slot of `index`, its chunk made with `make` where there is none; none beyond the last index.
    pub(super) fn get_or_make(&self, index: u32, make: impl Fn() -> T) -> Option<&T> {
        let (chunk, offset) = place(index);
        let length = (FIRST as usize) << chunk;
        self.chunks
            .get(chunk)?
            .get_or_init(|| (0..length).map(|_| make()).collect())
            .get(offset)
    }
}

/// Which chunk, and where in it: with the first chunk's size added, the highest bit tells the chunk.
#[inline]
fn place(index: u32) -> (usize, usize) {
    let shifted = u64::from(index) + u64::from(FIRST);
    let chunk = shifted.ilog2() - FIRST.ilog2();
    let offset = shifted - (u64::from(FIRST) << chunk);
    (chunk as usize, usize::try_from(offset).unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_fill_one_chunk_after_the_other() {
        for (index, at) in [
            (0, (0, 0)),
            (63, (0, 63)),
            (64, (1, 0)),
            (191, (1, 127)),
            (192, (2, 0)),
        ] {
            assert_eq!(place(index), at);
        }
        let (chunk, offset) = place(u32::MAX);
        assert!(chunk < CHUNKS && offset < (FIRST as usize) << chunk);
    }

    #[test]
    fn a_slot_stays_where_it_was_made() {
        let arena = Arena::new();
        assert!(arena.get(100).is_none());
        let made = arena.get_or_make(100, || 7_u8).unwrap();
        arena.get_or_make(5_000, || 8).unwrap();
        assert!(std::ptr::eq(made, arena.get(100).unwrap()));
    }
}
