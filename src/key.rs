//! What a circuit is found by.

use crate::{
    error::InvalidKey,
    origin::{OriginRef, Scheme},
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
    shape: Shape,
}

/// What the text is made of, so that a borrowed key can be compared with it piece by piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Shape {
    Name,
    Origin { scheme: u32, host: u32, port: u16 },
}

/// A key that borrows from the request: what a lookup takes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum KeyRef<'a> {
    Name(&'a str),
    Origin(OriginRef<'a>),
}

const SEPARATOR: &str = "://";

impl Key {
    /// A text with `://` is a URL and stands for its origin; any other nonempty text is a name.
    pub(crate) fn parse(text: &str) -> Result<Self, InvalidKey> {
        if text.contains(SEPARATOR) {
            let url = Url::parse(text).map_err(|_| InvalidKey::NOT_A_URL)?;
            return OriginRef::of(&url)
                .map(|origin| KeyRef::Origin(origin).to_key())
                .ok_or(InvalidKey::NO_ORIGIN);
        }
        if text.is_empty() {
            return Err(InvalidKey::EMPTY);
        }
        Ok(KeyRef::Name(text).to_key())
    }

    pub(crate) fn text(&self) -> &Arc<str> {
        &self.text
    }

    pub(crate) fn is_origin(&self) -> bool {
        matches!(self.shape, Shape::Origin { .. })
    }

    #[inline]
    pub(crate) fn as_ref(&self) -> KeyRef<'_> {
        match self.shape {
            Shape::Name => KeyRef::Name(&self.text),
            Shape::Origin { port, .. } => {
                KeyRef::Origin(OriginRef { scheme: Scheme::of(self.scheme()), host: self.host(), port })
            }
        }
    }

    #[inline]
    fn scheme(&self) -> &str {
        match self.shape {
            Shape::Name => "",
            Shape::Origin { scheme, .. } => self.text.get(..scheme as usize).unwrap_or_default(),
        }
    }

    #[inline]
    fn host(&self) -> &str {
        match self.shape {
            Shape::Name => &self.text,
            Shape::Origin { scheme, host, .. } => {
                let start = scheme as usize + SEPARATOR.len();
                self.text.get(start..start + host as usize).unwrap_or_default()
            }
        }
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

impl KeyRef<'_> {
    /// Whether `key` is this one.
    #[allow(clippy::inline_always, reason = "a key that goes through memory stalls who reads it")]
    #[inline(always)]
    pub(crate) fn is(&self, key: &Key) -> bool {
        match (self, key.shape) {
            (Self::Name(name), Shape::Name) => **name == *key.text,
            (Self::Origin(origin), Shape::Origin { host, port, .. }) => {
                origin.port == port
                    && origin.host.len() == host as usize
                    && is_begun_by(key.text.as_bytes(), origin)
            }
            _ => false,
        }
    }

    pub(crate) fn to_key(self) -> Key {
        match self {
            Self::Name(name) => Key { text: name.into(), shape: Shape::Name },
            Self::Origin(origin) => Key {
                text: origin.to_string().into(),
                shape: Shape::Origin {
                    scheme: length(origin.scheme.as_str()),
                    host: length(origin.host),
                    port: origin.port,
                },
            },
        }
    }
}

/// The parts of a URL are shorter than 4 GiB: `url` refuses longer ones.
fn length(part: &str) -> u32 {
    u32::try_from(part.len()).unwrap_or(u32::MAX)
}

/// The host, or the name, in one write and the rest folded into one word: a lookup is on every call.
#[allow(clippy::inline_always, reason = "a key that goes through memory stalls who reads it")]
impl Hash for KeyRef<'_> {
    #[inline(always)]
    fn hash<H: Hasher>(&self, state: &mut H) {
        let (text, rest) = match self {
            Self::Name(name) => (*name, 0),
            Self::Origin(origin) => {
                (origin.host, u64::from(origin.port) << 32 | origin.scheme.as_str().len() as u64)
            }
        };
        state.write(text.as_bytes());
        state.write_u64(rest ^ (text.len() as u64) << 48);
    }
}

/// Whether `text` begins with the scheme and the host of `origin`. Bytes: where characters end is known.
#[inline]
fn is_begun_by(text: &[u8], origin: &OriginRef<'_>) -> bool {
    let rest = match origin.scheme {
        Scheme::Http => text.strip_prefix(b"http"),
        Scheme::Https => text.strip_prefix(b"https"),
        Scheme::Other(scheme) => text.strip_prefix(scheme.as_bytes()),
    };
    rest.and_then(|rest| rest.strip_prefix(SEPARATOR.as_bytes()))
        .is_some_and(|rest| rest.starts_with(origin.host.as_bytes()))
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
                assert_eq!(asked.as_ref().is(&stored), same, "{asked:?} {stored:?}");
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
