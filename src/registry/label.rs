//! The key of a slot, to be read while it may change.

use crate::{
    key::KeyRef,
    origin::Scheme,
    sync::{AtomicU64, Ordering},
};
use std::sync::OnceLock;

/// Words of text beside the numbers: with them they fill one cache line.
const NEAR: usize = 6;
/// Words for longer text, made when the first one comes. In all as much as the longest name of a host.
const FAR: usize = 26;
const WORD: usize = size_of::<u64>();

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
    /// 0: nobody, or somebody whose key fits no label.
    owner: AtomicU64,
    /// The length of the text, and what is not text.
    head: AtomicU64,
    near: [AtomicU64; NEAR],
    far: OnceLock<Box<[AtomicU64]>>,
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
    #[allow(clippy::inline_always, reason = "a key that goes through memory stalls who reads it")]
    #[inline(always)]
    pub(super) fn owner(&self, key: KeyRef<'_>) -> Option<u64> {
        let owner = self.owner.load(Ordering::Acquire);
        let (head, text) = parts(key)?;
        if owner == 0 || self.head.load(Ordering::Acquire) != head {
            return None;
        }
        let (near, far) = text.split_at(text.len().min(NEAR * WORD));
        if !reads(&self.near, near) || !(far.is_empty() || reads(self.far.get()?, far)) {
            return None;
        }
        (self.owner.load(Ordering::Relaxed) == owner).then_some(owner)
    }

    /// From now on nobody finds the owner here.
    pub(super) fn clear(&self) {
        self.owner.store(0, Ordering::Relaxed);
    }

    /// Writes the key of a new owner over that of one that was cleared. One at a time. A key that does not
    /// fit is not written.
    pub(super) fn write(&self, key: KeyRef<'_>, owner: u64) {
        let Some((head, text)) = parts(key) else {
            return;
        };
        self.head.store(head, Ordering::Release);
        let (near, far) = text.split_at(text.len().min(NEAR * WORD));
        write(&self.near, near);
        if !far.is_empty() {
            write(self.far.get_or_init(|| (0..FAR).map(|_| AtomicU64::new(0)).collect()), far);
        }
        self.owner.store(owner, Ordering::Release);
    }
}

/// The number and the text of a key. None where the text is longer than that of any host, or the scheme one
/// that no client sends: such keys are compared where newcomers are.
#[allow(clippy::inline_always, reason = "a key that goes through memory stalls who reads it")]
#[inline(always)]
fn parts(key: KeyRef<'_>) -> Option<(u64, &[u8])> {
    let (kind, text) = match key {
        KeyRef::Name(name) => (0, name),
        KeyRef::Origin(origin) => {
            let scheme = match origin.scheme {
                Scheme::Http => 1,
                Scheme::Https => 2,
                Scheme::Other(_) => return None,
            };
            (scheme << u16::BITS | u64::from(origin.port), origin.host)
        }
    };
    (text.len() <= (NEAR + FAR) * WORD).then_some((kind << u32::BITS | text.len() as u64, text.as_bytes()))
}

#[inline]
fn reads(words: &[AtomicU64], text: &[u8]) -> bool {
    words.iter().zip(split(text)).all(|(word, text)| word.load(Ordering::Acquire) == text)
}

fn write(words: &[AtomicU64], text: &[u8]) {
    words.iter().zip(split(text)).for_each(|(word, text)| word.store(text, Ordering::Release));
}

/// A text in words. The last one reaches back into the one before it, so that no byte is read alone.
#[inline]
fn split(text: &[u8]) -> impl Iterator<Item = u64> {
    let whole = text.chunks_exact(WORD);
    let last = match (whole.remainder(), text.last_chunk()) {
        ([], _) => None,
        (_, Some(last)) => Some(u64::from_le_bytes(*last)),
        (few, None) => Some(few.iter().fold(0, |word, byte| word << u8::BITS | u64::from(*byte))),
    };
    whole.map(|word| word.try_into().map_or(0, u64::from_le_bytes)).chain(last)
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
        for text in [&*"n".repeat(257), "ws://h"] {
            let label = Label::blank();
            label.write(Key::parse(text).unwrap().as_ref(), 1);
            assert_eq!(label.owner(Key::parse(text).unwrap().as_ref()), None);
        }
    }
}
