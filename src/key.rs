//! What a circuit is found by.

use crate::{
    error::InvalidKey,
    origin::{OriginRef, host_of},
};
use reqwest::Url;
use std::{
    hash::{Hash, Hasher},
    sync::Arc,
};

/// A key in a registry: an origin or a name, with its text.
///
/// The text is built once, when the key is, and shared by everything that prints it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    text: Arc<str>,
    sort: Sort,
    /// How long the name, or the host within the text, is.
    length: u32,
}

/// A key that borrows from the request: what a lookup takes.
///
/// Who calls a function that is not inlined hands it the parts: they go there in registers, while a key as a
/// whole would be kept in memory for it, and read from there also where it is not called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyRef<'a> {
    pub(crate) sort: Sort,
    /// The name, or the host.
    pub(crate) text: &'a str,
}

/// What a key is besides its text: a name, or the scheme and the port of an origin.
///
/// Nearly all keys are origins of two schemes. One of another scheme, to which no client sends, is known by its
/// text, as if that were a name. No name has `://` in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Sort(u32);

const SEPARATOR: &str = "://";

impl Sort {
    const NAME: Self = Self(0);

    const fn http(port: u16) -> Self {
        Self(1 << u16::BITS | port as u32)
    }

    const fn https(port: u16) -> Self {
        Self(2 << u16::BITS | port as u32)
    }

    /// What the text of such a key begins with.
    const fn prefix(self) -> &'static str {
        match self.0 >> u16::BITS {
            0 => "",
            1 => "http://",
            _ => "https://",
        }
    }

    /// The port of an origin.
    #[allow(clippy::cast_possible_truncation, reason = "the lower half")]
    const fn port(self) -> u16 {
        self.0 as u16
    }
}

impl Key {
    /// A text with `://` is a URL and stands for its origin; any other nonempty text is a name.
    pub(crate) fn parse(text: &str) -> Result<Self, InvalidKey> {
        if text.contains(SEPARATOR) {
            let url = Url::parse(text).map_err(|_| InvalidKey::NOT_A_URL)?;
            return Self::of(&url).ok_or(InvalidKey::NO_ORIGIN);
        }
        if text.is_empty() {
            return Err(InvalidKey::EMPTY);
        }
        Ok(KeyRef::name(text).to_key())
    }

    /// The origin of `url`; none without a host or a known port.
    fn of(url: &Url) -> Option<Self> {
        match KeyRef::of_web(url) {
            Some(key) => Some(key.to_key()),
            None => Some(KeyRef::name(&OriginRef::of(url)?.to_string()).to_key()),
        }
    }

    pub(crate) fn text(&self) -> &Arc<str> {
        &self.text
    }

    pub(crate) fn is_origin(&self) -> bool {
        self.text.contains(SEPARATOR)
    }

    #[inline]
    pub(crate) fn as_ref(&self) -> KeyRef<'_> {
        let start = self.sort.prefix().len();
        let text = self.text.get(start..start + self.length as usize).unwrap_or_default();
        KeyRef { sort: self.sort, text }
    }
}

/// A text that was meant as a key, without what may be a secret in it: userinfo, query and fragment.
pub(crate) fn without_secrets(text: &str) -> String {
    let (scheme, rest) = match text.find(SEPARATOR) {
        Some(at) => text.split_at(at + SEPARATOR.len()),
        None => ("", text),
    };
    // All up to the last @, since a password that was not escaped may hold any other sign of a URL.
    let (cut, rest) = rest.rsplit_once('@').map_or(("", rest), |(_, rest)| ("…@", rest));
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    format!("{scheme}{cut}{rest}")
}

impl<'a> KeyRef<'a> {
    fn name(text: &'a str) -> Self {
        Self { sort: Sort::NAME, text }
    }

    /// The origin of `url`, borrowed from it, or from `made` where it had to be made; none without a host or a
    /// known port.
    #[inline]
    pub(crate) fn of(url: &'a Url, made: &'a mut Option<Key>) -> Option<Self> {
        Self::of_web(url).or_else(|| Some(made.insert(Key::of(url)?).as_ref()))
    }

