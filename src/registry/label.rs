//! The key of a slot, to be read while it may change.

use crate::{
    key::KeyRef,
    sync::{AtomicU64, Ordering},
};
use std::sync::OnceLock;

/// Words of text in a stretch. The first one, with the numbers beside it, fills a cache line.
const WORDS: usize = 6;
const WORD: usize = size_of::<u64>();
/// A longer text is not written. No name of a host comes near it.
const LONGEST: usize = 4_096;
/// The head of a key that is not written. No key that is has this one: it would be too long.
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
    /// The length of the text, and what is not text.
    head: AtomicU64,
    text: Stretch,
}

/// A part of a text, and the rest of it. What was made for a long text stays for the next one.
#[derive(Debug)]
#[repr(C)]
struct Stretch {
    words: [AtomicU64; WORDS],
    rest: OnceLock<Box<Self>>,
}

impl Label {
    pub(super) fn blank() -> Self {
        Self { owner: AtomicU64::new(0), head: AtomicU64::new(0), text: Stretch::blank() }
    }

    /// The owner, if its key is `key`.
    #[inline]
    pub(super) fn owner(&self, key: KeyRef<'_>) -> Option<u64> {
        let owner = self.owner.load(Ordering::Acquire);
        if owner == 0 || self.head.load(Ordering::Acquire) != key.head() {
            return None;
        }
        let (text, rest) = first_stretch(key.text.as_bytes());
        if !reads(&self.text.words, text) || !(rest.is_empty() || self.text.goes_on(rest)) {
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

    /// Writes the key of a new owner over that of one that was cleared. One at a time. A key that is too long
    /// is compared where newcomers are.
    pub(super) fn write(&self, key: KeyRef<'_>, owner: u64) {
        if key.text.len() <= LONGEST {
            self.head.store(key.head(), Ordering::Release);
            self.text.write(key.text.as_bytes());
        } else {
            self.head.store(UNWRITTEN, Ordering::Release);
        }
        self.owner.store(owner, Ordering::Release);
    }
}

impl Stretch {
    fn blank() -> Self {
        Self { words: std::array::from_fn(|_| AtomicU64::new(0)), rest: OnceLock::new() }
    }

    fn write(&self, text: &[u8]) {
        let (text, mut rest) = first_stretch(text);
        write(&self.words, text);
        let mut stretch = self;
        while !rest.is_empty() {
            let text;
            (text, rest) = first_stretch(rest);
            stretch = stretch.rest.get_or_init(|| Box::new(Self::blank()));
            write(&stretch.words, text);
        }
    }

    /// Whether the stretches after this one read `rest`.
    fn goes_on(&self, mut rest: &[u8]) -> bool {
        let mut stretch = self;
        while !rest.is_empty() {
            let text;
            (text, rest) = first_stretch(rest);
            match stretch.rest.get() {
                Some(next) if reads(&next.words, text) => stretch = next,
                _ => return false,
            }
        }
        true
    }
}

/// What of a text fits one stretch, and what is left.
#[inline]
fn first_stretch(text: &[u8]) -> (&[u8], &[u8]) {
    text.split_at(text.len().min(WORDS * WORD))
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
        let hosts = [1, 7, 8, 9, 47, 48, 49, 56, 63, 64, 96, 97, 200].map(|length| "h".repeat(length));
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
    fn a_key_that_is_too_long_is_not_written() {
        for (length, owner) in [(LONGEST, Some(1)), (LONGEST + 1, None)] {
            let (label, key) = (Label::blank(), Key::parse(&"n".repeat(length)).unwrap());
            label.write(key.as_ref(), 1);
            assert_eq!(label.owner(key.as_ref()), owner);
        }
    }
}
