//! The key of a slot, to be read while it may change.

use crate::{
    key::KeyRef,
    sync::{AtomicU64, Ordering},
};
use std::sync::OnceLock;

/// Words of text beside the numbers: with them they fill one cache line.
const NEAR: usize = 6;
/// Words for longer text, made when the first one comes. In all as much as the longest name of a host.
const FAR: usize = 26;
const WORD: usize = size_of::<u64>();
/// The head of a key that does not fit. No key that does has this one: it would be too long.
const UNWRITTEN: u64 = u64::MAX;

/// Who owns a slot, and under which key: what a lookup compares with, without a lock.
///
/// ```text
///   writer, one at a time              reader
///   1. owner := 0                      1. owner (acquire)
///   2. head, text := the new key       2. head, text (acquire): as asked for?
///      (release)                       3. owner: still the same?
///   3. owner := the new one (release)
/// ```
///
/// A reader that saw any part of a new key also sees that the owner of the old one has gone.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Label {
    /// 0: nobody.
    owner: AtomicU64,
    /// What is not text.
    head: AtomicU64,
    near: [AtomicU64; NEAR],
    far: OnceLock<Box<[AtomicU64; FAR]>>,
}

impl Label {
    pub(super) fn blank() -> Self {
        Self {
            owner: AtomicU64::new(0),
            head: AtomicU64::new(0),
            near: std::array::from_fn(|_| AtomicU64::new(0)),
            far: OnceLock::new(),
        }
    }

    /// The owner, if its key is `key`.
    #[inline]
    pub(super) fn owner(&self, key: KeyRef<'_>) -> Option<u64> {
        let owner = self.owner.load(Ordering::Acquire);
        if owner == 0 || self.head.load(Ordering::Acquire) != key.head() {
            return None;
        }
        let (near, far) = halves(key);
        if !reads(&self.near, near) || !(far.is_empty() || reads(&**self.far.get()?, far)) {
            return None;
        }
        (self.owner.load(Ordering::Relaxed) == owner).then_some(owner)
    }

    /// Whose the slot is, for the one who writes.
    pub(super) fn tenancy(&self) -> u64 {
        self.owner.load(Ordering::Relaxed)
    }

    /// From now on nobody finds the owner here.
    pub(super) fn clear(&self) {
        self.owner.store(0, Ordering::Relaxed);
    }

    /// Writes the key of a new owner over that of one that was cleared. One at a time. A key that does not
    /// fit is not written: it is compared where newcomers are.
    pub(super) fn write(&self, key: KeyRef<'_>, owner: u64) {
        let (near, far) = halves(key);
        if FAR * WORD < far.len() {
            self.head.store(UNWRITTEN, Ordering::Release);
        } else {
            self.head.store(key.head(), Ordering::Release);
            write(&self.near, near);
            if !far.is_empty() {
                let words = || Box::new(std::array::from_fn(|_| AtomicU64::new(0)));
                write(&**self.far.get_or_init(words), far);
            }
        }
        self.owner.store(owner, Ordering::Release);
    }
}

/// The text of a key: what goes beside the numbers, and what is left.
#[inline]
fn halves(key: KeyRef<'_>) -> (&[u8], &[u8]) {
    let text = key.text.as_bytes();
    text.split_at(text.len().min(NEAR * WORD))
}

#[inline]
fn reads(words: &[AtomicU64], text: &[u8]) -> bool {
    let reads = |at: usize, text: u64| words.get(at).is_some_and(|word| word.load(Ordering::Acquire) == text);
    let chunks = text.chunks_exact(WORD);
    let (whole, last) = (chunks.len(), last_word(text, chunks.remainder()));
    last.is_none_or(|last| reads(whole, last)) && chunks.enumerate().all(|(at, chunk)| reads(at, word(chunk)))
}

fn write(words: &[AtomicU64], text: &[u8]) {
    let chunks = text.chunks_exact(WORD);
    let last = last_word(text, chunks.remainder());
    words
        .iter()
        .zip(chunks.map(word).chain(last))
        .for_each(|(word, text)| word.store(text, Ordering::Release));
}

#[inline]
fn word(chunk: &[u8]) -> u64 {
    chunk.try_into().map_or(0, u64::from_le_bytes)
}

/// What is left of a text after its whole words. It reaches back into the last of them where there is one,
/// so that no byte is read alone.
#[inline]
fn last_word(text: &[u8], rest: &[u8]) -> Option<u64> {
    match (rest, text.last_chunk()) {
        ([], _) => None,
        (_, Some(last)) => Some(u64::from_le_bytes(*last)),
        (few, None) => Some(few.iter().fold(0, |word, byte| word << u8::BITS | u64::from(*byte))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;

    #[test]
    fn a_label_is_found_by_the_key_that_was_written_on_it_and_by_no_other() {
        let long = "n".repeat(256);
        let hosts = [1, 7, 8, 9, 47, 48, 49, 56, 63, 64, 200].map(|length| "h".repeat(length));
        let mut texts = vec!["http://h".to_owned(), "h".to_owned(), "http://h:81".to_owned(), long.clone()];
        for host in &hosts {
            texts.extend([host.clone(), format!("https://{host}"), format!("https://{host}x")]);
            texts.extend((0..host.len()).map(|at| {
                let mut name = host.clone().into_bytes();
                name[at] = b'i';
                String::from_utf8(name).unwrap()
            }));
        }
        let mut keys: Vec<_> = texts.iter().map(|text| Key::parse(text).unwrap()).collect();
        keys.dedup();
        let label = Label::blank();
        assert_eq!(label.owner(keys[0].as_ref()), None);
        for (owner, written) in (1..).zip(&keys) {
            label.clear();
            assert_eq!(label.owner(written.as_ref()), None);
            label.write(written.as_ref(), owner);
            for asked in &keys {
                assert_eq!(label.owner(asked.as_ref()), (asked == written).then_some(owner), "{asked:?}");
            }
        }
    }

    #[test]
    fn a_key_that_does_not_fit_is_not_written() {
        let (label, key) = (Label::blank(), Key::parse(&"n".repeat(257)).unwrap());
        label.write(key.as_ref(), 1);
        assert_eq!(label.owner(key.as_ref()), None);
    }
}