    /// The origin of a URL with one of the two schemes that clients send to.
    #[allow(clippy::inline_always, reason = "handed back through memory, it would stall who reads it")]
    #[inline(always)]
    pub(crate) fn of_web(url: &'a Url) -> Option<Self> {
        let sort = match url.scheme().strip_prefix("http") {
            Some("") => Sort::http(url.port().unwrap_or(80)),
            Some("s") => Sort::https(url.port().unwrap_or(443)),
            _ => return None,
        };
        Some(Self { sort, text: host_of(url)? })
    }

    /// All but the text, in one word.
    #[inline]
    pub(crate) fn head(self) -> u64 {
        u64::from(self.sort.0) << u32::BITS ^ self.text.len() as u64
    }

    /// Whether `text` is the text of this key.
    pub(crate) fn is_written(self, text: &str) -> bool {
        let rest = text.strip_prefix(self.sort.prefix()).and_then(|rest| rest.strip_prefix(self.text));
        if self.sort == Sort::NAME {
            return rest == Some("");
        }
        let port = rest.and_then(|rest| rest.strip_prefix(':')?.parse().ok());
        port == Some(self.sort.port())
    }

    pub(crate) fn to_key(self) -> Key {
        let Self { sort, text } = self;
        let written: Arc<str> = match sort {
            Sort::NAME => text.into(),
            _ => format!("{}{text}:{}", sort.prefix(), sort.port()).into(),
        };
        // The parts of a URL are shorter than 4 GiB: `url` refuses longer ones.
        Key { text: written, sort, length: u32::try_from(text.len()).unwrap_or(u32::MAX) }
    }
}

/// The text in one write and the rest in one word: a lookup is on every call.
impl Hash for KeyRef<'_> {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write(self.text.as_bytes());
        state.write_u64(self.head());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hash::{BuildHasher, RandomState};

    #[test]
    fn a_borrowed_key_finds_what_was_stored_under_it_and_nothing_else() {
        let texts = [
            "https://h",
            "http://h",
            "http://h:443",
            "https://hh",
            "http://[::1]:80",
            "ws://h:443",
            "h",
            "h:443",
            "https",
        ];
        let state = RandomState::new();
        for stored in texts {
            let stored = Key::parse(stored).unwrap();
            for asked in texts {
                let asked = Key::parse(asked).unwrap();
                let same = stored.text() == asked.text();
                assert_eq!(asked.as_ref() == stored.as_ref(), same, "{asked:?} {stored:?}");
                assert_eq!(asked.as_ref().is_written(stored.text()), same, "{asked:?} {stored:?}");
                assert!(!same || state.hash_one(asked.as_ref()) == state.hash_one(stored.as_ref()));
            }
        }
    }

    #[test]
    fn the_text_of_a_key_is_the_key() {
        for text in ["http://a", "http://a.", "http://a..", "http://.", "https://[::1]", "reports"] {
            let key = Key::parse(text).unwrap();
            assert_eq!(Key::parse(key.text()), Ok(key));
        }
    }

    #[test]
    fn a_text_is_printed_without_its_secrets() {
        for (text, printed) in [
            ("http://u:s3cret@h:99999/p?token=abc", "http://…@h:99999/p"),
            ("http://a@b@h#s3cret", "http://…@h"),
            ("http://u:s3/cr?et@h/p", "http://…@h/p"),
            ("u:s3cret@h", "…@h"),
            ("://", "://"),
            ("reports", "reports"),
            ("", ""),
        ] {
            assert_eq!(without_secrets(text), printed);
        }
    }

    #[test]
    fn what_is_no_key_says_why() {
        for (text, error) in [
            ("", InvalidKey::EMPTY),
            ("http://", InvalidKey::NOT_A_URL),
            ("://", InvalidKey::NOT_A_URL),
            ("file:///etc/hosts", InvalidKey::NO_ORIGIN),
            ("custom://host", InvalidKey::NO_ORIGIN),
        ] {
            assert_eq!(Key::parse(text), Err(error), "{text}");
        }
    }
}
