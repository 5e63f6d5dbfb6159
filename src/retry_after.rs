//! `Retry-After` (RFC 9110, 10.2.3): how long an origin asks to be left alone.

use reqwest::header::{HeaderMap, RETRY_AFTER};
use std::time::{Duration, SystemTime};

/// The wait that `headers` ask for, counted from `now`, which is asked for a date alone.
///
/// Seconds, or a date in any of the three forms of RFC 9110, 5.6.7. A past date is no wait; a number that
/// does not fit is the longest one. Anything else, and a header that comes twice, is as good as absent: a
/// guess could keep a healthy origin waiting.
pub(crate) fn retry_after(headers: &HeaderMap, now: impl FnOnce() -> SystemTime) -> Option<Duration> {
    let mut values = headers.get_all(RETRY_AFTER).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return None;
    };
    let value = value.to_str().ok()?.trim();
    if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(Duration::from_secs(value.parse().unwrap_or(u64::MAX)));
    }
    let date = httpdate::parse_http_date(value).ok()?;
    Some(date.duration_since(now()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use reqwest::header::HeaderValue;

    /// Sun, 06 Nov 1994 08:49:37 GMT, the date of the examples in RFC 9110.
    const THEN: Duration = Duration::from_secs(784_111_777);

    fn parsed(values: &[&[u8]], seconds_before: u64) -> Option<Duration> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(RETRY_AFTER, HeaderValue::from_bytes(value).unwrap());
        }
        retry_after(&headers, || SystemTime::UNIX_EPOCH + THEN - Duration::from_secs(seconds_before))
    }

    #[test]
    fn seconds_and_every_form_of_date_are_understood() {
        let minute = Some(Duration::from_secs(60));
        for value in [
            "60",
            " 60 ",
            "0060",
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
        ] {
            assert_eq!(parsed(&[value.as_bytes()], 60), minute, "{value}");
        }
    }

    #[test]
    fn a_past_date_is_no_wait_and_a_huge_number_the_longest() {
        let mut headers = HeaderMap::new();
        headers.append(RETRY_AFTER, HeaderValue::from_static("Sun, 06 Nov 1994 08:49:37 GMT"));
        assert_eq!(retry_after(&headers, SystemTime::now), Some(Duration::ZERO));
        let longest = Some(Duration::from_secs(u64::MAX));
        assert_eq!(parsed(&[b"99999999999999999999999999"], 0), longest);
    }

    #[test]
    fn what_is_malformed_negative_or_repeated_is_ignored() {
        for values in [
            &[b"-1".as_slice()][..],
            &[b"+1"],
            &[b""],
            &[b"1.5"],
            &[b"1s"],
            &[b"soon"],
            &[b"\xff\xfe"],
            &[b"Sun, 99 Nov 1994 08:49:37 GMT"],
            &[b"1", b"2"],
            &[b"1", b"1"],
            &[],
        ] {
            assert_eq!(parsed(values, 0), None, "{values:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_bytes_make_it_panic(value in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(value) = HeaderValue::from_bytes(&value) {
                let headers = HeaderMap::from_iter([(RETRY_AFTER, value)]);
                let _ = retry_after(&headers, || SystemTime::UNIX_EPOCH + THEN);
            }
        }

        #[test]
        fn no_text_that_resembles_a_date_makes_it_panic(value in "[A-Z][a-z]{2,8},? [0-9 -]{1,4}[A-Za-z]{0,3}[ -][0-9]{0,5} [0-9:]{0,9}( GMT)?") {
            let headers = HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_str(&value).unwrap())]);
            let _ = retry_after(&headers, || SystemTime::UNIX_EPOCH + THEN);
        }
    }
}
