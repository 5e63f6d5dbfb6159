//! What the binaries `timing` and `memory` have in common: the scripted chain, and the ratios that count.

pub mod chain;
pub mod ratio;
