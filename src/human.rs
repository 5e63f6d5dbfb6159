//! Durations as a person reads them.

use std::{fmt, time::Duration};

/// Prints a duration as `15 ms`, `12.3 s`, `45 min` or `26 h`; rounded up, so that a wait is never
/// understated.
#[derive(Clone, Copy)]
pub(crate) struct Human(pub(crate) Duration);

impl fmt::Display for Human {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_nanos().div_ceil(1_000_000);
        match millis {
            0..1_000 => write!(f, "{millis} ms"),
            1_000..600_000 => {
                let tenths = millis.div_ceil(100);
                write!(f, "{}.{} s", tenths / 10, tenths % 10)
            }
            600_000..7_200_000 => write!(f, "{} min", millis.div_ceil(60_000)),
            _ => write!(f, "{} h", millis.div_ceil(3_600_000)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_in_the_unit_that_suits_them() {
        for (nanos, text) in [
            (0, "0 ms"),
            (1, "1 ms"),
            (999_000_000, "999 ms"),
            (999_000_001, "1.0 s"),
            (12_300_000_000, "12.3 s"),
            (12_300_000_001, "12.4 s"),
            (600_000_000_000, "10 min"),
            (7_200_000_000_000, "2 h"),
        ] {
            assert_eq!(Human(Duration::from_nanos(nanos)).to_string(), text);
        }
    }
}
