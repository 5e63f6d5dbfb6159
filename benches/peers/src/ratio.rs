//! What is compared with its bound.

use std::fmt;

/// Ratios, in the order in which they were found.
#[derive(Debug, Default)]
pub struct Ratios(Vec<Ratio>);

#[derive(Debug)]
struct Ratio {
    name: String,
    value: f64,
    bound: f64,
}

impl Ratios {
    /// Notes that `value` must be at most `bound`.
    pub fn note(&mut self, name: impl Into<String>, value: f64, bound: f64) {
        self.0.push(Ratio { name: name.into(), value, bound });
    }
}

/// One line for each: `ratio <name> <value> <bound> <ok|short>`.
impl fmt::Display for Ratios {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Ratio { name, value, bound } in &self.0 {
            let verdict = if value <= bound { "ok" } else { "short" };
            writeln!(f, "ratio {name} {value:.3} {bound:.3} {verdict}")?;
        }
        Ok(())
    }
}

/// The middle of `values`.
///
/// # Panics
///
/// Where there are none.
#[must_use]
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
