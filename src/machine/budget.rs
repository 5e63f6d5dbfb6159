//! How many retries a key may have.
//!
//! After Finagle's `RetryBudget`: calls deposit, retries withdraw, and what is older than the window is gone.

use super::{
    Expendable,
    tick::Tick,
    trip::BILLION,
    window::{BUCKETS, Window, place, width},
};
use crate::sync::{AtomicU64, Mutex, Ordering, lock};
use std::time::Duration;

/// What a budget allows, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BudgetRule {
    /// Retries per call, in billionths.
    pub(crate) ratio: u64,
    pub(crate) min_per_second: u32,
    pub(crate) window: Duration,
}

impl Default for BudgetRule {
    fn default() -> Self {
        Self { ratio: u64::from(BILLION) / 5, min_per_second: 10, window: Duration::from_secs(10) }
    }
}

/// The shortest window, so that stamps last.
pub(crate) const SHORTEST_WINDOW: Duration = Duration::from_millis(10);

impl BudgetRule {
    /// How many retries a window may hold in which there were this many calls.
    pub(crate) fn allowance(&self, calls: u64) -> u64 {
        let earned = u128::from(calls) * u128::from(self.ratio) / u128::from(BILLION);
        let floor = self.window.as_nanos() * u128::from(self.min_per_second) / u128::from(BILLION);
        u64::try_from(earned + floor).unwrap_or(u64::MAX)
    }
}

/// The bits of a deposit bucket that count calls; a bucket that is full keeps its count, which makes the
/// budget stingier, never more generous.
const COUNT_BITS: u32 = 28;
const FULL: u64 = (1 << COUNT_BITS) - 1;
/// By how many buckets a thread may be late: a minute in the shortest ones.
const LATEST: u64 = 1 << 16;
/// The stamps that fit above. In the shortest buckets they repeat after two years: a key that was idle for
/// just so long, to the minute, would have its first calls not counted.
const STAMPS: u64 = 1 << (u64::BITS - COUNT_BITS);
/// By how much the stamps of an owner lie behind those of the next: more than any window reaches.
const GENERATION: u64 = 2 * BUCKETS as u64;

/// The budget of one key, shared by threads.
///
/// Deposits are on the way of every call: one compare-and-swap in a ring of stamped buckets, no lock.
/// Withdrawals are on their way to a sleep: they take the lock, so that no two of them spend the same token.
///
/// ```text
///   bucket   63 …………………… 28   27 ………… 0        a bucket whose stamp left the window
///            │ stamp      │   │ calls │        reads as empty; nobody has to clear it
/// ```
///
/// Places are reused. The owner is named by its generation, and its stamps are ahead of the last owner's by
/// more than a window. So whoever deposits for an owner that is gone writes a stamp that the new one does not
/// count.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct BudgetCell {
    /// Nanoseconds of one bucket. Read by every deposit, so away from what every deposit writes.
    width: u64,
    rule: BudgetRule,
    ledger: Mutex<Ledger>,
    deposits: [AtomicU64; BUCKETS],
}

#[derive(Debug)]
struct Ledger {
    generation: u64,
    withdrawals: Window,
    /// The latest time that was asked by. Deposits and withdrawals have to be summed up to the same time, or
    /// those who read the clock just before a bucket left the window would see its deposits without its
    /// withdrawals.
    latest: Tick,
}

impl Ledger {
    /// `now`, or a later time that somebody asked by before.
    fn time(&mut self, now: Tick) -> Tick {
        self.latest = self.latest.max(now);
        self.latest
    }
}

impl BudgetCell {
    pub(crate) fn new(rule: BudgetRule) -> Self {
        Self {
            rule,
            width: width(rule.window),
            deposits: std::array::from_fn(|_| AtomicU64::new(0)),
            ledger: Mutex::new(Ledger {
                // Above zero, so that a bucket never written to is older than every window.
                generation: 1,
                withdrawals: Window::over(rule.window),
                latest: Tick::ZERO,
            }),
        }
    }

    /// A call was sent for the owner `generation`.
    ///
    /// Relaxed throughout: a bucket is one word, so an addition always sees the latest. That a withdrawal
    /// sees the deposits made before it comes from the order of one thread, or from the lock for those of
    /// other withdrawers.
    #[inline]
    pub(crate) fn deposit(&self, generation: u64, now: Tick) {
        let stamp = self.stamp(generation, now);
        let Some(bucket) = self.deposits.get(place(stamp)) else {
            return;
        };
        let mut seen = bucket.load(Ordering::Relaxed);
        loop {
            let filled = if seen >> COUNT_BITS == stamp {
                seen + u64::from(seen & FULL < FULL)
            } else if is_ahead(seen >> COUNT_BITS, stamp) {
                // The bucket has gone round the ring: this call is older than the window, or the owner gone.
                return;
            } else {
                stamp << COUNT_BITS | 1
            };
            match bucket.compare_exchange_weak(seen, filled, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return,
                Err(newer) => seen = newer,
            }
        }
    }

    /// Takes a token for one retry of the owner `generation`, if the window has one left; `None`: the place
    /// has gone to another.
    pub(crate) fn withdraw(&self, generation: u64, now: Tick) -> Option<bool> {
        let mut ledger = lock(&self.ledger);
        if ledger.generation != generation {
            return None;
        }
        let now = ledger.time(now);
        let spent = ledger.withdrawals.counts(now).calls;
        let granted = spent < self.rule.allowance(self.calls(generation, now));
        if granted {
            ledger.withdrawals.record(false, now);
        }
        Some(granted)
    }

    /// Only a budget that nobody could tell from a new one is given up: any other still bounds somebody.
    pub(crate) fn expendable(&self, now: Tick) -> Option<Expendable> {
        self.is_blank(&mut lock(&self.ledger), now).then_some(Expendable::Fresh)
    }

    /// Ends the ownership, if the budget may still be given up.
    pub(crate) fn evict(&self, now: Tick) -> Option<()> {
        let mut ledger = lock(&self.ledger);
        if !self.is_blank(&mut ledger, now) {
            return None;
        }
        ledger.generation = ledger.generation.wrapping_add(1);
        Some(())
    }

    /// Who owns the place now.
    pub(crate) fn generation(&self) -> u64 {
        lock(&self.ledger).generation
    }

    fn is_blank(&self, ledger: &mut Ledger, now: Tick) -> bool {
        let now = ledger.time(now);
        self.calls(ledger.generation, now) == 0 && ledger.withdrawals.counts(now).calls == 0
    }

    /// The calls in the window that ends now, and those that a clock read later than this one has stamped
    /// already.
    fn calls(&self, generation: u64, now: Tick) -> u64 {
        let newest = self.stamp(generation, now);
        let oldest = newest.wrapping_sub(BUCKETS as u64 - 1) % STAMPS;
        let buckets = self.deposits.iter().map(|bucket| bucket.load(Ordering::Relaxed));
        buckets
            .filter(|bucket| (bucket >> COUNT_BITS).wrapping_sub(oldest) % STAMPS < GENERATION)
            .map(|bucket| bucket & FULL)
            .sum()
    }

    #[inline]
    fn stamp(&self, generation: u64, now: Tick) -> u64 {
        let number = now.nanos() / self.width;
        number.wrapping_add(generation.wrapping_mul(GENERATION)) % STAMPS
    }
}

/// Whether the stamp `a` comes after `b`, on a circle. Only by so much as a thread may be late: what is
/// further ahead is a stamp from before the circle began anew, after long idling.
fn is_ahead(a: u64, b: u64) -> bool {
    (1..LATEST).contains(&(a.wrapping_sub(b) % STAMPS))
}
