//! Where a request goes, borrowed from its URL.

use reqwest::Url;
use std::fmt;

/// `scheme://host:port` without an allocation.
///
/// The host is as the URL standard leaves it: lower case, IDN in its ASCII form, IPv6 in brackets. Userinfo,
/// path and query are no part of it, so no secret gets into a log through it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OriginRef<'a> {
    pub(crate) scheme: Scheme<'a>,
    pub(crate) host: &'a str,
    pub(crate) port: u16,
}

/// The two schemes that nearly all requests have are compared as numbers: a lookup is on every call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme<'a> {
    Http,
    Https,
    Other(&'a str),
}

impl<'a> Scheme<'a> {
    #[inline]
    pub(crate) fn of(text: &'a str) -> Self {
        match text {
            "http" => Self::Http,
            "https" => Self::Https,
            other => Self::Other(other),
        }
    }

    #[inline]
    pub(crate) fn as_str(self) -> &'a str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
            Self::Other(text) => text,
        }
    }
}

impl<'a> OriginRef<'a> {
    /// The origin of `url`; none without a host or a known port.
    #[allow(clippy::inline_always, reason = "handed back through memory, it would stall who reads it")]
    #[inline(always)]
    pub(crate) fn of(url: &'a Url) -> Option<Self> {
        let scheme = Scheme::of(url.scheme());
        let port = match (url.port(), scheme) {
            (Some(port), _) => port,
            (None, Scheme::Http) => 80,
            (None, Scheme::Https) => 443,
            (None, Scheme::Other(_)) => url.port_or_known_default()?,
        };
        Some(Self { scheme, host: without_root_dot(url.host_str()?), port })
    }
}

impl fmt::Display for OriginRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}:{}", self.scheme.as_str(), self.host, self.port)
    }
}

/// `localhost.` names the same host as `localhost`: the dot is the root of DNS (RFC 1034, 3.1). What ends in
/// two dots is no name of a host, and left alone.
#[inline]
fn without_root_dot(host: &str) -> &str {
    match host.strip_suffix('.') {
        Some(relative) if !relative.is_empty() && !relative.ends_with('.') => relative,
        _ => host,
    }
}
