//! Where a request goes, borrowed from its URL.

use reqwest::Url;
use std::fmt;

/// `scheme://host:port` without an allocation.
///
/// The host is as the URL standard leaves it: lower case, IDN in its ASCII form, IPv6 in brackets. Userinfo,
/// path and query are no part of it, so no secret gets into a log through it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OriginRef<'a> {
    pub(crate) scheme: &'a str,
    pub(crate) host: &'a str,
    pub(crate) port: u16,
}

impl<'a> OriginRef<'a> {
    /// The origin of `url`; none without a host or a known port.
    pub(crate) fn of(url: &'a Url) -> Option<Self> {
        Some(Self { scheme: url.scheme(), host: host_of(url)?, port: url.port_or_known_default()? })
    }
}

/// The host of `url`, by the name that all its spellings have in common.
#[inline]
pub(crate) fn host_of(url: &Url) -> Option<&str> {
    url.host_str().map(without_root_dot)
}

impl fmt::Display for OriginRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}:{}", self.scheme, self.host, self.port)
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
